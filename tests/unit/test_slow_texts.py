"""Texts that are made to be slow to read are read in time, and numbers that no journal holds are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.obsidian import notes
from pyagent.logic.agents.parts import sentences
from pyagent.logic.agents.reasoning import ReasoningAgent
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.chain_of_thought import read_thought, thought_of
from pyagent.testing import ScriptedBackend

_PIECES = (
    "\n",
    " \n",
    "- \n",
    "* ",
    "Answer\n",
    "answer:\n",
    "Answer: :",
    "1. ",
    "# a ##",
    "[",
    "[a](",
    "`",
    "a, 1,000 ",
)


@pytest.mark.parametrize("read", [thought_of, normal_form, sentences, notes._prose])  # pyright: ignore[reportPrivateUsage]
@pytest.mark.parametrize("piece", _PIECES)
def test_a_text_of_one_piece_is_read_in_time(read: Callable[[str], object], piece: str) -> None:
    """60,000 of them take a moment, not the square of it."""
    started = time.monotonic()
    read(piece * 60_000)
    assert time.monotonic() - started < 4.0


def test_an_answer_is_found_wherever_it_stands_on_its_line() -> None:
    """Marks before it, and blank lines, do not hide it; a word before it does."""
    for text in (
        "Answer: 4",
        "1. x\n\n  **Final answer:** 4",
        "> - answer = `4`",
        "x\nThe\nAnswer is: 4",
        "Answer:\n4",
    ):
        assert read_thought(text).answer == "4"
    assert not read_thought("my answer: 4").answer


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Title ##\n", "Title"),
        ("---\na: b\n---\n\n##  C#  \n", "C#"),
        ("#nothing\n", ""),
        ("# One\n\n[two](x) `words`. More.\n", "two words."),
    ],
)
def test_a_files_heading_stands_for_a_first_sentence(text: str, title: str) -> None:
    """Without the signs around it."""
    assert notes._prose(text) == title  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**30])
def test_whole_numbers_beyond_a_journal_are_refused_in_a_sentence(seed: int) -> None:
    """They are no fault of ours that ends in a traceback."""

    async def main() -> None:
        backend = ScriptedBackend("Answer: 4")
        async with Fleet(backend, [ReasoningAgent()]) as fleet:
            with pytest.raises(RequestError, match="a whole number among the arguments is beyond 64 bits"):
                await fleet.run_agent("reasoning", Task(text="How?", arguments={"seed": seed}))
        assert not backend.requests

    asyncio.run(main())
