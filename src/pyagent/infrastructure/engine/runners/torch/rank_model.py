"""A rank's part of a model on its device: weights, keys and values, and a decoder over them.

A model on one device is one rank. Which sequences there are, and which pages are whose, is the runner's to know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyagent.core.runners.attention import AttentionChoice
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.runners.torch.attention.choice import choose_attention
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
from pyagent.infrastructure.engine.runners.torch.models import OpenedModel
from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Ranks
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes
from pyagent.infrastructure.engine.runners.torch.stages import Stages, Trial
from pyagent.infrastructure.engine.runners.torch.step import PackedStep, Step


class RankModel:
    """Load the weights, then `allocate` keys and values, then compute steps."""

    def __init__(self, model: OpenedModel, target: Target, shard: Shard, step: LargestStep, num_threads: int) -> None:
        """Read the rank's weights. Raises `ModelError` or `ConfigError`."""
        self.config = model.config
        self.part = ModelPart.of(self.config, shard)
        self.layers = KvLayers.of(self.config.windows, shard.pp_size, shard.stage)
        self.sizes = Sizes.of(model, self.part, self.layers, step, target)
        self.target = target
        self._make_decoder = model.load(self.part, target, num_threads)
        self._num_threads = num_threads
        self._thread: int | None = None

    def num_pages(self, kv_bytes: int | None) -> int:
        """Return how many pages there can be on this rank's device, or in its share of `kv_bytes`."""
        return self.sizes.num_pages(self.target, None if kv_bytes is None else kv_bytes // self.part.shard.num_ranks)

    def allocate(
        self, num_pages: int, ranks: Ranks, attention: AttentionChoice, choose_stages: Callable[[Trial], Stages]
    ) -> None:
        """Take the memory of keys and values, and be ready for steps with the other ranks."""
        target, config = self.target, self.config
        shape = (num_pages, BLOCK_TOKENS, self.part.kv_heads.num, config.head_dim)
        self.kv = KvCache(self.layers.num_slots, shape, target.kv_dtype, target.device)
        stages = choose_stages(Trial(config, target.device, target.dtype, target.kv_dtype))
        attend = choose_attention(attention, AttentionTrial.of(config, self.part, target))
        self._decoder = self._make_decoder(self.layers, stages, attend, ranks)

    def compute(self, packed: PackedStep) -> Tensor:
        """Compute a step; returns float32 logits [m, vocabulary] on the device, where the rank is of the last stage."""
        self._set_threads()
        with torch.inference_mode():
            step = Step.of(packed, self.layers, self.target.device)
            return self._decoder.logits(step, self.kv)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        with torch.inference_mode():
            self.kv.copy_pages(pairs)

    def _set_threads(self) -> None:
        """Torch keeps how many threads compute for each thread that calls it."""
        if not self.target.is_gpu and self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            torch.set_num_threads(self._num_threads)
