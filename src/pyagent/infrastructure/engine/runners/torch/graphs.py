"""Steps that decode, captured once and replayed: the device is told of some hundred launches in one.

A graph is for so many rows and pages at most, as the batch that it reads lies at fixed addresses (`DeviceBatch`): rows
that are too many are padding. Which sizes there are is learnt from traffic: a size that steps ask for again and again
is captured when nothing else is to be done, or in the midst of steps where that does not happen. Until then steps are
eager, so that serving starts at once. The least recently used give way to new ones, and all where memory is short.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape

_ENOUGH, _TOO_OFTEN = 4, 64
"""Steps that ask for a size before it is captured: in an idle moment, and in the midst of others."""
_MOST_GRAPHS = 48
_LADDER = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)


class GraphKey(NamedTuple):
    """What is fixed in a graph: rows, pages of a sequence, and tokens that all of them share, by page table."""

    num_rows: int
    num_blocks: int
    shared: tuple[int, ...]


class Replay(Protocol):
    """A captured step."""

    def __call__(self) -> Tensor:
        """Compute it anew; returns its output, which the next call overwrites."""
        ...


Capture = Callable[[Callable[[], Tensor]], Replay]
"""Captures what a function does on the device, and returns how that is done again.

The function's output lies where that of all others does, so that a graph holds none of its own.
"""


class CudaCapture:
    """Capture into CUDA graphs that share one pool of memory: only one of them computes at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        """Capture; the first run, beside the graph, lets kernels be compiled and libraries be opened."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            compute()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: other models' steps allocate and wait meanwhile, which a capture of all forbids them.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class StepGraphs:
    """The graphs of a model's steps, by size."""

    def __init__(self, capture: Capture, shape: BatchShape, compute: Callable[[GraphKey], Tensor]) -> None:
        """`compute` does a step of a size over a batch of this shape."""
        self._capture = capture
        self._shape = shape
        self._compute = compute
        self._graphs: OrderedDict[GraphKey, Replay] = OrderedDict()
        self._asked = Counter[GraphKey]()
        self.num_replayed = self.num_captured = 0
        self.capture_seconds = 0.0

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, size: GraphKey) -> Replay | None:
        """Return a graph for a step of this size, the smallest that there is up to twice as large; None: be eager."""
        wanted = self._padded(size)
        if wanted not in self._graphs:
            self._asked[wanted] += 1
        fitting = [key for key in self._graphs if _fits(key, wanted)]
        if not fitting:
            return None
        key = min(fitting)
        self._graphs.move_to_end(key)
        self.num_replayed += 1
        return self._graphs[key]

    def _padded(self, size: GraphKey) -> GraphKey:
        """Return the size for which a graph would be captured."""
        above = (num_rows for num_rows in _LADDER if num_rows >= size.num_rows)
        num_rows = min(next(above, -(-size.num_rows // 16) * 16), self._shape.num_slots)
        num_blocks = min(1 << (size.num_blocks - 1).bit_length(), self._shape.num_blocks)
        return GraphKey(num_rows, num_blocks, size.shared)

    @property
    def due(self) -> GraphKey | None:
        """The size that is worth capturing in an idle moment, the most wanted first."""
        wanted = self._asked.most_common(1)
        return wanted[0][0] if wanted and wanted[0][1] >= _ENOUGH else None

    @property
    def overdue(self) -> GraphKey | None:
        """The size that is worth capturing at once."""
        key = self.due
        return key if key is not None and self._asked[key] >= _TOO_OFTEN else None

    def add(self, key: GraphKey) -> None:
        """Capture a size; the least recently used one goes where there are too many."""
        start = time.perf_counter()
        del self._asked[key]
        self._graphs[key] = self._capture(lambda: self._compute(key))
        while len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        self.num_captured += 1
        self.capture_seconds += time.perf_counter() - start

    def give_up(self) -> None:
        """Drop all graphs, and the memory that they hold; sizes are learnt anew."""
        self._graphs.clear()
        self._asked.clear()


def _fits(key: GraphKey, wanted: GraphKey) -> bool:
    is_enough = wanted.num_rows <= key.num_rows <= 2 * wanted.num_rows
    return is_enough and wanted.num_blocks <= key.num_blocks <= 2 * wanted.num_blocks and key.shared == wanted.shared
