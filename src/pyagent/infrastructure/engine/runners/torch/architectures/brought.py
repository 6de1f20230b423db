"""A model of an architecture with a network of its own: opened, loaded, and computed."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from pyagent import _rust
from pyagent.core.errors import ConfigError, ModelError, PluginError
from pyagent.core.runners.architecture import Architecture, BroughtArchitecture, ModelShape, Network
from pyagent.infrastructure.engine.runners.brought_folder import ReadFields
from pyagent.infrastructure.engine.runners.score_tables import MOST_NUMBERS, WrongTableError
from pyagent.infrastructure.engine.runners.torch.architectures.layers import FolderLayers
from pyagent.infrastructure.engine.runners.torch.architectures.scores import num_table_numbers, score_tables
from pyagent.infrastructure.engine.runners.torch.attention import scored
from pyagent.infrastructure.engine.runners.torch.layers import rotary

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention import Attend
    from pyagent.infrastructure.engine.runners.torch.device import Target
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.models import MakeDecoder
    from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Ranks
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart
    from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
    from pyagent.infrastructure.engine.runners.torch.stages import Stages
    from pyagent.infrastructure.engine.runners.torch.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtShape(ModelShape):
    """A shape with what else is asked of the CPU runner's description: what a trial of the kernels takes, and parts."""

    norm_epsilon: float = 1e-5
    activation: str = "silu"
    is_qk_norm_wide: bool = False
    experts: None = None
    swiglu_limits: None = None
    has_sinks: bool = False


Shape = _rust.ModelConfig | BroughtShape
"""What the runner asks a model's configuration for."""


_MOST = {
    "num_layers": 1000,
    "num_heads": 4096,
    "num_kv_heads": 4096,
    "head_dim": 4096,
    "hidden_size": 1 << 20,
    "ffn_size": 1 << 22,
    "vocab_size": 1 << 28,
    "context_length": 1 << 28,
}
"""As the CPU runner's description bounds them: more is a damaged file, which would only be noticed without memory."""


class BroughtModel:
    """A folder of safetensors whose `model_type` is that of an architecture with a network of its own."""

    def __init__(self, path: Path, fields: ReadFields, brought: BroughtArchitecture, kind: Architecture) -> None:
        """Open it; tensors are not read. Raises `ModelError` or `PluginError`."""
        self.path = path
        self._brought = brought
        self._kind = kind
        self._fields = fields
        with brought.named("tell the shape", str(path)):
            shape = self._described()
        if not isinstance(shape, ModelShape):
            text = f"plugin {brought.plugin!r} gave {shape!r:.80} as a model's shape; expected ModelShape"
            raise PluginError(text, plugin=brought.plugin)
        _check_shape(shape, str(path))
        self._shape = shape
        told = {name: getattr(shape, name) for name in ModelShape.__dataclass_fields__}
        told["windows"] = shape.windows or [None] * shape.num_layers
        self.config = BroughtShape(**told)

    def weight_bytes(self, part: ModelPart, target: Target) -> int:
        """Return the bytes that the tensors take. Raises `ConfigError` for what it lacks."""
        self._check(part, target)
        with _faults_of_files(self.path):
            header = _rust.read_model_header(self.path, arrays=False)
        num_weights = sum(math.prod(dims) for _, dims, _, _ in header["tensors"])
        return num_weights * target.dtype.itemsize + num_table_numbers(self._shape) * torch.float32.itemsize

    def _described(self) -> object:
        """What the architecture makes of `config.json`: values that it cannot compute with are the model's fault."""
        try:
            return cast("object", self._kind.shape(self._fields))
        except (ArithmeticError, TypeError, ValueError) as error:
            text = f"{self.path}: the architecture {self._kind.name} cannot read config.json: {error}"
            raise ModelError(text, model=str(self.path)) from error

    def load(self, part: ModelPart, target: Target, num_threads: int, progress: ReadProgress) -> MakeDecoder:
        """As `OpenedModel.load`. Raises `ModelError` for a field that was not looked at, `PluginError`."""
        del num_threads
        self._check(part, target)
        with _faults_of_files(self.path):
            file = _rust.TensorFile(self.path)
        layers = FolderLayers(file, str(self.path), target.dtype, target.device, progress)
        with self._brought.named("load the weights", str(self.path)), _faults_of_files(self.path):
            network = self._kind.load(self._fields, self._shape, layers)
        self._fields.check_read(self.path, self.config.architecture)
        tables = self._score_tables(target.device)

        def decoder(layers: KvLayers, stages: Stages, attend: Attend, ranks: Ranks) -> NetworkDecoder:
            del ranks
            return NetworkDecoder(self.config, network, layers, stages, attend, tables, target.device)

        return decoder

    def _score_tables(self, device: torch.device) -> Sequence[Tensor | None]:
        """Evaluate the score functions; what they return wrongly is the plugin's fault."""
        with self._brought.named("evaluate the score functions", str(self.path)):
            try:
                return score_tables(self._shape, device)
            except WrongTableError as error:
                text = f"plugin {self._brought.plugin!r}: {error} ({self.path})"
                raise PluginError(text, plugin=self._brought.plugin) from error

    def _check(self, part: ModelPart, target: Target) -> None:
        if target.is_batch_invariant:
            text = f"engine.batch_invariant is true, which the architecture {self.config.architecture} does not keep"
            raise ConfigError(f"{text}; set it to false", key="engine.batch_invariant")
        if part.shard.num_ranks > 1:
            key = "engine.tensor_parallel_size" if part.shard.tp_size > 1 else "engine.pipeline_parallel_size"
            text = f"{key} is more than 1, but the architecture {self.config.architecture} runs on one device: set 1"
            raise ConfigError(text, key=key)


