"""Wraps what plugins bring, so that a failure in use names the plugin, and ends nothing else.

What is wrapped is imported when a plugin brings it: a start imports no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pyagent.core.errors import PluginError, PyAgentError
from pyagent.core.found_plugin import FoundPlugin
from pyagent.core.plugin_checks import PREFIX, backend_problem

if TYPE_CHECKING:
    from pyagent.core.backends import Backend, BackendFactory, LinkSpec
    from pyagent.core.config import Settings
    from pyagent.core.grammars import GrammarBackendFactory
    from pyagent.core.logits_processors import LogitsProcessorFactory
    from pyagent.core.runners.architecture import Architecture, DescribedArchitecture
    from pyagent.core.runners.attention import AttentionBackend
    from pyagent.core.runners.factory import RunnerFactory
    from pyagent.core.tokenizers import TokenizerFactory

logger = logging.getLogger("pyagent.plugins")


def guarded_items(plugin: FoundPlugin, noun: str, items: dict[str, object]) -> dict[str, object]:
    """Return what a plugin brings of one noun, wrapped where that noun is."""
    guard = _GUARDS.get(noun)
    return items if guard is None or (plugin.is_builtin and noun in _TRUSTED) else guard(plugin, items)


def _guarded_runners(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.runners.guarded import GuardedRunnerFactory

    factories = cast("dict[str, RunnerFactory]", items)
    return {name: GuardedRunnerFactory(factory, plugin.name) for name, factory in factories.items()}


def _guarded_attention(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.runners.attention import BroughtAttentionBackend

    backends = cast("dict[str, AttentionBackend]", items)
    return {name: BroughtAttentionBackend(backend, plugin.name) for name, backend in backends.items()}


def _guarded_architectures(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.runners.architecture import BroughtArchitecture

    kinds = cast("dict[str, Architecture | DescribedArchitecture]", items)
    return {name: BroughtArchitecture(kind, plugin.name) for name, kind in kinds.items()}


def _guarded_grammars(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.grammars import BroughtGrammarBackend

    factories = cast("dict[str, GrammarBackendFactory]", items)
    return {name: BroughtGrammarBackend(factory, plugin.name) for name, factory in factories.items()}


def _guarded_processors(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.logits_processors import BroughtLogitsProcessor

    factories = cast("dict[str, LogitsProcessorFactory]", items)
    return {name: BroughtLogitsProcessor.of(factory, plugin.name) for name, factory in factories.items()}


def _guarded_tokenizers(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    from pyagent.core.guarded_tokenizer import GuardedTokenizerFactory

    readers = cast("dict[str, TokenizerFactory]", items)
    return {name: GuardedTokenizerFactory(reader, plugin.name) for name, reader in readers.items()}


def _guarded_backends(plugin: FoundPlugin, items: dict[str, object]) -> dict[str, object]:
    return {name: _guarded_backend(plugin, cast("BackendFactory", item)) for name, item in items.items()}


_GUARDS: dict[str, Callable[[FoundPlugin, dict[str, object]], dict[str, object]]] = {
    "runners": _guarded_runners,
    "attention_backends": _guarded_attention,
    "architectures": _guarded_architectures,
    "grammar_backends": _guarded_grammars,
    "logits_processors": _guarded_processors,
    "tokenizers": _guarded_tokenizers,
    "backends": _guarded_backends,
}
_TRUSTED = {"runners", "attention_backends", "grammar_backends"}
"""Nouns whose built-in items go as they are."""


def _guarded_backend(plugin: FoundPlugin, factory: BackendFactory) -> BackendFactory:
    """Return the factory with its failures turned into `PluginError`s that name the plugin."""
    hook = f"{PREFIX}backends"

    def make(link: LinkSpec, settings: Settings) -> Backend:
        try:
            with plugin.watched(f"making the backend {link}"):
                backend = factory(link, settings)
            problem = backend_problem(backend, link.scheme)
        except (PyAgentError, KeyboardInterrupt):
            raise
        except BaseException as error:
            target = plugin.target_for("backends") or ""
            why = plugin.failure(target, error, f"failed to make the backend {link}")
            raise PluginError(f"plugin {plugin.name!r} {why}", plugin=plugin.name, hook=hook) from error
        if problem:
            what = f"made a {type(backend).__name__} for {link}, {problem}"
            raise PluginError(f"plugin {plugin.name!r} {what}", plugin=plugin.name, hook=hook)
        if plugin.is_builtin:
            return backend
        from pyagent.core.guarded_backend import GuardedBackend

        return GuardedBackend(backend)

    return make


def first_of(factories: list[BackendFactory]) -> BackendFactory:
    """The first of several makers of one scheme that does not break; what is wrong with the link ends it at once."""
    if len(factories) == 1:
        return factories[0]

    def make(link: LinkSpec, settings: Settings) -> Backend:
        broken: list[PluginError] = []
        for factory in factories:
            try:
                return factory(link, settings)
            except PluginError as error:
                logger.warning("%s; the next plugin that brings %s is asked", error, link.scheme)
                broken.append(error)
        raise broken[0]

    return make
