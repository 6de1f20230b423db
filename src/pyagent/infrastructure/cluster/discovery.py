"""Where there may be doors of the cluster: multicast DNS, the settings' seeds and the peers met before, all at once.

Yields addresses to knock at and trusts none of them. An address is offered again and again, at growing intervals, for
as long as it may lead to a node: what refused once may be there later, and a node that is connected ignores the offer.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pyagent.core.cluster.addresses import read_door
from pyagent.core.errors import ConfigError
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.known_peers import KnownPeers
from pyagent.infrastructure.cluster.multicast import Announcement, Heard, Multicast

_MAX_HEARD = 1_024
_MAX_PER_ID, _MAX_PER_HOST = 4, 16
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_RENEW_SECONDS = 0.1

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
    first_offered_at: float = math.inf

    @property
    def place(self) -> tuple[str, int]:
        return self.door.host, self.door.port


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
                offer.first_offered_at = min(offer.first_offered_at, now)
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
        for address in heard.addresses[:_MAX_PER_ID]:
            self._offer(DoorAddress(address, heard.port, "multicast", heard.node_id, heard.name))

    def _gone(self, node_id: str) -> None:
        self._offers = {
            place: offer
            for place, offer in self._offers.items()
            if offer.door.node_id != node_id or offer.door.source != "multicast"
        }
        self._on_gone(node_id)

    def _offer(self, door: DoorAddress) -> None:
        """Offer an address now if it is new; one that is known keeps its turn, whatever is said to be there.

        Where two nodes are said to be behind one address, neither is believed: it is knocked at to learn which.
        """
        before = self._offers.get((door.host, door.port))
        if before is not None:
            if before.door.node_id not in {door.node_id, ""}:
                before.door = replace(before.door, node_id="", name="")
            return
        if door.source == "multicast":
            forgotten = self._forgotten_for(door)
            if forgotten is None:
                return
            for place in forgotten:
                del self._offers[place]
        self._offers[door.host, door.port] = _Offer(door, asyncio.get_running_loop().time())
        self._changed.set()

    def _forgotten_for(self, door: DoorAddress) -> set[tuple[str, int]] | None:
        """Return the places to forget so that one more announced may be held; None where it may not.

        Anybody can announce any number: an id and a host have few places each, and what led to no node longest goes
        first. Places where a node was met stay, and so do seeds and what was met before this start.
        """
        heard = [offer for offer in self._offers.values() if offer.door.source == "multicast"]
        same_id = [offer for offer in heard if offer.door.node_id == door.node_id]
        same_host = [offer for offer in heard if offer.door.host == door.host]
        forgotten: set[tuple[str, int]] = set()
        for held, most in ((same_id, _MAX_PER_ID), (same_host, _MAX_PER_HOST), (heard, _MAX_HEARD)):
            left = [offer for offer in held if offer.place not in forgotten]
            if len(left) < most:
                continue
            unmet = [offer for offer in left if self._known is None or not self._known.has_met(*offer.place)]
            if not unmet:
                return None
            forgotten.add(min(unmet, key=lambda offer: offer.first_offered_at).place)
        return forgotten


def read_seed(text: str) -> tuple[str, int]:
    """Return host and port of a seed: `host`, `host:port`, `192.0.2.1:8322`, `[2001:db8::1]:8322`, `2001:db8::1`."""
    try:
        return read_door(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no door of a node; expected HOST or HOST:PORT", key="cluster.seeds") from error
