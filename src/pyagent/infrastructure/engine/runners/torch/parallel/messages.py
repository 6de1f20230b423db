"""What rank 0 tells the processes of the other ranks, and what they answer while they load."""

from __future__ import annotations

import msgspec

from pyagent.core.runners.factory import Dtype, KvDtype
from pyagent.infrastructure.engine.runners.torch.step import PackedStep
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.fault import Fault

RANK_0, RANK = "rank 0", "a rank's process"


class StartRank(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank of what to be. `folder` is where ranks meet, `endpoint` rank 0's socket; the rest is as in options."""

    rank: int
    tp_size: int
    pp_size: int
    folder: str
    endpoint: str
    log_level: int
    attention: str | None
    path: str
    dtype: Dtype
    kv_dtype: KvDtype
    kv_bytes: int | None
    threads: int
    largest_step: tuple[int, int, int | None]


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


ToRank = Allocate | Compute | CopyPages | EmptyPages
FromRank = Loaded | Failed
start_codec: Codec[StartRank] = Codec(StartRank, RANK_0)
to_rank: Codec[ToRank] = Codec(ToRank, RANK_0)
from_rank: Codec[FromRank] = Codec(FromRank, RANK)
