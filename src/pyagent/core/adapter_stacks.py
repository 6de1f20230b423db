"""Names of several adapters at once: `MODEL:A+B` is the model with both, where `MODEL:A` and `MODEL:B` are known.

Such names answer where their parts do, and are not listed. Knows nothing of what adapters are.
"""

from __future__ import annotations

from collections.abc import Collection

from pyagent.core.nearest import did_you_mean

JOINT = "+"
"""What stands between the names of adapters that add up; no adapter's own name has it."""
MAX_ADAPTERS = 8
"""The most that one name has."""
_MAX_SHOWN = 200


def is_stack(name: str, known: Collection[str]) -> bool:
    """Return whether a name is of several adapters of one model, each of which is known."""
    return stack_fault(name, known) == ""


def stack_fault(name: str, known: Collection[str]) -> str | None:
    """Return what is wrong with a name of several adapters, "" where nothing is; None for a name of another kind.

    It is of that kind where what comes before its last `:` is the known name of a model.
    """
    model, _, adapters = name.rpartition(":")
    if JOINT not in adapters or name in known or model not in known:
        return None
    if (count := adapters.count(JOINT) + 1) > MAX_ADAPTERS:
        return f"{count} adapters are named at once; expected at most {MAX_ADAPTERS}"
    parts = adapters.split(JOINT)
    for at, part in enumerate(parts):
        if not part:
            return f"a name of an adapter is empty in {adapters[:_MAX_SHOWN]!r}; expected names with a '+' between them"
        if part in parts[:at]:
            return f"the adapter {part[:_MAX_SHOWN]!r} is named twice"
        if f"{model}:{part}" not in known:
            own = sorted({one.removeprefix(f"{model}:") for one in known if one.startswith(f"{model}:")})
            hint = did_you_mean(part, own, f"it has {', '.join(own[:20]) or 'none'}")
            return f"{model} has no adapter {part[:_MAX_SHOWN]!r}; {hint}"
    return ""
