"""Agents on the embedded engine: structure that holds whatever the model is, and real answers from the small one."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

import pyagent
from pyagent.core.config import load_settings
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import AnswerDoubted, Event, ModelCalled, RouteChosen, RunFinished, TextDelta
from pyagent.core.messages import SamplingParams
from pyagent.core.settings import Settings
from pyagent.logic.agents.summarize import Summary


class Pet(msgspec.Struct):
    is_cat: bool
    age: int


class PetAgent:
    name = "pet"
    description = "Describes a pet."

    async def run(self, context: Context, task: Task) -> Pet:
        sampling = SamplingParams(temperature=0.0, max_tokens=100)
        return await context.generate(task.text, schema=Pet, sampling=sampling)


class Talker:
    name = "talker"
    description = "Talks."

    async def run(self, context: Context, task: Task) -> str:
        return await context.generate(task.text, sampling=SamplingParams(temperature=0.0, max_tokens=8))


class Chooser:
    name = "chooser"
    description = "Chooses a colour."

    async def run(self, context: Context, task: Task) -> str:
        return await context.generate(task.text, choice=["red", "green", "blue"])


def _settings(model: Path, data: Path) -> Settings:
    return load_settings(overrides={"chain": [f"native:{model}"], "paths.data": str(data)}).settings


@pytest.fixture
def tiny(tiny_model_path: Path, tmp_path: Path) -> Settings:
    return _settings(tiny_model_path, tmp_path)


def test_choice_holds_for_any_model(tiny: Settings) -> None:
    """A model of random weights still answers with one of the choices."""

    async def main() -> None:
        async with pyagent.Fleet(tiny, agents=[Chooser()]) as fleet:
            assert await fleet.run_agent("chooser", "Which?") in {"red", "green", "blue"}

    asyncio.run(main())


def test_a_doubtful_answer_is_escalated_by_the_engines_entropy(tiny_model_path: Path, tmp_path: Path) -> None:
    """The engine tells the whole entropy; where that is too much the chain's next link is asked the same, once."""
    second = tmp_path / "second.gguf"
    second.symlink_to(tiny_model_path)
    told = {"act": "escalate", "logprobs": True, "min_probability": 1e-9, "max_entropy": 1.0}
    overrides = {"chain": [f"native:{tiny_model_path}", f"native:{second}"], "paths.data": str(tmp_path)}
    settings = load_settings(overrides=overrides | {f"fleet.confidence.{key}": value for key, value in told.items()})

    async def main() -> list[Event]:
        async with pyagent.Fleet(settings.settings, agents=[Talker()]) as fleet:
            return [event async for event in fleet.run("Say something.")]

    events = asyncio.run(main())
    calls = [event for event in events if isinstance(event, ModelCalled)]
    doubts = [event for event in events if isinstance(event, AnswerDoubted)]
    assert [call.backend for call in calls] == ["native:tiny", "native:second"]
    assert [doubt.act for doubt in doubts] == ["escalate", "mark"]
    assert doubts[0].reason.startswith("the model hesitates between ")
    confidence = doubts[0].confidence
    assert not confidence.is_entropy_bound
    assert confidence.entropy is not None
    assert 1.0 < confidence.entropy <= math.log(512)


@pytest.mark.model
def test_structured_answer_is_an_instance(smollm2_path: Path, tmp_path: Path) -> None:
    """The small model's answer is an instance of the struct asked for, at the first try."""

    async def main() -> None:
        async with pyagent.Fleet(_settings(smollm2_path, tmp_path), agents=[PetAgent()]) as fleet:
            events = [event async for event in fleet.run("Tom is a cat. He is 7 years old. Describe Tom.")]
            assert isinstance(events[-1], RunFinished)
            assert isinstance(events[-1].output, Pet)
            assert sum(isinstance(event, ModelCalled) for event in events) == 1

    asyncio.run(main())


@pytest.mark.model
def test_small_model_summarizes_in_parts_that_share_a_prefix(smollm2_path: Path, tmp_path: Path) -> None:
    """A long text is read in parts at once, within the token bounds, and the shared prompt is computed once."""
    text = "\n\n".join(f"Chapter {n}. " + "The keeper lit the lamp and wrote down the wind. " * 12 for n in range(12))

    async def main() -> None:
        async with pyagent.Fleet(_settings(smollm2_path, tmp_path)) as fleet:
            events = [event async for event in fleet.run(f"Summarize this:\n{text}")]
            calls = [event for event in events if isinstance(event, ModelCalled)]
            assert [event.agent for event in events if isinstance(event, RouteChosen)] == ["summarize"]
            assert len(calls) == 4
            assert all(0 < call.usage.completion_tokens <= 224 and not call.error for call in calls)
            assert sum(call.usage.prompt_tokens_details.cached_tokens for call in calls) > 0
            last = events[-1]
            assert isinstance(last, RunFinished)
            assert isinstance(last.output, Summary)
            assert last.totals.completion_tokens == sum(call.usage.completion_tokens for call in calls)

    asyncio.run(main())


@pytest.mark.model
def test_leaving_in_mid_answer_ends_the_engines_work(smollm2_path: Path, tmp_path: Path) -> None:
    """Closing a run in mid-answer ends its request; the next run is answered."""

    async def main() -> None:
        async with pyagent.Fleet(_settings(smollm2_path, tmp_path)) as fleet:
            async with aclosing(fleet.run("Tell me a long story.", agent="reasoning")) as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        break
            answer = await fleet.run_agent("reasoning", "What is the capital of France?")
            assert "Paris" in str(answer)

    asyncio.run(main())
