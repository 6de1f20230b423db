"""The math agent: exact answers, by sympy in a process of its own with bounded time and memory where it takes more
than arithmetic.

A question is read by a grammar into a typed action. A problem told in words the model may write as an expression, with
just the numbers and operations of the question; how it read the question is shown, and never called exact. What can be
read in neither way it declines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, cast

import msgspec

from pyagent.core.errors import AgentError, Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.math.actions import Action, Evaluate, Solved
from pyagent.logic.agents.math.numerals import in_digits, numbers_in
from pyagent.logic.agents.math.phrases import is_notation, read_question, reason_to_take
from pyagent.logic.agents.math.sandbox import Sandbox
from pyagent.logic.agents.typical_tasks import typical_tasks_of

_REWRITE = (
    "Write each task as one arithmetic expression. Do not compute it.\n"
    "Task: Tom has 5 bags with 6 apples each and eats 7. How many are left?\n"
    '{{"expression": "5 * 6 - 7"}}\n'
    "Task: A car drives 120 km in 2 hours. How fast is it?\n"
    '{{"expression": "120 / 2"}}\n'
    "Task: 9 birds sit on a fence and 4 fly away. How many are left?\n"
    '{{"expression": "9 - 4"}}\n'
    "Task: {text}\n"
)


_YEAR = re.compile(r"\b(?:1[5-9]|20)\d\d\b")
_MAX_STORY_CHARACTERS = 2_000
_MIN_STORY_WORDS = 4
_MAX_STORY_NUMBERS = 8
_NAMED_OPERATIONS = {"+": r"\bplus\b", "-": r"\bminus\b", "*": r"\b(?:times|multiplied)\b", "/": r"\bdivided\b"}
_BEYOND_EXPRESSIONS = re.compile(
    r"%|!|=|\^|\b(?:per ?cent|choose|factorials?|(?:square |cube )?roots?|squared?|cubed?|power|mod(?:ulo)?|remainder"
    r"|log\w*|ln|sine?|cos\w*|tan\w*|integra\w+|derivatives?|differentiate|limit|solve|equations?|primes?|matrix|determinant"
    r"|average|mean|median|interest|probability|digits?)\b",
    re.IGNORECASE,
)


class _Written(msgspec.Struct, frozen=True):
    """What the model answers."""

    expression: str


def _form(text: str) -> type[_Written]:
    """The form of an expression of the question's own numbers: the pattern leaves no room for others, nor for words."""
    numbers = re.findall(r"\d+(?:\.\d+)?", in_digits(text))
    number = rf"\(?({'|'.join(map(re.escape, dict.fromkeys(numbers)))})\)?"
    pattern = rf"^{number}( ?[-+*/] ?{number}){{{len(numbers) - 1}}}$"
    kind = Annotated[str, msgspec.Meta(pattern=pattern)]
    made = msgspec.defstruct("Written", [("expression", kind)], bases=(_Written,), frozen=True)
    return cast("type[_Written]", made)


_GOES_ON = re.compile(
    r"(?:and|then|now|what about)?[\s,]*(?=(?:times|multiplied by|plus|minus|divided by|to the power of)\b|[*/^+])",
    re.IGNORECASE,
)
_RESULT = re.compile(r" = ([^\n≈]+?)\s*(?:≈|  |\n|$)")


def _going_on(task: Task) -> str:
    """The question; one that begins with an operator, `and times 2?`, goes on from the conversation's last answer."""
    begin = _GOES_ON.match(task.text.strip())
    last = next((message.text for message in reversed(task.history) if message.role == "assistant"), "")
    result = _RESULT.search(last)
    return f"({result[1]}) {task.text.strip()[begin.end() :]}" if begin and result else task.text


