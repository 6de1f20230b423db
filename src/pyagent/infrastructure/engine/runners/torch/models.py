"""Models by who describes them: the CPU runner's code for its families, a plugin's architecture for others.

An architecture that has a network of its own is computed by that; one that describes a family, by the family's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.runners.brought_folder import brought_folder
from pyagent.infrastructure.engine.runners.family import Family
from pyagent.infrastructure.engine.runners.torch.architectures.brought import BroughtModel
from pyagent.infrastructure.engine.runners.torch.decoder import Decoder
from pyagent.infrastructure.engine.runners.torch.weights import load_weights, weight_bytes

if TYPE_CHECKING:
    from pyagent.core.runners.architecture import BroughtArchitecture
    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape
    from pyagent.infrastructure.engine.runners.torch.attention import Attend
    from pyagent.infrastructure.engine.runners.torch.device import Target
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Ranks
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart
    from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
    from pyagent.infrastructure.engine.runners.torch.stages import Stages
    from pyagent.infrastructure.engine.runners.torch.step import Step


class StepDecoder(Protocol):
    """Computes a rank's part of steps."""

    def logits(self, step: Step, kv: KvCache) -> Tensor:
        """Compute a step, write its keys and values, and return float32 logits [m, vocabulary] of its outputs."""
        ...


MakeDecoder = Callable[["KvLayers", "Stages", "Attend", "Ranks"], StepDecoder]
"""What a model's weights become when its keys and values have their places."""


class OpenedModel(Protocol):
    """A model whose configuration is read, and its tensors not yet."""

    @property
    def config(self) -> Shape:
        """What it looks like."""
        ...

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def weight_bytes(self, part: ModelPart, target: Target) -> int:
        """Return the bytes that a rank's weights take."""
        ...

    def load(self, part: ModelPart, target: Target, num_threads: int, progress: ReadProgress) -> MakeDecoder:
        """Read a rank's weights. Raises `ModelError` naming a tensor that is missing or of another shape."""
        ...


class DescribedModel:
    """A model of the CPU runner's families, in a GGUF file or a folder of safetensors."""

    def __init__(self, path: Path, most_positions: int | None, family: Family | None) -> None:
        """Open it for texts as long at most, checked as for the CPU; a folder may be described as a `family`.

        Raises `ModelError`, for what the CPU runner alone computes too.
        """
        self.path = path
        try:
            with nullcontext() if family is None else family.named():
                self._file = _rust.ModelFile(path, most_positions, None if family is None else family.inner)
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        self.config = self._file.config
        if self.config.is_cpu_only:
            what = self.config.architecture + (" with experts" if self.config.num_experts else "")
            is_joined = self.config.architecture == "qwen3moe" and not self.config.dual_chunks
            what += " in one tensor" if is_joined else ""
            what += " with recurrent layers" if self.config.num_recurrent_layers else ""
            what += " with dual chunk attention" if self.config.dual_chunks else ""
            text = f"{path}: {what} is not implemented for the torch runner"
            raise ModelError(f"{text}; set engine.runner to cpu", model=str(path))
        if family is not None and family.has_score_functions:
            text = f"{path}: the torch runner takes score functions from an architecture's `shape` alone"
            raise ModelError(f"{text}; {family.told}; set engine.runner to cpu", model=str(path))

    def weight_bytes(self, part: ModelPart, target: Target) -> int:
        """As `OpenedModel.weight_bytes`."""
        return weight_bytes(self._file, str(self.path), part, target)

    def load(self, part: ModelPart, target: Target, num_threads: int, progress: ReadProgress) -> MakeDecoder:
        """As `OpenedModel.load`."""
        try:
            weights = load_weights(self._file, str(self.path), part, target, num_threads, progress)
        except _rust.ModelFileError as error:  # it has become shorter, or cannot be read
            raise ModelError(str(error), model=str(self.path)) from error

        def decoder(layers: KvLayers, stages: Stages, attend: Attend, ranks: Ranks) -> Decoder:
            return Decoder(self.config, part, weights, layers, stages, attend, ranks)

        return decoder


def open_model(
    path: Path, architectures: Mapping[str, BroughtArchitecture], most_positions: int | None = None
) -> OpenedModel:
    """Open a model's file or folder, for texts as long at most; an architecture's where it has that name.

    Raises `ModelError` or `PluginError`.
    """
    folder = brought_folder(path, architectures)
    if folder is not None and (network := folder.brought.network) is not None:
        return BroughtModel(path, folder.fields, folder.brought, network)
    return DescribedModel(path, most_positions, Family.of(path, architectures))
