"""A decoder's weights on the device, read from a GGUF file or a folder of safetensors.

Matrices that are multiplied with the same input are one: query, key and value, and gate and up. A tensor goes to the
device a piece at a time, as the numbers of its file where torch has their type, else dequantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.runners.torch.linear import Linear, is_packed, linear_of

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig, ModelFile

_PIECE_BYTES = 16 << 20
_MOST_THREADS = 8
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Element types of files that torch has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. The optional norms are Qwen3's and Gemma's; norms are float32."""

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: Linear
    post_attention_norm: Tensor | None
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    post_ffn_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """A decoder's weights. `output` is the embedding's matrix where the two are tied."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: Sequence[Layer]
    final_norm: Tensor
    output: Linear


def weight_bytes(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes that the matrices take."""
    heads = config.head_dim * (config.num_heads + config.num_kv_heads)
    layer = config.hidden_size * (2 * heads + 3 * config.ffn_size)
    vocabularies = 1 if config.is_output_tied and not is_packed(dtype, device) else 2
    return (config.num_layers * layer + vocabularies * config.vocab_size * config.hidden_size) * dtype.itemsize


def load_weights(file: ModelFile, path: str, dtype: torch.dtype, device: torch.device, num_threads: int) -> Weights:
    """Read all weights; layers in parallel. Raises `ModelError` naming a tensor that is missing or of another shape."""
    loader = _Loader(file, path, dtype, device)
    config = file.config
    with ThreadPoolExecutor(min(num_threads, _MOST_THREADS), "pyagent-weights") as threads:
        layers = threads.map(loader.layer, range(config.num_layers))
        shape = (config.vocab_size, config.hidden_size)
        embedding = loader.matrix([("token_embd.weight", shape[0])], shape[1])
        output = embedding if config.is_output_tied else loader.matrix([("output.weight", shape[0])], shape[1])
        return Weights(embedding, list(layers), loader.norm("output_norm.weight", shape[1]), linear_of(output))


class _Loader:
    def __init__(self, file: ModelFile, path: str, dtype: torch.dtype, device: torch.device) -> None:
        self._file = file
        self._path = path
        self._config = file.config
        self._dtype = dtype
        self._device = device

    def layer(self, index: int) -> Layer:
        config, block = self._config, f"blk.{index}"
        hidden, ffn = config.hidden_size, config.ffn_size
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return Layer(
            attention_norm=self.norm(f"{block}.attn_norm.weight", hidden),
            qkv=self._linear(hidden, (f"{block}.attn_q", q), (f"{block}.attn_k", kv), (f"{block}.attn_v", kv)),
            query_norm=self._optional_norm(f"{block}.attn_q_norm.weight", config.head_dim),
            key_norm=self._optional_norm(f"{block}.attn_k_norm.weight", config.head_dim),
            attention_output=self._linear(q, (f"{block}.attn_output", hidden)),
            post_attention_norm=self._optional_norm(f"{block}.post_attention_norm.weight", hidden),
            ffn_norm=self.norm(f"{block}.ffn_norm.weight", hidden),
            gate_up=self._linear(hidden, (f"{block}.ffn_gate", ffn), (f"{block}.ffn_up", ffn)),
            down=self._linear(ffn, (f"{block}.ffn_down", hidden)),
            post_ffn_norm=self._optional_norm(f"{block}.post_ffw_norm.weight", hidden),
        )

    def matrix(self, parts: Sequence[tuple[str, int]], num_columns: int) -> Tensor:
        """Matrices of so many rows each, one below the other."""
        matrix = torch.empty(sum(rows for _, rows in parts), num_columns, dtype=self._dtype, device=self._device)
        start = 0
        for name, num_rows in parts:
            self._fill(name, matrix[start : start + num_rows])
            start += num_rows
        return matrix

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weights, with what the file leaves out of them."""
        return self._vector(name, size, torch.float32).add_(self._config.norm_weight_offset)

    def _optional_norm(self, name: str, size: int) -> Tensor | None:
        return self.norm(name, size) if self._file.find(name) else None

    def _linear(self, num_columns: int, *parts: tuple[str, int]) -> Linear:
        weight = self.matrix([(f"{name}.weight", num_rows) for name, num_rows in parts], num_columns)
        if not any(self._file.find(f"{name}.bias") for name, _ in parts):
            return linear_of(weight)
        biases = [
            self._vector(f"{name}.bias", num_rows, self._dtype)
            if self._file.find(f"{name}.bias")
            else torch.zeros(num_rows, dtype=self._dtype, device=self._device)
            for name, num_rows in parts
        ]
        return linear_of(weight, torch.cat(biases))

    def _vector(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        vector = torch.empty(1, size, dtype=dtype, device=self._device)
        self._fill(name, vector)
        return vector[0]

    def _fill(self, name: str, target: Tensor) -> None:
        """Put a tensor's rows into `target` [rows, columns], a piece at a time."""
        num_rows, num_columns = target.shape
        found = self._file.find(name)
        if found is None:
            raise ModelError(f"{self._path} has no tensor {name!r}: is it whole?", model=self._path)
        dims, kind = found
        if dims != [num_columns, num_rows] and dims != [num_columns] * (num_rows == 1):
            expected = f"{num_rows} x {num_columns}"
            raise ModelError(f"{self._path}: tensor {name!r} is {dims[::-1]}; expected {expected}", model=self._path)
        plain = _PLAIN.get(kind)
        read = self._file.read_floats if plain is None else self._file.read_bytes
        dtype = torch.float32 if plain is None else plain
        if target.device.type == "cpu" and target.dtype == dtype:
            read(name, 0, target.view(torch.uint8).numpy().data)
            return
        step = max(1, _PIECE_BYTES // (num_columns * dtype.itemsize))
        piece = torch.empty(min(step, num_rows), num_columns, dtype=dtype, pin_memory=target.device.type == "cuda")
        for start in range(0, num_rows, step):
            part = piece[: min(step, num_rows - start)]
            read(name, start, part.view(torch.uint8).numpy().data)
            target[start : start + step].copy_(part)