class MathAgent:
    """Exact mathematics."""

    name = "math"
    description = "Computes exactly: arithmetic, equations, derivatives, integrals, limits, matrices, factors."
    typical_tasks = typical_tasks_of("math")
    is_pure = True
    arguments = Action

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def score(self, task: Task) -> float | None:
        """A short text that is an expression or a mathematical question; never one without a number, or with files."""
        if task.files:
            return 0.0
        if reason := reason_to_take(task.text):
            return Score(0.95, reason)
        if _asks_for_a_sum(task.text):
            return Score(0.6, "it tells a sum in words")
        return None

    async def run(self, context: Context, task: Task) -> Solved:
        """Return the answer to a question or an action."""
        if task.arguments:
            action = cast("Action", task.arguments_as(cast("type[object]", Action)))
            action.check()
            return await self._sandbox.compute(action)
        text = _going_on(task)
        try:
            action = read_question(text)
        except RequestError as error:
            if not _is_story(text):
                raise error if is_notation(text) else Decline(str(error)) from error
            return await self._told_in_words(context, text)
        return await self._sandbox.compute(action)

    async def _told_in_words(self, context: Context, text: str) -> Solved:
        """Let the model write the expression; declines when that is not what the question says."""
        context.progress("not an expression as it stands: the model writes it as one")
        sampling = SamplingParams(temperature=0.0, max_tokens=64)
        try:
            written = await context.generate(_REWRITE.format(text=text), schema=_form(text), sampling=sampling)
            action = Evaluate(expression=written.expression)
            action.check()
        except (RequestError, AgentError) as error:
            raise Decline(f"{text[:80]!r} is no expression, and the model cannot write it as one") from error
        if fault := _difference(text, action.expression):
            raise Decline(f"the model read {text[:80]!r} as {action.expression}, and {fault}")
        solved = await self._sandbox.compute(action)
        return msgspec.structs.replace(solved, is_exact=False, reading=action.expression)

    async def close(self) -> None:
        """End the worker processes."""
        await self._sandbox.close()


def _is_story(text: str) -> bool:
    """Whether the text may be a sum in words: a sentence with two numbers, and no operation an expression lacks."""
    if len(text) > _MAX_STORY_CHARACTERS or _BEYOND_EXPRESSIONS.search(text):
        return False
    if len(re.findall(r"[^\W\d_]{2,}", text)) < _MIN_STORY_WORDS:
        return False
    return 2 <= len(numbers_in(text)) <= _MAX_STORY_NUMBERS


def _asks_for_a_sum(text: str) -> bool:
    is_asked = re.search(
        r"\bhow (?:many|much|far|fast|long|old|tall|heavy)\b|\bin (?:total|all)\b|\baltogether\b", text, re.IGNORECASE
    )
    return bool(is_asked) and _is_story(_YEAR.sub("", text))


def _difference(text: str, expression: str) -> str:
    """Return what the expression says that the question does not, or the other way round: numbers, operations named."""
    if numbers_in(text) != numbers_in(expression):
        return "its numbers are not those of the question"
    named = {sign: len(re.findall(words, text, re.IGNORECASE)) for sign, words in _NAMED_OPERATIONS.items()}
    written = {sign: expression.count(sign) for sign in named}
    if any(named.values()) and named != written:
        return "its operations are not those of the question"
    return "" if any(written.values()) else "nothing is computed there"


class Question(msgspec.Struct, frozen=True):
    """What the tool takes: an expression or a question, `integrate x^2 from 0 to 3`."""

    question: str


def make_tool(sandbox: Sandbox) -> FleetTool:
    """Return the calculator, for agents and models."""

    async def calculate(arguments: Question) -> Solved:
        return await sandbox.compute(read_question(arguments.question))

    return FleetTool(
        "calculator", "Computes an expression or solves an equation exactly.", Question, calculate, effect="none"
    )


@cache
def _shared_sandbox() -> Sandbox:
    """Return the workers that agent and tool share, so that closing the agent ends both's."""
    return Sandbox()


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The math agent."""
    return [MathAgent(_shared_sandbox())]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The calculator."""
    return [make_tool(_shared_sandbox())]
