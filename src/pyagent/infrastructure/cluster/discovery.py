"""Where there may be doors of the cluster: multicast DNS, the settings' seeds and the peers met before, all at once.

Yields addresses to knock at and trusts none of them. An address is offered again and again, at growing intervals, for
as long as it may lead to a node: what refused once may be there later, and a node that is connected ignores the offer.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyagent.core.errors import ConfigError
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.known_peers import KnownPeers
from pyagent.infrastructure.cluster.multicast import Announcement, Heard, Multicast

DEFAULT_PORT = 8322
_MAX_ADDRESSES = 1_024
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_RENEW_SECONDS = 0.1

_BRACKETED = re.compile(r"\[([^\s/@\[\]]+)\](?::([0-9]{1,5}))?")
_PLAIN = re.compile(r"((?:[^\s/@\[\]:]+)|(?:[^\s/@\[\]]*:[^\s/@\[\]]*:[^\s/@\[\]]*))(?::([0-9]{1,5}))?")

Source = Literal["multicast", "seed", "cache"]


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """Where a door may be. `node_id` and `name` are what is claimed to be behind it, empty for a seed."""

    host: str
    port: int
    source: Source
    node_id: str = ""
    name: str = ""


@dataclass(slots=True)
class _Offer:
    door: DoorAddress
    due: float
    wait_seconds: float = _FIRST_WAIT_SECONDS


class Discovery:
    """An asynchronous iterator of the addresses of doors, between `start` and `stop`."""

    def __init__(  # noqa: PLR0913 - each is a source, or what to do with it
        self,
        me: NodeKeys | None,
        cluster_tag: str | None,
        door_port: int,
        *,
        name: str = "",
        seeds: Sequence[str] = (),
        known: KnownPeers | None = None,
        multicast: bool = True,
        on_gone: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Make it. Without keys (`me`) nothing is announced; without a tag the doors of every cluster are offered.

        `on_gone` is told the id of a node whose goodbye was heard: a hint that anybody on the network can give. Raises
        `ConfigError` for a seed that is no address.
        """
        self._tag = cluster_tag
        self._my_id = me.node_id if me else ""
        self._seeds = [read_seed(seed) for seed in seeds]
        self._known = known
        self._on_gone = on_gone
        self._offers: dict[tuple[str, int], _Offer] = {}
        self._changed = asyncio.Event()
        self._is_stopped = False
        mine = None if me is None else Announcement(me.node_id, me.public, name, cluster_tag or "", door_port)
        self._multicast = Multicast(mine, self._heard, self._gone, self.renew) if multicast else None

    async def start(self) -> None:
        """Begin to look on all ways at once."""
        for host, port in self._seeds:
            self._offer(DoorAddress(host, port, "seed"))
        known = await asyncio.to_thread(self._known.doors) if self._known else []
        for door in known:
            if door.node_id != self._my_id:
                self._offer(DoorAddress(door.host, door.port, "cache", door.node_id))
        if self._multicast is not None:
            self._multicast.start()

    async def stop(self) -> None:
        """Say goodbye, and end the iteration; safe twice."""
        self._is_stopped = True
        self._changed.set()
        if self._multicast is not None:
            await self._multicast.stop()

    def renew(self) -> None:
        """Offer every address again now: the network changed, or the node is alone."""
        now = asyncio.get_running_loop().time()
        for offer in self._offers.values():
            offer.due, offer.wait_seconds = min(offer.due, now + _RENEW_SECONDS), _FIRST_WAIT_SECONDS
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[DoorAddress]:
        """Iterate over addresses, each when it is due."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[DoorAddress]:
        loop = asyncio.get_running_loop()
        while not self._is_stopped:
            self._changed.clear()
            now = loop.time()
            due = [offer for offer in self._offers.values() if offer.due <= now]
            for offer in due:
                offer.due = now + offer.wait_seconds * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
                offer.wait_seconds = min(_LONGEST_WAIT_SECONDS, 2 * offer.wait_seconds)
                yield offer.door
                if self._is_stopped:
                    return
            if not due:
                next_due = min((offer.due for offer in self._offers.values()), default=now + _LONGEST_WAIT_SECONDS)
                await self._wait(next_due - now)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _heard(self, heard: Heard) -> None:
        if self._tag is not None and heard.cluster_tag != self._tag:
            return
        for address in heard.addresses:
            self._offer(DoorAddress(address, heard.port, "multicast", heard.node_id, heard.name))

    def _gone(self, node_id: str) -> None:
        self._offers = {
            place: offer
            for place, offer in self._offers.items()
            if offer.door.node_id != node_id or offer.door.source != "multicast"
        }
        self._on_gone(node_id)

    def _offer(self, door: DoorAddress) -> None:
        """Offer an address now if it is new, or another node is said to be there; else it keeps its turn.

        In a flood of announcements the oldest is forgotten, which was offered already.
        """
        place = (door.host, door.port)
        before = self._offers.get(place)
        if before is not None and before.door.node_id in {door.node_id, ""} and before.door.source != "cache":
            return
        if before is None and len(self._offers) >= _MAX_ADDRESSES:
            oldest = (place for place, offer in self._offers.items() if offer.door.source == "multicast")
            del self._offers[next(oldest, next(iter(self._offers)))]
        self._offers[place] = _Offer(door, asyncio.get_running_loop().time())
        self._changed.set()


def read_seed(text: str) -> tuple[str, int]:
    """Return host and port of a seed: `host`, `host:port`, `192.0.2.1:8322`, `[2001:db8::1]:8322`, `2001:db8::1`."""
    match = _BRACKETED.fullmatch(text.strip()) or _PLAIN.fullmatch(text.strip())
    host, port = (match[1] or "", match[2]) if match else ("", None)
    is_number = port is None or (port.isdigit() and 0 < int(port) < 65_536)
    if not host or not is_number:
        raise ConfigError(f"{text!r} is no door of a node; expected HOST or HOST:PORT", key="cluster.seeds")
    return host, int(port) if port else DEFAULT_PORT
