"""A decoder's weights on the device, read from a GGUF file or a folder of safetensors.

Matrices that are multiplied with the same input are one: query, key and value, and gate and up. A tensor goes to the
device a piece at a time, as the numbers of its file where torch has their type; else it stays quantised, or is
dequantised.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.experts import (
    DenseStack,
    ExpertMlp,
    ExpertProducts,
    GroupedExperts,
    Mxfp4Stack,
    StackedExperts,
)
from pyagent.infrastructure.engine.runners.torch.invariant.products import InvariantProducts
from pyagent.infrastructure.engine.runners.torch.layers import activation_of
from pyagent.infrastructure.engine.runners.torch.linear import DenseLinear, Linear, is_packed, linear_of
from pyagent.infrastructure.engine.runners.torch.mlp import FeedForward, GatedMlp
from pyagent.infrastructure.engine.runners.torch.packed_experts import (
    GgufExperts,
    PackedExperts,
    has_mxfp4,
    packed_place,
)
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Span
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.quantised import mxfp4
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix, joined
from pyagent.infrastructure.engine.runners.torch.quantised.linear import GroupedLinear
from pyagent.infrastructure.engine.runners.torch.quantised.matrices import quantised_matrices
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import Mxfp4
from pyagent.infrastructure.engine.runners.torch.quantised.products import Products
from pyagent.infrastructure.engine.runners.torch.quantised.trial import choose_expert_rows, choose_products

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig, ModelFile

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
_MOST_THREADS = 8
_SHARED = "_shexp"
"""How the names of the MLP end that all tokens share."""
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Element types of files that torch has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Which norms there are is the family's; they are float32."""

    attention_norm: Tensor | None
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    sinks: Tensor | None  # float32, of the rank's heads
    attention_gate: Linear | None  # of what heads attended to
    attention_output: Linear
    post_attention_norm: Tensor | None
    ffn_norm: Tensor | None
    mlp: FeedForward
    post_ffn_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """A rank's weights. `output` is the embedding's matrix where the two are tied; what another stage has is empty."""

    embedding: Tensor  # [vocabulary, hidden], the rank's share of the vocabulary
    layers: Sequence[Layer]
    final_norm: Tensor
    output: Linear


class Matrices(NamedTuple):
    """Matrices that are multiplied with the same input: names in a layer, and a rank's rows and columns."""

    columns: Span
    rows: Sequence[tuple[str, Span]]


def attention_matrices(config: ModelConfig, part: ModelPart) -> dict[str, Matrices]:
    """Return what a layer's attention multiplies with, by the names of `Layer`."""
    hidden = Span.whole(config.hidden_size)
    q, kv = part.heads.times(config.head_dim), part.kv_heads.times(config.head_dim)
    matrices = {
        "qkv": Matrices(hidden, (("attn_q", q), ("attn_k", kv), ("attn_v", kv))),
        "attention_output": Matrices(q, (("attn_output", hidden),)),
    }
    if config.has_attention_gates:
        matrices["attention_gate"] = Matrices(hidden, (("attn_gate", q),))
    return matrices


def mlp_matrices(config: ModelConfig, inside: Span, end: str = "") -> dict[str, Matrices]:
    """Return those of a gated MLP of such a width, by the names of `GatedMlp`; their own end in `end`."""
    hidden = Span.whole(config.hidden_size)
    return {
        "gate_up": Matrices(hidden, ((f"ffn_gate{end}", inside), (f"ffn_up{end}", inside))),
        "down": Matrices(inside, ((f"ffn_down{end}", hidden),)),
    }


def layer_matrices(config: ModelConfig, part: ModelPart, layer: int) -> list[Matrices]:
    """Return all that a layer multiplies with, but experts and what chooses them."""
    matrices = list(attention_matrices(config, part).values())
    if not has_experts(config, layer):
        return [*matrices, *mlp_matrices(config, part.dense).values()]
    return [*matrices, *(mlp_matrices(config, part.shared, _SHARED).values() if part.shared.total else ())]


