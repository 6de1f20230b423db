"""What a link says after its `?`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pyagent.plugin import ConfigError, LinkSpec

_KNOWN = ("ttl", "context", "keep", "jit", "unload")
_TRUTHS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a link uses LM Studio.

    Seconds that a model it loaded stays after its last answer, the context to load it with, how many of those it loaded
    stay at once, whether it loads models at all, whether those it loaded go when the backend is closed.
    """

    ttl: int | None = None
    context: int | None = None
    keeps: int | None = None
    loads: bool = True
    unloads: bool = False


def read_options(link: LinkSpec) -> LinkOptions:
    """`ttl=600&context=8192&keep=2&jit=no&unload=yes`. Raises `ConfigError` naming what it does not know."""
    given = link.options(_KNOWN)
    return LinkOptions(
        ttl=_count("ttl", given.get("ttl")),
        context=_count("context", given.get("context")),
        keeps=_count("keep", given.get("keep")),
        loads=_truth("jit", given.get("jit", "yes")),
        unloads=_truth("unload", given.get("unload", "no")),
    )


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise ConfigError(f"lmstudio: {name} is a whole number above 0, got {text!r}", key="chain")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text not in _TRUTHS:
        raise ConfigError(f"lmstudio: {name} is yes or no, got {text!r}", key="chain")
    return _TRUTHS[text]
