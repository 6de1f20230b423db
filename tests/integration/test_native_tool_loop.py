"""The loop with tools over the embedded engine: whatever a model writes, calls are valid, and runs end in time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from support.fleets import Custom, events_of
from support.native import run, running
from support.tiny_model import write_tiny_model

from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.model_call import Completion
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.messages import SamplingParams

Few = Annotated[int, msgspec.Meta(ge=1, le=9)]
Short = Annotated[str, msgspec.Meta(max_length=8)]
_SEEDS = 6
_ROUNDS = 3


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, whose template knows no tools."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "plain.gguf", llama__context_length=2048)


def test_random_model_calls_validly_and_ends(model: Path, plain: Path) -> None:
    """Random weights that have to call do so with arguments that fit; each run ends within its rounds."""
    given: list[tuple[str, int, str]] = []

    @tool(effect="none")
    async def look(city: Short, days: Few, unit: Literal["C", "F"]) -> str:
        """Look."""
        given.append((city, days, unit))
        return "word " * 400

    async def call(context: Context, task: Task) -> object:
        sampling = SamplingParams(temperature=1.5, seed=int(task.text), max_tokens=120)
        return await context.complete(
            f"go {task.text}", tools=["look"], sampling=sampling, max_rounds=_ROUNDS, must_call=True
        )

    async def main() -> None:
        for path in (model, plain):
            async with running(path) as backend:
                fleet = Fleet(backend, [Custom("caller", call)], [look], limits=FleetLimits(run_tokens=20_000))
                for seed in range(_SEEDS):
                    seen, error = await events_of(fleet, str(seed))
                    assert error is None, error
                    finished = seen[-1]
                    assert isinstance(finished, ev.RunFinished)
                    assert isinstance(finished.output, Completion)
                    assert finished.totals.model_calls <= _ROUNDS + 1
                    told = [result.text for result in finished.output.tool_results]
                    assert not any("cannot take these arguments" in text for text in told), told

    run(main())
    assert len(given) >= _SEEDS
    assert all(len(city) <= 8 and 1 <= days <= 9 and unit in "CF" for city, days, unit in given)
