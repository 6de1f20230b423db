"""What architectures' networks are made of: the tensors of a folder of safetensors, as parts over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import Module
from pyagent.infrastructure.engine.runners.torch.layers import rms_norm
from pyagent.infrastructure.engine.runners.torch.linear import linear_of
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.weights import PLAIN

_TANH = partial(functional.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_fast": _TANH,
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "relu": functional.relu,
    "silu": functional.silu,
}


class FolderLayers:
    """As `ModelLayers`."""

    def __init__(
        self, file: _rust.TensorFile, path: str, dtype: torch.dtype, device: torch.device, progress: ReadProgress
    ) -> None:
        """Over the tensors of a folder, as this type on this device."""
        self._progress = progress
        self._file = file
        self._path = path
        self._dtype = dtype
        self._device = device

    def has(self, name: str) -> bool:
        """As `ModelLayers.has`."""
        return self._file.find(name) is not None

    def tensor(self, name: str, *shape: int) -> Tensor:
        """As `ModelLayers.tensor`."""
        read = self._read(name, shape)
        with self._progress.moving():
            moved = read.to(self._device, self._dtype)
        self._progress.note(moved.nbytes)
        return moved

    def embedding(self, weight: Tensor) -> Module:
        """As `ModelLayers.embedding`."""
        return partial(_looked_up, weight)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Module:
        """As `ModelLayers.linear`."""
        with self._progress.moving():
            return linear_of(weight, bias)

    def rms_norm(self, name: str, size: int, epsilon: float) -> Module:
        """As `ModelLayers.rms_norm`."""
        return partial(rms_norm, weight=self._exact(name, size), epsilon=self._number(epsilon))

    def layer_norm(self, name: str, size: int, epsilon: float) -> Module:
        """As `ModelLayers.layer_norm`."""
        bias = self._exact(f"{name}.bias", size) if self.has(f"{name}.bias") else None
        return partial(
            _layer_norm, weight=self._exact(f"{name}.weight", size), bias=bias, epsilon=self._number(epsilon)
        )

    def activation(self, name: str) -> Module:
        """As `ModelLayers.activation`."""
        if name not in _ACTIVATIONS:
            text = f"{self._path}: the activation {name!r} is not supported; there are {', '.join(_ACTIVATIONS)}"
            raise ModelError(text, model=self._path)
        return _ACTIVATIONS[name]

    def _number(self, epsilon: object) -> float:
        if not isinstance(epsilon, int | float):
            raise ModelError(f"{self._path}: config.json: a norm's epsilon is {epsilon!r:.80}", model=self._path)
        return epsilon

    def _exact(self, name: str, size: int) -> Tensor:
        return self._read(name, (size,)).to(self._device, torch.float32)

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor as the numbers of its file, to this machine's memory."""
        found = self._file.find(name)
        if found is None:
            raise ModelError(f"{self._path} has no tensor {name!r}: is it whole?", model=self._path)
        dims, kind = found
        if tuple(reversed(dims)) != shape:
            text = f"{self._path}: tensor {name!r} is {dims[::-1]}; expected {list(shape)}"
            raise ModelError(text, model=self._path)
        plain = PLAIN.get(kind)
        read = self._file.read_floats if plain is None else self._file.read_bytes
        host = torch.empty(math.prod(shape), dtype=plain or torch.float32, pin_memory=self._device.type == "cuda")
        with self._progress.reading():
            read(name, 0, host.view(torch.uint8).numpy().data)
        return host.view(shape)


def _looked_up(weight: Tensor, ids: Tensor) -> Tensor:
    return functional.embedding(ids, weight)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    return functional.layer_norm(x.float(), weight.shape, weight, bias, epsilon).to(x.dtype)
