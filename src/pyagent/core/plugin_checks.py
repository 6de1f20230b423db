"""What a plugin may look like: the names, signatures and return types of its hooks. Pure checks, no state.

Each check raises `PluginError` (or returns the sentence) naming what was found, what was expected and the nearest right
name. The host in `core.plugins` decides what to do about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, cast

import pluggy

from pyagent.core.errors import PluginError
from pyagent.core.hooks import PROJECT_NAME, HookSpecs
from pyagent.core.nearest import did_you_mean

PREFIX = "pyagent_register_"
NOUNS: tuple[str, ...] = tuple(name.removeprefix(PREFIX) for name in vars(HookSpecs) if name.startswith(PREFIX))
"""What a plugin can bring: the last words of the hooks."""

_MAKERS: dict[str, str] = {
    "backends": "scheme",
    "queue_policies": "name",
    "eviction_policies": "name",
    "executors": "name",
    "rank_executors": "name",
    "search_providers": "name",
    "commands": "name",
}
"""What comes as a mapping to factories, and what the keys are."""

_MEMBERS: dict[str, tuple[str, ...]] = {
    "agents": ("description", "run"),
    "tools": ("description", "arguments", "call", "definition"),
    "tool_providers": ("open", "close"),
    "guardrails": (),
    "dialects": ("markers", "reasoning", "spans_reasoning", "matches", "is_open", "parser", "grammar"),
    "tokenizers": ("matches", "load"),
    "runners": ("unavailable_reason", "estimate", "load"),
    "attention_backends": ("unavailable_reason", "open"),
    "architectures": (),
    "kv_connectors": ("open",),
    "grammar_backends": ("unavailable_reason", "open"),
    "logits_processors": ("arguments", "is_argmax_invariant"),
}

_BACKEND_MEMBERS = ("models", "chat", "embed", "health", "close")


def module_of(target: str) -> str:
    """Return the module of `module` or `module:object`."""
    return target.partition(":")[0].strip()


def import_target(target: str) -> object:
    """Import `module` or `module:object`."""
    from importlib import import_module

    thing: object = import_module(module_of(target))
    for attribute in filter(None, target.partition(":")[2].strip().split(".")):
        thing = getattr(thing, attribute)
    return thing


def unknown_noun(entry_name: str, noun: str) -> str:
    """Say that an entry point brings something no hook is for."""
    hint = did_you_mean(noun, NOUNS, "it may need a newer PyAgent")
    return f"its entry point {entry_name!r} brings {noun!r}, which is none of {', '.join(NOUNS)}; {hint}"


def check_hook_names(plugin: str, thing: object) -> None:
    """Refuse a class, a hook that does not exist, one without the mark, and wrappers (calls are per plugin)."""
    if inspect.isclass(thing):
        raise PluginError(f"plugin {plugin!r} is the class {thing.__name__}; register an instance of it", plugin=plugin)
    for name in dir(thing):
        member = inspect.getattr_static(thing, name, None)
        function = cast("object", getattr(member, "__func__", member))
        options = cast("Mapping[str, object] | None", getattr(function, f"{PROJECT_NAME}_impl", None))
        if not inspect.isroutine(function) or (options is None and not name.startswith(f"{PROJECT_NAME}_")):
            continue
        hook = str((options or {}).get("specname") or name)
        if problem := _hook_problem(hook, options):
            raise PluginError(f"plugin {plugin!r} {problem}", plugin=plugin, hook=hook)


def _hook_problem(hook: str, options: Mapping[str, object] | None) -> str | None:
    known = [PREFIX + noun for noun in NOUNS]
    if hook not in known:
        if options and options.get("optionalhook"):
            return None
        hint = did_you_mean(hook, known, f"the hooks are {', '.join(known)}")
        return f"fills the hook {hook}, which does not exist; {hint}"
    if options is None:
        return f"defines {hook} without the mark @hookimpl (from pyagent.plugin import hookimpl)"
    if options.get("wrapper") or options.get("hookwrapper"):
        return f"makes {hook} a wrapper; wrappers are not supported, return your own values instead"
    return None


def signature_error(plugin: str, thing: object, error: pluggy.PluginValidationError) -> PluginError:
    """Return pluggy's complaint as one sentence that names plugin, hook and argument."""
    for noun in NOUNS:
        hook = PREFIX + noun
        function = getattr(thing, hook, None)
        if f"'{hook}'" not in str(error) or function is None:
            continue
        wanted = set(inspect.signature(getattr(HookSpecs, hook)).parameters) - {"self"}
        extra = [name for name in inspect.signature(function).parameters if name not in wanted]
        takes = f"the arguments {', '.join(sorted(wanted))}" if wanted else "no arguments"
        what = f"has {hook} with the argument {', '.join(map(repr, extra))}; that hook takes {takes}"
        return PluginError(f"plugin {plugin!r} {what}", plugin=plugin, hook=hook)
    return PluginError(f"plugin {plugin!r} is refused: {error}", plugin=plugin)


