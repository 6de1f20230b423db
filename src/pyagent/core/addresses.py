"""Where a URL leads: to this machine, or to a server's own port. Pure: no name is looked up.

An address that cannot be read leads elsewhere: what is not known to be this machine is not.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def is_loopback(url: str) -> bool:
    """Whether a URL leads to a server on this machine."""
    return _is_loopback(_host(url))


def has_password(url: str) -> bool:
    """Whether an http(s) URL holds a user's name or password before its host."""
    parts = _split(url)
    return parts.scheme in {"http", "https"} and bool(parts.username or parts.password)


def leads_to(url: str, host: str, port: int) -> bool:
    """Whether a URL leads to a server of this machine that listens on `host` and `port`."""
    parts = _split(url)
    try:
        asked = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return False
    name = _host(url)
    if asked != port or not name:
        return False
    is_local = _is_loopback(name) or name in _WILDCARDS
    if host in _WILDCARDS:
        return is_local or name == socket.gethostname().lower()
    return name == host.lower() or (is_local and _is_loopback(host))


def _host(url: str) -> str:
    return (_split(url).hostname or "").rstrip(".")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")  # RFC 6761, 6.3
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
