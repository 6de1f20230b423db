"""A real model's answers, recorded once and given again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pyagent import BackendError, ConfigError, Task
from pyagent.plugin import Backend, ChatRequest, Context, FunctionCall, Message, SamplingParams, ToolCall, collect
from pyagent.testing import RecordedBackend, Reply, ScriptedBackend, play


class Twice:
    """Asks the same twice, and something else."""

    name = "twice"
    description = "Asks thrice."

    async def run(self, context: Context, task: Task) -> list[str]:
        return [await context.generate(prompt) for prompt in (task.text, task.text, "And then?")]


class Real:
    """Makes the backend that stands for a real one, and counts how often it was made."""

    def __init__(self, *replies: Reply | str) -> None:
        self.made: list[ScriptedBackend] = []
        self.replies = replies

    def __call__(self) -> Backend:
        self.made.append(ScriptedBackend(self.replies))
        return self.made[-1]


def request(text: str, **sampling: object) -> ChatRequest:
    return ChatRequest(messages=[Message("user", text)], sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def test_answers_are_recorded_once_and_replayed(tmp_path: Path) -> None:
    """A run asks the real backend; the next gets the same answers, in turn, piece by piece, without it."""
    path, real = tmp_path / "answers.json", Real("one thing", "two", "three")
    first = play("What?", agents=[Twice()], model=RecordedBackend(path, real))
    assert first.result == ["one thing", "two", "three"]
    assert real.made[0].is_closed
    kept = path.read_bytes()

    replayed = play("What?", agents=[Twice()], model=RecordedBackend(path))
    assert replayed.result == first.result
    assert replayed.prompts == first.prompts
    again = play("What?", agents=[Twice()], model=RecordedBackend(path, real))
    assert (again.result, len(real.made), path.read_bytes()) == (first.result, 1, kept)


def test_an_unknown_prompt_is_named(tmp_path: Path) -> None:
    """Without the real backend a prompt that is not there is an error with its text, and the nearest that is."""
    path = tmp_path / "answers.json"
    play("What is rain?", agents=[Twice()], model=RecordedBackend(path, Real("1", "2", "3")))
    run = play("What is snow?", agents=[Twice()], model=RecordedBackend(path))
    assert isinstance(run.error, BackendError)
    assert "answers.json has no answer to 'What is snow?'; the nearest that it has is 'What is rain?'" in str(run.error)
    assert not run.error.retryable


def test_sampling_is_no_part_of_a_prompt_and_calls_are_kept(tmp_path: Path) -> None:
    """The same prompt at another temperature has the same answer, with its calls, usage and reason to end."""
    path = tmp_path / "answers.json"
    call = ToolCall(id="call_1", function=FunctionCall("look", '{"at": "sky"}'))
    made = asyncio.run(
        collect(RecordedBackend(path, Real(Reply("Let me", tool_calls=(call,)))).chat(request("Is it blue?")))
    )
    given = asyncio.run(collect(RecordedBackend(path).chat(request("Is it blue?", temperature=0.9, seed=3))))
    assert (given.text, given.tool_calls, given.last.usage) == (made.text, made.tool_calls, made.last.usage)
    assert given.last.finish_reason == "tool_calls"
    assert {delta.backend for delta in given.deltas} == {"recorded"}
    assert json.loads(path.read_text())[0]["asked"] == {"messages": [{"role": "user", "content": "Is it blue?"}]}


def test_a_failed_answer_is_not_kept(tmp_path: Path) -> None:
    """What the real backend fails at is its error, and is asked again the next time."""
    path = tmp_path / "answers.json"
    broken = Reply("half an answer", error=BackendError("gone", backend="real"), fail_at=1)
    with pytest.raises(BackendError, match="gone"):
        asyncio.run(collect(RecordedBackend(path, Real(broken)).chat(request("Hello"))))
    assert not path.exists()
    answer = asyncio.run(collect(RecordedBackend(path, Real("Hi.")).chat(request("Hello"))))
    assert answer.text == "Hi."


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    """A missing file without a source, and one of something else, are told."""
    with pytest.raises(ConfigError, match=r"there is no recording .*give a `source`"):
        RecordedBackend(tmp_path / "answers.json")
    (tmp_path / "answers.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="is no recording: Expected `array`"):
        RecordedBackend(tmp_path / "answers.json")
