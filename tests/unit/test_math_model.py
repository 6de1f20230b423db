"""Problems in words, which a model writes as an expression for the math agent: of the question's numbers only."""

from __future__ import annotations

import asyncio
import json
import re

import msgspec
import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.math import MathAgent
from pyagent.logic.agents.math.actions import Solved
from pyagent.logic.agents.math.sandbox import Sandbox
from pyagent.testing import ScriptedBackend


def test_what_a_model_read_is_shown_and_not_called_exact() -> None:
    """A problem in words is written as an expression by the model; the answer says what it read, and is not exact."""

    async def main() -> None:
        backend = ScriptedBackend(['{"expression": "3*4 - 2"}'])
        async with Fleet(backend, [MathAgent(Sandbox(max_workers=1))]) as fleet:
            solved = await fleet.run_agent("math", "Ann has three boxes of 4 pens and loses 2. How many has she?")
            assert isinstance(solved, Solved)
            assert (solved.exact, solved.is_exact, solved.reading) == ("10", False, "3*4 - 2")
            assert str(solved).startswith("3*4 - 2 = 10  (a model read the question as 3*4 - 2")

    asyncio.run(main())


def test_model_may_write_the_question_s_numbers_only() -> None:
    """The form the model is held to has the numbers of the question, those in words too, and as many of them."""

    async def main() -> None:
        backend = ScriptedBackend(['{"expression": "3 * 4 - 2"}'])
        async with Fleet(backend, [MathAgent(Sandbox(max_workers=1))]) as fleet:
            await fleet.run_agent("math", "Ann has three boxes of 4 pens and loses 2. How many has she?")
        (request,) = backend.requests
        pattern = re.search(r'"pattern":"([^"]+)"', str(msgspec.json.encode(request.response_format), "utf-8"))
        assert pattern is not None
        form = re.compile(json.loads(f'"{pattern[1]}"'))
        assert all(form.search(text) for text in ("3 * 4 - 2", "(4 + 3) * 2"))
        assert not any(form.search(text) for text in ("3 * 4", "3 * 4 - 7", "30 * 4 - 2", "3 * 4 - 2 - 2"))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Ann has 3 boxes of 4 pens in the car", "3*400"),  # a number that is not there
        ("Ann has 3 boxes of 4 pens and loses 2 of them", "3*4"),  # one left out
        ("Ann has 3 boxes of 4 pens in the car", "3*4*4"),  # one twice
        ("What are twenty boxes plus 4 pens for Ann", "20*4"),  # another operation
        ("What are five million and 2 in the end", "5+2"),
        ("Ann bought 3 and Bob bought 4 pens", "(34)"),
    ],
)
def test_reading_with_other_numbers_or_operations_is_declined(text: str, written: str) -> None:
    """Numbers may neither appear, vanish nor change in a model's reading; operations named are those computed."""

    async def main() -> None:
        backend = ScriptedBackend(lambda _: json.dumps({"expression": written}))
        async with Fleet(backend, [MathAgent(Sandbox(max_workers=1))]) as fleet:
            with pytest.raises(RequestError, match="math declines"):
                await fleet.run_agent("math", text)

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        *("how are you", "12 34 + 1", "6 chose 2", "sqr(16) + 9", "When did World War 2 end?"),
        *("What is the cube root of 8 for the 2 of us?", "1,5 + 2", "How many primes are there between 10 and 100?"),
    ],
)
def test_notation_and_other_questions_are_not_for_a_model_to_rewrite(text: str) -> None:
    """The model is asked for a sum told in words only; a formula that cannot be read is refused as it is."""

    async def main() -> None:
        backend = ScriptedBackend([])
        async with Fleet(backend, [MathAgent(Sandbox(max_workers=1))]) as fleet:
            with pytest.raises(RequestError):
                await fleet.run_agent("math", text)
            assert not backend.requests

    asyncio.run(main())
