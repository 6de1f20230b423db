"""Which of the built-in agents a task goes to, without a model: the rules, and the handing on of what one declines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import AgentDeclined, AgentFinished, ModelCalled, RouteChosen
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents import (
    classification,
    dimensionality,
    regression,
    scaling,
    stream,
    trust,
    vision,
    voting,
)
from pyagent.logic.agents.code_health import CodeHealthAgent
from pyagent.logic.agents.math import MathAgent
from pyagent.logic.agents.math.sandbox import Sandbox
from pyagent.logic.agents.reasoning import ReasoningAgent
from pyagent.logic.agents.summarize import SummarizeAgent
from pyagent.testing import ScriptedBackend

_ESSAY = (
    "The lighthouse stood on the northern cape for ninety years. Its keepers wrote down every ship that passed. " * 4
)

TASKS = [
    # sums
    ("17*23 + sqrt(2)", "", "math"),
    ("what is 2+2?", "", "math"),
    ("What is 15% of 80?", "", "math"),
    ("5 million plus 2", "", "math"),
    ("100 000 * 2", "", "math"),
    ("6 choose 2", "", "math"),
    ("3^-1 mod 11", "", "math"),
    ("half of 10", "", "math"),
    ("the square root of sixteen plus nine", "", "math"),
    ("solve x^2 - 5x + 6 = 0", "", "math"),
    ("derivative of x^2 sin(x)", "", "math"),
    ("integrate x^2 from 0 to 3", "", "math"),
    ("det [[1,2],[3,4]]", "", "math"),
    ("factor 360", "", "math"),
    ("is 97 prime?", "", "math"),
    ("average of 3, 5 and 10", "", "math"),
    ("2026 - 11 - 22", "", "math"),
    # sentences with digits, dates, numbers to call
    ("When did World War 2 end?", "", "reasoning"),
    ("Compare iPhone 15 and Pixel 8", "", "reasoning"),
    ("Name 3 rivers", "", "reasoning"),
    ("Plan a 3-day trip", "", "reasoning"),
    ("In 2 sentences, explain photosynthesis", "", "reasoning"),
    ("list 5 x-men", "", "reasoning"),
    ("call me at 555-1234", "", "reasoning"),
    ("2026-11-22", "", "reasoning"),
    ("What happened on 11/22/1963?", "", "reasoning"),
    ("What is the difference between HTTP/1.1 and HTTP/2?", "", "reasoning"),
    ("How many people lived in Rome in 1900 and 2000?", "", "reasoning"),
    ("Explain section 3 of the GDPR", "", "reasoning"),
    ("Is 2001: A Space Odyssey a good film?", "", "reasoning"),
    # general
    ("What is the capital of France?", "", "reasoning"),
    ("Write a haiku about rain", "", "reasoning"),
    ("Why is the sky blue?", "", "reasoning"),
    ("hello", "", "reasoning"),
    ("Explain complex functions in mathematics", "", "reasoning"),
    ("Translate good morning to French", "", "reasoning"),
    ("What is the time complexity of this method: quicksort?", "", "reasoning"),
    # questions about files
    ("What does this contract say about pets?", "lease.txt", "reasoning"),
    ("How high is the deposit in section 3?", "lease.txt", "reasoning"),
    ("Translate this", "lease.txt", "reasoning"),
    ("Explain this function", "x.py", "reasoning"),
    ("Does it use 2 threads?", "x.py", "reasoning"),
    # summaries
    ("Summarize this", "lease.txt", "summarize"),
    ("Give me the key points in 3 sentences", "lease.txt", "summarize"),
    ("", "lease.txt", "summarize"),
    (f"Summarise this: {_ESSAY}", "", "summarize"),
    (f"tl;dr\n{_ESSAY}", "", "summarize"),
    # code
    ("Review this code", "x.py", "code-health"),
    ("How complex is this?", "x.py", "code-health"),
    ("3 most complex functions of ./src", "", "code-health"),
    ("How maintainable is this code?", "", "code-health"),
    ("src", "", "code-health"),
]


class _KeptSandbox(Sandbox):
    """Keeps its worker when a fleet closes: the next test's would import sympy again, 0.7 s."""

    async def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = _KeptSandbox(max_workers=1)
    yield made
    asyncio.run(Sandbox.close(made))


def _agents(sandbox: Sandbox) -> list[Agent]:
    others = (scaling, stream, voting, dimensionality, regression, trust, vision, classification)
    made = [agent for module in others for agent in module.pyagent_register_agents()]
    return [MathAgent(sandbox), CodeHealthAgent(), SummarizeAgent(), ReasoningAgent(), *made]


