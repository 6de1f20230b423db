"""A trial of attention backends with a model's shapes, on random numbers: is one right, and how long does it take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pyagent.core.runners.attention import AttentionShape
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention import Attend, plain
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.device import DTYPES, KV_DTYPES, Target

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart

_NUM_PAGES = 1024
"""Of a measured cache: 64 MB for Llama 3 8B's layers, more than a GPU's own caches hold."""
_FEW_PAGES = 128
_NUM_SEQUENCES, _CONTEXT, _PROMPT = 16, 1000, 2048
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class AttentionTrial:
    """Batches that a model's layers may be asked for."""

    shape: AttentionShape
    scale: float
    device: torch.device

    @classmethod
    def of(cls, config: Shape, part: ModelPart, target: Target) -> AttentionTrial:
        """For a rank's part of a model on a device."""
        names = {dtype: name for name, dtype in KV_DTYPES.items()}
        shape = AttentionShape(
            device=str(target.device),
            dtype=names[target.dtype],
            kv_dtype=names[target.kv_dtype],
            num_heads=part.heads.num,
            num_kv_heads=part.kv_heads.num,
            head_dim=config.head_dim,
            windows=frozenset(part.windows),
            softcap=config.attention_softcap,
            has_sinks=config.has_sinks,
        )
        return cls(shape, config.attention_scale, target.device)

    def fault(self, attend: Attend) -> str | None:
        """Return how the results differ from the plain form's; None where they do not."""
        most = 1e-4 if self.shape.dtype == "f32" else 3e-2
        cache = self._cache(_FEW_PAGES)
        for window in sorted(self.shape.windows, key=lambda window: window or 0):
            for name, batch in self._small_batches():
                q = self._queries(batch)
                options = self._options(window)
                expected = plain.attend(q, cache, batch, *options).float()
                try:
                    result = attend(q, cache, batch, *options).float()
                    error = float((result - expected).norm() / expected.norm())
                except Exception as failure:  # noqa: BLE001 - whatever a compiler or driver raises is why it is not taken
                    return first_line(failure)
                if not error < most:
                    return f"attention with window {window}, {name}, is wrong by {error:.1e}"
        return None

    def variance(self, attend: Attend) -> str | None:
        """Return where a query's bits depend on what is computed beside it, or on the chunk; None where nowhere.

        The queries of one sequence are computed at once, and then in chunks and alone, beside others.
        """
        cache, num = self._cache(_FEW_PAGES), 300
        blocks = -(-num // BLOCK_TOKENS)
        tables = torch.randperm(_FEW_PAGES, dtype=torch.int32)[: 2 * blocks].view(2, blocks)
        whole = self._batch([num], [num], tables[:1], 0)
        q, beside = self._queries(whole), self._queries(self._batch([40], [40], tables[:1], 0))
        for window in sorted(self.shape.windows, key=lambda window: window or 0):
            options = self._options(window)
            expected = attend(q, cache, whole, *options)
            for first, end in ((0, 1), (num - 1, num), (100, 101), (3, 40), (17, 270), (256, 258)):
                others = beside[: end % 7 + 1]
                if end - first == 1:  # beside a chunk of another
                    batch = self._batch([1, len(others)], [end, 200], tables, 0)
                    found = attend(torch.cat((q[first:end], others)), cache, batch, *options)[:1]
                else:  # beside another that decodes
                    batch = self._batch([1, end - first], [200, end], tables.flip(0), 0)
                    found = attend(torch.cat((others[:1], q[first:end])), cache, batch, *options)[1:]
                if not torch.equal(found, expected[first:end]):
                    return f"with window {window}, queries {first} to {end} of {num} differ"
        return None

    def seconds(self, attend: Attend) -> tuple[float, float]:
        """Return the seconds that a layer takes for sequences that decode, and for a prompt."""
        cache = self._cache(_NUM_PAGES)
        window = min((window or _CONTEXT for window in self.shape.windows), default=None)
        decode, prefill = (
            self._median_seconds(attend, cache, self._even_batch(*sizes), window)
            for sizes in ((_NUM_SEQUENCES, 1, _CONTEXT), (1, _PROMPT, _PROMPT))
        )
        return decode, prefill

    def _median_seconds(self, attend: Attend, cache: PagedCache, batch: AttentionBatch, window: int | None) -> float:
        q, options = self._queries(batch), self._options(window)
        times: list[float] = []
        for _ in range(_REPEATS):
            self._wait()
            start = time.perf_counter()
            attend(q, cache, batch, *options)
            self._wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _options(self, window: int | None) -> tuple[Any, ...]:
        """What a layer tells attention beside a step; sinks where the model has them, near scores of random numbers."""
        options = (self.scale, window, self.shape.softcap)
        if not self.shape.has_sinks:
            return options
        return (*options, torch.linspace(-2, 4, self.shape.num_heads, device=self.device))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _queries(self, batch: AttentionBatch) -> torch.Tensor:
        shape = (sum(batch.num_queries), self.shape.num_heads, self.shape.head_dim)
        return self._random(shape, DTYPES[self.shape.dtype])

    def _cache(self, num_pages: int) -> PagedCache:
        shape = (num_pages, BLOCK_TOKENS, self.shape.num_kv_heads, self.shape.head_dim)
        cache = PagedCache.made(
            shape,
            KV_DTYPES[self.shape.kv_dtype],
            lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=self.device),
        )
        rows = torch.arange(num_pages * BLOCK_TOKENS, device=self.device)
        keys, values = (self._random((len(rows), *shape[2:]), DTYPES[self.shape.dtype]) for _ in range(2))
        cache.store(rows, keys, values)
        return cache

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(dtype)

    def _small_batches(self) -> Iterator[tuple[str, AttentionBatch]]:
        """Yield sequences that decode beside a chunk of a prompt: of few tokens, and of many that begin alike."""
        for name, length, num_shared in (("short", 35, 0), ("long", 600, 512)):
            tables = torch.arange(2, 2 + 3 * 38, dtype=torch.int32).view(3, 38)
            tables[1, : num_shared // BLOCK_TOKENS] = tables[0, : num_shared // BLOCK_TOKENS]
            yield name, self._batch([1, 1, 20], [length, length - 1, 60], tables, num_shared)

    def _even_batch(self, num_sequences: int, num_queries: int, length: int) -> AttentionBatch:
        """So many sequences alike, no two of which share a page."""
        blocks = -(-length // BLOCK_TOKENS)
        tables = torch.randperm(_NUM_PAGES, dtype=torch.int32)[: num_sequences * blocks].view(num_sequences, blocks)
        return self._batch([num_queries] * num_sequences, [length] * num_sequences, tables, 0)

    def _batch(
        self, num_queries: list[int], num_tokens: list[int], tables: torch.Tensor, num_shared: int
    ) -> AttentionBatch:
        starts = torch.tensor([0, *num_queries]).cumsum(0).to(torch.int32)
        lengths = torch.tensor(num_tokens, dtype=torch.int32)
        there = (starts.to(self.device), lengths.to(self.device), tables.to(self.device))
        return AttentionBatch(*there, num_queries, num_tokens, num_shared)


def first_line(error: Exception) -> str:
    """Return an error's type and the first line of what it says: compilers say much."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
