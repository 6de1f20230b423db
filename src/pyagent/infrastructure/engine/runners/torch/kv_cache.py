"""Keys and values of all layers in pages of the engine's block pool, and which layer lies in which of them.

Layers that see the same positions are a group, with page tables of their own. A page holds 16 tokens of as many layers
as the smallest common number allows, as for the CPU. A layer of a page is a slot: one tensor of keys and one of values,
[num_pages, BLOCK_TOKENS, kv_heads, head_dim].
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import FP8, PagedCache
from pyagent.infrastructure.engine.runners.torch.parallel.shard import stages


class LayerPlace(NamedTuple):
    """Where a layer's KV is: the pages of a table (`KvLayers.tables`), and the slot in each of them."""

    table: int
    slot: int


class KvLayers(NamedTuple):
    """A model's layers in pages. `groups` are as in `RunnerInfo.kv_groups`; a table is (group, page of a block)."""

    groups: tuple[tuple[str, int, int], ...]
    num_slots: int
    tables: tuple[tuple[int, int], ...]
    places: tuple[LayerPlace, ...]

    @classmethod
    def of(cls, windows: Sequence[int | None], num_stages: int = 1, stage: int = 0) -> KvLayers:
        """For layers with these windows. The groups stand in the order of their first layers.

        Of several stages of a pipeline each has the KV of its layers in the same pages: `places` are those of `stage`.
        """
        of_stages = [windows[span.first : span.end] for span in stages(len(windows), num_stages)]
        counts = [Counter(part) for part in of_stages]
        num_layers = {window: max(count[window] for count in counts) for window in dict.fromkeys(windows)}
        num_slots = math.gcd(*num_layers.values())
        groups = tuple(("window" if w else "full", w or 0, count // num_slots) for w, count in num_layers.items())
        tables = tuple((group, page) for group, (_, _, pages) in enumerate(groups) for page in range(pages))
        order, seen = list(num_layers), Counter[int | None]()
        places: list[LayerPlace] = []
        for window in of_stages[stage]:
            page, slot = divmod(seen[window], num_slots)
            places.append(LayerPlace(tables.index((order.index(window), page)), slot))
            seen[window] += 1
        return cls(groups, num_slots, tables, tuple(places))

    def page_bytes(self, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of a page, keys and values of all its slots."""
        bytes_of_head = head_dim * dtype.itemsize + (1 if dtype == FP8 else 0)
        return self.num_slots * 2 * BLOCK_TOKENS * num_kv_heads * bytes_of_head

    @property
    def pages_per_block(self) -> int:
        """Pages that 16 tokens take in all groups."""
        return len(self.tables)


class KvCache:
    """The tensors. `slots` are what attention reads, a layer's each."""

    def __init__(
        self, num_slots: int, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """With tensors of this shape for each slot."""
        self._device = device
        self._mappings: list[tuple[mmap.mmap, int]] = []
        make = self._map if device.type == "cpu" else self._zeros
        self.slots = [PagedCache.made(shape, dtype, make) for _ in range(num_slots)]

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _map(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros in memory that the system commits when it is written, and takes back when it is asked to."""
        page_bytes = math.prod(shape[1:]) * dtype.itemsize
        mapping = mmap.mmap(-1, shape[0] * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._mappings.append((mapping, page_bytes))
        return torch.frombuffer(mapping, dtype=torch.uint8).view(dtype).view(shape)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of pages: (from, to), in this order."""
        for source, target in pairs:
            for tensor in self._tensors():
                tensor[target].copy_(tensor[source])

    @contextmanager
    def unreadable(self, page: int) -> Generator[None]:
        """Have a page hold no numbers meanwhile, to see who reads it."""
        parts = [tensor[page].view(torch.uint8) for tensor in self._tensors()]
        for part in parts:
            part.fill_(0xFF)  # no number in any float type
        try:
            yield
        finally:
            for part in parts:
                part.zero_()

    def drop(self) -> None:
        """Give the memory of all pages back to torch, which tensors that are made may have then."""
        for tensor in self._tensors():
            tensor.untyped_storage().resize_(0)

    @property
    def is_there(self) -> bool:
        """Whether it has its memory."""
        return all(tensor.untyped_storage().nbytes() > 0 for tensor in self._tensors())

    def allocate(self) -> None:
        """Take it again, as zeros. Raises `torch.OutOfMemoryError`, with none taken."""
        try:
            for tensor in self._tensors():
                tensor.untyped_storage().resize_(tensor.nbytes)
                tensor.view(torch.uint8).zero_()
        except torch.OutOfMemoryError:
            self.drop()
            raise

    def _tensors(self) -> Iterator[Tensor]:
        return chain.from_iterable(slot.tensors for slot in self.slots)

    def empty_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of pages back to the system, where it is this machine's: whole pages of the system's."""
        for mapping, page_bytes in self._mappings:
            for first, end in runs_of(pages):
                start = -(-first * page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
                stop = end * page_bytes // mmap.PAGESIZE * mmap.PAGESIZE
                if stop > start:
                    mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


def runs_of(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield pages that follow each other as (first, end)."""
    ordered = sorted(pages)
    starts = [at for at in range(len(ordered)) if at == 0 or ordered[at] != ordered[at - 1] + 1]
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield ordered[start], ordered[end - 1] + 1
