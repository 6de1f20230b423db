"""What a link says after its `?`, and the URL that OLLAMA_HOST stands for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from pyagent.plugin import ConfigError, LinkSpec

_DURATION = re.compile(r"-?\d+(\.\d+)?(ns|us|ms|s|m|h)")
_LEVELS = {"yes": True, "no": False, "low": "low", "medium": "medium", "high": "high", "max": "max"}
_KNOWN = ("keep_alive", "num_ctx", "think", "pull")

Think = bool | Literal["low", "medium", "high", "max"]


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a link uses Ollama: how long the model stays loaded after an answer (`10m`, `0s`, `-1s` for ever), the
    context to load it with instead of one that fits the prompt, whether it thinks, whether a missing model is fetched.
    """

    keep_alive: str | None = None
    num_ctx: int | None = None
    think: Think | None = None
    pulls: bool = False


def read_options(link: LinkSpec) -> LinkOptions:
    """`keep_alive=10m&num_ctx=8192&think=low&pull=yes`. Raises `ConfigError` naming what it does not know."""
    given = link.options(_KNOWN)
    keep_alive, num_ctx = given.get("keep_alive"), given.get("num_ctx", "")
    if keep_alive is not None and not _DURATION.fullmatch(keep_alive):
        raise ConfigError(f"ollama: keep_alive is a time such as 10m or -1s, got {keep_alive!r}", key="chain")
    if num_ctx and not (num_ctx.isascii() and num_ctx.isdigit() and 0 < int(num_ctx) < 2**31):
        raise ConfigError(f"ollama: num_ctx is a number of tokens, got {num_ctx!r}", key="chain")
    think, pull = given.get("think"), given.get("pull", "no")
    if think is not None and think not in _LEVELS:
        raise ConfigError(f"ollama: think is one of {', '.join(_LEVELS)}, got {think!r}", key="chain")
    if pull not in {"yes", "no"}:
        raise ConfigError(f"ollama: pull is yes or no, got {pull!r}", key="chain")
    return LinkOptions(
        keep_alive=keep_alive,
        num_ctx=int(num_ctx) if num_ctx else None,
        think=cast("Think", _LEVELS[think]) if think else None,
        pulls=pull == "yes",
    )


def url_of(host: str) -> str:
    """The URL that OLLAMA_HOST stands for, by the rules of Ollama's own client: scheme, port and host may be absent."""
    host = host.strip().strip("\"'")
    scheme, is_given, rest = host.partition("://")
    if not is_given:
        scheme, rest = "http", host
    port = {"http": 80, "https": 443}.get(scheme, 11434) if is_given else 11434
    address, slash, path = rest.partition("/")
    if address.startswith("["):
        name, _, given_port = address[1:].partition("]")
        name, given_port = f"[{name}]", given_port.removeprefix(":")
    elif address.count(":") > 1:
        name, given_port = f"[{address}]", ""
    else:
        name, _, given_port = address.partition(":")
    if name in {"", "0.0.0.0"}:  # noqa: S104 - a server's address to listen on; a client asks this machine
        name = "127.0.0.1"
    return f"{scheme}://{name}:{given_port or port}" + (f"{slash}{path}".rstrip("/") if path else "")
