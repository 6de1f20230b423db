"""Strategies on the embedded engine: typed by its grammars, within their bounds, with prompts that share the cache."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import pyagent
from pyagent.core.config import load_settings
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.events import Event, ModelCalled, RunFinished
from pyagent.logic.agents.reasoning import Reasoned
from pyagent.logic.strategies.debate import most_calls as most_of_debate
from pyagent.logic.strategies.reflection import most_calls as most_of_reflection

QUESTION = "Ann has 3 boxes of 4 pens and loses 2. How many pens has she?"
STRATEGIES: list[tuple[dict[str, object], int]] = [
    ({"strategy": "reflection", "rounds": 2}, most_of_reflection(2)),
    ({"strategy": "debate", "debaters": 3, "settle": "judge"}, most_of_debate(3, 2, "judge")),
    ({"strategy": "debate", "debaters": 2, "settle": "borda"}, most_of_debate(2, 2, "borda")),
    ({"strategy": "tree-of-thoughts", "min_score": 0, "depth": 2, "max_calls": 16}, 16),
    ({"strategy": "tree-of-thoughts", "search": "depth-first", "min_score": 0, "max_calls": 10}, 10),
]


def run(model: Path, data: Path, arguments: dict[str, object]) -> list[Event]:
    settings = load_settings(overrides={"chain": [f"native:{model}"], "paths.data": str(data)}).settings

    async def main() -> list[Event]:
        async with pyagent.Fleet(settings) as fleet:
            task = Task(text=QUESTION, arguments=arguments)
            return [event async for event in fleet.run(task, agent="reasoning")]

    return asyncio.run(main())


@pytest.mark.parametrize(("arguments", "most"), STRATEGIES)
def test_random_model_comes_to_an_end(
    tiny_model_path: Path, tmp_path: Path, arguments: dict[str, object], most: int
) -> None:
    """Random weights write what they are held to, or are cut; each strategy ends with an answer, within its bound."""
    events = run(tiny_model_path, tmp_path, arguments)
    assert isinstance(events[-1], RunFinished), events[-1]
    assert isinstance(events[-1].output, Reasoned)
    calls = [event for event in events if isinstance(event, ModelCalled)]
    assert len(calls) == events[-1].output.num_calls <= most
    assert events[-1].output.ended


@pytest.mark.model
@pytest.mark.parametrize(("arguments", "most"), [STRATEGIES[0], STRATEGIES[1], STRATEGIES[3]])
def test_small_model_keeps_to_the_forms(
    smollm2_path: Path, tmp_path: Path, arguments: dict[str, object], most: int
) -> None:
    """SmolLM2 answers in the form asked for at the first try, and finds the common beginning of its prompts cached."""
    events = run(smollm2_path, tmp_path, arguments)
    assert isinstance(events[-1], RunFinished), events[-1]
    output = events[-1].output
    assert isinstance(output, Reasoned)
    calls = [event for event in events if isinstance(event, ModelCalled)]
    assert len(calls) == output.num_calls <= most
    assert output.num_tokens == sum(call.usage.total_tokens for call in calls)
    assert not any("does not fit" in message.text for call in calls for message in call.messages)
    typed = [call.answer for call in calls if call.answer.startswith("{")]
    assert all(msgspec.json.decode(answer) for answer in typed)
    assert sum(call.usage.prompt_tokens_details.cached_tokens for call in calls) > 0
