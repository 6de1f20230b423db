"""The plugin host: finds plugins by metadata, imports them when needed, and keeps the broken ones out.

The only registry in PyAgent. Built-ins come through the package's own entry points, by the same path as everybody's.
Invariants: a plugin that fails at import, registration, in a hook or by what it returns is *quarantined* (named, logged
once, listed with the reason) and the program goes on; the first plugin in the order wins a contested name, and the
clash is listed. The order: plugins registered by hand, then `plugins.order`, then pluggy's tryfirst, the rest, and
trylast; within each of these the built-ins, then the others by name. Knows nothing of config files or sockets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from typing import TYPE_CHECKING, Protocol, cast

import pluggy

from pyagent.core.entry_points import (
    distribution_name,
    distribution_version,
    installed_entry_points,
)
from pyagent.core.errors import PluginError
from pyagent.core.found_plugin import Clash, FoundPlugin, PluginInfo
from pyagent.core.hooks import PROJECT_NAME, HookSpecs
from pyagent.core.plugin_checks import (
    NOUNS,
    PREFIX,
    check_hook_names,
    checked_items,
    import_target,
    needs_problem,
    signature_error,
    unknown_noun,
)
from pyagent.core.plugin_guards import first_of, guarded_items

if TYPE_CHECKING:
    from pyagent.core.backends import BackendFactory
    from pyagent.core.dialects.dialect import Dialect
    from pyagent.core.eviction import EvictionPolicyFactory
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.executor import ExecutorFactory
    from pyagent.core.fleet.guardrails import Guardrail
    from pyagent.core.fleet.tool_providers import ToolProvider
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.grammars import GrammarBackendFactory
    from pyagent.core.logits_processors import BroughtLogitsProcessor
    from pyagent.core.runners.architecture import BroughtArchitecture
    from pyagent.core.runners.attention import AttentionBackend
    from pyagent.core.runners.factory import RunnerFactory
    from pyagent.core.runners.kv_connector import KvConnectorFactory
    from pyagent.core.runners.rank_executor import RankExecutorFactory
    from pyagent.core.scheduling import QueuePolicyFactory
    from pyagent.core.tokenizers import TokenizerFactory

logger = logging.getLogger("pyagent.plugins")


class PluginOptions(Protocol):
    """The part of the settings the host needs (`settings.plugins`)."""

    @property
    def disable(self) -> Sequence[str]:
        """Plugins not to use."""
        ...

    @property
    def order(self) -> Sequence[str]:
        """Plugins that come first."""
        ...

    @property
    def options(self) -> Mapping[str, object]:
        """Options of plugins, by their names."""
        ...


@dataclass(frozen=True, slots=True)
class _Contribution:
    plugin: FoundPlugin
    rank: tuple[float, int, bool, int, str]
    items: Mapping[str, object]


class PluginHost:
    """Holds the plugins. `discover` reads metadata; `backends`, `agents` and `tools` import what they need."""

    def __init__(
        self, *, disable: Iterable[str] = (), order: Iterable[str] = (), with_options: Iterable[str] = ()
    ) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(HookSpecs)
        self._disabled = frozenset(disable)
        self._with_options = frozenset(with_options)
        self._order = {name: position for position, name in enumerate(order)}
        self._plugins: dict[str, FoundPlugin] = {}
        self._contributions: dict[str, list[_Contribution]] = {noun: [] for noun in NOUNS}
        self._asked: set[tuple[str, str]] = set()
        self._clashes: dict[Clash, None] = {}
        self._lock = threading.RLock()

    @classmethod
    def discover(cls, options: PluginOptions) -> PluginHost:
        """Find the installed plugins by their metadata; nothing is imported."""
        host = cls(disable=options.disable, order=options.order, with_options=options.options)
        for entry, distribution in installed_entry_points():
            host._add_entry(entry.name, entry.value, distribution)
        return host

    def register(self, plugin: object, name: str) -> None:
        """Add a module or object by hand; it comes before every installed plugin.

        Raises `PluginError` when it is refused; one that the settings disable is listed but not used.
        """
        with self._lock:
            if name in self._plugins:
                raise PluginError(f"a plugin called {name!r} is there already; choose another name", plugin=name)
            entry = FoundPlugin(name, len(self._plugins), is_by_hand=True, noun_to_target={"": name})
            if name in self._disabled:
                entry.state = "disabled"
            else:
                self._register_object(entry, name, plugin)
                entry.state = "loaded"
            self._plugins[name] = entry

    def backends(self) -> dict[str, BackendFactory]:
        """Backend factories by scheme; one that fails when a link is made gives way to the next that brings it."""
        with self._lock:
            found = cast("dict[str, BackendFactory]", self._collect("backends"))
            in_order = [cast("dict[str, BackendFactory]", one.items) for one in self._in_order("backends")]
            return {scheme: first_of([items[scheme] for items in in_order if scheme in items]) for scheme in found}

    def queue_policies(self) -> dict[str, QueuePolicyFactory]:
        """Makers of queue policies by name."""
        return cast("dict[str, QueuePolicyFactory]", self._collect("queue_policies"))

    def eviction_policies(self) -> dict[str, EvictionPolicyFactory]:
        """Makers of eviction policies by name."""
        return cast("dict[str, EvictionPolicyFactory]", self._collect("eviction_policies"))

    def dialects(self) -> dict[str, Dialect]:
        """Dialects of plugins by name; `core.dialects.registry` adds the built-in ones."""
        return cast("dict[str, Dialect]", self._collect("dialects"))

    def grammar_backends(self) -> dict[str, GrammarBackendFactory]:
        """Return grammar backends by name, in the plugins' order; their failures name the plugin."""
        return cast("dict[str, GrammarBackendFactory]", self._collect("grammar_backends"))

    def logits_processors(self) -> dict[str, BroughtLogitsProcessor]:
        """Return logits processors by name, each with its plugin, which its faults name."""
        return cast("dict[str, BroughtLogitsProcessor]", self._collect("logits_processors"))

    def tokenizers(self) -> dict[str, TokenizerFactory]:
        """Return loaders of vocabularies by name, in the plugins' order; their failures name the plugin."""
        return cast("dict[str, TokenizerFactory]", self._collect("tokenizers"))

    def runners(self) -> dict[str, RunnerFactory]:
        """Loaders of models by the name of their device, in the plugins' order; their failures name the plugin."""
        return cast("dict[str, RunnerFactory]", self._collect("runners"))

    def attention_backends(self) -> dict[str, AttentionBackend]:
        """Return attention backends by name, in the plugins' order; their failures name the plugin."""
        return cast("dict[str, AttentionBackend]", self._collect("attention_backends"))

    def architectures(self) -> dict[str, BroughtArchitecture]:
        """Kinds of models by the name that their files give them, each with its plugin, which its faults name."""
        return cast("dict[str, BroughtArchitecture]", self._collect("architectures"))

    def rank_executors(self) -> dict[str, RankExecutorFactory]:
        """Makers of what starts ranks by name, besides the built-in one."""
        return cast("dict[str, RankExecutorFactory]", self._collect("rank_executors"))

    def kv_connectors(self) -> dict[str, KvConnectorFactory]:
        """Makers of connectors that move KV, by name."""
        return cast("dict[str, KvConnectorFactory]", self._collect("kv_connectors"))

    def agents(self) -> dict[str, Agent]:
        """Return agents by name. A plugin whose agent needs an unknown agent, or itself in a circle, is quarantined."""
        with self._lock:
            while True:
                agents = cast("dict[str, Agent]", self._collect("agents"))
                owners = self._owners("agents")
                name_to_needs = {name: tuple(getattr(agent, "needs", ())) for name, agent in agents.items()}
                problem = needs_problem(name_to_needs, [name for name, owner in owners.items() if owner.is_builtin])
                if problem is None:
                    return agents
                at_fault = [plugin for name, plugin in owners.items() if name in problem[0]]
                self._quarantine(max(at_fault, key=lambda plugin: not plugin.is_builtin), problem[1])

    def tools(self) -> dict[str, FleetTool]:
        """Return tools by name."""
        return cast("dict[str, FleetTool]", self._collect("tools"))

    def tool_providers(self) -> dict[str, ToolProvider]:
        """Tool providers by name, not opened."""
        return cast("dict[str, ToolProvider]", self._collect("tool_providers"))

    def guardrails(self) -> dict[str, Guardrail]:
        """Guardrails by name. Raises `PluginError` when a plugin that names some is broken: nothing passes unseen."""
        found = cast("dict[str, Guardrail]", self._collect("guardrails"))
        for plugin in self._plugins.values():
            if plugin.state == "quarantined" and "guardrails" in plugin.noun_to_target:
                text = f"the guardrails of {plugin.name} are not there: {plugin.reason}; mend it, or disable the plugin"
                raise PluginError(text, plugin=plugin.name, hook=f"{PREFIX}guardrails")
        return found

    def executors(self) -> dict[str, ExecutorFactory]:
        """Makers of executors by name, besides the built-in one."""
        return cast("dict[str, ExecutorFactory]", self._collect("executors"))

    def commands(self) -> dict[str, Callable[..., object]]:
        """Sub-commands of the command line by name."""
        return cast("dict[str, Callable[..., object]]", self._collect("commands"))

    def load_all(self) -> None:
        """Load every plugin and ask every hook, so that `plugins` shows all there is to know."""
        for noun in NOUNS:
            self._collect(noun)
        self.agents()  # their needs are looked at together

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin known, in order of discovery, with its state."""
        return [self._info(plugin) for plugin in self._plugins.values()]

    def clashes(self) -> list[Clash]:
        """Names that two plugins bring, for the nouns collected so far."""
        return list(self._clashes)

    def unknown_names(self) -> list[str]:
        """Names in `plugins.order`, `plugins.disable` and of tables `plugins.NAME` that no plugin has."""
        return sorted((self._disabled | self._order.keys() | self._with_options) - self._plugins.keys())

    # -- finding -----------------------------------------------------------------------------------------------------

    def _add_entry(self, entry_name: str, target: str, distribution: Distribution) -> None:
        name, _, noun = entry_name.partition(".")
        plugin = self._plugins.get(name)
        if plugin is None:
            plugin = self._plugins[name] = FoundPlugin(name, len(self._plugins), distribution=distribution)
            if name in self._disabled:
                plugin.state, plugin.reason = "disabled", "disabled by plugins.disable"
        elif not _is_same(plugin.distribution, distribution):
            self._report_shadowed(plugin, distribution)
            return
        if noun in plugin.noun_to_target:
            return  # the same distribution twice on sys.path: the first counts, as for imports
        plugin.noun_to_target[noun] = target
        if noun and noun not in NOUNS and plugin.is_open:
            self._quarantine(plugin, unknown_noun(entry_name, noun))

    def _report_shadowed(self, plugin: FoundPlugin, distribution: Distribution) -> None:
        """Another distribution claims the same plugin name: list it under `name@distribution`, unused."""
        owner = distribution_name(distribution)
        alias = f"{plugin.name}@{owner}"
        if alias not in self._plugins:
            shadowed = self._plugins[alias] = FoundPlugin(alias, len(self._plugins), distribution=distribution)
            taken = distribution_name(plugin.distribution)
            self._quarantine(shadowed, f"the name {plugin.name!r} is taken by {taken}; uninstall {taken} or {owner}")

    # -- loading -----------------------------------------------------------------------------------------------------

    def _load(self, plugin: FoundPlugin, target: str) -> None:
        """Import one module of a plugin and register it; quarantines on any failure."""
        started = time.perf_counter()
        try:
            with plugin.watched(f"importing {target}"):
                self._register_object(plugin, target, import_target(target))
        except PluginError as error:
            self._quarantine(plugin, str(error).removeprefix(f"plugin {plugin.name!r} "))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's failure must not end the program
            self._quarantine(plugin, plugin.failure(target, error, "failed at import"))
        else:
            plugin.state = "loaded"
        plugin.load_seconds += time.perf_counter() - started

    def _register_object(self, plugin: FoundPlugin, target: str, thing: object) -> None:
        check_hook_names(plugin.name, thing)
        pluggy_name = plugin.name if not plugin.target_to_object else f"{plugin.name}:{target}"
        try:
            self._manager.register(thing, pluggy_name)
        except pluggy.PluginValidationError as error:
            raise signature_error(plugin.name, thing, error) from error
        except ValueError as error:
            raise PluginError(f"plugin {plugin.name!r} cannot be registered: {error}", plugin=plugin.name) from error
        plugin.target_to_object[target] = thing

    def _quarantine(self, plugin: FoundPlugin, reason: str) -> None:
        plugin.state, plugin.reason = "quarantined", reason
        for contributions in self._contributions.values():
            contributions[:] = [kept for kept in contributions if kept.plugin is not plugin]
        for thing in plugin.target_to_object.values():
            if self._manager.is_registered(thing):
                self._manager.unregister(thing)
        logger.warning("plugin %s is quarantined, the program goes on without it: %s", plugin.name, reason)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _collect(self, noun: str) -> dict[str, object]:
        with self._lock:
            for plugin in list(self._plugins.values()):
                target = plugin.target_for(noun)
                if target and plugin.is_open and (noun, plugin.name) not in self._asked:
                    self._asked.add((noun, plugin.name))
                    self._ask(plugin, noun, target)
            return self._merge(noun)

    def _ask(self, plugin: FoundPlugin, noun: str, target: str) -> None:
        """Load what the plugin names for the noun, call its hook, keep what it brings."""
        if target not in plugin.target_to_object:
            self._load(plugin, target)
        thing = plugin.target_to_object.get(target)
        if thing is None or not plugin.is_open:
            return
        impls = [impl for impl in self._hook(noun).get_hookimpls() if impl.plugin is thing]
        if not impls and noun in plugin.noun_to_target:
            self._quarantine(plugin, f"says it brings {noun}, but {target} does not fill {PREFIX}{noun}")
        for impl in impls:
            try:
                with plugin.watched(f"in {PREFIX}{noun}"):
                    items = checked_items(plugin.name, noun, impl.function(*([self] if impl.argnames else [])))
                items = guarded_items(plugin, noun, items)
            except PluginError as error:
                self._quarantine(plugin, str(error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a plugin's failure must not end the program
                self._quarantine(plugin, plugin.failure(target, error, f"failed in {PREFIX}{noun}"))
            else:
                self._contributions[noun].append(_Contribution(plugin, self._rank(plugin, impl), items))

    def _hook(self, noun: str) -> pluggy.HookCaller:
        return cast("pluggy.HookCaller", getattr(self._manager.hook, PREFIX + noun))

    def _rank(self, plugin: FoundPlugin, impl: pluggy.HookImpl) -> tuple[float, int, bool, int, str]:
        position = -1.0 if plugin.is_by_hand else self._order.get(plugin.name, len(self._order))
        index = plugin.index if plugin.is_by_hand or plugin.is_builtin else 0
        return position, impl.trylast - impl.tryfirst, not plugin.is_builtin, index, plugin.name

    def _merge(self, noun: str) -> dict[str, object]:
        """Return the contributions in order; the first to bring a name keeps it."""
        merged: dict[str, object] = {}
        owners: dict[str, FoundPlugin] = {}
        for contribution in self._in_order(noun):
            for name, item in contribution.items.items():
                if name in merged:
                    self._note_clash(Clash(noun, name, owners[name].name, contribution.plugin.name))
                else:
                    merged[name], owners[name] = item, contribution.plugin
        return merged

    def _owners(self, noun: str) -> dict[str, FoundPlugin]:
        """Who brings each name that is used."""
        contributions = reversed(self._in_order(noun))
        return {name: contribution.plugin for contribution in contributions for name in contribution.items}

    def _in_order(self, noun: str) -> list[_Contribution]:
        return sorted(self._contributions[noun], key=lambda contribution: contribution.rank)

    def _note_clash(self, clash: Clash) -> None:
        """Keep a clash for `pyagent plugins list`; every command would be too often."""
        if clash in self._clashes:
            return
        self._clashes[clash] = None
        logger.info(
            "plugins %s and %s both bring %s %r: %s comes first and is used (plugins.order changes that)",
            *(clash.winner, clash.loser, clash.noun, clash.name, clash.winner),
        )

    def _info(self, plugin: FoundPlugin) -> PluginInfo:
        by_noun = [(noun, [c for c in self._contributions[noun] if c.plugin is plugin]) for noun in NOUNS]
        filled = tuple(noun for noun, contributions in by_noun if contributions)
        return PluginInfo(
            name=plugin.name,
            version=distribution_version(plugin.distribution),
            distribution=distribution_name(plugin.distribution),
            nouns=tuple(noun for noun in plugin.noun_to_target if noun) or filled,
            state=plugin.state,
            reason=plugin.reason,
            load_seconds=plugin.load_seconds,
            is_builtin=plugin.is_builtin and not plugin.is_by_hand,
            modules=() if plugin.is_by_hand else tuple(dict.fromkeys(plugin.noun_to_target.values())),
            hooks=tuple(PREFIX + noun for noun in filled),
            provides={noun: tuple(name for c in found for name in c.items) for noun, found in by_noun if found},
        )


def _is_same(one: Distribution | None, other: Distribution) -> bool:
    return one is other or distribution_name(one) == distribution_name(other)
