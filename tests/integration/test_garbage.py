"""What a loaded model brought is out of the garbage collector's sight until it goes, and pauses are counted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from support.native import chat, engine_of

from pyagent.core.backends import collect
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.memory.garbage import GarbageStats, collect_frozen, freeze_heap, num_frozen
from pyagent.infrastructure.engine.subprocess.merging import merged_state
from pyagent.infrastructure.observability.engine_metrics import collect_engines


class Node:
    """Something in a cycle."""

    def __init__(self) -> None:
        self.other = self


def dropped() -> weakref.ref[Node]:
    """A cycle that nothing refers to."""
    return weakref.ref(Node())


@pytest.mark.usefixtures("freezing")
def test_what_is_frozen_is_collected_when_a_model_goes() -> None:
    """Collections leave what was there at a load alone; those after a model was closed do not."""
    gc.disable()
    try:
        kept = Node()
        seen = weakref.ref(kept)
        freeze_heap()
        assert gc.get_freeze_count() > 1000
        del kept
        gc.collect()
        assert seen() is not None
        collect_frozen()
        assert seen() is None
        young = dropped()
        freeze_heap()
        assert young() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("freezing")
def test_the_count_of_what_is_frozen_follows_each_freeze() -> None:
    """It is kept, as counting takes long, and never that of the model before."""
    kept = list[Node]()
    for freeze in (freeze_heap, collect_frozen):
        num_frozen()
        kept += (Node() for _ in range(1000))
        freeze()
        assert num_frozen() == pytest.approx(gc.get_freeze_count(), abs=500)  # other threads free objects meanwhile


@pytest.mark.parametrize("process", [False, True])
def test_an_engine_counts_its_process_collections(tiny_model_path: Path, *, process: bool) -> None:
    """The engine's state and its metrics tell of the process that computes, after the model is loaded."""

    async def work() -> EngineState:
        async with engine_of(tiny_model_path, process=process) as backend:
            await collect(backend.chat(chat("the user", max_tokens=2)))
            return await backend.engine_state()

    state = asyncio.run(work())
    assert state.garbage.num_frozen > 1000
    assert state.garbage.num_collections > 0
    assert state.garbage.pause_seconds >= state.garbage.longest_pause_seconds > 0
    told = {sample.name: sample.value for metric in collect_engines([state]) for sample in metric.samples}
    assert told["pyagent_engine_gc_pause_seconds_total"] == state.garbage.pause_seconds
    assert told["pyagent_engine_gc_frozen_objects"] == state.garbage.num_frozen


def test_an_engine_that_is_closed_counts_no_more(tiny_model_path: Path) -> None:
    """The collector calls nothing of an engine that is gone."""

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            await collect(backend.chat(chat("the user", max_tokens=2)))

    before = len(gc.callbacks)
    asyncio.run(work())
    assert len(gc.callbacks) == before


def test_copies_add_their_collections_up() -> None:
    """Counts and seconds of copies add up; the longest pause is the longest of all."""
    one, other = (EngineState(state="ready", garbage=GarbageStats(2, 0.5, pause, 10)) for pause in (0.3, 0.4))
    assert merged_state([one, other]).garbage == GarbageStats(4, 1.0, 0.4, 20)
