"""The reasoning agent and its strategies: steps, answers, votes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.reasoning import Reasoned, ReasoningAgent
from pyagent.logic.agents.summarize import SummarizeAgent
from pyagent.logic.strategies.chain_of_thought import Thought, read_thought
from pyagent.logic.strategies.self_consistency import normal_form, vote
from pyagent.testing import ScriptedBackend


def _run(backend: ScriptedBackend, task: str | Task, **options: object) -> Reasoned:
    fleet = Fleet(backend, [ReasoningAgent(), SummarizeAgent()])
    result = asyncio.run(fleet.run_agent("reasoning", task, **options))  # type: ignore[arg-type]
    assert isinstance(result, Reasoned)
    return result


def test_chain_of_thought_shows_steps_and_answer() -> None:
    """The steps are what stands before the answer's line."""
    backend = ScriptedBackend(["1. 3 * 4 = 12\n2. 12 - 2 = 10\nAnswer: 10"])
    reasoned = _run(backend, "Ann has 3 boxes of 4 pens and loses 2.")
    assert reasoned == Reasoned(answer="10", strategy="chain-of-thought", steps=["1. 3 * 4 = 12", "2. 12 - 2 = 10"])
    assert str(reasoned).endswith("Answer: 10")


def test_missing_answer_is_asked_for() -> None:
    """Steps that come to no answer lead to one short question more."""
    backend = ScriptedBackend(["1. think\n2. think more", "Paris."])
    assert _run(backend, "Capital of France?").answer == "Paris."
    assert backend.requests[1].sampling.max_tokens == 48


def test_answer_without_steps_is_an_answer() -> None:
    """A model that answers in one line is not asked again."""
    reasoned = _run(ScriptedBackend(["Paris is the capital."]), "Capital of France?")
    assert str(reasoned) == "Paris is the capital."


def test_self_consistency_votes_over_seeds() -> None:
    """Samples have seeds of their own and draw; the answer most of them write, however written, wins."""
    answers = {0: "Answer: 7", 1: "Answer: 10 pens", 2: "Answer: ten", 3: "Answer: 10.0", 4: "Answer: 7"}

    def answer(request: ChatRequest) -> str:
        assert request.sampling.temperature > 0
        assert request.sampling.seed is not None
        return answers[request.sampling.seed] if request.sampling.seed != 4 else "so\nAnswer: 10"

    backend = ScriptedBackend(answer)
    task = Task(text="How many?", arguments={"strategy": "self-consistency", "samples": 5})
    reasoned = _run(backend, task)
    assert (reasoned.answer, reasoned.votes) == ("10 pens", {"10": 3, "7": 1, "ten": 1})
    assert "(3 of 5 samples agree)" in str(reasoned)
    assert {request.sampling.seed for request in backend.requests} == set(range(5))


def test_tie_goes_to_the_first_seed() -> None:
    """Equal votes are normalized the same way every time."""
    assert vote([Thought([], "b"), Thought([], "a"), Thought([], "a"), Thought([], "b")]).answer == "b"


@pytest.mark.parametrize(
    ("one", "other"),
    [("4", "4.0"), ("$1,000", "1000"), ("The answer is 12 apples.", "12"), ("Yes.", "yes"), ("a Cat", "the cat")],
)
def test_answers_that_say_the_same_are_one(one: str, other: str) -> None:
    """Numbers and words are compared by what they say."""
    assert normal_form(one) == normal_form(other)


@given(st.text(max_size=50))
def test_any_answer_has_a_normal_form(text: str) -> None:
    """Any text has a normal form, which is its own."""
    assert isinstance(normal_form(text), str)
    thought = read_thought(text)
    assert isinstance(thought.answer, str)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 4", "4"),
        ("x\n**Answer:** 4", "4"),
        ("Final answer: four\n", "four"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("4", ""),
    ],
)
def test_answer_line_is_found(text: str, answer: str) -> None:
    """The last line that gives an answer is the answer."""
    assert read_thought(text).answer == answer


@pytest.mark.parametrize(
    "arguments",
    [
        {"strategy": "magic"},
        {"strategy": "self-consistency", "samples": 0},
        {"strategy": "self-consistency", "samples": 65},
    ],
)
def test_bad_options_are_refused(arguments: dict[str, object]) -> None:
    """Unknown strategies and numbers out of range are refused."""
    with pytest.raises(RequestError):
        _run(ScriptedBackend([]), Task(text="x", arguments=arguments))


def test_document_stands_before_the_question(tmp_path: Path) -> None:
    """A short file is given whole; a long one is summarized by the other agent first."""
    (tmp_path / "a.txt").write_text("The rent is 900.")
    (tmp_path / "b.txt").write_text("The rent is 900. " * 1000)
    backend = ScriptedBackend(lambda request: "Answer: 900" if "How" in request.messages[-1].text else "gist")
    for name in ("a.txt", "b.txt"):
        assert _run(backend, "How high is the rent?", files=[str(tmp_path / name)]).answer == "900"
    assert backend.requests[0].messages[1].text == "The rent is 900.\n\nHow high is the rent?"
    assert backend.requests[-1].messages[1].text == "gist\n\nHow high is the rent?"
