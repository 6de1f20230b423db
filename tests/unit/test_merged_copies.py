"""What copies of an engine tell, as one engine's."""

from __future__ import annotations

from msgspec.structs import replace

from pyagent.cli.load_line import loads_shown
from pyagent.core.load_progress import LoadProgress
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.stats import AdapterStats, KvMoveStats
from pyagent.infrastructure.engine.subprocess.copies import Copies
from pyagent.infrastructure.engine.subprocess.merging import merged_state
from pyagent.infrastructure.engine.subprocess.protocol import Start


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


def test_loads_of_all_copies_add_up() -> None:
    """Bytes are those of all copies, seconds those of the slowest."""
    one = LoadProgress(model="m", bytes_done=50, bytes_total=100, seconds=2.0, seconds_left=2.0)
    other = LoadProgress(model="m", bytes_done=10, bytes_total=100, seconds=1.0, seconds_left=9.0)
    early = LoadProgress(model="n", seconds=3.0)
    states = [EngineState(state="ready", load_progress={"m": one}), EngineState(state="ready")]
    states.append(EngineState(state="ready", load_progress={"m": other, "n": early}))
    both = LoadProgress(model="m", bytes_done=60, bytes_total=200, seconds=2.0, seconds_left=9.0)
    assert merged_state(states).load_progress == {"m": both, "n": early}


def test_loads_of_copies_are_told_by_their_numbers_and_end_with_their_processes() -> None:
    """Of a copy whose process dies only its own loads are over; what was over before is not told again."""
    copies, told = Copies([Start(b""), Start(b"")], None, lambda _: None), list[tuple[str, bool]]()
    with loads_shown(lambda load: told.append((load.name, load.is_over))):
        for copy, model in ((0, "m"), (1, "m"), (1, "n")):
            copies.loading(copy, LoadProgress(model=model))
        copies.loading(1, LoadProgress(model="n", is_over=True))
        copies.died(1)
        copies.died(1)
    begun = [("m (engine 0)", False), ("m (engine 1)", False), ("n (engine 1)", False)]
    assert told == [*begun, ("n (engine 1)", True), ("m (engine 1)", True)]
