"""What works between this machine and the network, for `pyagent doctor`: one step after the other, each by its name.

Sends one question of multicast DNS on each interface, as any mDNS program does, and connects to doors. Changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from pyagent.core.errors import WireError
from pyagent.infrastructure.cluster.door import ask_release
from pyagent.infrastructure.cluster.frame_stream import KNOCK_ADVICE, unreachable
from pyagent.infrastructure.cluster.handshake import OtherReleaseError
from pyagent.infrastructure.cluster.interfaces import FAMILIES, Family, Interface, interfaces

_PORT = 5353
_GROUPS: dict[Family, str] = {"IPv4": "224.0.0.251", "IPv6": "ff02::fb"}
_SECONDS = 1.0
_MAX_DATAGRAM_BYTES = 9_000


@dataclass(frozen=True, slots=True)
class Check:
    """What was found at one interface or door; `advice` is empty where it is well."""

    name: str
    found: str
    advice: str = ""


async def check_interfaces() -> list[Check]:
    """Send a question by multicast DNS on each leg, and see whether it comes back."""
    legs: list[tuple[Interface, Family]] = [
        (one, family) for one in interfaces() for family in FAMILIES if one.addresses(family)
    ]
    return list(await asyncio.gather(*(asyncio.to_thread(_check_leg, one, family) for one, family in legs)))


async def check_door(name: str, host: str, port: int) -> Check:
    """See whether a door of this release answers there."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(_SECONDS):
            await ask_release(host, port)
    except OtherReleaseError:
        return Check(name, f"{place} runs another release of PyAgent", "run the same release on both")
    except WireError:
        return Check(name, f"{place}: what answers there is no node", KNOCK_ADVICE)
    except TimeoutError:
        return Check(name, f"{place} does not answer", "it is off, or a firewall drops what is sent to that port")
    except OSError as error:
        return Check(name, str(unreachable(place, error)), "start `pyagent node` there, or correct its address")
    return Check(name, f"{place} is open")


def _check_leg(interface: Interface, family: Family) -> Check:
    name, where = f"{interface.name} {family}", interface.addresses(family)[0]
    with contextlib.ExitStack() as opened:
        try:
            listener = opened.enter_context(_listener(interface, family))
        except OSError as error:
            told = f"{where}: cannot listen to multicast DNS: {error.strerror}"
            return Check(
                name, told, f"a program may hold UDP port {_PORT} for itself, or the interface has no multicast"
            )
        question = _question()
        try:
            sender = opened.enter_context(_sender(interface, family))
            sender.sendto(question, _target(interface, family))
        except OSError as error:
            advice = "the interface may be down; nodes behind it are found by cluster.seeds only"
            return Check(name, f"{where}: cannot send multicast: {error.strerror}", advice)
        if _hears(listener, question):
            return Check(name, f"{where}: multicast is sent and received")
    advice = f"a firewall may drop UDP port {_PORT}: allow it, or name the nodes in cluster.seeds"
    return Check(name, f"{where}: multicast is sent, and not received", advice)


def _listener(interface: Interface, family: Family) -> socket.socket:
    opened = _shared(family)
    try:
        opened.bind(("", _PORT))
        group = socket.inet_pton(opened.family, _GROUPS[family])
        if family == "IPv4":
            place = socket.inet_aton(interface.addresses(family)[0])
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + place)
        else:
            place = struct.pack("@I", interface.index)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + place)
    except OSError:
        opened.close()
        raise
    return opened


def _sender(interface: Interface, family: Family) -> socket.socket:
    opened = _shared(family)
    if family == "IPv4":
        place = socket.inet_aton(interface.addresses(family)[0])
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, place)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, struct.pack("@I", interface.index))
    return opened


def _shared(family: Family) -> socket.socket:
    """Return a socket that shares its port with the machine's other programs of multicast DNS."""
    opened = socket.socket(socket.AF_INET if family == "IPv4" else socket.AF_INET6, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return opened


def _target(interface: Interface, family: Family) -> tuple[str, int] | tuple[str, int, int, int]:
    group = _GROUPS[family]
    return (group, _PORT) if family == "IPv4" else (group, _PORT, 0, interface.index)


def _question() -> bytes:
    """Return a question for a name that no other program asks for."""
    labels = (f"pyagent-{secrets.token_hex(8)}".encode(), b"local")
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!6H", 0, 0, 1, 0, 0, 0) + name + struct.pack("!2H", 1, 1)


def _hears(listener: socket.socket, question: bytes) -> bool:
    end = time.monotonic() + _SECONDS
    while (left := end - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            if listener.recv(_MAX_DATAGRAM_BYTES) == question:
                return True
        except TimeoutError:
            break
    return False
