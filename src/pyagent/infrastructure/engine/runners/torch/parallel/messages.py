"""What rank 0 tells the processes of the other ranks, and what they answer while they load."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.runners.torch.step import PackedStep
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.fault import Fault

RANK_0, RANK = "rank 0", "a rank's process"


class StartRank(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank of what to be. `folder` is where ranks meet, `endpoint` rank 0's socket; the rest is as in options.

    `reports` is the socket to say on how it is. `device` is the kind of rank 0's; with `has_own_device` the process
    sees no GPU but its own. It ends with the engine's process, `engine_id`.
    """

    rank: int
    folder: str
    endpoint: str
    reports: str
    device: str
    has_own_device: bool
    engine_id: int
    log_level: int
    path: str
    attention: str | None
    options: dict[str, int | float | str | bool | None]
    largest_step: tuple[int, int, int | None]


def told_options(options: RunnerOptions) -> dict[str, int | float | str | bool | None]:
    """Return what crosses of options: all that are numbers and words. What else there is, rank 0 alone uses."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is None or isinstance(value, int | float | str)}


def options_told(told: dict[str, Any]) -> RunnerOptions:
    """Return the options that `told_options` gives."""
    return RunnerOptions(**told)


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Take memory for so many pages, and meet the other ranks."""

    num_pages: int


class Compute(msgspec.Struct, frozen=True, tag=True):
    """Compute a step."""

    step: PackedStep


class CopyPages(msgspec.Struct, frozen=True, tag=True):
    """Copy pages: (from, to), in this order."""

    pairs: list[tuple[int, int]]


class EmptyPages(msgspec.Struct, frozen=True, tag=True):
    """Give pages back to the system."""

    pages: list[int]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The weights are loaded; there is room for so many pages."""

    num_pages: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The weights cannot be loaded."""

    fault: Fault


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank is: steps it has done and their p50, for how long it is at the present one, bytes of its memory.

    `is_waiting` says that it waits for what other ranks send.
    """

    rank: int
    num_steps: int
    step_seconds: float
    busy_seconds: float
    is_waiting: bool
    memory_bytes: int


ToRank = Allocate | Compute | CopyPages | EmptyPages
FromRank = Loaded | Failed
start_codec: Codec[StartRank] = Codec(StartRank, RANK_0)
to_rank: Codec[ToRank] = Codec(ToRank, RANK_0)
from_rank: Codec[FromRank] = Codec(FromRank, RANK)
reports: Codec[RankReport] = Codec(RankReport, RANK)
