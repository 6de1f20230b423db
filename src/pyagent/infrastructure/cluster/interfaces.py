"""The network interfaces of this machine, as they are now; they come and go while a node runs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Family = Literal["IPv4", "IPv6"]
FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")

MAX_INTERFACES = 32
"""A host of containers has hundreds; those with an IPv4 address come first."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that is not loopback. `networks` are its addresses with their prefixes, such as `192.0.2.7/24`."""

    name: str
    index: int
    networks: tuple[str, ...]

    def addresses(self, family: Family) -> tuple[str, ...]:
        """Return its addresses of one family."""
        version = 4 if family == "IPv4" else 6
        found = (ipaddress.ip_interface(network) for network in self.networks)
        return tuple(str(one.ip) for one in found if one.version == version)


def interfaces() -> list[Interface]:
    """Return the interfaces that have an address, loopback left out."""
    import ifaddr

    found: list[Interface] = []
    for adapter in ifaddr.get_adapters():
        networks: list[str] = []
        for ip in adapter.ips:
            address = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                networks.append(f"{address.partition('%')[0]}/{ip.network_prefix}")
        if networks:
            found.append(Interface(adapter.name, adapter.index or 0, tuple(sorted(networks))))
    return sorted(found, key=lambda one: (not one.addresses("IPv4"), one.index))[:MAX_INTERFACES]


def is_on_link(address: str, known: Iterable[Interface]) -> bool:
    """Whether an address is on a network of one of the interfaces, or is link-local."""
    try:
        one = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if one.is_loopback or one.is_multicast or one.is_unspecified:
        return False
    networks = (ipaddress.ip_interface(network).network for interface in known for network in interface.networks)
    return one.is_link_local or any(one in network for network in networks if network.version == one.version)
