"""The torch runner: a decoder of torch behind a paged runner.

A step crosses to the device as what it changes there, its tokens come back: nothing else waits for the device. They are
sampled by the CPU runner's rules, so that sampling parameters and seeds mean the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pyagent import _rust
from pyagent.core.errors import CapacityError, ConfigError, ModelError
from pyagent.core.runners.attention import KEY
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import DeviceMemory, KvReservation, LargestStep, ModelNeeds, RunnerOptions
from pyagent.core.runners.runner import CompileStats, RankStats, RunnerInfo, StepMemoryError
from pyagent.infrastructure.engine.load_times import LoadTimes
from pyagent.infrastructure.engine.runners.choice import pick_attention
from pyagent.infrastructure.engine.runners.paged import PagedRunner
from pyagent.infrastructure.engine.runners.torch.attention.choice import check_attention, choice_told, told_of
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.attention_backends import BACKENDS
from pyagent.infrastructure.engine.runners.torch.device import drop_variables, target_of
from pyagent.infrastructure.engine.runners.torch.draft_rows import verified
from pyagent.infrastructure.engine.runners.torch.fused_sampling import choose_sampling
from pyagent.infrastructure.engine.runners.torch.graphs import Capture, CudaCapture, StepGraphs
from pyagent.infrastructure.engine.runners.torch.input_batch import InputBatch
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.launched import HostCopies, LaunchedStep
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.parallel.messages import Compute, CopyPages, EmptyPages
from pyagent.infrastructure.engine.runners.torch.parallel.pieces import pieces_of
from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Alone
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.parallel.workers import Workers
from pyagent.infrastructure.engine.runners.torch.rank_model import RankModel
from pyagent.infrastructure.engine.runners.torch.sampler import Sampled, Sampler
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes, step_bytes
from pyagent.infrastructure.engine.runners.torch.stages import Stages, Trial, choose_stages
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

logger = logging.getLogger(__name__)


def needs_of(path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
    """Return what a model will take of this machine's memory.

    Raises `ModelError` where a GPU lacks room, `ConfigError` for settings that loading it would refuse.
    """
    target = target_of(options)
    model = open_model(path, options.architectures, step.num_positions)
    config = model.config
    layers = KvLayers.of(config.windows, options.pipeline_parallel_size)
    parts = [ModelPart.of(config, shard) for shard in shards_of(options)]
    sizes = [Sizes.of(model, part, layers, step, target) for part in parts]
    if len(parts) > 1:
        told_of(options.attention)
    shape = AttentionTrial.of(config, parts[0], target).shape
    check_attention(options.attention, shape, is_invariant=target.is_batch_invariant)
    if target.is_gpu:
        max(sizes).check_fit(target, path)
    return ModelNeeds(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        weight_bytes=sum(size.weight_bytes for size in sizes),
        workspace_bytes=sum(size.workspace_bytes for size in sizes),
        page_bytes=sum(size.page_bytes for size in sizes),
        kv_groups=layers.groups,
        device=DeviceMemory(str(target.device), target.capacity_bytes * len(parts)) if target.is_gpu else None,
    )


def shards_of(options: RunnerOptions) -> list[Shard]:
    """Return the places of all ranks."""
    sizes = options.tensor_parallel_size, options.pipeline_parallel_size
    return [Shard(rank, *sizes) for rank in range(options.num_ranks)]


class TorchRunner(PagedRunner):
    """Computes batches with torch. Not for concurrent use: one engine loop owns it."""

    verifies_drafts = True
    computes_ahead = True

    def __init__(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None = None) -> None:
        """Load a GGUF file or safetensors folder; raises `ModelError` naming what is wrong with it."""
        self._target = target_of(options)
        self.is_kv_whole = self._target.is_gpu
        self._shards, self._backends = shards_of(options), options.attention.known or BACKENDS
        threads = options.threads or _rust.available_cores()
        self.num_threads = 0 if self._target.is_gpu else threads
        own_threads = max(1, threads // len(self._shards))
        self._workers = self._start_workers(path, options, step, own_threads)
        self._computing = threading.Lock()
        self._last_tokens: dict[int, int] = {}
        try:
            info = self._load(path, options, step, own_threads)
            is_divided = self._workers is not None
            super().__init__(info, options, None if self.is_kv_whole and is_divided else kv)
        except BaseException as error:
            self._end_workers()
            self._drop_model()
            drop_variables(error)  # who keeps the error would keep the weights
            if isinstance(error, torch.OutOfMemoryError):
                text = f"{path} does not fit the GPU's memory: {str(error).partition('.')[0]}; set engine.runner to cpu"
                raise ModelError(text, model=str(path)) from error
            raise

    def _load(self, path: Path, options: RunnerOptions, step: LargestStep, num_threads: int) -> RunnerInfo:
        times = LoadTimes()
        with times.phase("open"):
            target, needs = self._target, needs_of(path, options, step)
            opened = open_model(path, options.architectures, step.num_positions)
        self._model = model = RankModel(opened, target, self._shards[0], step, num_threads, options.progress)
        num_pages, ranks, attention = model.num_pages(options.kv_bytes), Alone(), options.attention
        if self._workers is not None:
            with times.phase("ranks"):
                num_pages, attention = min(num_pages, self._workers.num_pages()), choice_told(told_of(attention))
                ranks = self._workers.connect(num_pages)
        model.allocate(num_pages, ranks, attention, self.choose_stages)
        if (capture := self.choose_capture(target.device)) is not None and self._workers is None:
            model.use_graphs(capture)
        self._inputs = InputBatch(model.batch_shape, model.layers)
        vocab_size = model.config.vocab_size
        with model.times.phase("kernels"):
            self._sampler = Sampler(vocab_size, target.device, choose_sampling(vocab_size, target.device))
        self._copies = HostCopies(target.device)
        times.add(model.times.seconds)
        num_ranks = len(self._shards)
        on = target.device if num_ranks == 1 else f"{num_ranks} ranks ({target.device.type})"
        logger.info("loaded %s onto %s as %s", path, on, target.dtype)
        return RunnerInfo(
            architecture=model.config.architecture,
            vocab_size=model.config.vocab_size,
            context_length=model.config.context_length,
            weight_bytes=needs.weight_bytes,
            num_pages=num_pages,
            page_bytes=needs.page_bytes,
            kv_groups=model.layers.groups,
            load_seconds=times.seconds,
        )

    def _start_workers(self, path: Path, options: RunnerOptions, step: LargestStep, num_threads: int) -> Workers | None:
        if len(self._shards) == 1:
            return None
        return Workers(path, options, step, self._shards[0], num_threads, self._target.device)

    def choose_stages(self, trial: Trial) -> Stages:
        """Return what computes between the products."""
        return choose_stages(trial)

    def choose_capture(self, device: torch.device) -> Capture | None:
        """Return how steps are captured, where that is quicker than computing them anew."""
        return CudaCapture(device) if device.type == "cuda" else None

    @property
    def graphs(self) -> StepGraphs | None:
        """The steps that are captured, where any can be."""
        return self._model.graphs

    def when_idle(self) -> bool:
        """Capture a step that was asked for often; False where none is worth it."""
        with self._computing:
            graphs = self.graphs
            if graphs is None or (size := graphs.due) is None:
                return False
            self._model.capture(size)
        return True

    @property
    def launches_ahead(self) -> bool:
        """Whether a step may be launched before the last one's tokens are known: where no other rank needs them."""
        return self._model.part.shard.num_ranks == 1

    @property
    def attention(self) -> str:
        """The backend that computes attention."""
        return self._model.attention

    def use_attention(self, name: str) -> None:
        """As `AttendingRunner.use_attention`; graphs are captured anew."""
        if self._workers is not None:
            raise ConfigError(f"{KEY} can be changed while a model runs on one device only", key=KEY)
        choice = pick_attention(name, {one.name: one for one in self._backends})
        with self._computing:
            if not self._model.kv.is_there:  # a sleeping engine's, which graphs could not be captured over
                raise CapacityError(f"{KEY} cannot be changed while KV memory is given back: wake the model first")
            if self._target.is_gpu:
                torch.cuda.synchronize(self._target.device)  # what graphs still compute goes with them
            try:
                self._model.use_attention(choice)
            except torch.OutOfMemoryError as error:
                raise CapacityError(f"{KEY}: there is no memory to try {name}: {error}") from error
            if (capture := self.choose_capture(self._target.device)) is not None:
                self._model.use_graphs(capture)

    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch and sample the tokens it asks for."""
        return self.launch(batch).result()

    def launch(self, batch: Batch) -> LaunchedStep:
        """Launch a batch, as `LaunchingRunner` has it."""
        with torch.inference_mode(), self._computing:
            try:
                return self._launch(batch)
            except BaseException as error:
                self._inputs.forget_all()
                if isinstance(error, torch.OutOfMemoryError):
                    raise self._short_of_memory(error) from error
                raise

    def _launch(self, batch: Batch) -> LaunchedStep:
        logits = self.logits(self._inputs.pack(batch, self.pool))
        sampled = self._sampler.sample(logits, batch) if batch.samplers else None
        if sampled is not None:
            self._model.batch.note_tokens(sampled.tokens)
        return LaunchedStep(sampled, self._copies, partial(self._finish, batch, sampled))

    def _short_of_memory(self, error: torch.OutOfMemoryError) -> StepMemoryError:
        """Give back the memory that can be spared, and that of the step."""
        drop_variables(error)
        if self.graphs is not None:
            self.graphs.give_up()
        if self._target.is_gpu:
            torch.cuda.empty_cache()
        return StepMemoryError(str(error).partition(".")[0])

    def logits(self, packed: PackedStep) -> Tensor:
        """Compute a step: keys and values into their pages, and float32 logits [m, vocabulary].

        Raises `RunnerLostError` where another rank has ended.
        """
        if self._workers is None:
            return self._model.compute(packed)
        pieces = pieces_of(packed, self._shards[0].pp_size)
        for piece in pieces:
            self._workers.tell(Compute(piece))
        try:
            with self._workers.clock.step():
                logits = [self._model.compute(piece) for piece in pieces]
            return logits[0] if len(logits) == 1 else torch.cat(logits)
        except Exception as error:
            raise self._workers.fail(error) from error

    def _finish(self, batch: Batch, sampled: Sampled | None, found: StepOutput) -> StepOutput:
        """Tell the pool what was computed, and samplers what was sampled."""
        if not batch.tokens:
            batch.tokens = [self._last_tokens[sequence_id] for sequence_id in batch.sequence_ids]
        output = verified(batch, found)
        output.errors |= self._commit(batch, output.more)
        for segment in sampled.counting if sampled is not None else ():
            batch.samplers[segment].observe([output.tokens[segment], *output.more.get(segment, ())])
        self._last_tokens.update(zip(batch.sequence_ids, output.tokens, strict=False))
        self._last_tokens.update((batch.sequence_ids[segment], more[-1]) for segment, more in output.more.items())
        return output

    def ranks(self) -> list[RankStats]:
        """Return how each rank is; none where the model is on one device."""
        workers = self._workers
        return [] if workers is None else workers.stats()

    def compile_stats(self) -> CompileStats | None:
        """Return what was compiled and captured on this rank; None where nothing is to be."""
        model = vars(self).get("_model")  # a closed runner has none
        if model is None or (model.graphs is None and model.compiled is None):
            return None
        graphs, compiled = model.graphs, model.compiled
        functions = [] if compiled is None else [function.stats for function in compiled.functions]
        if graphs is None:
            return CompileStats(functions=functions)
        return CompileStats(
            functions=functions,
            num_graphs=len(graphs),
            num_captures=graphs.num_captured,
            capture_seconds=round(graphs.capture_seconds, 3),
            num_replays=graphs.num_replayed,
        )

    def release(self, sequence_id: int) -> None:
        """End a sequence; what it computed may be found again as a prefix."""
        self._forget(sequence_id)
        super().release(sequence_id)

    def swap_out(self, sequence_id: int) -> bool:
        """End a sequence but keep what it computed, where that can be."""
        is_out = super().swap_out(sequence_id)
        if is_out:
            self._forget(sequence_id)
        return is_out

    def _forget(self, sequence_id: int) -> None:
        self._inputs.forget(sequence_id)
        self._last_tokens.pop(sequence_id, None)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the content of KV pages: (from, to), in this order."""
        if self._workers is not None:
            self._workers.tell(CopyPages(list(pairs)))
        self._model.copy_pages(pairs)

    def empty_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of pages back to the system, once no step reads them."""
        with self._computing:
            if self._workers is not None:
                self._workers.tell(EmptyPages(list(pages)))
            self._model.kv.empty_pages(pages)

    def drop_kv(self) -> None:
        """Give all KV memory back, to other programs too. Captured steps know where it was."""
        with self._computing:
            if self.graphs is not None:
                self.graphs.give_up()
            self._model.kv.drop()
            if self._target.is_gpu:
                torch.cuda.empty_cache()

    def allocate_kv(self) -> None:
        """Take it again. Raises `StepMemoryError`."""
        with self._computing:
            try:
                self._model.kv.allocate()
            except torch.OutOfMemoryError as error:
                raise self._short_of_memory(error) from error

    def step_bytes(self, step: LargestStep) -> int:
        """Return the bytes that steps up to the largest take."""
        parts = [ModelPart.of(self._model.config, shard) for shard in self._shards]
        return sum(step_bytes(self._model.config, part, step, self._target) for part in parts)

    def close(self) -> None:
        """Free the weights and the KV memory, whatever still refers to the runner. It computes nothing afterwards."""
        super().close()
        self._end_workers()
        self._drop_model()

    def _drop_model(self) -> None:
        for name in ("_model", "_inputs", "_sampler"):
            vars(self).pop(name, None)
        if self._target.is_gpu:
            torch.cuda.empty_cache()

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None
