"""Addresses of images in requests: what of them may be handed to a backend that would fetch it.

The server fetches nothing itself. A backend that does may stand in a network the client cannot reach, so addresses of
that network are refused: by number, by a name that says so, and by what a name resolves to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from pyagent.core.errors import RequestError
from pyagent.core.messages import ImagePart, Message

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
_COMPATIBLE = ipaddress.ip_network("::/96")
# NAT64 of a network's own (RFC 8215), and what protocols keep for themselves (RFC 6890): not "global" in all versions
_SPECIAL = (ipaddress.ip_network("64:ff9b:1::/48"), ipaddress.ip_network("192.0.0.0/24"))
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")


async def check_images(messages: Sequence[Message]) -> None:
    """Raise `RequestError` for an image that is no data and may be of a private network."""
    for message in messages:
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:"):
                await _check(part.image_url.url)


async def _check(url: str) -> None:
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise _refused(url, f"is no address: {error}") from error
    if split.scheme not in {"http", "https"} or not host:
        raise _refused(url, "is neither a data: nor an http(s): address")
    name = host.rstrip(".").lower()
    if any(name == local or name.endswith(f".{local}") for local in _LOCAL_NAMES):
        raise _refused(url, "names a host of a private network")
    try:
        # getaddrinfo reads the short and hexadecimal forms of IPv4 as the fetching server would
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _refused(url, "has a host that cannot be resolved") from error
    for *_, address in found:
        if not _is_public(str(address[0])):
            raise _refused(url, "leads to an address of a private network")


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = _embedded(ip) or ip
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _SPECIAL)


def _embedded(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the address of IPv4 that a gateway or this machine makes of one of IPv6."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64 or ip in _COMPATIBLE:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


def _refused(url: str, why: str) -> RequestError:
    text = f"the image {url[:80]!r} {why}; send it as data:, or allow it by server.private_images"
    return RequestError(text, param="messages", code="image_refused")
