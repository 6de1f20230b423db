"""A rank's part of a model on its device: weights, keys and values, and a decoder over them.

A model on one device is one rank. Which sequences there are, and which pages are whose, is the runner's to know.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.core.runners.attention import AttentionChoice
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.load_times import LoadTimes
from pyagent.infrastructure.engine.runners.torch.attention.choice import (
    ChosenAttention,
    choose_attention,
    choose_invariant_attention,
)
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.compiled.stages import CompiledStages
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape, DeviceBatch
from pyagent.infrastructure.engine.runners.torch.graphs import Capture, GraphKey, StepGraphs
from pyagent.infrastructure.engine.runners.torch.invariant.stages import choose_invariant_stages
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
from pyagent.infrastructure.engine.runners.torch.models import OpenedModel
from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Ranks
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes
from pyagent.infrastructure.engine.runners.torch.stages import Stages, Trial
from pyagent.infrastructure.engine.runners.torch.step import PackedStep, Step

if TYPE_CHECKING:
    from pyagent._rust import LoadProgress

logger = logging.getLogger(__name__)


class RankModel:
    """Load the weights, then `allocate` keys and values, then compute steps."""

    def __init__(
        self,
        model: OpenedModel,
        target: Target,
        shard: Shard,
        step: LargestStep,
        num_threads: int,
        load: LoadProgress | None = None,
    ) -> None:
        """Read the rank's weights, counted to `load`. Raises `ModelError` or `ConfigError`."""
        self.config = model.config
        self.part = ModelPart.of(self.config, shard)
        self.layers = KvLayers.of(self.config.windows, shard.pp_size, shard.stage)
        self.sizes = Sizes.of(model, self.part, self.layers, step, target)
        self.target = target
        self.times = LoadTimes()
        progress = ReadProgress(load, shard.num_ranks)
        self._make_decoder = model.load(self.part, target, num_threads, progress)
        self.times.add(progress.phases())
        self.batch_shape = BatchShape.of(step, self.config.context_length, len(self.layers.tables))
        self.graphs: StepGraphs | None = None
        self.compiled: CompiledStages | None = None
        self._most_rows = step.num_tokens
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
        shape = (num_pages + 1, BLOCK_TOKENS, self.part.kv_heads.num, config.head_dim)
        with self.times.phase("kv"):
            self.kv = KvCache(self.layers.num_slots, shape, target.kv_dtype, target.device)
            self.spare_page = num_pages
            self.batch = DeviceBatch(self.batch_shape, num_pages, target.device)
        with self.times.phase("kernels"):
            trial = Trial(config, target.device, target.dtype, target.kv_dtype)
            stages = choose_stages(trial)
            if target.is_batch_invariant:
                self._set_threads()
                stages = choose_invariant_stages(stages, trial)
            chosen = self._chosen(attention)
        if target.compile_folder is not None:
            self.compiled = CompiledStages(stages)
        self.attention, self._stages, self._ranks = chosen.name, stages, ranks
        self._make_decoders(chosen)
        if self.compiled is not None and target.compile_folder is not None:
            with self.times.phase("compile"):
                self._compile(self.compiled, Path(target.compile_folder))

    def _compile(self, stages: CompiledStages, folder: Path) -> None:
        """Compile what a step of padding asks of the stages."""
        from pyagent.infrastructure.engine.runners.torch.compiled.choice import compile_stages

        self._set_threads()  # part of what compiled code is for
        step = GraphKey(2, 1, (0,) * len(self.layers.tables))
        with self.batch.without_rows():
            compile_stages(stages, lambda: self._decode(step), folder, self._most_rows)
        self.kv.empty_pages(range(self.spare_page))

    def use_attention(self, choice: AttentionChoice) -> None:
        """Compute attention otherwise from the next step on. Raises `ConfigError` where the backend named cannot."""
        chosen = self._chosen(choice)
        self.attention, self.graphs = chosen.name, None
        self._make_decoders(chosen)

    def _make_decoders(self, chosen: ChosenAttention) -> None:
        """Make what computes steps, and what computes those for which stages are compiled."""
        self._decoder = self._make_decoder(self.layers, self._stages, chosen.attend, self._ranks)
        if self.compiled is not None:
            self._compiled_decoder = self._make_decoder(self.layers, self.compiled, chosen.attend, self._ranks)

    def _chosen(self, choice: AttentionChoice) -> ChosenAttention:
        choose = choose_invariant_attention if self.target.is_batch_invariant else choose_attention
        return choose(choice, AttentionTrial.of(self.config, self.part, self.target))

    def use_graphs(self, capture: Capture) -> None:
        """Have steps that decode captured and replayed, where attention can do with bounds of lengths.

        Not those of experts that are batch-invariant: they group tokens, for which the host asks how many each has.
        """
        if self.target.is_batch_invariant and self.config.experts is not None:
            logger.info("steps are not captured in graphs: engine.batch_invariant has tokens grouped by expert")
            return
        with self.times.phase("graphs"), torch.inference_mode(), self.kv.unreadable(self.spare_page):
            if not self._decode(GraphKey(1, 4, (0,) * len(self.layers.tables))).isfinite().all():
                logger.info("steps are not captured in graphs: attention goes by the lengths that the host tells")
                return
        # Captured steps share it: each graph's own would be kept, 131 MB at 256 rows of a vocabulary of 128k.
        rows = (self.batch_shape.num_slots, self.config.vocab_size)
        output = torch.empty(rows, dtype=torch.float32, device=self.target.device)
        self.graphs = StepGraphs(
            capture, self.batch_shape, lambda size: output[: size.num_rows].copy_(self._decode(size))
        )

    def compute(self, packed: PackedStep) -> Tensor:
        """Compute a step; returns float32 logits [m, vocabulary] on the device, where the rank is of the last stage."""
        self._set_threads()
        with torch.inference_mode():
            if self.graphs is None or packed.has_tokens:
                return self._compute(self.batch.step(packed))
            if (size := self.graphs.overdue) is not None:
                self.capture(size)
            self.batch.take(packed)
            num_rows, num_blocks = len(packed.num_queries), -(-max(packed.num_tokens) // BLOCK_TOKENS)
            replay = self.graphs.find(GraphKey(num_rows, num_blocks, tuple(packed.shared)))
            if replay is not None:
                return replay()[:num_rows]
            return self._compute(self.batch.decode(packed.num_tokens, packed.shared))

    def capture(self, size: GraphKey) -> None:
        """Capture the step of a size, over rows of padding."""
        assert self.graphs is not None
        self._set_threads()
        with torch.inference_mode(), self.batch.without_rows():
            try:
                self.graphs.add(size)
            except torch.OutOfMemoryError:
                self.graphs.give_up()
            except RuntimeError as error:
                logger.warning("steps are not captured in graphs: %s", error)
                self.graphs = None

    def _decode(self, size: GraphKey) -> Tensor:
        """Compute the next token of so many rows of the batch."""
        return self._compute(self.batch.decode([size.num_blocks * BLOCK_TOKENS] * size.num_rows, size.shared))

    def _compute(self, step: Step) -> Tensor:
        is_compiled = self.compiled is not None and len(step.tokens) >= self.compiled.from_rows
        logits = (self._compiled_decoder if is_compiled else self._decoder).logits(step, self.kv)
        self.batch.note(step)
        return logits

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        with torch.inference_mode():
            self.kv.copy_pages(pairs)

    def _set_threads(self) -> None:
        """Torch keeps how many threads compute for each thread that calls it."""
        if not self.target.is_gpu and self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            torch.set_num_threads(self._num_threads)
