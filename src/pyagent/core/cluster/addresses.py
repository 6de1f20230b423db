"""Addresses as users write them: the doors of other nodes, and where this one listens. Pure text."""

from __future__ import annotations

import ipaddress
import re
from typing import cast

from pyagent.core.setting_kinds import TEXTS, Kind

DEFAULT_PORT = 8322
_BRACKETED = re.compile(r"\[([^\s/@\[\]]+)\](?::([0-9]{1,5}))?")
_PLAIN = re.compile(r"((?:[^\s/@\[\]:]+)|(?:[^\s/@\[\]]*:[^\s/@\[\]]*:[^\s/@\[\]]*))(?::([0-9]{1,5}))?")


def read_door(text: str) -> tuple[str, int]:
    """Return host and port of a door: `host`, `host:port`, `192.0.2.1:8322`, `[2001:db8::1]:8322`, `2001:db8::1`.

    Raises `ValueError` for what is none.
    """
    match = _BRACKETED.fullmatch(text.strip()) or _PLAIN.fullmatch(text.strip())
    host, port = (match[1] or "", match[2]) if match else ("", None)
    is_number = port is None or (port.isdigit() and 0 < int(port) < 65_536)
    if not is_number or not (is_address(host) or _is_name(host)):
        raise ValueError(f"expected HOST or HOST:PORT, got {text!r}")
    return host, int(port) if port else DEFAULT_PORT


def _is_name(host: str) -> bool:
    """Whether a name service can be asked for a host: no part of its name is empty, too long, or of odd characters."""
    try:
        return bool(host.encode("idna")) and host.isprintable()
    except UnicodeError:
        return False


def is_address(host: str) -> bool:
    """Whether a host is an address, and not a name that has some; one of IPv6 may name its interface (`fe80::1%2`)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _read_doors(value: object) -> object:
    texts = cast("list[str]", TEXTS.read(value))
    for text in texts:
        read_door(text)
    return texts


def _read_addresses(value: object) -> object:
    texts = cast("list[str]", TEXTS.read(value))
    if not texts:
        raise ValueError("expected an address of this machine, such as 192.0.2.5; 0.0.0.0 and :: are all of them")
    for text in texts:
        try:
            ipaddress.ip_address(text)
        except ValueError as error:
            told = "expected addresses such as 192.0.2.5 or 2001:db8::1 (0.0.0.0 and :: are all of this machine's)"
            raise ValueError(f"{told}, got {text!r}") from error
    return texts


DOORS = Kind("list of text", _read_doors, "list")
ADDRESSES = Kind("list of text", _read_addresses, "list")
