"""Ranks that exchange tensors over torch.distributed: NCCL between GPUs, gloo on torch's CPU device.

They meet through files in a folder of their own and speak over loopback. Tensors alone cross, never pickled objects.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    Backend,
    FileStore,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    Work,
)

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Shard

_MEET_SECONDS = 120.0
_STEP_SECONDS = 1800.0
"""A rank that is silent in a step for so long has failed; one that ended is noticed at once."""
_LOOPBACK = "127.0.0.1"
_MOST_UNSENT = 4


class Group:
    """As `Ranks`, between processes."""

    def __init__(self, folder: Path, shard: Shard, device: torch.device) -> None:
        """Meet the other ranks; blocks until all are there."""
        store = FileStore(str(folder / "ranks"), shard.num_ranks)
        self._shard = shard
        self._unsent: list[tuple[Work, Tensor]] = []
        self.is_waiting = False
        """Whether this rank waits for others now. On a GPU it is the device that waits, and this stays false."""
        tensor, all_ranks = (
            PrefixStore(f"stage {shard.stage}", store),
            PrefixStore("all", store),
        )
        self._tensor = _connect(tensor, shard.tp_rank, shard.tp_size, device) if shard.tp_size > 1 else None
        self._all = _connect(all_ranks, shard.rank, shard.num_ranks, device) if shard.pp_size > 1 else None

    def sum(self, x: Tensor) -> Tensor:
        """As `Ranks.sum`."""
        if self._tensor is not None:
            x = x.contiguous()
            self._wait(self._tensor.allreduce([x]))
        return x

    def join(self, x: Tensor) -> Tensor:
        """As `Ranks.join`."""
        if self._tensor is None:
            return x
        parts = [torch.empty_like(x) for _ in range(self._shard.tp_size)]
        if len(x):
            self._wait(self._tensor.allgather([parts], [x.contiguous()]))
        return torch.cat(parts, 1)

    def send(self, x: Tensor) -> None:
        """As `Ranks.send`. Returns while it is on its way."""
        assert self._all is not None
        while len(self._unsent) >= _MOST_UNSENT:
            self._wait(self._unsent.pop(0)[0])
        x = x.contiguous()
        self._unsent.append((self._all.send([x], self._shard.next, 0), x))

    def receive(self, x: Tensor) -> Tensor:
        """As `Ranks.receive`."""
        assert self._all is not None
        self._wait(self._all.recv([x], self._shard.previous, 0))
        return x

    def _wait(self, work: Work) -> None:
        """Wait for an exchange: on a GPU, have what follows there wait for it."""
        self.is_waiting = True
        work.wait()
        self.is_waiting = False

    def close(self) -> None:
        """End what waits for other ranks. From any thread."""
        for group in (self._tensor, self._all):
            if group is not None:
                group.abort()


def _connect(store: Store, rank: int, num_ranks: int, device: torch.device) -> ProcessGroup:
    """Make a group of a store's own, without torch's default one, of which a process can have one only."""
    store.set_timeout(timedelta(seconds=_MEET_SECONDS))
    make = _nccl if device.type == "cuda" else _gloo
    return cast("ProcessGroup", make(store, rank, num_ranks))  # a backend has its methods


def _nccl(store: Store, rank: int, num_ranks: int) -> Backend:
    # Where ranks find each other; tensors go from GPU to GPU.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    from torch._C._distributed_c10d import ProcessGroupNCCL  # which builds without CUDA lack

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_STEP_SECONDS)
    return ProcessGroupNCCL(store, rank, num_ranks, options)


def _gloo(store: Store, rank: int, num_ranks: int) -> Backend:
    gloo: Any = ProcessGroupGloo  # its stub names its options otherwise
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    options._timeout = timedelta(seconds=_MEET_SECONDS)
    group = gloo(store, rank, num_ranks, options)
    group._set_default_timeout(timedelta(seconds=_STEP_SECONDS))
    return group