def has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether a layer is a mixture."""
    return config.experts is not None and not config.dense_layers[layer]


def expert_bytes(file: ModelFile, part: ModelPart, layer: int, target: Target) -> int:
    """Return the bytes of all experts of a layer, and of what chooses them."""
    config, dtype = file.config, target.dtype
    if config.experts is None or not has_experts(config, layer):
        return 0
    hidden, inside = config.hidden_size, part.ffn.num
    router_bytes = hidden * torch.float32.itemsize
    shared_gate_bytes = hidden * dtype.itemsize * config.experts.is_shared_gated
    matrix_bytes = 3 * inside * hidden * dtype.itemsize
    if keeps_mxfp4(file, f"blk.{layer}", part, target):
        matrix_bytes = mxfp4.num_bytes(2 * inside, hidden) + mxfp4.num_bytes(hidden, inside)
    return config.experts.num_experts * (matrix_bytes + router_bytes) + shared_gate_bytes


def keeps_mxfp4(file: ModelFile, block: str, part: ModelPart, target: Target) -> bool:
    """Whether a layer's experts stay in 4 bits."""
    return target.keeps_quantised and has_mxfp4(file, block, Span.whole(file.config.hidden_size), part.ffn)


def weight_bytes(file: ModelFile, path: str, part: ModelPart, target: Target) -> int:
    """Return the bytes that a rank's matrices take. Raises `ModelError` for what is quantised in another way."""
    config, quantised = file.config, quantised_matrices(file, path)

    def num_bytes(name: str, rows: Span, columns: Span) -> int:
        found = quantised.find(name, rows, columns) if target.keeps_quantised else None
        return rows.num * (columns.num * target.dtype.itemsize if found is None else found.row_bytes(columns))

    numbers = range(part.layers.first, part.layers.end)
    layers = sum(
        num_bytes(f"blk.{index}.{name}", rows, matrices.columns)
        for index in numbers
        for matrices in layer_matrices(config, part, index)
        for name, rows in matrices.rows
    )
    layers += sum(expert_bytes(file, part, index, target) for index in numbers)
    embedding = part.vocab_share * config.hidden_size * target.dtype.itemsize
    hidden = Span.whole(config.hidden_size)
    output = num_bytes(_output_name(config), Span(part.vocab.first, part.vocab_share, part.vocab.total), hidden)
    is_shared = config.is_output_tied and output == embedding and not is_packed(target.dtype, target.device)
    if is_shared:
        return layers + embedding * (part.shard.is_first or part.shard.is_last)
    return layers + embedding * part.shard.is_first + output * part.shard.is_last


def _output_name(config: ModelConfig) -> str:
    return "token_embd" if config.is_output_tied else "output"


def load_weights(
    file: ModelFile, path: str, part: ModelPart, target: Target, num_threads: int, progress: ReadProgress
) -> Weights:
    """Read a rank's weights; layers in parallel.

    Raises `ModelError` naming a tensor that is missing or of another shape, or how it is quantised.
    """
    products = choose_products(target.device, target.dtype) if target.keeps_quantised else None
    invariant = InvariantProducts() if target.is_batch_invariant else None
    loader = _Loader(file, path, part, target, products, progress, invariant or linear_of)
    with ThreadPoolExecutor(min(num_threads, _MOST_THREADS), "pyagent-weights") as threads:
        layers = threads.map(loader.layer, range(part.layers.first, part.layers.end))
        embedding = loader.embedding()
        final_norm = loader.norm("output_norm.weight", Span.whole(file.config.hidden_size))
        weights = Weights(embedding, list(layers), final_norm, loader.output(embedding))
    if loader.dequantised:
        first, number = loader.dequantised[0], len(loader.dequantised)
        logger.info("dequantised %d matrices that cannot stay quantised as they are, %s first", number, first)
    if invariant is not None:
        torch.set_num_threads(num_threads)  # as steps have it
        invariant.settle()
    if target.is_gpu:
        torch.cuda.empty_cache()  # what unpacking took: KV memory is what is left
    return weights


