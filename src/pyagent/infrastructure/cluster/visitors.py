"""How many connections the door holds, and from which address: an outsider gets a bounded share of it.

Pure: the time is handed in. Where the door is full, the oldest connection of the address that holds most gives way, so
that idle connections, however many, keep no node out.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable

import msgspec

_MAX_ADDRESSES = 4_096


class DoorLimits(msgspec.Struct, frozen=True):
    """What the door grants: connections at a time, in all and for an address, and new ones a second for an address."""

    seconds: float = 16.0
    """A handshake as a whole: on a busy machine it takes seconds, and a full door need not wait for it."""
    num_open: int = 64
    num_open_per_address: int = 16
    per_second: float = 32.0


class Visitor:
    """One connection that is not yet proved."""

    __slots__ = ("address", "hang_up")

    def __init__(self, address: str, hang_up: Callable[[], None]) -> None:
        self.address = address
        self.hang_up = hang_up


class Visitors:
    """The connections of the door."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._open: OrderedDict[Visitor, None] = OrderedDict()
        self._num_by_address: Counter[str] = Counter()
        self._address_to_allowance: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, host: str, hang_up: Callable[[], None], now: float) -> Visitor | None:
        """Return a new visitor, for whom another may have to go; None where its address comes too often."""
        address = _network_of(host)
        if not self._is_within_rate(address, now):
            return None
        if self._num_by_address[address] >= self._limits.num_open_per_address:
            self._hang_up_on(address)
        elif len(self._open) >= self._limits.num_open:
            self._hang_up_on(max(self._num_by_address, key=self._num_by_address.__getitem__))
        visitor = Visitor(address, hang_up)
        self._open[visitor] = None
        self._num_by_address[address] += 1
        return visitor

    def leave(self, visitor: Visitor) -> None:
        """End a visit; safe twice."""
        if visitor not in self._open:
            return
        del self._open[visitor]
        self._num_by_address[visitor.address] -= 1
        if not self._num_by_address[visitor.address]:
            del self._num_by_address[visitor.address]

    def _hang_up_on(self, address: str) -> None:
        oldest = next(visitor for visitor in self._open if visitor.address == address)
        self.leave(oldest)
        oldest.hang_up()

    def _is_within_rate(self, address: str, now: float) -> bool:
        """Whether the address has an allowance left; the address not seen for longest is forgotten first."""
        most = self._limits.per_second
        left, since = self._address_to_allowance.pop(address, (most, now))
        left = min(most, left + (now - since) * most)
        self._address_to_allowance[address] = (left - 1 if left >= 1 else left, now)
        if len(self._address_to_allowance) > _MAX_ADDRESSES:
            self._address_to_allowance.popitem(last=False)
        return left >= 1


def _network_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, the /64 of an IPv6 one, which one machine can have whole."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address) if address.is_link_local else str(ipaddress.ip_network((address, 64), strict=False))
