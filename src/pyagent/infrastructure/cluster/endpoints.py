"""Where this node listens, and where others reach it: the addresses of its interfaces, for sockets bound to all."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from pyagent.core.errors import ConfigError
from pyagent.infrastructure.cluster.interfaces import Family, interfaces

_MAX_ENDPOINTS = 16


def bind_endpoints(hosts: Sequence[str]) -> list[str]:
    """Return where ZMQ is to listen, each at a free port."""
    return [_endpoint(host, "0") for host in hosts]


def check_bind(hosts: Sequence[str]) -> None:
    """Raise `ConfigError` where this machine lacks an address; of those of all interfaces one is enough."""
    failures: dict[str, str] = {}
    for host in hosts:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, 0))
            except OSError as error:
                failures[host] = error.strerror or str(error)
    missing = [host for host in failures if not ipaddress.ip_address(host).is_unspecified] or list(failures)
    if missing and (len(failures) == len(hosts) or not ipaddress.ip_address(missing[0]).is_unspecified):
        there = ", ".join(address for one in interfaces() for address in one.addresses("IPv4")) or "127.0.0.1"
        text = f"this machine has no address {missing[0]} for --bind (cluster.bind); it has {there}"
        raise ConfigError(text, key="cluster.bind")


def reachable_endpoints(bound: Sequence[str]) -> list[str]:
    """Return bound endpoints as others reach them: one for each address of the machine where that is all of them."""
    found: list[str] = []
    for endpoint in bound:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        found += [_endpoint(one, port) for one in _addresses(host.strip("[]"))]
    return found[:_MAX_ENDPOINTS] or [_on_loopback(endpoint) for endpoint in bound]


def _on_loopback(endpoint: str) -> str:
    """Return where a machine without a network reaches itself."""
    return endpoint.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104 - compared, not bound


def _endpoint(host: str, port: str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _addresses(host: str) -> list[str]:
    """Return a host, or for all of them this machine's addresses; link-local ones mean nothing elsewhere."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return [host]
    family: Family = "IPv4" if address.version == 4 else "IPv6"
    own = [one for interface in interfaces() for one in interface.addresses(family)]
    return [one for one in own if not ipaddress.ip_address(one).is_link_local]
