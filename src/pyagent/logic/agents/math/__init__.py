"""The math agent: exact answers by sympy, in a process of its own with bounded time and memory.

A question is read by plain patterns into a typed action. When they cannot read it, the model may write it as an
expression, and the answer says so; an expression with other numbers than the question's is not accepted from it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Annotated, cast

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.math.actions import Action, Evaluate, Solved
from pyagent.logic.agents.math.phrases import read_question, reason_to_take
from pyagent.logic.agents.math.sandbox import Sandbox

_REWRITE = (
    "Write each task as one arithmetic expression. Do not compute it.\n"
    "Task: Tom has 5 bags with 6 apples each and eats 7. How many are left?\n"
    '{{"expression": "5 * 6 - 7"}}\n'
    "Task: A car drives 120 km in 2 hours. How fast is it?\n"
    '{{"expression": "120 / 2"}}\n'
    "Task: {text}\n"
)


class _Rewritten(msgspec.Struct, frozen=True):
    """What the model may write: the pattern leaves it no room for words."""

    expression: Annotated[str, msgspec.Meta(pattern=r"^[(0-9][0-9+\-*/^(). ]{2,60}$")]


class MathAgent:
    """Exact mathematics."""

    name = "math"
    description = "Computes exactly: arithmetic, equations, derivatives, integrals, limits, matrices, factors."
    arguments = Action

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def score(self, task: Task) -> float | None:
        """A short text that is an expression or a mathematical question; never one without a number, or with files."""
        if task.files:
            return 0.0
        if reason := reason_to_take(task.text):
            return Score(0.95, reason)
        return None if re.search(r"\d", task.text) else 0.0

    async def run(self, context: Context, task: Task) -> Solved:
        """The answer to a question or an action."""
        if task.arguments:
            action = cast("Action", task.arguments_as(cast("type[object]", Action)))
            action.check()
            return await self._sandbox.compute(action)
        try:
            action = read_question(task.text)
        except RequestError as error:
            return await self._rewritten(context, task.text, error)
        return await self._sandbox.compute(action)

    async def _rewritten(self, context: Context, text: str, error: RequestError) -> Solved:
        """Let the model write the expression, if the question has numbers to write it with."""
        if not re.search(r"\d", text) or len(text) > 2_000:
            raise error
        context.progress("not an expression as it stands: the model writes it as one")
        sampling = SamplingParams(temperature=0.0, max_tokens=64)
        try:
            written = await context.generate(_REWRITE.format(text=text), schema=_Rewritten, sampling=sampling)
            action = Evaluate(expression=written.expression)
            action.check()
        except (RequestError, AgentError) as second:
            raise error from second
        if _numbers(action.expression) - _numbers(text) or not re.search(r"[-+*/^]", action.expression):
            message = f"the model could not write {text[:80]!r} as an expression; write it as one, such as 3*4 - 2"
            raise RequestError(message, param="text") from error
        solved = await self._sandbox.compute(action)
        return msgspec.structs.replace(solved, note=f"the model read the question as {action.expression}")

    async def close(self) -> None:
        """End the worker processes."""
        await self._sandbox.close()


def _numbers(text: str) -> Counter[str]:
    """The numbers in a text and how often each stands there: a rewriting may neither invent nor repeat any."""
    return Counter(re.findall(r"\d+(?:\.\d+)?", text))


class Question(msgspec.Struct, frozen=True):
    """What the tool takes: an expression or a question, `integrate x^2 from 0 to 3`."""

    question: str


def make_tool(sandbox: Sandbox) -> FleetTool:
    """The calculator, for agents and models."""

    async def calculate(arguments: Question) -> Solved:
        return await sandbox.compute(read_question(arguments.question))

    return FleetTool("calculator", "Computes an expression or solves an equation exactly.", Question, calculate)


@cache
def _shared_sandbox() -> Sandbox:
    """The workers that agent and tool share, so that closing the agent ends both's."""
    return Sandbox()


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The math agent."""
    return [MathAgent(_shared_sandbox())]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The calculator."""
    return [make_tool(_shared_sandbox())]
