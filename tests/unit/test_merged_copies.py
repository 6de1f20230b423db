"""What copies of an engine tell, as one engine's."""

from __future__ import annotations

from msgspec.structs import replace

from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.stats import AdapterStats, KvMoveStats
from pyagent.infrastructure.engine.subprocess.merging import merged_state


def test_kv_moves_of_all_copies_add_up() -> None:
    """KV that copies loaded and sent is told of the engine, by model."""
    one = EngineState(state="ready", kv_moves={"m": KvMoveStats(num_loads=1, tokens=16, seconds=0.5)})
    other = EngineState(state="ready", kv_moves={"m": KvMoveStats(num_loads=2, tokens=32, bytes_sent=8)})
    told = merged_state([one, other]).kv_moves
    assert told == {"m": KvMoveStats(num_loads=3, tokens=48, seconds=0.5, bytes_sent=8)}


def test_adapters_of_all_copies_add_up() -> None:
    """Requests, loads, their seconds and bytes are those of all copies; the rank is the largest."""
    one = AdapterStats(num_requests=2, num_running=1, num_loads=1, load_seconds=0.5, rank=8, num_bytes=100)
    one = replace(one, requests_within={"1.0": 1.0, "+Inf": 2.0})
    other = AdapterStats(num_requests=3, num_loads=1, load_seconds=0.2, rank=8, num_bytes=100)
    other = replace(other, requests_within={"1.0": 3.0, "+Inf": 3.0})
    states = [
        EngineState(state="ready", adapters={"m": {"a": one}}),
        EngineState(state="ready", adapters={"m": {"a": other, "b": other}}),
        EngineState(state="ready"),
    ]
    added = AdapterStats(num_requests=5, num_running=1, num_loads=2, load_seconds=0.7, rank=8, num_bytes=200)
    added = replace(added, requests_within={"1.0": 4.0, "+Inf": 5.0})
    assert merged_state(states).adapters == {"m": {"a": added, "b": other}}
