"""The plugin host: finds plugins by metadata, imports them when needed, and keeps the broken ones out.

The only registry in PyAgent. Built-ins come through the package's own entry points, by the same path as everybody's.
Invariants: a plugin that fails or does not end at import, registration, in a hook or by what it returns is
*quarantined* (named, logged once, listed with the reason) and the program goes on; the first plugin in the order wins a
contested name, and the clash is listed; one that is loaded anew is used only when all of it is right. The order:
plugins registered by hand, then `plugins.order`, then pluggy's tryfirst, the rest, and trylast; within each of these
the built-ins, then the others by name. Knows nothing of config files or sockets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import Distribution
from typing import TYPE_CHECKING, Protocol, cast

import pluggy

from pyagent.core.contributions import Contribution, Contributions, Rank
from pyagent.core.entry_points import (
    distribution_name,
    distribution_version,
    installed_entry_points,
)
from pyagent.core.errors import PluginError
from pyagent.core.found_plugin import Clash, FoundPlugin, PluginInfo
from pyagent.core.hooks import PROJECT_NAME, HookSpecs
from pyagent.core.nearest import did_you_mean
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
from pyagent.core.plugin_modules import put_back, take_modules

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
    from pyagent.core.web_search import SearchProviderFactory

logger = logging.getLogger("pyagent.plugins")
Isolator = Callable[[str, Mapping[str, str]], object]
"""Makes what stands for a plugin that runs elsewhere, from its name and its modules by noun."""
LOAD_SECONDS = 60.0
"""How long a plugin may take to import, and to answer a hook."""


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

    @property
    def load_seconds(self) -> float:
        """How long a plugin may take to import, and to answer a hook."""
        ...

    @property
    def isolate(self) -> Sequence[str]:
        """Plugins that run in processes of their own."""
        ...


class PluginHost:
    """Holds the plugins. `discover` reads metadata; `backends`, `agents` and `tools` import what they need."""

    def __init__(  # noqa: PLR0913 - each is a setting
        self,
        *,
        disable: Iterable[str] = (),
        order: Iterable[str] = (),
        with_options: Iterable[str] = (),
        load_seconds: float = LOAD_SECONDS,
        isolate: Iterable[str] = (),
        isolator: Isolator | None = None,
    ) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(HookSpecs)
        self._disabled = frozenset(disable)
        self._with_options = frozenset(with_options)
        self._order = {name: position for position, name in enumerate(order)}
        self._plugins: dict[str, FoundPlugin] = {}
        self._contributions = Contributions.of(NOUNS)
        self._open_nouns = set(NOUNS)
        self._load_seconds = load_seconds
        self._isolated = frozenset(isolate)
        self._isolator = isolator
        self._tried: FoundPlugin | None = None
        self._lock = threading.RLock()

    @classmethod
    def discover(cls, options: PluginOptions, isolator: Isolator | None = None) -> PluginHost:
        """Find the installed plugins by their metadata; nothing is imported. Those to isolate go by the `isolator`."""
        host = cls(
            disable=options.disable,
            order=options.order,
            with_options=options.options,
            load_seconds=options.load_seconds,
            isolate=options.isolate,
            isolator=isolator,
        )
        for entry, distribution in installed_entry_points():
            host._add_entry(entry.name, entry.value, distribution)
        for name in sorted(host._isolated - host._plugins.keys()):
            hint = did_you_mean(name, host._plugins, "`pyagent plugins list` shows all")
            logger.warning("plugins.isolate names %r, which is not installed, and isolates nothing; %s", name, hint)
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
            self._open_nouns.update(NOUNS)

    def backends(self) -> dict[str, BackendFactory]:
        """Backend factories by scheme; one that fails when a link is made gives way to the next that brings it."""
        with self._lock:
            found = cast("dict[str, BackendFactory]", self._collect("backends"))
            brought = self._contributions.in_order("backends")
            in_order = [cast("dict[str, BackendFactory]", one.items) for one in brought]
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
            while (fault := self._needs_fault()) is not None:
                self._quarantine(*fault)
            return cast("dict[str, Agent]", self._collect("agents"))

    def agents_alone(self) -> dict[str, Agent]:
        """Return agents by name, whatever they need: of a host that has one plugin, and not those it depends on."""
        return cast("dict[str, Agent]", self._collect("agents"))

    def _needs_fault(self) -> tuple[FoundPlugin, str] | None:
        """Return a plugin whose agents cannot have what they need, and why; None when there is none."""
        agents, owners = self._collect("agents"), self._contributions.owners("agents")
        name_to_needs = {name: tuple(getattr(agent, "needs", ())) for name, agent in agents.items()}
        problem = needs_problem(name_to_needs, [name for name, owner in owners.items() if owner.is_builtin])
        if problem is None:
            return None
        at_fault = [plugin for name, plugin in owners.items() if name in problem[0]]
        return max(at_fault, key=lambda plugin: not plugin.is_builtin), problem[1]

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

    def search_providers(self) -> dict[str, SearchProviderFactory]:
        """Makers of search providers by name."""
        return cast("dict[str, SearchProviderFactory]", self._collect("search_providers"))

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
        return self._contributions.clashes()

    def unknown_names(self) -> list[str]:
        """Names in the settings of plugins (order, disable, isolate, tables `plugins.NAME`) that no plugin has."""
        named = self._disabled | self._order.keys() | self._with_options | self._isolated
        return sorted(named - self._plugins.keys())

    # -- while the program runs --------------------------------------------------------------------------------------

    def reload(self, name: str) -> PluginInfo:
        """Import a plugin anew, as it is installed now, and use it; also one that was installed meanwhile.

        Raises `PluginError` when the new one is not right: the one before is then used on.
        """
        with self._lock:
            self.agents()  # what is wrong with others is settled before
            old, fresh = self._plugins.get(name), self._found_again(name)
            targets = [*fresh.noun_to_target.values(), *(old.noun_to_target.values() if old else ())]
            modules = take_modules(targets)
            taken = self._contributions.withdraw(old) if old else {}
            if old is not None:
                self._unregister(old)
            try:
                self._try_out(fresh)
            except BaseException:
                put_back(modules, targets)
                self._use_again(name, old)
                self._contributions.restore(taken)
                raise
            finally:
                self._tried = None
            return self._info(fresh)

    def unload(self, name: str) -> PluginInfo:
        """Take a plugin out of use until `reload`; what still runs of it goes on.

        Raises `PluginError` for built-in ones, those that others need, and guardrails: nothing is to pass unseen.
        """
        with self._lock:
            plugin = self._checked(name)
            if "guardrails" in plugin.noun_to_target or self._contributions.by(plugin, "guardrails"):
                text = f"the plugin {name!r} brings guardrails, which a running program keeps"
                raise PluginError(f"{text}; disable it in plugins.disable, and start anew", plugin=name)
            self.agents()
            taken = self._contributions.withdraw(plugin)
            if (fault := self._needs_fault()) is not None:
                self._contributions.restore(taken)
                raise PluginError(f"the plugin {name!r} is needed: of {fault[0].name} {fault[1]}", plugin=name)
            self._unregister(plugin)
            take_modules(plugin.noun_to_target.values())
            plugin.target_to_object.clear()
            plugin.state = "disabled"
            plugin.reason = "unloaded while the program ran; `pyagent plugins reload` loads it"
            return self._info(plugin)

    def _checked(self, name: str) -> FoundPlugin:
        """Return a plugin that may be taken out while the program runs."""
        if name not in self._plugins:
            hint = did_you_mean(name, self._plugins, "`pyagent plugins list` shows those that are installed")
            raise PluginError(f"there is no plugin {name!r}; {hint}", plugin=name)
        plugin = self._plugins[name]
        if plugin.is_builtin or plugin.is_by_hand:
            how = "comes with PyAgent" if plugin.is_builtin else "was registered by the program"
            raise PluginError(f"the plugin {name!r} {how}; it changes only when the program starts anew", plugin=name)
        if name in self._disabled:
            raise PluginError(f"the plugin {name!r} is disabled by plugins.disable; take it out of there", plugin=name)
        return plugin

    def _found_again(self, name: str) -> FoundPlugin:
        """Return a plugin as the installed packages have it now, not loaded."""
        old = self._plugins.get(name)
        found = PluginHost()
        for entry, distribution in installed_entry_points():
            found._add_entry(entry.name, entry.value, distribution)
        if name not in found._plugins:
            self._checked(name)
            text = f"the plugin {name!r} is no longer installed; `pyagent plugins unload {name}` takes it out"
            raise PluginError(text, plugin=name)
        fresh = found._plugins[name]
        if old is not None or fresh.is_builtin:
            self._checked(name)
        fresh.index = len(self._plugins) if old is None else old.index
        return fresh

    def _try_out(self, fresh: FoundPlugin) -> None:
        """Use a plugin, with all that it brings; raises `PluginError` saying why not."""
        self._plugins[fresh.name] = self._tried = fresh
        for noun in NOUNS:
            self._bring(fresh, noun)
        if fresh.is_open and (fault := self._needs_fault()) is not None:
            self._quarantine(fresh, fault[1])
        if not fresh.is_open:
            raise PluginError(f"the plugin {fresh.name!r} is not loaded: {fresh.reason}", plugin=fresh.name)
        fresh.state = "loaded"

    def _use_again(self, name: str, old: FoundPlugin | None) -> None:
        """Have a plugin as it was before it was loaded again."""
        if old is None:
            self._unregister(self._plugins.pop(name))
            return
        self._unregister(self._plugins[name])
        self._contributions.withdraw(self._plugins[name])
        self._plugins[name] = old
        if old.is_open:
            for target, thing in old.target_to_object.items():
                self._manager.register(thing, f"{name}:{target}")

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
            thing = plugin.in_time(f"importing {target}", self._load_seconds, lambda: self._imported(plugin, target))
            self._register_object(plugin, target, thing)
        except PluginError as error:
            self._quarantine(plugin, str(error).removeprefix(f"plugin {plugin.name!r} "))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's failure must not end the program
            self._quarantine(plugin, plugin.failure(target, error, "failed at import"))
        else:
            plugin.state = "loaded"
        plugin.load_seconds += time.perf_counter() - started

    def _imported(self, plugin: FoundPlugin, target: str) -> object:
        """Return a plugin's module; what stands for it where the plugin is to be isolated: its code is not run here."""
        if plugin.name not in self._isolated:
            return import_target(target)
        if self._isolator is None:
            text = f"plugin {plugin.name!r} is in plugins.isolate, and this part of the program cannot isolate plugins"
            raise PluginError(text, plugin=plugin.name)
        return self._isolator(plugin.name, plugin.noun_to_target)

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
        self._contributions.withdraw(plugin)
        self._unregister(plugin)
        if plugin is not self._tried:  # it is told why, and nothing goes on without it
            logger.warning("plugin %s is quarantined, the program goes on without it: %s", plugin.name, reason)

    def _unregister(self, plugin: FoundPlugin) -> None:
        for thing in plugin.target_to_object.values():
            if self._manager.is_registered(thing):
                self._manager.unregister(thing)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _collect(self, noun: str) -> dict[str, object]:
        with self._lock:
            if noun in self._open_nouns:
                for plugin in list(self._plugins.values()):
                    self._bring(plugin, noun)
                self._open_nouns.discard(noun)
            return self._contributions.merged(noun)

    def _bring(self, plugin: FoundPlugin, noun: str) -> None:
        target = plugin.target_for(noun)
        if target and plugin.is_open and noun not in plugin.asked:
            plugin.asked.add(noun)
            self._ask(plugin, noun, target)

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
            started = time.perf_counter()
            try:
                items = checked_items(plugin.name, noun, self._call(plugin, noun, impl))
                items = guarded_items(plugin, noun, items)
            except PluginError as error:
                self._quarantine(plugin, str(error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a plugin's failure must not end the program
                self._quarantine(plugin, plugin.failure(target, error, f"failed in {PREFIX}{noun}"))
            else:
                self._contributions.add(noun, Contribution(plugin, self._rank(plugin, impl), items))
            plugin.hook_seconds[noun] = time.perf_counter() - started

    def _call(self, plugin: FoundPlugin, noun: str, impl: pluggy.HookImpl) -> object:
        """Call one implementation. One that takes parts asks this host, whose lock this thread has: it runs here."""
        if impl.argnames:
            with plugin.watched(f"in {PREFIX}{noun}"):
                return impl.function(self)
        return plugin.in_time(f"{PREFIX}{noun}", self._load_seconds, impl.function)

    def _hook(self, noun: str) -> pluggy.HookCaller:
        return cast("pluggy.HookCaller", getattr(self._manager.hook, PREFIX + noun))

    def _rank(self, plugin: FoundPlugin, impl: pluggy.HookImpl) -> Rank:
        position = -1.0 if plugin.is_by_hand else self._order.get(plugin.name, len(self._order))
        index = plugin.index if plugin.is_by_hand or plugin.is_builtin else 0
        return position, impl.trylast - impl.tryfirst, not plugin.is_builtin, index, plugin.name

    def _info(self, plugin: FoundPlugin) -> PluginInfo:
        by_noun = [(noun, self._contributions.by(plugin, noun)) for noun in NOUNS]
        filled = tuple(noun for noun, contributions in by_noun if contributions)
        return PluginInfo(
            name=plugin.name,
            version=distribution_version(plugin.distribution),
            distribution=distribution_name(plugin.distribution),
            nouns=tuple(noun for noun in plugin.noun_to_target if noun) or filled,
            state=plugin.state,
            reason=plugin.reason,
            load_seconds=plugin.load_seconds,
            hook_seconds=dict(plugin.hook_seconds),
            is_builtin=plugin.is_builtin and not plugin.is_by_hand,
            modules=() if plugin.is_by_hand else tuple(dict.fromkeys(plugin.noun_to_target.values())),
            hooks=tuple(PREFIX + noun for noun in filled),
            provides={noun: tuple(name for c in found for name in c.items) for noun, found in by_noun if found},
        )


def _is_same(one: Distribution | None, other: Distribution) -> bool:
    return one is other or distribution_name(one) == distribution_name(other)
