"""What copies of an engine tell, as one engine's."""

from __future__ import annotations

from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.stats import KvMoveStats
from pyagent.infrastructure.engine.subprocess.merging import merged_state


def test_kv_moves_of_all_copies_add_up() -> None:
    """KV that copies loaded and sent is told of the engine, by model."""
    one = EngineState(state="ready", kv_moves={"m": KvMoveStats(num_loads=1, tokens=16, seconds=0.5)})
    other = EngineState(state="ready", kv_moves={"m": KvMoveStats(num_loads=2, tokens=32, bytes_sent=8)})
    told = merged_state([one, other]).kv_moves
    assert told == {"m": KvMoveStats(num_loads=3, tokens=48, seconds=0.5, bytes_sent=8)}
