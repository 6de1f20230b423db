"""Attention through FlashInfer's paged prefill, which takes sequences that decode as chunks of one token.

A step is planned on the host, by lengths that are known there, once for all layers that see the same; so steps are not
captured in graphs. No GPU has run this: a stand-in has, which computes from the documented arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.row_params import to_device

_WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation recommends for partial results."""
_MOST_PLANS = 8
"""Page tables of a step that stay planned at once; each plan holds some megabytes."""


class _Planned(NamedTuple):
    batch: AttentionBatch
    wrapper: Any  # FlashInfer's, which has no types


class FlashInferAttend:
    """As `Attend`, of numbers of 16 bits."""

    def __init__(self, device: torch.device) -> None:
        """Take no memory yet: a trial may find that there is none."""
        self._device = device
        self._workspace: Tensor | None = None
        self._plans: OrderedDict[tuple[object, ...], _Planned] = OrderedDict()

    def __call__(
        self,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """As `Attend`. Plans a batch that was not planned yet."""
        key = (id(batch), scale, window, softcap)
        planned = self._plans.get(key)
        if planned is None or planned.batch is not batch:
            wrapper = self._free_wrapper() if planned is None else planned.wrapper
            self._plan(wrapper, q, cache, batch, scale, window, softcap)
            planned = self._plans[key] = _Planned(batch, wrapper)
        self._plans.move_to_end(key)
        return planned.wrapper.run(q, (cache.keys, cache.values))

    def _free_wrapper(self) -> Any:
        """Return the wrapper that was not used for longest, or a new one while there are few."""
        if len(self._plans) >= _MOST_PLANS:
            return self._plans.popitem(last=False)[1].wrapper
        if self._workspace is None:
            self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        return import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")

    def _plan(
        self,
        wrapper: Any,
        q: Tensor,
        cache: PagedCache,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> None:
        page_tokens, lengths = cache.keys.shape[1], np.array(batch.num_tokens)
        num_pages = -(-lengths // page_tokens)
        starts = np.concatenate([[0], num_pages.cumsum()])
        rows = np.repeat(np.arange(len(lengths)), num_pages)
        places = np.arange(starts[-1]) - starts[rows] + rows * batch.tables.shape[1]
        pages = batch.tables.reshape(-1).index_select(0, to_device(places, self._device))
        wrapper.plan(
            _host([0, *np.cumsum(batch.num_queries)]),
            _host(starts),
            pages,
            _host(lengths - (num_pages - 1) * page_tokens),
            q.shape[1],
            cache.keys.shape[2],
            q.shape[2],
            page_tokens,
            causal=True,
            sm_scale=scale,
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=softcap,
            q_data_type=q.dtype,
            kv_data_type=cache.keys.dtype,
        )


def _host(numbers: Any) -> Tensor:
    """Return int32 numbers of this machine's memory, which FlashInfer plans by without waiting for the device."""
    return torch.from_numpy(np.asarray(numbers, np.int32))
