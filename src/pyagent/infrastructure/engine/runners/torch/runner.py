"""The torch runner: a decoder of torch behind a paged runner.

A step crosses to the device once, its logits come back once: nothing else waits for the device. They are sampled with
the CPU runner's kernels, so that sampling parameters mean the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import KvReservation, LargestStep, ModelNeeds, RunnerOptions
from pyagent.core.runners.runner import RunnerInfo
from pyagent.infrastructure.engine.runners.paged import PagedRunner
from pyagent.infrastructure.engine.runners.torch.device import target_of
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Alone
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.rank_model import RankModel
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes, open_model, step_bytes
from pyagent.infrastructure.engine.runners.torch.stages import Stages, Trial, choose_stages
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

logger = logging.getLogger(__name__)


def needs_of(path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
    """Return what a model will take of this machine's memory. Raises `ModelError` where the GPU lacks room."""
    target = target_of(options)
    config = open_model(path).config
    layers = KvLayers.of(config.windows)
    sizes = Sizes.of(config, ModelPart.of(config, Shard()), layers, step, target)
    if target.is_gpu:
        sizes.check_fit(target, path)
    is_here = int(not target.is_gpu)
    return ModelNeeds(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        weight_bytes=is_here * sizes.weight_bytes,
        workspace_bytes=is_here * sizes.workspace_bytes,
        page_bytes=is_here * sizes.page_bytes,
        kv_groups=layers.groups,
    )


class TorchRunner(PagedRunner):
    """Computes batches with torch. Not for concurrent use: one engine loop owns it."""

    def __init__(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None = None) -> None:
        """Load a GGUF file or safetensors folder; raises `ModelError` naming what is wrong with it."""
        self._target = target_of(options)
        self._threads = options.threads or _rust.available_cores()
        self.num_threads = 0 if self._target.is_gpu else self._threads
        try:
            info = self._load(path, options, step)
        except torch.OutOfMemoryError as error:
            text = f"{path} does not fit the GPU's memory: {str(error).partition('.')[0]}; set engine.runner to cpu"
            raise ModelError(text, model=str(path)) from error
        super().__init__(info, options, kv)

    def _load(self, path: Path, options: RunnerOptions, step: LargestStep) -> RunnerInfo:
        start = time.perf_counter()
        target = self._target
        self._model = model = RankModel(path, target, Shard(), step, self._threads)
        num_pages = model.num_pages(options.kv_bytes)
        model.allocate(num_pages, Alone(), options.attention, self.choose_stages)
        seconds = time.perf_counter() - start
        logger.info("loaded %s onto %s as %s in %.1f s", path, target.device, target.dtype, seconds)
        return RunnerInfo(
            architecture=model.config.architecture,
            vocab_size=model.config.vocab_size,
            context_length=model.config.context_length,
            weight_bytes=0 if target.is_gpu else model.sizes.weight_bytes,
            num_pages=num_pages,
            page_bytes=0 if target.is_gpu else model.sizes.page_bytes,
            kv_groups=model.layers.groups,
        )

    def choose_stages(self, trial: Trial) -> Stages:
        """Return what computes between the products."""
        return choose_stages(trial)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and sample the tokens it asks for."""
        logits = self._model.compute(PackedStep.of(batch, self.pool, self._model.layers)).cpu()
        return self.finish_step(batch, logits.numpy().data)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        self._model.copy_pages(pairs)

    def empty_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of pages back to the system."""
        self._model.kv.empty_pages(pages)

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes of this machine's memory that steps up to the largest take."""
        return 0 if self._target.is_gpu else step_bytes(self._model.config, self._model.part, step, self._target)

    def close(self) -> None:
        """Free the weights and the KV memory, whatever still refers to the runner. It computes nothing afterwards."""
        super().close()
        vars(self).pop("_model", None)
        if self._target.is_gpu:
            torch.cuda.empty_cache()