class NetworkDecoder:
    """Computes steps with an architecture's network."""

    def __init__(
        self,
        shape: BroughtShape,
        network: Network,
        layers: KvLayers,
        stages: Stages,
        attend: Attend,
        tables: Sequence[Tensor | None],
        device: torch.device,
    ) -> None:
        self._shape = shape
        self._network = network
        self._layers = layers
        self._stages = stages
        self._attend = attend
        self._tables = tables
        self._frequencies = torch.tensor(shape.rope_frequencies, dtype=torch.float32, device=device)
        self._axes = torch.tensor(shape.rope_axes, device=device) if shape.rope_axes else None

    def logits(self, step: Step, kv: KvCache) -> Tensor:
        """Compute a step, write its keys and values, and return float32 logits [m, vocabulary] of its outputs."""
        cos_sin = rotary(step.positions, self._frequencies, self._shape.rope_attention_factor, self._axes)
        parts = (self._shape, self._layers, self._stages, self._attend, self._tables)
        hidden = self._network.hidden(_Pass(step, kv, cos_sin, *parts))
        return self._network.logits(hidden.index_select(0, step.outputs)).float()


@dataclass(frozen=True, slots=True)
class _Pass:
    """A step as a network sees it."""

    step: Step
    kv: KvCache
    cos_sin: tuple[Tensor, Tensor]
    shape: BroughtShape
    layers: KvLayers
    stages: Stages
    compute: Attend
    tables: Sequence[Tensor | None]

    @property
    def tokens(self) -> Tensor:
        return self.step.tokens

    @property
    def positions(self) -> Tensor:
        return self.step.positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape, (table, slot) = self.shape, self.layers.places[layer]
        cache, rows, batch = self.kv.slots[slot], self.step.rows[table], self.step.attention[table]
        is_interleaved = shape.is_rope_interleaved
        q = self.stages.rotate_and_store((q, k, v), self.cos_sin, rows, cache, is_interleaved=is_interleaved)
        window, softcap = shape.windows[layer], shape.attention_softcap
        if self.tables and (scores := self.tables[layer]) is not None:
            return scored.attend(q, cache, batch, shape.attention_scale, window, scores).flatten(1)
        return self.compute(q, cache, batch, shape.attention_scale, window, softcap).flatten(1)


@contextmanager
def _faults_of_files(path: Path) -> Generator[None]:
    """Make errors of the model's files the model's."""
    try:
        yield
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(path)) from error


def _check_shape(shape: ModelShape, path: str) -> None:
    """Raise `ModelError` for what no decoder has."""
    for name, most in _MOST.items():
        value = getattr(shape, name)
        if not isinstance(value, int) or not 1 <= value <= most:
            text = f"{path}: config.json: {name} is {value!r:.80}; expected a whole number from 1 to {most}"
            raise ModelError(text, model=path)
    num_windows = len(shape.windows) or shape.num_layers
    if shape.num_heads % shape.num_kv_heads or num_windows != shape.num_layers:
        kinds = f"{shape.num_heads} and {shape.num_kv_heads} heads, {num_windows} windows"
        raise ModelError(f"{path}: config.json: {kinds} are not those of {shape.num_layers} layers", model=path)
    _check_score_functions(shape, path)
    turns = cast("Sequence[object]", shape.rope_frequencies)  # a plugin's, whatever their type says
    axes = cast("Sequence[object]", shape.rope_axes)
    if axes and (len(axes) != len(turns) or not all(axis in (0, 1, 2) for axis in axes)):
        raise ModelError(f"{path}: config.json: {len(axes)} rotary axes for {len(turns)} frequencies", model=path)
    is_finite = all(isinstance(turn, int | float) and math.isfinite(turn) for turn in turns)
    if not (is_finite and 1 <= len(turns) <= max(1, shape.head_dim // 2)):
        text = f"{path}: config.json: {len(turns)} rotary frequencies, of a head of {shape.head_dim}, or not numbers"
        raise ModelError(text, model=path)


def _check_score_functions(shape: ModelShape, path: str) -> None:
    """Raise `ModelError` for functions that are not those of the layers, or whose tables would take too much."""
    num_functions = len(shape.score_functions)
    if num_functions not in {0, shape.num_layers}:
        text = (
            f"{path}: there are {num_functions} score functions; expected one, or None, for each of {shape.num_layers}"
        )
        raise ModelError(f"{text} layers", model=path)
    if num_functions and shape.attention_softcap is not None:
        raise ModelError(f"{path}: score functions beside a softcap of scores are not implemented", model=path)
    if (numbers := num_table_numbers(shape)) > MOST_NUMBERS:
        text = f"{path}: the tables of its score functions have {numbers} numbers; expected at most {MOST_NUMBERS}"
        raise ModelError(f"{text}: give layers the same function, or tell a shorter context_length", model=path)
