"""Attention through torch's products of one size: 16 rows of query heads by 256 keys counted from a sequence's start.

A query meets the same blocks of keys whether it is computed alone, in a prompt, or in a chunk of it, and each meeting
is a product of the same size, so that the sums are in the same order. Blocks that a query does not see change none of
its bits: their weights are zeros, and its maximum stays. Tokens with more than 16 query heads for a KV head take more
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.cpu import even_groups
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.plain import first_visible

KEYS = 256
_ROWS = 16
_MOST_BLOCKS = 256
"""Pages of sequences that decode which are computed together."""


class _Tiles(NamedTuple):
    """Queries of a step in tiles [t, Q]: rows of the step, and positions, -1 where the last tile lacks queries.

    `tables` are the page tables of their sequences, one for each tile or one for all. On the host, there are `num`
    queries, keys from `first` to before `end` are seen, and those of a prompt begin at position `start`.
    """

    rows: Tensor  # [t, Q]
    positions: Tensor  # [t, Q]
    tables: Tensor  # [t or 1, max_pages]
    num: int
    first: int
    end: int
    start: int | None = None

    def first_seeing(self, key: int) -> int:
        """Return the first tile with a query that sees a key or later ones."""
        return 0 if self.start is None else max(0, key - self.start) // self.rows.shape[1]


def attend(
    q: Tensor,
    cache: PagedCache,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `Attend`; computes in float32."""
    out = torch.empty_like(q)
    group = q.shape[1] // cache.keys.shape[2]
    for tiles in _tiles_of(batch, max(1, _ROWS // group), window):
        heads = _attend_tiles(q, cache, tiles, scale, window, softcap, sinks)[: tiles.num]
        out.index_copy_(0, tiles.rows.flatten()[: tiles.num], heads.to(out.dtype))
    return out


def _tiles_of(batch: AttentionBatch, per_tile: int, window: int | None) -> Iterator[_Tiles]:
    """Yield the step's tiles: of sequences that decode, a query each, those of like lengths at once; of each prompt."""
    device, lengths = batch.lengths.device, batch.lengths.long()
    num_decoding = sum(1 for _ in takewhile(lambda num_queries: num_queries == 1, batch.num_queries))
    if num_decoding:
        num_blocks = [-(-num_tokens // BLOCK_TOKENS) for num_tokens in batch.num_tokens[:num_decoding]]
        for group in even_groups(num_blocks, _MOST_BLOCKS):
            rows = torch.tensor(group, device=device)[:, None]
            first = min(first_visible(1, batch.num_tokens[row], window) for row in group)
            end = max(batch.num_tokens[row] for row in group)
            yield _Tiles(rows, lengths[rows] - 1, batch.tables[rows[:, 0]], len(group), first, end)
    start = num_decoding
    for row in range(num_decoding, len(batch.num_queries)):
        num, end = batch.num_queries[row], batch.num_tokens[row]
        places = torch.arange(-(-num // per_tile) * per_tile, device=device).view(-1, per_tile)
        positions = torch.where(places < num, lengths[row] - num + places, -1)
        rows = start + places.clamp(max=num - 1)
        first = first_visible(num, end, window)
        yield _Tiles(rows, positions, batch.tables[row : row + 1], num, first, end, end - num)
        start += num


def _attend_tiles(
    q: Tensor,
    cache: PagedCache,
    tiles: _Tiles,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Return the heads [t * Q, Hq, D] of tiles, float32."""
    num_kv_heads, head_dim = cache.keys.shape[2:]
    by_head = q[tiles.rows].float().unflatten(2, (num_kv_heads, -1)).permute(2, 0, 1, 3, 4)  # [Hkv, t, Q, G, D]
    shape, group = by_head.shape, by_head.shape[3]
    missing = -(shape[2] * group) % _ROWS
    queries = pad(by_head.flatten(2, 3), (0, 0, 0, missing))  # [Hkv, t, R, D]
    seeing = pad(tiles.positions.repeat_interleave(group, 1), (0, missing), value=-1)  # [t, R]
    softmax = _Softmax(queries)
    for start in range(tiles.first // KEYS * KEYS, tiles.end, KEYS):
        at = tiles.first_seeing(start)
        keys, values, is_seen = _block(cache, tiles, start, seeing[at:], window)
        scores = torch.stack([torch.bmm(queries[head, at:], keys[head]) for head in range(num_kv_heads)]).mul_(scale)
        if softcap is not None:
            scores = capped(scores, softcap)
        softmax.take(at, scores.masked_fill_(~is_seen, -torch.inf), values)
    if sinks is not None:
        of_rows = sinks.view(num_kv_heads, 1, group).repeat(1, 1, shape[2])
        softmax.take_sinks(pad(of_rows, (0, missing)))
    heads = softmax.heads()[:, :, : shape[2] * group].unflatten(2, (-1, group))  # [Hkv, t, Q, G, D]
    return heads.permute(1, 2, 0, 3, 4).reshape(-1, q.shape[1], head_dim)


def _block(
    cache: PagedCache, tiles: _Tiles, start: int, seeing: Tensor, window: int | None
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return a block's keys [t, D, KEYS] and values [t, KEYS, D] of each KV head, and which rows see what of them.

    What no query sees of the keys may be anything, NaN too; of the values it is 0.
    """
    device, num_tiles = seeing.device, len(seeing)
    columns = torch.arange(start // BLOCK_TOKENS, (start + KEYS) // BLOCK_TOKENS, device=device)
    pages = tiles.tables[:, columns.clamp_(max=tiles.tables.shape[1] - 1)]
    keys, values = (part.flatten(1, 2).float() for part in cache.read(pages))  # [t or 1, KEYS, Hkv, D]
    positions = torch.arange(start, start + KEYS, device=device)
    is_seen = positions <= seeing[..., None]  # [t, R, KEYS]
    if window is not None:
        is_seen &= positions > seeing[..., None] - window
    is_key = is_seen.any(1)
    if len(values) == 1:
        is_key = is_key.any(0, keepdim=True)
    values = values.masked_fill(~is_key[:, :, None, None], 0)
    num_heads = range(keys.shape[2])
    return (
        [keys[:, :, head].transpose(1, 2).expand(num_tiles, -1, -1) for head in num_heads],
        [values[:, :, head].expand(num_tiles, -1, -1) for head in num_heads],
        is_seen,
    )


class _Softmax:
    """A softmax whose blocks come one after the other (Milakov and Gimelshein 2018), and the values it weighs."""

    def __init__(self, queries: Tensor) -> None:
        self._greatest = torch.full_like(queries[..., 0], -torch.inf)  # [Hkv, t, R]
        self._sum = torch.zeros_like(self._greatest)
        self._values = torch.zeros_like(queries)

    def take(self, at: int, scores: Tensor, values: list[Tensor]) -> None:
        """Take in a block of the tiles from `at` on."""
        before = self._greatest[:, at:]
        greatest = torch.maximum(before, scores.amax(-1))
        base = greatest.masked_fill(greatest == -torch.inf, 0)  # a row that has seen no key yet
        weights = scores.sub_(base[..., None]).exp_()
        fade = (before - base).exp_()
        self._sum[:, at:] = self._sum[:, at:] * fade + weights.sum(-1)
        for head, of_head in enumerate(values):
            self._values[head, at:] *= fade[head, ..., None]
            self._values[head, at:] += torch.bmm(weights[head], of_head)
        self._greatest[:, at:] = greatest

    def take_sinks(self, sinks: Tensor) -> None:
        """Take in a score of each row [Hkv, 1, R], whose value is 0."""
        greatest = torch.maximum(self._greatest, sinks)
        fade = (self._greatest - greatest).exp_()
        self._sum = self._sum * fade + (sinks - greatest).exp_()
        self._values *= fade[..., None]
        self._greatest = greatest

    def heads(self) -> Tensor:
        """Return the weighted means [Hkv, t, R, D]; 0 of rows that saw nothing."""
        return self._values / self._sum.masked_fill(self._sum == 0, 1)[..., None]


def capped(scores: Tensor, cap: float) -> Tensor:
    """Return `cap * tanh(scores / cap)`, by the exponential: torch's tanh of a number may depend on its neighbours."""
    return cap - 2 * cap / ((2 / cap * scores).exp() + 1)