def checked_items(plugin: str, noun: str, returned: object) -> dict[str, object]:
    """Return what a hook returned, by name; raise `PluginError` for a wrong type."""
    if noun in _MAKERS:
        return _checked_factories(plugin, noun, returned)
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        raise _returned_wrong(plugin, noun, f"a sequence of {noun}", returned)
    items: dict[str, object] = {}
    for item in cast("Sequence[object]", returned):
        name = _checked_name(plugin, noun, item)
        find_problem = _PROBLEMS.get(noun)
        if find_problem is not None and (problem := find_problem(item)):
            kind = noun.removesuffix("s").replace("_", " ")
            raise PluginError(f"brings the {kind} {name!r}, {problem}", plugin=plugin, hook=PREFIX + noun)
        if name in items:
            raise PluginError(f"brings the name {name!r} twice in {PREFIX}{noun}", plugin=plugin, hook=PREFIX + noun)
        items[name] = item
    return items


def agent_problem(agent: object) -> str | None:
    """Return what is wrong with an agent, as far as its shape tells; None when nothing is."""
    description, needs = getattr(agent, "description", None), getattr(agent, "needs", ())
    if not isinstance(description, str) or not description.strip():
        return f"whose `description` is {description!r:.80}, expected a text"
    if isinstance(needs, str) or not isinstance(needs, Sequence) or not all(isinstance(n, str) for n in needs):  # pyright: ignore[reportUnknownVariableType]
        return f"whose `needs` is {needs!r:.80}, expected a sequence of agents' names"
    run = getattr(agent, "run", None)
    if inspect.isasyncgenfunction(run):
        return "whose `run` is an async generator; return the result, and show pieces by `context.stream`"
    if not _is_async(run):
        return "whose `run` is not `async def run(self, context, task)`"
    if not _takes(run, 2):
        return f"whose `run` takes {inspect.signature(cast('Any', run))}, expected (context, task)"
    return _optional_problem(agent)


def _optional_problem(agent: object) -> str | None:
    score, close = getattr(agent, "score", None), getattr(agent, "close", None)
    if not isinstance(pure := getattr(agent, "is_pure", False), bool):
        return f"whose `is_pure` is {pure!r:.80}, expected True or False"
    if score is not None and (_is_async(score) or not _takes(score, 1)):
        return "whose `score` is not `def score(self, task)`"
    if close is not None and not _takes(close, 0):
        return "whose `close` is not `async def close(self)`"
    return None


def _provider_problem(provider: object) -> str | None:
    for member in ("open", "close"):
        function = getattr(provider, member, None)
        if not _is_async(function) or not _takes(function, 0):
            return f"whose `{member}` is not `async def {member}(self)`"
    return None


def _guardrail_problem(guardrail: object) -> str | None:
    checks = {"check_task": 2, "check_call": 3, "check_output": 2}
    found = {name: function for name in checks if (function := getattr(guardrail, name, None)) is not None}
    for name, function in found.items():
        if not _is_async(function) or not _takes(function, checks[name]):
            return f"whose `{name}` is not `async def {name}` of {checks[name]} arguments"
    return None if found else f"which has none of {', '.join(checks)}"


def _dialect_problem(dialect: object) -> str | None:
    """Return what is wrong with a dialect, as far as its shape and a first question tell."""
    markers = cast("object", getattr(dialect, "markers", None))
    if not isinstance(markers, Set) or not all(isinstance(one, str) and one for one in cast("Set[object]", markers)):
        return f"whose `markers` is {markers!r:.80}, expected a set of tags"
    reasoning = cast("object", getattr(dialect, "reasoning", None))
    if reasoning is not None and not all(isinstance(getattr(reasoning, name, None), str) for name in ("begin", "end")):
        return f"whose `reasoning` is {reasoning!r:.80}, expected a `Reasoning`, or None"
    matches = cast("object", getattr(dialect, "matches", None))
    if not _takes(matches, 1) or not isinstance(cast("Callable[[str], object]", matches)(""), bool):
        return "whose `matches` is not `def matches(self, template)`, returning a bool"
    if not _takes(getattr(dialect, "is_open", None), 1) or not _takes(getattr(dialect, "parser", None), 1):
        return "whose `is_open(prompt)` or `parser(tools, *, is_reasoning)` takes other arguments"
    return None


