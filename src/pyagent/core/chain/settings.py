"""A link as it stands in pyagent.toml: a text, or a table whose `use` is that text. Read once, every mistake named.

Knows no backend. A reader raises nothing but `ValueError`, whose text begins with "expected".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

import msgspec

from pyagent.core.backends import LinkSpec, ServerSetting
from pyagent.core.chain.conditions import Condition
from pyagent.core.errors import ConfigError
from pyagent.core.nearest import nearest
from pyagent.core.rates import Rate, read_rate
from pyagent.core.setting_kinds import COUNT, NUMBER, TEXT, TRUTH, Kind, number, read_table

_PERCENTILE = r"p(\d\d(?:\.\d)?)"
_KEY = r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)"  # compiled when needed: most starts need none of these
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"  # RFC 9110, 5.6.2
_HEADER_VALUE = r"[!-~]([ -~]{0,8000}[!-~])?"
_OWN_HEADERS = (
    *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type"),
    *("host", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent"),
)
"""Headers that a link's HTTP client sets itself."""


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """USD for a million tokens."""

    input: float = 0.0
    output: float = 0.0


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One link of a chain. `use` is the entry, `SCHEME` or `SCHEME:TARGET`; what is None is not limited.

    `hedge` is seconds, or with `hedge_percentile` that part of the link's own first-token times. `batch_ms` is how
    long small embedding calls wait to be sent together.
    """

    use: str
    weight: float | None = None
    when: tuple[Condition, ...] = ()
    timeout_seconds: float | None = None
    rates: tuple[Rate, ...] = ()
    concurrency: int | Literal["auto"] | None = None
    price: Price | None = None
    hedge_seconds: float | None = None
    hedge_percentile: float | None = None
    context: int | None = None
    continues: bool | None = None
    batch_ms: float | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    server: ServerSetting | None = None


def read_links(value: object) -> list[str | LinkSettings]:
    """Read the links of a chain, which may be none; raise `ValueError` naming the link and the key at fault."""
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of links, each a text or a table")  # noqa: TRY004 - collected by the loader
    return [_read_link(entry, number) for number, entry in enumerate(cast("list[object]", value), 1)]


def links_of(chain: list[str | LinkSettings]) -> list[LinkSettings]:
    """Return every link as a table."""
    return [LinkSettings(use=entry) if isinstance(entry, str) else entry for entry in chain]


def written(link: LinkSettings) -> dict[str, object]:
    """Return a link's table as a user writes it."""
    percentile = None if link.hedge_percentile is None else f"p{link.hedge_percentile * 100:g}"
    price = None if link.price is None else {"input": link.price.input, "output": link.price.output}
    table: dict[str, object] = {
        **{key: getattr(link, key) for key in ("use", "weight", "timeout_seconds", "concurrency", "context")},
        **{key: getattr(link, key) for key in ("continues", "batch_ms", "key", "headers", "server")},
        "when": [condition.text for condition in link.when] or None,
        "rate": [rate.text for rate in link.rates] or None,
        "price": price,
        "hedge": percentile or link.hedge_seconds,
    }
    return {key: value for key, value in table.items() if value is not None}


def _read_link(entry: object, number: int) -> str | LinkSettings:
    if isinstance(entry, LinkSettings):
        return entry
    if isinstance(entry, str):
        return _read_use(entry)
    if not isinstance(entry, Mapping):
        kind = type(entry).__name__
        raise ValueError(f"expected a text or a table with `use` as link {number}, got {kind}")  # noqa: TRY004
    table = read_table(cast("object", entry))
    if "use" not in table:
        raise ValueError(f'expected `use` in link {number}, such as {{ use = "native" }}')
    fields: dict[str, Any] = {}
    for key, given in table.items():
        if key not in _READERS:
            raise ValueError(f"expected {_nearest(key)} in link {number} ({table['use']}), got {key!r}")
        try:
            fields |= _READERS[key](given)
        except ValueError as error:
            raise ValueError(f"{error}, as {key} of link {number} ({table['use']})") from error
    has_url = bool(urlsplit(cast("str", fields["use"]).partition(":")[2]).hostname)
    if not has_url and (of_urls := [key for key in ("key", "headers", "server") if key in fields]):
        raise ValueError(f"expected a link with a URL for the {of_urls[0]} of link {number} ({fields['use']})")
    return LinkSettings(**fields)


