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
from pyagent.infrastructure.engine.runners.torch.linear import DenseLinear, Linear, is_packed, linear_of
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Span

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig, ModelFile

_PIECE_BYTES = 16 << 20
_MOST_THREADS = 8
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Element types of files that torch has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Which norms there are is the family's; they are float32."""

    attention_norm: Tensor | None
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: Linear
    post_attention_norm: Tensor | None
    ffn_norm: Tensor | None
    gate_up: Linear
    down: Linear
    post_ffn_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """A rank's weights. `output` is the embedding's matrix where the two are tied; what another stage has is empty."""

    embedding: Tensor  # [vocabulary, hidden], the rank's share of the vocabulary
    layers: Sequence[Layer]
    final_norm: Tensor
    output: Linear


def weight_bytes(config: ModelConfig, part: ModelPart, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes that a rank's matrices take."""
    heads = config.head_dim * (part.heads.num + part.kv_heads.num)
    layer = config.hidden_size * (2 * heads + 3 * part.ffn.num)
    ends = [part.shard.is_first, part.shard.is_last]
    vocabularies = any(ends) if config.is_output_tied and not is_packed(dtype, device) else sum(ends)
    return (part.layers.num * layer + vocabularies * part.vocab_share * config.hidden_size) * dtype.itemsize


def load_weights(
    file: ModelFile, path: str, part: ModelPart, dtype: torch.dtype, device: torch.device, num_threads: int
) -> Weights:
    """Read a rank's weights; layers in parallel.

    Raises `ModelError` naming a tensor that is missing or of another shape.
    """
    loader = _Loader(file, path, part, dtype, device)
    with ThreadPoolExecutor(min(num_threads, _MOST_THREADS), "pyagent-weights") as threads:
        layers = threads.map(loader.layer, range(part.layers.first, part.layers.end))
        embedding = loader.embedding()
        final_norm = loader.norm("output_norm.weight", Span.whole(file.config.hidden_size))
        return Weights(embedding, list(layers), final_norm, loader.output(embedding))


class _Loader:
    def __init__(self, file: ModelFile, path: str, part: ModelPart, dtype: torch.dtype, device: torch.device) -> None:
        self._file = file
        self._path = path
        self._config = file.config
        self._part = part
        self._dtype = dtype
        self._device = device

    def layer(self, index: int) -> Layer:
        config, part, block = self._config, self._part, f"blk.{index}"
        hidden, ffn = Span.whole(config.hidden_size), part.ffn
        q, kv = part.heads.times(config.head_dim), part.kv_heads.times(config.head_dim)
        head, is_wide = Span.whole(config.head_dim), config.is_qk_norm_wide
        return Layer(
            attention_norm=self._input_norm(f"{block}.attn_norm.weight"),
            qkv=self._linear(hidden, (f"{block}.attn_q", q), (f"{block}.attn_k", kv), (f"{block}.attn_v", kv)),
            query_norm=self._optional_norm(f"{block}.attn_q_norm.weight", q if is_wide else head),
            key_norm=self._optional_norm(f"{block}.attn_k_norm.weight", kv if is_wide else head),
            attention_output=self._linear(q, (f"{block}.attn_output", hidden)),
            post_attention_norm=self._optional_norm(f"{block}.post_attention_norm.weight", hidden),
            ffn_norm=self._input_norm(f"{block}.ffn_norm.weight"),
            gate_up=self._linear(hidden, (f"{block}.ffn_gate", ffn), (f"{block}.ffn_up", ffn)),
            down=self._linear(ffn, (f"{block}.ffn_down", hidden)),
            post_ffn_norm=self._optional_norm(f"{block}.post_ffw_norm.weight", hidden),
        )

    def embedding(self) -> Tensor:
        """The rank's rows of the embedding; none where another stage has it."""
        is_here = self._part.shard.is_first
        return self._vocabulary("token_embd.weight") if is_here else self._empty(0, self._config.hidden_size)

    def output(self, embedding: Tensor) -> Linear:
        """The rank's rows of the output's matrix, which may be the embedding's."""
        is_tied = self._config.is_output_tied
        if not self._part.shard.is_last:
            return DenseLinear(self._empty(0, self._config.hidden_size))
        if is_tied and len(embedding):
            return linear_of(embedding)
        return linear_of(self._vocabulary("token_embd.weight" if is_tied else "output.weight"))

    def _vocabulary(self, name: str) -> Tensor:
        """The rank's rows of a matrix, with zeros for those that the last rank lacks."""
        rows = self._part.vocab
        matrix = self._empty(self._part.vocab_share, self._config.hidden_size)
        self._fill(name, matrix[: rows.num], rows, Span.whole(self._config.hidden_size))
        matrix[rows.num :].zero_()
        return matrix

    def _empty(self, num_rows: int, num_columns: int) -> Tensor:
        return torch.empty(num_rows, num_columns, dtype=self._dtype, device=self._device)

    def norm(self, name: str, span: Span) -> Tensor:
        """A norm's weights, with what the file leaves out of them."""
        return self._vector(name, span, torch.float32).add_(self._config.norm_weight_offset)

    def _input_norm(self, name: str) -> Tensor | None:
        """A norm before a block, of a family that has any."""
        return self.norm(name, Span.whole(self._config.hidden_size)) if self._config.has_input_norms else None

    def _optional_norm(self, name: str, span: Span) -> Tensor | None:
        return self.norm(name, span) if self._file.find(name) else None

    def _linear(self, columns: Span, *parts: tuple[str, Span]) -> Linear:
        """Matrices with the same columns, one below the other: the parts' rows of each."""
        weight = self._empty(sum(rows.num for _, rows in parts), columns.num)
        start = 0
        for name, rows in parts:
            self._fill(f"{name}.weight", weight[start : start + rows.num], rows, columns)
            start += rows.num
        return linear_of(weight, self._bias(columns, parts))

    def _bias(self, columns: Span, parts: Sequence[tuple[str, Span]]) -> Tensor | None:
        is_added_elsewhere = not columns.is_whole and self._part.shard.tp_rank > 0
        if is_added_elsewhere or not any(self._file.find(f"{name}.bias") for name, _ in parts):
            return None
        biases = [
            self._vector(f"{name}.bias", rows, self._dtype)
            if self._file.find(f"{name}.bias")
            else torch.zeros(rows.num, dtype=self._dtype, device=self._device)
            for name, rows in parts
        ]
        return torch.cat(biases)

    def _vector(self, name: str, span: Span, dtype: torch.dtype) -> Tensor:
        vector = torch.empty(1, span.num, dtype=dtype, device=self._device)
        self._fill(name, vector, Span.whole(1), span)
        return vector[0]

    def _fill(self, name: str, target: Tensor, rows: Span, columns: Span) -> None:
        """Put some of a tensor's rows and columns into `target`, a piece at a time."""
        found = self._file.find(name)
        if found is None:
            raise ModelError(f"{self._path} has no tensor {name!r}: is it whole?", model=self._path)
        dims, kind = found
        if dims != [columns.total, rows.total] and dims != [columns.total] * (rows.total == 1):
            expected = f"{rows.total} x {columns.total}"
            raise ModelError(f"{self._path}: tensor {name!r} is {dims[::-1]}; expected {expected}", model=self._path)
        plain = PLAIN.get(kind)
        read = self._file.read_floats if plain is None else self._file.read_bytes
        dtype = torch.float32 if plain is None else plain
        if target.device.type == "cpu" and target.dtype == dtype and columns.is_whole:
            read(name, rows.first, target.view(torch.uint8).numpy().data)
            return
        step = max(1, _PIECE_BYTES // (columns.total * dtype.itemsize))
        is_pinned = target.device.type == "cuda"
        piece = torch.empty(min(step, rows.num), columns.total, dtype=dtype, pin_memory=is_pinned)
        for start in range(0, rows.num, step):
            part = piece[: min(step, rows.num - start)]
            read(name, rows.first + start, part.view(torch.uint8).numpy().data)
            target[start : start + step].copy_(part[:, columns.first : columns.end])