def _folder(path: Path) -> None:
    (path / "src").mkdir()
    for name in ("x.py", "src/y.py"):
        (path / name).write_text("def f(x):\n    return x\n")
    (path / "lease.txt").write_text("The deposit is 900 dollars.\n\nPets are allowed.\n")


async def _routes(
    sandbox: Sandbox, backend: ScriptedBackend, text: str, files: Sequence[str] = ()
) -> tuple[list[str], list[str], set[str]]:
    """The agents chosen, those that declined, and the names under which the model was asked."""
    chosen, declined, asked = list[str](), list[str](), set[str]()
    async with Fleet(backend, _agents(sandbox)) as fleet:
        async for event in fleet.run(text, files=files):
            if isinstance(event, RouteChosen):
                chosen.append(event.agent)
            elif isinstance(event, AgentDeclined):
                declined.append(event.agent)
            elif isinstance(event, ModelCalled):
                asked.add(event.agent)
    return chosen, declined, asked


@pytest.mark.parametrize(("text", "file", "agent"), TASKS)
def test_task_goes_to_its_agent_without_a_model(
    text: str, file: str, agent: str, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the built-in agents rules decide, and the one chosen does the task."""
    _folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    backend = ScriptedBackend(lambda _: "The deposit is 900 dollars.")
    chosen, declined, asked = asyncio.run(_routes(sandbox, backend, text, [file] if file else []))
    assert chosen == [agent]
    assert not declined
    assert asked <= {agent}


def test_there_are_as_many_tasks_as_were_tried() -> None:
    """The table holds the 52 kinds of tasks that were tried on the running program."""
    assert len({(text, file) for text, file, _ in TASKS}) == 52


def test_what_is_not_there_is_not_summarized(sandbox: Sandbox) -> None:
    """A summary of what the world knows is reasoning's, when summarize finds no text."""
    backend = ScriptedBackend(lambda _: "A prince hesitates.")
    chosen, declined, _ = asyncio.run(_routes(sandbox, backend, "Summarize the plot of Hamlet"))
    assert (chosen, declined) == (["summarize", "reasoning"], ["summarize"])


@pytest.mark.parametrize(
    "text",
    ["How many of the 3 musketeers were born before the 2 others?", "How far do 2 cars and 1 bike get in 3 hours?"],
)
def test_what_math_declines_reasoning_answers(text: str, sandbox: Sandbox) -> None:
    """A sum in words that the model cannot write with the question's numbers is not the end of the task."""

    def answer(request: ChatRequest) -> str:
        return '{"expression": "3 - 5"}' if request.response_format else "Nobody knows."

    chosen, declined, asked = asyncio.run(_routes(sandbox, ScriptedBackend(answer), text))
    assert (chosen, declined, asked) == (["math", "reasoning"], ["math"], {"math", "reasoning"})


def test_formula_with_two_readings_is_refused_and_not_guessed_at(sandbox: Sandbox) -> None:
    """A formula stays with math: its refusal says how to write it, and no model is asked."""
    backend = ScriptedBackend([])
    with pytest.raises(RequestError, match="two ways"):
        asyncio.run(_routes(sandbox, backend, "200 + 10%"))
    assert not backend.requests


def test_result_is_that_of_the_agent_that_took_it(sandbox: Sandbox) -> None:
    """The run's result comes from the agent the task was handed on to."""

    async def main() -> list[AgentFinished]:
        async with Fleet(ScriptedBackend(["Nobody knows."]), _agents(sandbox)) as fleet:
            return [event async for event in fleet.run("When did World War 2 end?") if isinstance(event, AgentFinished)]

    (finished,) = asyncio.run(main())
    assert str(finished.output) == "Nobody knows."


class _Haiku:
    name = "haiku"
    description = "Writes poems of seventeen syllables."

    async def run(self, context: Context, task: Task) -> str:
        return "autumn rain"


@pytest.mark.parametrize(
    ("text", "agent", "is_model_asked"),
    [
        ("Write a haiku about rain", "haiku", False),
        ("A poem of seventeen syllables on rain", "haiku", False),
        ("17*23", "math", False),
        ("Xylophone", "haiku", True),
    ],
)
def test_agent_without_a_rule_is_found_by_its_name_or_by_the_model(
    text: str, agent: str, is_model_asked: bool, sandbox: Sandbox
) -> None:
    """An agent that tells no tasks gets what has its name, what is plainly like its description, and what a model
    gives it of what is like no agent's tasks."""

    async def main() -> list[RouteChosen]:
        backend = ScriptedBackend(["haiku"])
        async with Fleet(backend, [*_agents(sandbox), _Haiku()]) as fleet:
            routes = [event async for event in fleet.run(text) if isinstance(event, RouteChosen)]
        assert bool(backend.requests) is is_model_asked
        return routes

    (route,) = asyncio.run(main())
    assert route.agent == agent
