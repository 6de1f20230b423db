"""The MCP servers whose tools agents use, as they stand in pyagent.toml: the shape that Claude Desktop made known.

    [mcp_servers.files]
    command = "npx"
    args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]

Read once, every mistake named. Knows no MCP. A reader raises nothing but `ValueError`, whose text begins with
"expected", and quotes no value of `env` or `headers`: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from pyagent.core.nearest import nearest
from pyagent.core.secrets import STRUCK, is_reference, strike_text
from pyagent.core.setting_kinds import NUMBER, PATH, TEXTS, TRUTH, Kind, choice, read_table

_NAME = r"[A-Za-z0-9]([A-Za-z0-9-]|_(?!_)){0,31}(?<!_)"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,199}"
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"  # RFC 9110, 5.6.2
_MAX_SERVERS = 100
_MAX_VALUE_CHARACTERS = 100_000

Trust = Literal["none", "annotations", "all"]


class McpServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server: a `command` that is started, or a `url`. Values of `env` and `headers` may be env:NAME or file:PATH.

    `tools` are the names of those that are used, None is all. `trust` says what of the server is believed: nothing;
    what it says of its tools' effects; or also that no call needs a person. Only with `clients` may runs that a
    server's client begins call its tools.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    trust: Trust = "none"
    clients: bool = False
    timeout_seconds: float = 60.0
    startup_seconds: float = 9.0


def read_mcp_servers(value: object) -> dict[str, McpServer]:
    """Read the tables; raise `ValueError` naming the server and the key at fault."""
    tables = read_table(value)
    if len(tables) > _MAX_SERVERS:
        raise ValueError(f"expected at most {_MAX_SERVERS} MCP servers, got {len(tables)}")
    return {name: _read_server(name, entry) for name, entry in tables.items()}


def written(server: McpServer) -> dict[str, object]:
    """Return a server's table as a user writes it, without secrets: what is no reference in `env` and `headers`."""
    table = cast("dict[str, object]", msgspec.to_builtins(server))
    for key in ("env", "headers"):
        if given := cast("dict[str, str]", table.get(key, {})):
            table[key] = {name: text if is_reference(text) else STRUCK for name, text in given.items()}
    return table | {"args": [strike_text(text) for text in server.args]} if server.args else table


def _read_server(name: str, entry: object) -> McpServer:
    if not re.fullmatch(_NAME, name):
        text = f"expected up to 32 letters, digits, - and single _ as an MCP server's name, got {name!r:.60}"
        raise ValueError(text)
    if isinstance(entry, McpServer):
        return entry
    if not isinstance(entry, Mapping):
        raise ValueError(f"expected a table with `command` or `url` as the MCP server {name}")  # noqa: TRY004 - collected
    fields: dict[str, Any] = {}
    for key, given in read_table(cast("object", entry)).items():
        if key not in _READERS:
            found = nearest(key, _READERS)
            known = f"{found!r}" if found else f"one of {', '.join(_READERS)}"
            raise ValueError(f"expected {known} in the MCP server {name}, got {key!r:.60}")
        try:
            fields[key] = _READERS[key](given)
        except ValueError as error:
            raise ValueError(f"{error}, as {key} of the MCP server {name}") from error
    _check_kind(name, fields)
    return McpServer(**fields)


def _check_kind(name: str, fields: Mapping[str, object]) -> None:
    """Raise `ValueError` unless the server is one that is started or one with a URL, with what belongs to it."""
    if ("command" in fields) == ("url" in fields):
        raise ValueError(f"expected either `command` or `url` in the MCP server {name}")
    others = ("headers",) if "command" in fields else ("args", "env", "cwd")
    if stray := [key for key in others if key in fields]:
        kind = "is started by a command" if "command" in fields else "has a URL"
        raise ValueError(f"expected no `{stray[0]}` in the MCP server {name}, which {kind}")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("expected a text that is not empty")
    return value


def _url(value: object) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError("expected a URL such as https://example.org/mcp, its key in `headers`")
    return cast("str", value)


def _args(value: object) -> tuple[str, ...]:
    given = cast("list[str]", TEXTS.read(value))
    if any("\0" in text for text in given):
        raise ValueError("expected arguments without null characters")
    return tuple(given)


def _pairs(name: str, what: str) -> Callable[[object], dict[str, str]]:
    def read(value: object) -> dict[str, str]:
        table = read_table(value)
        for key, given in table.items():
            if not re.fullmatch(name, key):
                raise ValueError(f"expected the name of {what}, got {key!r:.60}")
            if not isinstance(given, str) or "\0" in given or len(given) > _MAX_VALUE_CHARACTERS:
                raise ValueError(f"expected a text, env:NAME or file:PATH for {key!r}")
            if what == "a header" and not (given.isascii() and given.isprintable()):
                raise ValueError(f"expected a line of printable ASCII, env:NAME or file:PATH for {key!r}")
        return cast("dict[str, str]", table)

    return read


_READERS: dict[str, Callable[[object], object]] = {
    "command": _text,
    "args": _args,
    "env": _pairs(_VARIABLE, "an environment variable"),
    "cwd": lambda value: str(PATH.read(value)),
    "url": _url,
    "headers": _pairs(_HEADER_NAME, "a header"),
    "tools": lambda value: tuple(cast("list[str]", TEXTS.read(value))),
    "trust": choice("none", "annotations", "all").read,
    "clients": TRUTH.read,
    "timeout_seconds": NUMBER.read,
    "startup_seconds": NUMBER.read,
}
"""What may stand in a server's table, and how each is read."""

MCP_SERVERS = Kind("tables of MCP servers", read_mcp_servers, "table")