def _nearest(key: str) -> str:
    found = nearest(key, _READERS)
    return f"{found!r}" if found else f"one of {', '.join(_READERS)}"


def _read_use(value: object) -> str:
    try:
        return str(LinkSpec.parse(cast("str", TEXT.read(value))))
    except ConfigError as error:
        raise ValueError(f"expected SCHEME or SCHEME:TARGET, got {value!r}") from error


def _read_when(value: object) -> dict[str, object]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError('expected a list of conditions, such as ["tools", "context > 8000"]')  # noqa: TRY004
    return {"when": tuple(Condition.parse(text) for text in cast("list[object]", texts))}


def _read_rates(value: object) -> dict[str, object]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError('expected a rate such as "60/min", or a list of them')  # noqa: TRY004 - as above
    return {"rates": tuple(read_rate(text) for text in cast("list[object]", texts))}


def _read_concurrency(value: object) -> dict[str, object]:
    if value == "auto":
        return {"concurrency": "auto"}
    try:
        return {"concurrency": COUNT.read(value)}
    except ValueError as error:
        raise ValueError(f"{error}, or 'auto'") from error


def _read_price(value: object) -> dict[str, object]:
    table = read_table(value)
    if unknown := [key for key in table if key not in {"input", "output"}]:
        raise ValueError(f"expected input and output, USD for a million tokens, got {unknown[0]!r}")
    prices = {key: 0.0 if given == 0 else cast("float", NUMBER.read(given)) for key, given in table.items()}
    return {"price": Price(**prices)}


def _read_hedge(value: object) -> dict[str, object]:
    match = re.fullmatch(_PERCENTILE, value) if isinstance(value, str) else None
    if match and float(match[1]) >= 50:
        return {"hedge_percentile": float(match[1]) / 100}
    try:
        return {"hedge_seconds": NUMBER.read(value)}
    except ValueError as error:
        raise ValueError(f'expected seconds or a percentile from "p50" to "p99.9", got {value!r}') from error


def _read_key(value: object) -> dict[str, object]:
    if not isinstance(value, str) or not re.fullmatch(_KEY, value):
        raise ValueError("expected env:NAME or file:PATH, never the key itself")
    return {"key": value}


def _read_headers(value: object) -> dict[str, object]:
    """Read headers. Errors quote no value: it may be a secret written there by mistake."""
    headers: dict[str, str] = {}
    for name, given in read_table(value).items():
        if not re.fullmatch(_HEADER_NAME, name) or name.lower() in headers:
            raise ValueError(f"expected each header's name once, letters, digits and dashes, got {name!r:.60}")
        if name.lower() in _OWN_HEADERS:
            hint = " (a key stands in `key`)" if name.lower() == "authorization" else ""
            raise ValueError(f"expected headers that are not set anyway{hint}, got {name!r}")
        if not isinstance(given, str) or not re.fullmatch(_HEADER_VALUE, given):
            raise ValueError(f"expected a line of printable ASCII, env:NAME or file:PATH for {name!r}")
        if given.startswith(("env:", "file:")) and not re.fullmatch(_KEY, given):
            raise ValueError(f"expected env:NAME or file:PATH for {name!r}")
        headers[name.lower()] = given
    return {"headers": headers}


def _read_server(value: object) -> dict[str, object]:
    if value not in get_args(ServerSetting):
        raise ValueError(f"expected one of {', '.join(get_args(ServerSetting))}, got {value!r:.60}")
    return {"server": value}


def _plain(name: str, kind: Kind) -> Callable[[object], dict[str, object]]:
    return lambda value: {name: kind.read(value)}


_READERS: dict[str, Callable[[object], dict[str, object]]] = {
    "use": lambda value: {"use": _read_use(value)},
    "weight": _plain("weight", NUMBER),
    "when": _read_when,
    "timeout_seconds": _plain("timeout_seconds", NUMBER),
    "rate": _read_rates,
    "concurrency": _read_concurrency,
    "price": _read_price,
    "hedge": _read_hedge,
    "context": _plain("context", COUNT),
    "continues": _plain("continues", TRUTH),
    "batch_ms": _plain("batch_ms", number(1000)),
    "key": _read_key,
    "headers": _read_headers,
    "server": _read_server,
}
"""What may stand in a link's table, and how each is read."""
