"""Which grammar backends a model gets, and in which order they are asked. Knows factories, no vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.grammars import GrammarBackendFactory
from pyagent.core.nearest import did_you_mean
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE

AUTO = "auto"
KEY = "engine.structured_outputs_backend"
NO_FALLBACK = "no-fallback"
_FIELD = "guided_decoding_backend"
_OPTIONS = ("", NO_FALLBACK, "disable-any-whitespace")
"""vLLM's, of which the last is so with any backend here."""


def pick_grammar_backends(
    names: Sequence[str], factories: Mapping[str, GrammarBackendFactory]
) -> tuple[GrammarBackendFactory, ...]:
    """Return the backends that the settings name, in their order. Raises `ConfigError` for one that is not there.

    `auto` is llguidance, then the others that can be used here. It is there even when its plugin is disabled.
    """
    factories = {**factories, GUIDANCE.name: factories.get(GUIDANCE.name, GUIDANCE)}
    if list(names) == [AUTO]:
        usable = [factory for factory in factories.values() if factory.unavailable_reason() is None]
        return tuple(sorted(usable, key=lambda factory: factory.name != GUIDANCE.name))
    if not names:
        raise ConfigError(f"{KEY} is empty; name a backend, or {AUTO}", key=KEY)
    return tuple(_named(name, factories) for name in names)


def pick_first(asked: str, factories: Sequence[GrammarBackendFactory]) -> Sequence[GrammarBackendFactory]:
    """Return the backends with the one first that a request asks for, or with `:no-fallback` that one alone.

    Raises `RequestError` for one that is not among them.
    """
    name, _, option = asked.partition(":")
    if option not in _OPTIONS:
        text = f"guided_decoding_backend takes {NO_FALLBACK!r} after a colon, got {option[:40]!r}"
        raise RequestError(text, param=_FIELD, code="unsupported_parameter")
    if not name:
        return factories
    found = [factory for factory in factories if factory.name == name]
    if not found:
        known = ", ".join((AUTO, *(factory.name for factory in factories)))
        text = f"guided_decoding_backend is one of {known} ({KEY}), got {name[:40]!r}"
        raise RequestError(text, param=_FIELD, code="unsupported_parameter")
    return found if option == NO_FALLBACK else [*found, *(other for other in factories if other.name != name)]


def _named(name: str, factories: Mapping[str, GrammarBackendFactory]) -> GrammarBackendFactory:
    if name not in factories:
        hint = did_you_mean(name, factories, f"there are {', '.join((AUTO, *sorted(factories)))}")
        raise ConfigError(f"{KEY}: no plugin brings the grammar backend {name!r}; {hint}", key=KEY)
    if (reason := factories[name].unavailable_reason()) is not None:
        raise ConfigError(f"{KEY}: the grammar backend {name!r} cannot be used here: {reason}", key=KEY)
    return factories[name]
