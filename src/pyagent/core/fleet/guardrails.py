"""Guardrails: what looks at tasks, calls of tools and results, and may refuse them.

Every check is asked in the guardrails' order before the agent or tool begins, or after the agent has ended; the first
that gives a reason refuses. One that fails refuses as well: what could not be looked at does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

from pyagent.core.errors import AgentError, DeadlineError, GuardrailError
from pyagent.core.fleet.containment import Call

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

Check = Literal["check_task", "check_call", "check_output"]
_WHAT: dict[Check, str] = {"check_task": "task", "check_call": "arguments", "check_output": "output"}


class Guardrail(Protocol):
    """Looks at what goes through agents. It has a name, and one or more of these; each returns why not, or None.

    - `async check_task(context, task)`: before an agent begins, a spawned one too;
    - `async check_call(context, tool, arguments)`: before a tool runs; the model is told the reason;
    - `async check_output(context, output)`: the result that an agent gave, before others see it.
    """

    name: str


async def check(guardrails: Sequence[Guardrail], which: Check, context: Context, *given: object) -> None:
    """Raise `GuardrailError` with the first reason that a guardrail gives."""
    for guardrail in guardrails:
        function = cast("Callable[..., object] | None", getattr(guardrail, which, None))
        if function is None:
            continue
        reason = await _reason(guardrail.name, function, context, *given)
        if reason is not None:
            text = f"the guardrail {guardrail.name} refuses the {_WHAT[which]} of {context.agent}: {reason}"
            raise GuardrailError(text, guardrail=guardrail.name, param=_WHAT[which])


async def _reason(name: str, function: Callable[..., object], context: Context, *given: object) -> str | None:
    call = Call(
        what=f"the guardrail {name}",
        start=lambda: function(context, *given),
        error_of=lambda text: AgentError(text, agent=context.agent),
        deadline=context.deadline,
    )
    try:
        said = await call.result()
    except DeadlineError:
        raise
    except AgentError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - other people's code, and what was not looked at does not pass
        return f"it failed: {type(error).__name__}: {error}"
    if said is None or isinstance(said, str):
        return said
    return f"it gave {said!r:.80}, expected a reason or None"