class _Loader:
    def __init__(
        self,
        file: ModelFile,
        path: str,
        part: ModelPart,
        target: Target,
        products: Products | None,
        progress: ReadProgress,
        make_linear: Callable[..., Linear],
    ) -> None:
        self._progress = progress
        self._linear_of = make_linear
        self._read_into = threading.local()
        self._file = file
        self._path = path
        self._config = file.config
        self._part = part
        self._target = target
        self._dtype = target.dtype
        self._device = target.device
        self._is_invariant = target.is_batch_invariant
        self._products = products
        self._quantised = quantised_matrices(file, path)
        self.dequantised: list[str] = []
        """What is quantised and did not stay so, though others do."""
        self._attention = attention_matrices(file.config, part)

    def layer(self, index: int) -> Layer:
        config, part, block = self._config, self._part, f"blk.{index}"
        hidden, head = Span.whole(config.hidden_size), Span.whole(config.head_dim)
        q, kv = part.heads.times(config.head_dim), part.kv_heads.times(config.head_dim)
        is_wide = config.is_qk_norm_wide
        linears = {name: self._linear(block, matrices) for name, matrices in self._attention.items()}
        return Layer(
            attention_norm=self._input_norm(f"{block}.attn_norm.weight"),
            sinks=self._vector(f"{block}.attn_sinks.weight", part.heads, torch.float32) if config.has_sinks else None,
            qkv=linears["qkv"],
            attention_gate=linears.get("attention_gate"),
            attention_output=linears["attention_output"],
            query_norm=self._optional_norm(f"{block}.attn_q_norm.weight", q if is_wide else head),
            key_norm=self._optional_norm(f"{block}.attn_k_norm.weight", kv if is_wide else head),
            post_attention_norm=self._post_attention_norm(block, hidden),
            ffn_norm=self._input_norm(f"{block}.ffn_norm.weight"),
            mlp=self._experts(block) if has_experts(config, index) else self._mlp(block, part.dense),
            post_ffn_norm=self._optional_norm(f"{block}.post_ffw_norm.weight", hidden),
        )

    def _mlp(self, block: str, inside: Span, end: str = "") -> GatedMlp:
        matrices = mlp_matrices(self._config, inside, end)
        linears = {name: self._linear(block, both) for name, both in matrices.items()}
        return GatedMlp(**linears, activation=activation_of(self._config))

    def _experts(self, block: str) -> ExpertMlp:
        """A mixture: the rank's columns of each expert. What was quantised of it is dequantised, but for MXFP4."""
        config, part, experts = self._config, self._part, self._config.experts
        assert experts is not None
        hidden, num = Span.whole(config.hidden_size), experts.num_experts
        router = torch.empty(num, hidden.num, device=self._device)
        self._fill_matrix(f"{block}.ffn_gate_inp", router, Span.whole(num), hidden)
        shared_gate = Matrices(hidden, (("ffn_gate_inp_shexp", Span.whole(1)),))
        is_corrected = self._file.place(f"{block}.exp_probs_b") is not None
        return ExpertMlp(
            config=experts,
            router=self._linear_of(router, self._router_bias(block, num)),
            correction=self._vector(f"{block}.exp_probs_b.bias", Span.whole(num), torch.float32)
            if is_corrected
            else None,
            experts=self._expert_products(block, num),
            shared=self._mlp(block, part.shared, _SHARED) if experts.shared_size else None,
            shared_gate=self._linear(block, shared_gate) if experts.is_shared_gated else None,
            activation=activation_of(config),
        )

    def _router_bias(self, block: str, num: int) -> Tensor | None:
        name = f"{block}.ffn_gate_inp.bias"
        return self._vector(name, Span.whole(num), torch.float32) if self._file.find(name) else None

    def _expert_products(self, block: str, num: int) -> ExpertProducts:
        """Experts as they are multiplied; with rows that may not depend on others, each for itself."""
        place, hidden, inside = packed_place(self._file, block), Span.whole(self._config.hidden_size), self._part.ffn
        packed = None if place is None else PackedExperts(self._file, self._path, place, num, hidden, inside)
        biases = self._expert_biases(block, num) if packed is None else packed.biases(self._device)
        gate_up_bias, down_bias = (None if one is None else one.to(self._dtype) for one in biases)
        if self._part.shard.tp_rank > 0:
            down_bias = None  # it is added elsewhere
        if keeps_mxfp4(self._file, block, self._part, self._target):
            gate_up, down = self._kept_experts(packed or GgufExperts(self._file, block, hidden, inside), num)
            both, kernel = ((gate_up, gate_up_bias), (down, down_bias)), choose_expert_rows(self._device, self._dtype)
            return StackedExperts(*(Mxfp4Stack(weights, bias, self._dtype, kernel) for weights, bias in both))
        gate_ups, downs = self._dense_experts(block, packed, num)
        if not self._is_invariant:
            return StackedExperts(DenseStack(gate_ups, gate_up_bias), DenseStack(downs, down_bias))
        return GroupedExperts(list(zip(self._each(gate_ups, gate_up_bias), self._each(downs, down_bias), strict=True)))

    def _each(self, weights: Tensor, biases: Tensor | None) -> list[Linear]:
        """Matrices [E, out, in] one by one."""
        of_each = [None] * len(weights) if biases is None else biases.unbind()
        return [self._linear_of(*both) for both in zip(weights.unbind(), of_each, strict=True)]

    def _dense_experts(self, block: str, packed: PackedExperts | None, num: int) -> tuple[Tensor, Tensor]:
        """All experts' gates and ups [E, 2 F, hidden], and downs [E, hidden, F]."""
        hidden, inside = Span.whole(self._config.hidden_size), self._part.ffn
        gate_up = torch.empty(num, 2 * inside.num, hidden.num, dtype=self._dtype, device=self._device)
        down = torch.empty(num, hidden.num, inside.num, dtype=self._dtype, device=self._device)
        for expert in range(num):
            if packed is not None:
                with self._progress.reading():
                    both = packed.dense(expert, self._dtype, self._device)
                gate_up[expert], down[expert] = both
                self._progress.note(gate_up[expert].nbytes + down[expert].nbytes)
                continue
            gate, up = gate_up[expert].chunk(2)
            self._fill_matrix(f"{block}.ffn_gate_exps.{expert}", gate, inside, hidden)
            self._fill_matrix(f"{block}.ffn_up_exps.{expert}", up, inside, hidden)
            self._fill_matrix(f"{block}.ffn_down_exps.{expert}", down[expert], hidden, inside)
        return gate_up, down

    def _kept_experts(self, experts: PackedExperts | GgufExperts, num: int) -> tuple[Mxfp4, Mxfp4]:
        """All experts' gates and ups, and downs, as they are quantised."""
        hidden, inside = self._config.hidden_size, self._part.ffn.num
        gate_ups = mxfp4.empty((num, 2 * inside, hidden), self._device)
        downs = mxfp4.empty((num, hidden, inside), self._device)
        for expert in range(num):
            with self._progress.reading():
                both = experts.kept(expert, self._device)
            for into, tensor in zip((*gate_ups, *downs), (*both[0], *both[1]), strict=True):
                into[expert] = tensor
                self._progress.note(tensor.nbytes)
        return gate_ups, downs

    def _expert_biases(self, block: str, num: int) -> tuple[Tensor | None, Tensor | None]:
        """Experts' biases [E, 2 F] and [E, hidden] of a GGUF file that has them."""
        if not self._file.find(f"{block}.ffn_gate_exps.0.bias"):
            return None, None

        def vectors(name: str, span: Span) -> Tensor:
            names = (f"{block}.ffn_{name}_exps.{expert}.bias" for expert in range(num))
            return torch.stack([self._vector(one, span, torch.float32) for one in names])

        inside, hidden = self._part.ffn, Span.whole(self._config.hidden_size)
        return torch.cat((vectors("gate", inside), vectors("up", inside)), 1), vectors("down", hidden)

    def embedding(self) -> Tensor:
        """The rank's rows of the embedding; none where another stage has it."""
        is_here = self._part.shard.is_first
        return self._vocabulary("token_embd") if is_here else self._empty(0, self._config.hidden_size)

    def output(self, embedding: Tensor) -> Linear:
        """The rank's rows of the output's matrix, which may be the embedding's."""
        if not self._part.shard.is_last:
            return DenseLinear(self._empty(0, self._config.hidden_size))
        name, vocab = _output_name(self._config), self._part.vocab
        if self._products is not None and vocab.num == self._part.vocab_share:
            kept = self._kept(name, vocab, Span.whole(self._config.hidden_size))
            if kept:
                return GroupedLinear(joined(kept), None, self._products)
        if self._config.is_output_tied and len(embedding):
            return self._linear_of(embedding)
        return self._linear_of(self._vocabulary(name))

    def _vocabulary(self, name: str) -> Tensor:
        """The rank's rows of a matrix, with zeros for those that the last rank lacks."""
        rows = self._part.vocab
        matrix = self._empty(self._part.vocab_share, self._config.hidden_size)
        self._fill_matrix(name, matrix[: rows.num], rows, Span.whole(self._config.hidden_size))
        matrix[rows.num :].zero_()
        return matrix

    def _empty(self, num_rows: int, num_columns: int) -> Tensor:
        return torch.empty(num_rows, num_columns, dtype=self._dtype, device=self._device)

    def _reused(self, num_rows: int, num_columns: int) -> Tensor:
        """Memory of the thread: new memory takes the system longer to give than the page cache to fill."""
        size, known = num_rows * num_columns, getattr(self._read_into, "tensor", None)
        if known is None or known.numel() < size:
            known = self._read_into.tensor = torch.empty(size, dtype=self._dtype)
        return known[:size].view(num_rows, num_columns)

    def norm(self, name: str, span: Span) -> Tensor:
        """A norm's weights, with what the file leaves out of them."""
        return self._vector(name, span, torch.float32).add_(self._config.norm_weight_offset)

    def _input_norm(self, name: str) -> Tensor | None:
        """A norm before a block, of a family that has any."""
        return self.norm(name, Span.whole(self._config.hidden_size)) if self._config.has_input_norms else None

    def _optional_norm(self, name: str, span: Span) -> Tensor | None:
        return self.norm(name, span) if self._file.find(name) else None

    def _post_attention_norm(self, block: str, span: Span) -> Tensor | None:
        """The norm of attention's output; in some families' files, GLM-4.5's, the next block's norm is called so."""
        name, of_ffn = f"{block}.post_attention_norm.weight", f"{block}.ffn_norm.weight"
        is_same = self._config.has_input_norms and self._file.place(name) == self._file.place(of_ffn)
        return None if is_same else self._optional_norm(name, span)

    def _linear(self, block: str, matrices: Matrices) -> Linear:
        """Matrices with the same columns, one below the other: the parts' rows of each."""
        columns, parts = matrices.columns, [(f"{block}.{name}", rows) for name, rows in matrices.rows]
        bias = self._bias(columns, parts)
        kept = [self._kept(name, rows, columns) for name, rows in parts]
        if self._products is None or not any(kept):
            weight = self._dense(columns, *parts)
            with self._progress.moving():
                return self._linear_of(weight, bias)
        whole: list[GroupedMatrix | Tensor] = []
        for is_kept, run in groupby(zip(kept, parts, strict=True), lambda pair: bool(pair[0])):
            pairs = list(run)
            whole += (
                joined(chain(*(pieces for pieces, _ in pairs)))
                if is_kept
                else [self._dense(columns, *(part for _, part in pairs))]
            )
        return GroupedLinear(whole, bias, self._products)

    def _kept(self, name: str, rows: Span, columns: Span) -> list[GroupedMatrix]:
        """Some of a matrix's rows as they are quantised, in pieces; none where they are to be dequantised."""
        found = None if self._products is None else self._quantised.find(name, rows, columns)
        if found is None:
            return []
        with self._progress.reading():
            kept = list(found.read(rows, columns, self._device))
        self._progress.note(sum(matrix.num_bytes for matrix in kept))
        return kept

    def _dense(self, columns: Span, *parts: tuple[str, Span]) -> Tensor:
        """Matrices as floats, one below the other. What is laid out anew is overwritten by the next."""
        num_rows = sum(rows.num for _, rows in parts)
        is_laid_out = self._products is None and is_packed(self._dtype, self._device)
        weight = (self._reused if is_laid_out else self._empty)(num_rows, columns.num)
        start = 0
        for name, rows in parts:
            self._fill_matrix(name, weight[start : start + rows.num], rows, columns)
            start += rows.num
        return weight

    def _fill_matrix(self, name: str, target: Tensor, rows: Span, columns: Span) -> None:
        """Put a matrix's weights into `target`, dequantised where they are quantised."""
        with self._progress.reading():
            was_quantised = self._quantised.fill(name, target, rows, columns)
        if was_quantised:
            self._progress.note(target.nbytes)
        else:
            self._fill(f"{name}.weight", target, rows, columns)
            was_quantised = self._checked_kind(f"{name}.weight", rows, columns) not in PLAIN
        if was_quantised and self._products is not None and not name.startswith("token_embd"):
            self.dequantised.append(name)

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
        plain = PLAIN.get(self._checked_kind(name, rows, columns))
        read = self._file.read_floats if plain is None else self._file.read_bytes
        dtype = torch.float32 if plain is None else plain
        if target.device.type == "cpu" and target.dtype == dtype and columns.is_whole:
            with self._progress.reading():
                read(name, rows.first, target.view(torch.uint8).numpy().data)
            self._progress.note(target.nbytes)
            return
        step = max(1, _PIECE_BYTES // (columns.total * dtype.itemsize))
        piece = self._piece(min(step, rows.num) * columns.total * dtype.itemsize).view(dtype).view(-1, columns.total)
        for start in range(0, rows.num, step):
            part = piece[: min(step, rows.num - start)]
            with self._progress.reading():
                read(name, rows.first + start, part.view(torch.uint8).numpy().data)
            with self._progress.moving():
                target[start : start + step].copy_(part[:, columns.first : columns.end])
            self._progress.note(len(part) * columns.num * target.dtype.itemsize)

    def _piece(self, num_bytes: int) -> Tensor:
        """Memory of the thread that pieces of files are read into, one after the other."""
        known = getattr(self._read_into, "piece", None)
        if known is None or known.numel() < num_bytes:
            is_pinned = self._device.type == "cuda"
            known = torch.empty(max(num_bytes, _PIECE_BYTES), dtype=torch.uint8, pin_memory=is_pinned)
            self._read_into.piece = known
        return known[:num_bytes]

    def _checked_kind(self, name: str, rows: Span, columns: Span) -> str:
        """A tensor's element type. Raises `ModelError` where it is missing or of another shape."""
        found = self._file.find(name)
        if found is None:
            raise ModelError(f"{self._path} has no tensor {name!r}: is it whole?", model=self._path)
        dims, kind = found
        if dims != [columns.total, rows.total] and dims != [columns.total] * (rows.total == 1):
            expected = f"{rows.total} x {columns.total}"
            raise ModelError(f"{self._path}: tensor {name!r} is {dims[::-1]}; expected {expected}", model=self._path)
        return kind
