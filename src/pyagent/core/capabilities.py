"""What a backend says of itself, as one frozen value: what a request may ask of it, and what it does besides answering.

A backend has it as its attribute `capabilities`; one that has none is a plain one, text in and one text out. A wrapper
hands on the value of what it wraps. Knows no backend.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, cast, get_args

import msgspec

from pyagent.core.abilities import ABILITIES, Abilities
from pyagent.core.nearest import did_you_mean

if TYPE_CHECKING:
    from pyagent.core.messages import (
        ChatRequest,
        ClassifyRequest,
        ClassifyResult,
        Hint,
        RankRequest,
        RankResult,
        TokenEmbedRequest,
        TokenEmbedResult,
    )
    from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult

PrefixSupport = Literal["ignored", "forwarded", "continued"]
"""What becomes of `assistant_prefix` and `answer_prefix`. `ignored`: the backend does not know them, and is given a
last message of the assistant instead. `forwarded`: it sends them to its server, and only the user knows whether that
goes on from them (`continues` in the link's table). `continued`: it goes on from them exactly, and counts the tokens of
`answer_prefix` as its own."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do beyond one answer of plain text to messages; `Capabilities()` is nothing more.

    The functions are for backends that have something of the kind, and None for others. The value is read when the
    backend is made, and checked: a wrong type or an unknown name is the plugin's error.
    """

    abilities: Abilities = frozenset()
    """What it can be asked for without emulation, by the names of `ABILITIES`."""

    gives_several: bool = False
    """Whether it honours `n`, `best_of` and `beam`, or refuses them by name; a chain asks no other for that."""

    assistant_prefix: PrefixSupport = "ignored"
    """Whether it goes on from an answer's beginning."""

    sends_headers: bool = False
    """Whether the link's own headers go with its HTTP requests; where not, `headers` in the link's table is refused."""

    url: str = ""
    """The server that it asks; one that leads back to the server whose chain it is in is refused."""

    abilities_of: Callable[[str], Awaitable[Abilities]] | None = None
    """What one of its models can be asked for, where that is less than `abilities`; raises as `chat` does."""

    load: Callable[[], Awaitable[object]] | None = None
    """Gets ready ahead of the first request; safe to call twice."""

    hint: Callable[[Hint], None] | None = None
    """Takes a hint about what it computed: returns at once, in the order given, and never raises."""

    query_cache: Callable[[CacheQuery], Awaitable[CacheQueryResult]] | None = None
    """Answers a question about its prompt cache. Raises `RequestError` for a prompt that will not do, `CapacityError`
    when there is no room."""

    rank: Callable[[RankRequest], Awaitable[RankResult]] | None = None
    """Tells how relevant documents are to queries. Raises `RequestError` where its models cannot."""

    classify: Callable[[ClassifyRequest], Awaitable[ClassifyResult]] | None = None
    """Labels texts. Raises `RequestError` where its models cannot."""

    token_embed: Callable[[TokenEmbedRequest], Awaitable[TokenEmbedResult]] | None = None
    """Gives a vector for each token of a text, or a number for each label. Raises `RequestError` where its models
    cannot."""

    price_of: Callable[[ChatRequest], float] | None = None
    """Returns the most USD that a request may cost, at its `max_tokens`."""


PLAIN = Capabilities()


def capabilities_of(backend: object) -> object:
    """Return what a backend of other people says of itself, unchecked; `PLAIN` where it says nothing."""
    return getattr(backend, "capabilities", PLAIN)


def capabilities_problem(said: object) -> str | None:
    """Return what is wrong with a backend's `capabilities`, naming the field; None when nothing is."""
    if not isinstance(said, Capabilities):
        return f"`capabilities` is {said!r:.80}, expected pyagent.plugin.Capabilities(...)"
    for field, (is_right, expected) in _EXPECTED.items():
        value: object = getattr(said, field)
        if not is_right(value):
            return f"`capabilities.{field}` is {value!r:.80}, expected {expected}"
    for name in sorted(said.abilities - ABILITIES):
        hint = did_you_mean(name, ABILITIES, f"there are {', '.join(sorted(ABILITIES))}")
        return f"`capabilities.abilities` names {name!r}, which no request asks for; {hint}"
    return None


def _is_names(value: object) -> bool:
    return isinstance(value, frozenset) and all(isinstance(name, str) for name in cast("frozenset[object]", value))


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_function(value: object) -> bool:
    return value is None or (callable(value) and not inspect.iscoroutinefunction(value))


def _is_coroutine_function(value: object) -> bool:
    return value is None or inspect.iscoroutinefunction(value)


_ASYNC = (_is_coroutine_function, "an `async def` function, or None")
_EXPECTED: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "abilities": (_is_names, "a frozenset of names"),
    "gives_several": (_is_truth, "True or False"),
    "assistant_prefix": (
        lambda value: value in get_args(PrefixSupport),
        f"one of {', '.join(get_args(PrefixSupport))}",
    ),
    "sends_headers": (_is_truth, "True or False"),
    "url": (lambda value: isinstance(value, str), "a text"),
    "abilities_of": _ASYNC,
    "load": _ASYNC,
    "hint": (_is_function, "a plain function, or None"),
    "query_cache": _ASYNC,
    "rank": _ASYNC,
    "classify": _ASYNC,
    "token_embed": _ASYNC,
    "price_of": (_is_function, "a plain function, or None"),
}
