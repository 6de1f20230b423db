"""Doors announced and found by multicast DNS (RFC 6762, 6763), on each interface by itself.

A leg is one address family of one interface: it has its own sockets, so that what fails on one leaves the others alone,
and one that fails is tried again for as long as the interface is there. What is heard comes from anybody on the
network: it is bounded, checked, and taken as a hint where to knock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyagent.core.cluster.cluster_state import NODE_ID, clean_name
from pyagent.infrastructure.cluster.handshake import HELLO
from pyagent.infrastructure.cluster.interfaces import FAMILIES, Family, Interface, interfaces, is_on_link

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

SERVICE_TYPE = "_pyagent._tcp.local."
_WATCH_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
_RESOLVE_MILLIS = 3_000
_GOODBYE_SECONDS = 1.0
_MAX_RESOLVING = 64
_TOLD_FAILURE = 3
_MAX_ADDRESSES = 8

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says of its door: nothing secret."""

    node_id: str
    public: str
    name: str
    cluster_tag: str
    port: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Another node's announcement, as it was heard: a claim."""

    node_id: str
    name: str
    cluster_tag: str
    addresses: tuple[str, ...]
    port: int


class Multicast:
    """Announces this node and listens to others, on every interface there is at the time."""

    def __init__(
        self,
        announcement: Announcement | None,
        on_heard: Callable[[Heard], None],
        on_gone: Callable[[str], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Make it; without an announcement it only listens. `on_change` is called when interfaces came or went."""
        self._announcement = announcement
        self._on_heard = on_heard
        self._on_gone = on_gone
        self._on_change = on_change
        self._legs: dict[tuple[Interface, Family], _Leg] = {}
        self._interfaces: list[Interface] = []
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; interfaces are watched from now on."""
        logging.getLogger("zeroconf").setLevel(logging.ERROR)  # it warns of each send on an interface that is down
        self._watch = asyncio.create_task(self._watch_interfaces())

    async def stop(self) -> None:
        """Say goodbye on every leg and close it, within about a second; safe twice."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        legs, self._legs = list(self._legs.values()), {}
        await asyncio.gather(*(leg.close() for leg in legs))

    async def _watch_interfaces(self) -> None:
        while True:
            try:
                await self._look()
            except OSError as error:  # the list of interfaces itself: there may be no descriptor left
                logger.warning("the network interfaces cannot be listed: %s", error)
            await asyncio.sleep(_WATCH_SECONDS)

    async def _look(self) -> None:
        self._interfaces = await asyncio.to_thread(interfaces)
        wanted: list[tuple[Interface, Family]] = [
            (interface, family) for interface in self._interfaces for family in FAMILIES if interface.addresses(family)
        ]
        ended = [key for key in self._legs if key not in wanted]
        added = [key for key in wanted if key not in self._legs]
        for key in ended:
            await self._legs.pop(key).close()
        for interface, family in added:
            self._legs[interface, family] = _Leg(interface, family, self)
        now = asyncio.get_running_loop().time()
        await asyncio.gather(*(leg.keep_open(now) for leg in self._legs.values()))
        if ended or added:
            self._on_change()

    # -- what legs hear ----------------------------------------------------------------------------------------------

    def info(self, interface: Interface) -> ServiceInfo | None:
        """Return this node's service as it is announced on an interface."""
        from zeroconf import ServiceInfo

        mine = self._announcement
        if mine is None:
            return None
        properties: dict[str | bytes, str | bytes | None] = {
            "id": mine.node_id,
            "v": HELLO.version,
            "key": mine.public,
            "tag": mine.cluster_tag,
            "name": mine.name,
        }
        return ServiceInfo(
            SERVICE_TYPE,
            f"{mine.node_id}.{SERVICE_TYPE}",
            port=mine.port,
            properties=properties,
            server=f"{mine.node_id}.local.",
            parsed_addresses=[*interface.addresses("IPv4"), *interface.addresses("IPv6")][:_MAX_ADDRESSES],
        )

    def heard(self, info: ServiceInfo, interface: Interface) -> None:
        """Pass on what was announced on an interface, where it is an announcement of another node.

        One under this node's own id, from elsewhere, is of a node with its keys: its door is to be knocked at.
        """
        heard = read_announcement(info, self._interfaces, interface)
        if heard is None:
            return
        if self._announcement is not None and heard.node_id == self._announcement.node_id:
            own = {address for one in self._interfaces for family in FAMILIES for address in one.addresses(family)}
            elsewhere = tuple(one for one in heard.addresses if one.partition("%")[0] not in own)
            heard = replace(heard, node_id="", addresses=elsewhere)
        if heard.addresses:
            self._on_heard(heard)

    def gone(self, name: str) -> None:
        """Pass on a goodbye."""
        node_id = name.removesuffix(f".{SERVICE_TYPE}")
        if NODE_ID.fullmatch(node_id):
            self._on_gone(node_id)


def read_announcement(info: ServiceInfo, known: Iterable[Interface], heard_on: Interface) -> Heard | None:
    """Return what a service record claims, as far as it may be acted on; None where it is no announcement of a node.

    Addresses beyond this machine's networks are left out: a record is no means to have strangers connected to. A
    link-local address of IPv6 is one of the interface that it was heard on.
    """
    texts = {key: value or "" for key, value in info.decoded_properties.items() if len(value or "") <= 128}
    node_id = info.name.removesuffix(f".{SERVICE_TYPE}")
    if not NODE_ID.fullmatch(node_id) or texts.get("id") != node_id or not info.port:
        return None
    here = list(known)
    found = (_scoped(address, heard_on) for address in info.parsed_scoped_addresses())
    addresses = [address for address in dict.fromkeys(found) if is_on_link(address, here)]
    if not addresses:
        return None
    name, tag = clean_name(texts.get("name", "")), texts.get("tag", "")[:32]
    return Heard(node_id, name, tag, tuple(addresses[:_MAX_ADDRESSES]), info.port)


def _scoped(address: str, interface: Interface) -> str:
    is_bare = "%" not in address and ":" in address and ipaddress.ip_address(address).is_link_local
    return f"{address}%{interface.index}" if is_bare else address


@dataclass
class _Leg:
    """One address family of one interface."""

    interface: Interface
    family: Family
    owner: Multicast
    _zeroconf: AsyncZeroconf | None = None
    _browser: AsyncServiceBrowser | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _num_failures: int = 0
    _retry_at: float = 0.0

    async def keep_open(self, now: float) -> None:
        """Open the leg where it is not, unless it failed just now; a socket that was lost counts as failed."""
        if self._zeroconf is not None and self._is_lost():
            await self.close()
        if self._zeroconf is not None or now < self._retry_at:
            return
        try:
            await self._open()
            self._num_failures = 0
        except Exception as error:  # noqa: BLE001 - whatever this interface does to the library, the others go on
            # An address of IPv6 takes a second or two until it may be used.
            told = logger.warning if self._num_failures == _TOLD_FAILURE else logger.info
            told("no multicast DNS on %s over %s: %s", self.interface.name, self.family, error)
            await self.close()
            self._num_failures += 1
            wait = min(_LONGEST_RETRY_SECONDS, 0.5 * 2**self._num_failures)
            self._retry_at = now + wait * random.uniform(0.5, 1)  # noqa: S311 - jitter

    async def close(self) -> None:
        """Say goodbye and close; a leg whose interface is gone cannot, and is closed all the same."""
        for task in self._tasks:
            task.cancel()
        opened, self._zeroconf, browser, self._browser = self._zeroconf, None, self._browser, None
        if opened is None:
            return
        with contextlib.suppress(Exception):
            if browser is not None:
                await browser.async_cancel()
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await opened.async_close()
        except Exception as error:  # noqa: BLE001 - see above
            logger.info("multicast DNS on %s over %s ended badly: %s", self.interface.name, self.family, error)

    async def _open(self) -> None:
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        is_v4 = self.family == "IPv4"
        places = list(self.interface.addresses("IPv4")) if is_v4 else [self.interface.index]
        version = IPVersion.V4Only if is_v4 else IPVersion.V6Only
        self._zeroconf = AsyncZeroconf(interfaces=places, ip_version=version)
        await self._zeroconf.zeroconf.async_wait_for_start()
        if not self._zeroconf.zeroconf.engine.senders:
            raise OSError("its address cannot be used for multicast (yet)")
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._changed])
        info = self.owner.info(self.interface)
        if info is not None:
            # Its name has the node's id, which is a hash: no need to ask for 1.6 s whether another has it.
            untyped: Any = self._zeroconf  # what it returns is an `Awaitable` of nothing said
            self._keep(await untyped.async_register_service(info, cooperating_responders=True))

    def _is_lost(self) -> bool:
        opened = self._zeroconf
        return opened is not None and any(one.transport.is_closing() for one in opened.zeroconf.engine.senders)

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceInfo

        if state_change is ServiceStateChange.Removed:
            self.owner.gone(name)
            return
        if not NODE_ID.fullmatch(name.removesuffix(f".{service_type}")):
            return
        info = AsyncServiceInfo(SERVICE_TYPE, name)
        # A node's records come together. Only what lacks some is asked for, so that a flood of halves hides no node.
        if info.load_from_cache(zeroconf):
            self.owner.heard(info, self.interface)
        elif len(self._tasks) < _MAX_RESOLVING:
            self._keep(asyncio.ensure_future(self._resolve(zeroconf, info)))

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        if await info.async_request(zeroconf, _RESOLVE_MILLIS):
            self.owner.heard(info, self.interface)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.info("a record of multicast DNS on %s cannot be read: %s", self.interface.name, error)
