"""What `pyagent doctor` says of the ranks of a running server."""

from __future__ import annotations

import msgspec

from pyagent.cli.serving_ranks import serving_ranks
from pyagent.core.runners.runner import RankStats
from pyagent.infrastructure.engine.client import EngineState


def test_ranks_are_told_once_with_who_is_silent() -> None:
    """Of every copy each rank, also where two links share the engine; one that says nothing is not well."""
    well = RankStats(rank=0, process_id=7, memory_bytes=2_000_000_000, step_seconds=0.0125)
    silent = RankStats(rank=1, process_id=8, memory_bytes=1_000_000_000, silent_seconds=9.0)
    copies = [EngineState(state="ready", ranks={"llama": [well, silent]}), EngineState(state="ready")]
    engine = EngineState(state="ready", copies=copies)
    alone = EngineState(state="ready", ranks={"phi": [well]})
    said = msgspec.json.encode({"native": engine, "native:llama": engine, "native:phi": alone})
    assert list(serving_ranks(said)) == [
        ("rank 0 of llama", "process 7, 2.0 GB, 12.5 ms a step", True),
        ("rank 1 of llama", "process 8, 1.0 GB, 0.0 ms a step; it has said nothing for 9 s", False),
        ("rank 0 of phi", "process 7, 2.0 GB, 12.5 ms a step", True),
    ]