def _logits_problem(factory: object) -> str | None:
    from pyagent.core.logits_processors import factory_problem  # a program without any does not import it

    return factory_problem(factory)


_PROBLEMS: dict[str, Callable[[object], str | None]] = {
    "agents": agent_problem,
    "tool_providers": _provider_problem,
    "guardrails": _guardrail_problem,
    "dialects": _dialect_problem,
    "logits_processors": _logits_problem,
}
"""What is looked at beside the members, by noun."""


def backend_problem(backend: object, scheme: str) -> str | None:
    """Return what is wrong with a backend of a scheme, as far as its shape tells; None when nothing is.

    Rules for private requests name schemes: a backend under another scheme's name would be sent what is not for it.
    """
    from pyagent.core.capabilities import capabilities_of, capabilities_problem

    missing = [member for member in _BACKEND_MEMBERS if not callable(getattr(backend, member, None))]
    if missing:
        return f"which is not a Backend: it has no `{missing[0]}()`"
    name = cast("object", getattr(backend, "name", None))
    if not isinstance(name, str) or name.partition(":")[0] != scheme:
        return f"whose `name` is {name!r:.80}, expected the scheme {scheme!r}, or a name that begins with '{scheme}:'"
    problem = capabilities_problem(capabilities_of(backend))
    return f"whose {problem}" if problem else None


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _takes(function: object, num_arguments: int) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return True
    return True


def needs_problem(name_to_needs: Mapping[str, Sequence[str]], trusted: Collection[str]) -> tuple[list[str], str] | None:
    """Return the agents at fault and what is wrong with their `needs`: an unknown name, or a circle; else None.

    Those `trusted` do without what is not there.
    """
    from pyagent.core.fleet.graph import find_cycle

    for name, needs in name_to_needs.items():
        for needed in needs:
            if needed not in name_to_needs and name not in trusted:
                hint = did_you_mean(needed, name_to_needs, "`pyagent agent` lists all agents")
                return [name], f"its agent {name!r} needs {needed!r}, which no enabled plugin brings; {hint}"
    known = {name: [needed for needed in needs if needed in name_to_needs] for name, needs in name_to_needs.items()}
    if cycle := find_cycle(known):
        return cycle, f"agents need each other in a circle: {' -> '.join(cycle)}"
    return None


def _checked_factories(plugin: str, noun: str, returned: object) -> dict[str, object]:
    name_of = _MAKERS[noun]
    if not isinstance(returned, Mapping):
        raise _returned_wrong(plugin, noun, f"a mapping from {name_of} to factory", returned)
    items: dict[str, object] = {}
    for name, factory in cast("Mapping[object, object]", returned).items():
        if not isinstance(name, str) or not name or ":" in name or not callable(factory):
            raise _returned_wrong(plugin, noun, f"{name_of}s without a colon, each with a factory", (name, factory))
        items[name] = factory
    return items


def _checked_name(plugin: str, noun: str, item: object) -> str:
    name = getattr(item, "name", None)
    if inspect.isclass(item) or not isinstance(name, str) or not name or any(c.isspace() or c == "/" for c in name):
        raise _returned_wrong(plugin, noun, f"{noun}: instances with a `name` without spaces and slashes", item)
    for member in _MEMBERS[noun]:
        if not hasattr(item, member):
            raise _returned_wrong(plugin, noun, f"{noun} with `{member}`", item)
    if noun == "architectures" and not hasattr(item, "describe"):
        for member in ("shape", "load"):
            if not hasattr(item, member):
                raise _returned_wrong(plugin, noun, f"{noun} with `describe`, or with `shape` and `load`", item)
    return name


def _returned_wrong(plugin: str, noun: str, wanted: str, got: object) -> PluginError:
    text = f"returned {type(got).__name__} from {PREFIX}{noun}, expected {wanted}: {got!r:.80}"
    return PluginError(text, plugin=plugin, hook=PREFIX + noun)
