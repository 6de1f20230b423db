"""The torch runner: a decoder of torch behind a paged runner.

A step crosses to the device once, its logits come back once: nothing else waits for the device. They are sampled with
the CPU runner's kernels, so that sampling parameters mean the same.
"""

from __future__ import annotations

import logging
import threading
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
from pyagent.infrastructure.engine.runners.torch.decoder import Decoder
from pyagent.infrastructure.engine.runners.torch.device import target_of
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes, open_model, step_bytes
from pyagent.infrastructure.engine.runners.torch.stages import Stages, Trial, choose_stages
from pyagent.infrastructure.engine.runners.torch.step import Step
from pyagent.infrastructure.engine.runners.torch.weights import load_weights

logger = logging.getLogger(__name__)


def needs_of(path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
    """Return what a model will take of this machine's memory. Raises `ModelError` where the GPU lacks room."""
    target = target_of(options)
    config = open_model(path).config
    layers = KvLayers.of(config.windows)
    sizes = Sizes.of(config, layers, step, target)
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
        self._thread: int | None = None
        try:
            info = self._load(path, options, step)
        except torch.OutOfMemoryError as error:
            text = f"{path} does not fit the GPU's memory: {str(error).partition('.')[0]}; set engine.runner to cpu"
            raise ModelError(text, model=str(path)) from error
        super().__init__(info, options, kv)

    def _load(self, path: Path, options: RunnerOptions, step: LargestStep) -> RunnerInfo:
        start = time.perf_counter()
        target, file = self._target, open_model(path)
        self._config = config = file.config
        self._layers = layers = KvLayers.of(config.windows)
        sizes = Sizes.of(config, layers, step, target)
        weights = load_weights(file, str(path), target.dtype, target.device, self._threads)
        num_pages = sizes.num_pages(target, options.kv_bytes)
        self._kv = KvCache(layers, config, num_pages, target.kv_dtype, target.device)
        stages = self.choose_stages(Trial(config, target.device, target.dtype, target.kv_dtype))
        self._decoder = Decoder(config, weights, layers, stages)
        seconds = time.perf_counter() - start
        logger.info("loaded %s onto %s as %s in %.1f s", path, target.device, target.dtype, seconds)
        return RunnerInfo(
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            weight_bytes=0 if target.is_gpu else sizes.weight_bytes,
            num_pages=num_pages,
            page_bytes=0 if target.is_gpu else sizes.page_bytes,
            kv_groups=layers.groups,
        )

    def choose_stages(self, trial: Trial) -> Stages:
        """Return what computes between the products."""
        return choose_stages(trial)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and sample the tokens it asks for."""
        self._set_threads()
        with torch.inference_mode():
            step = Step.of(batch, self.pool, self._layers, self._target.device)
            logits = self._decoder.logits(step, self._kv).cpu()
        return self.finish_step(batch, logits.numpy().data)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        with torch.inference_mode():
            self._kv.copy_pages(pairs)

    def empty_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of pages back to the system."""
        self._kv.empty_pages(pages)

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes of this machine's memory that steps up to the largest take."""
        return 0 if self._target.is_gpu else step_bytes(self._config, step, self._target)

    def close(self) -> None:
        """Free the weights and the KV memory, whatever still refers to the runner. It computes nothing afterwards."""
        super().close()
        vars(self).pop("_decoder", None)
        vars(self).pop("_kv", None)
        if self._target.is_gpu:
            torch.cuda.empty_cache()

    def _set_threads(self) -> None:
        """Torch keeps how many threads compute for each thread that calls it."""
        if not self._target.is_gpu and self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            torch.set_num_threads(self._threads)
