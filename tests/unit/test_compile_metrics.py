"""What an engine compiled and captured, in its metrics and as one of several copies tells it."""

from __future__ import annotations

from pyagent.core.runners.runner import CompiledFunctionStats, CompileStats
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.subprocess.merging import merged_state
from pyagent.infrastructure.observability.engine_metrics import collect_engines

GATE = CompiledFunctionStats(name="gated 96", num_compiles=3, seconds=1.5, recompiles={"dtype": 1, "stride": 1})
STATS = CompileStats(functions=[GATE], num_graphs=2, num_captures=4, capture_seconds=0.5, num_replays=90)


def test_compilations_and_captures_are_metrics() -> None:
    """Each function's compilations and seconds are told, recompilations of all reasons together, and captures."""
    state = EngineState(state="ready", compilation={"m": STATS})
    found = {
        sample.name.removeprefix("pyagent_engine_"): (sample.labels.get("function"), sample.value)
        for metric in collect_engines([state])
        for sample in metric.samples
        if sample.labels.get("model") == "m"
    }
    assert found["compiles_total"] == ("gated 96", 3)
    assert found["compile_seconds_total"] == ("gated 96", 1.5)
    assert found["recompiles_total"] == ("gated 96", 2)
    assert found["graph_captures_total"] == (None, 4)
    assert found["graph_capture_seconds_total"] == (None, 0.5)
    assert found["graph_replays_total"] == (None, 90)


def test_copies_tell_what_was_compiled() -> None:
    """Of several copies a model's compiled functions are not lost."""
    states = [EngineState(state="ready"), EngineState(state="ready", compilation={"m": STATS})]
    assert merged_state(states).compilation == {"m": STATS}
