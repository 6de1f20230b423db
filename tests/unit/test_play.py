"""`pyagent.testing.play`: a run in a test, with its answers, events and errors."""

from __future__ import annotations

import pytest

from pyagent import AgentError, QuestionAsked, RequestError, RunFailed, Step, Task
from pyagent.plugin import Context
from pyagent.testing import EchoBackend, play


class Asking:
    """Asks a person, then the model."""

    name = "asking"
    description = "Asks a person, then the model."

    async def run(self, context: Context, task: Task) -> str:
        said = await context.ask(f"May I {task.text}?")
        return f"{said}: {await context.generate(task.text)}"


def test_a_graph_is_run_with_answers_by_what_is_asked() -> None:
    """Steps run in their order; each question gets the answer that its text names; prompts and events can be read."""
    steps = [
        Step(name="first", agent="asking", task=Task(text="go")),
        Step(name="second", agent="asking", task=Task(text="stop"), after=("first",)),
    ]
    run = play(steps, agents=[Asking()], model=["gone", "stopped"], answers={"stop": "no", "go": "yes"})
    assert run.result == "no: stopped"
    assert run.prompts[0] == "go"
    assert [event.question.text for event in run.of(QuestionAsked)] == ["May I go?", "May I stop?"]


@pytest.mark.parametrize("answers", ["yes", ["yes"], lambda question: f"{'yes' if 'go' in question.text else 'no'}"])
def test_answers_come_in_turn_or_from_a_function(answers: object) -> None:
    """One answer, a list of them, and a function of the question will do; any backend may be the model."""
    assert play("go", agents=[Asking()], model=EchoBackend(), answers=answers).result == "yes: go"  # type: ignore[arg-type]


def test_a_question_without_an_answer_ends_the_run() -> None:
    """The error has the question's text, and reading the result raises it."""
    run = play("go", agents=[Asking()], model="gone", answers=[])
    assert isinstance(run.error, RequestError)
    with pytest.raises(RequestError, match=r"asks 'May I go\?', and `answers` has none for it"):
        _ = run.result


def test_a_failure_keeps_what_happened() -> None:
    """A run that fails has its events, the last of which tells why."""

    class Failing:
        name = "failing"
        description = "Fails."

        async def run(self, context: Context, task: Task) -> str:
            raise AgentError("the well is dry", agent="failing")

    run = play("water", agents=[Failing()])
    assert "the well is dry" in str(run.error)
    assert isinstance(run.events[-1], RunFailed)
