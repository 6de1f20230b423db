"""The ranks of a running server's models, as `pyagent doctor` tells of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pyagent.core.runners.runner import RankStats
from pyagent.core.sizes import format_bytes

_SILENT_SECONDS = 3.0


class _Engine(msgspec.Struct, frozen=True):
    """What of an engine's state is looked at: its ranks by model, and its copies."""

    ranks: dict[str, list[RankStats]] = {}
    copies: list[_Engine] = []


def serving_ranks(engines: bytes) -> Iterator[tuple[str, str, bool]]:
    """Yield which rank it is, how it is in words, and whether it is well, of what `GET /pyagent/engine` says.

    Of an engine that several links share, ranks are told once.
    """
    found = msgspec.json.decode(engines, type=dict[str, _Engine]).values()
    each = [copy for engine in found for copy in engine.copies or [engine]]
    ranks = {(model, one.rank, one.process_id): one for copy in each for model, of in copy.ranks.items() for one in of}
    for (model, _, process_id), one in ranks.items():
        is_well = one.silent_seconds < _SILENT_SECONDS
        told = f"process {process_id}, {format_bytes(one.memory_bytes)}, {one.step_seconds * 1000:.1f} ms a step"
        told += "" if is_well else f"; it has said nothing for {one.silent_seconds:.0f} s"
        yield f"rank {one.rank} of {model}", told, is_well
