"""Tiny models as checkpoints quantise them, packed as the formats' descriptions say, beside the weights they stand for.

Each format rounds a matrix to its numbers and packs them word by word; what it returns as weights is computed from the
numbers, before they are packed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.reference_decoder import SHAPE
from torch import Tensor

HIDDEN, FFN, KV = 128, 256, 64
_CONFIG = {**SHAPE, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1, "pad_token_id": 0}
_MATRICES = {
    "llama": {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV, HIDDEN),
        "self_attn.v_proj": (KV, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    },
    "phi3": {
        "self_attn.qkv_proj": (HIDDEN + 2 * KV, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_up_proj": (2 * FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    },
}
FLOAT8 = torch.float8_e4m3fn
_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
    FLOAT8: "F8_E4M3",
}
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Packed = tuple[dict[str, Tensor], Tensor]
"""A matrix's tensors by the ends of their names, and its weights."""


class Format(NamedTuple):
    """A kind of checkpoint: its `quantization_config`, and how a matrix is quantised."""

    config: dict[str, Any]
    quantise: Callable[[Tensor], Packed]
    has_inputs: bool = False


def words(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers [A, B], which are not negative, into words [A, B * bits / 32], the first lowest."""
    per = 32 // bits
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % per)).long().unflatten(1, (-1, per))
    packed = sum(padded[..., place] << (bits * place) for place in range(per))
    assert isinstance(packed, Tensor)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def rounded(weight: Tensor, bits: int, group: int, *, has_zeros: bool, groups: Tensor | None = None) -> list[Tensor]:
    """Numbers [N, K] of 0 and above, float16 scales and zero points [N, groups], and the weights."""
    columns = torch.arange(weight.shape[1]) // group if groups is None else groups
    num_groups, most = -(-weight.shape[1] // group), (1 << bits) - 1
    scales, zeros = torch.empty(len(weight), num_groups), torch.full((len(weight), num_groups), 1 << (bits - 1))
    for index in range(num_groups):
        part = weight[:, columns == index]
        if has_zeros:
            low, high = part.amin(1).clamp_max(0), part.amax(1).clamp_min(0)
            scales[:, index] = ((high - low) / most).half().float()
            zeros[:, index] = (-low / scales[:, index]).round().clamp(0, most).long()
        else:
            scales[:, index] = (part.abs().amax(1) * 2 / most).half().float()
    numbers = (weight / scales[:, columns] + zeros[:, columns]).round().clamp(0, most).long()
    return [numbers, scales.half(), zeros, (numbers - zeros[:, columns]).float() * scales[:, columns]]


def gptq(
    bits: int, group: int, *, has_zeros: bool, is_second: bool = False, has_order: bool = False
) -> Callable[[Tensor], Packed]:
    """Words of neighbours in a column of [K, N]; the first format's zero points are one less."""

    def quantise(weight: Tensor) -> Packed:
        num_columns = weight.shape[1]
        shuffled = torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))
        groups = shuffled // group if has_order else torch.arange(num_columns) // group
        numbers, scales, zeros, weights = rounded(weight, bits, group, has_zeros=has_zeros, groups=groups)
        stored = zeros if is_second else (zeros - 1) % (1 << bits)
        tensors = {"qweight": words(numbers, bits).t(), "scales": scales.t(), "qzeros": words(stored.t(), bits)}
        return {**tensors, "g_idx": groups.int()}, weights

    return quantise


def awq(weight: Tensor) -> Packed:
    """Words of neighbours in a row of [K, N], in an order of their own."""
    numbers, scales, zeros, weights = rounded(weight, 4, 32, has_zeros=True)

    def packed(values: Tensor) -> Tensor:
        return words(values.t().unflatten(1, (-1, 8))[..., _AWQ_ORDER].flatten(1), 4)

    return {"qweight": packed(numbers), "qzeros": packed(zeros), "scales": scales.t()}, weights


def packed(bits: int, group: int, *, has_zeros: bool = False, has_order: bool = False) -> Callable[[Tensor], Packed]:
    """compressed-tensors' words of neighbours in a row of [N, K]; zero points in words of neighbours in a column."""

    def quantise(weight: Tensor) -> Packed:
        num_rows, num_columns = weight.shape
        size = group or num_columns
        shuffled = torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))
        groups = shuffled // size if has_order else None
        numbers, scales, zeros, weights = rounded(weight, bits, size, has_zeros=has_zeros, groups=groups)
        tensors = {"weight_packed": words(numbers, bits), "weight_scale": scales.bfloat16()}
        columns = torch.arange(num_columns) // size if groups is None else groups
        weights = (numbers - zeros[:, columns]).float() * scales.bfloat16().float()[:, columns]
        tensors["weight_shape"] = torch.tensor([num_rows, num_columns])
        if has_zeros:
            tensors["weight_zero_point"] = words(zeros.t(), bits).t()
        return tensors | ({} if groups is None else {"weight_g_idx": groups.int()}), weights

    return quantise


def eight_bits(
    dtype: torch.dtype, shared: str, scale_name: str, *, input_scale: float = 0
) -> Callable[[Tensor], Packed]:
    """Numbers of 8 bits in the matrix's place; a scale for all, for each row, or for blocks of 64 x 32."""
    most = 448.0 if dtype == FLOAT8 else 127.0

    def quantise(weight: Tensor) -> Packed:
        rows, columns = {"tensor": weight.shape, "row": (1, weight.shape[1]), "block": (64, 32)}[shared]
        blocks = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))  # [n, rows, k, columns]
        scales = blocks.abs().amax((1, 3)) / most
        whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        numbers = weight / whole
        numbers = (numbers if dtype == FLOAT8 else numbers.round()).to(dtype)
        tensors = {"weight": numbers, scale_name: scales.view(()) if shared == "tensor" else scales}
        if input_scale:
            tensors["input_scale"] = torch.tensor([input_scale])
        return tensors, numbers.float() * whole

    return quantise


def nvfp4(packed_name: str, scale_name: str) -> Callable[[Tensor], Packed]:
    """Pairs of E2M1, an e4m3 scale per 16 columns, one scale for all, which compressed-tensors divides by."""
    sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

    def quantise(weight: Tensor) -> Packed:
        groups = weight.unflatten(1, (-1, 16))
        whole = groups.abs().max() / (448 * 6)
        scales = (groups.abs().amax(2) / 6 / whole).to(FLOAT8)
        steps = (scales.float() * whole)[..., None]
        indexes = ((groups / steps).abs()[..., None] - sizes).abs().argmin(-1)
        weights = (sizes[indexes] * groups.sign() * steps).flatten(1)
        bits = (indexes + 8 * (groups < 0)).flatten(1)
        pairs = (bits[:, ::2] + 16 * bits[:, 1::2]).to(torch.uint8)
        is_divisor = scale_name == "weight_global_scale"
        return {
            packed_name: pairs,
            "weight_scale": scales,
            scale_name: (1 / whole if is_divisor else whole)[None],
        }, weights

    return quantise


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
_TOKEN = {"symmetric": True, "strategy": "token", "dynamic": True, "num_bits": 8}
_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 32]}

FORMATS: dict[str, Format] = {
    "gptq": Format({**_GPTQ, "sym": False}, gptq(4, 32, has_zeros=True)),
    "gptq-2": Format(
        {**_GPTQ, "checkpoint_format": "gptq_v2", "group_size": 64}, gptq(4, 64, has_zeros=False, is_second=True)
    ),
    "gptq-row": Format({**_GPTQ, "group_size": -1}, gptq(4, 1 << 20, has_zeros=False)),
    "gptq-order": Format({**_GPTQ, "desc_act": True}, gptq(4, 32, has_zeros=False, has_order=True)),
    "gptq-8": Format({**_GPTQ, "bits": 8, "sym": False}, gptq(8, 32, has_zeros=True)),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        awq,
    ),
    "packed": Format(_compressed("pack-quantized", _INT4), packed(4, 32)),
    "packed-zeros": Format(_compressed("pack-quantized", {**_INT4, "symmetric": False}), packed(4, 32, has_zeros=True)),
    "packed-order": Format(
        _compressed("pack-quantized", {**_INT4, "actorder": "group"}), packed(4, 32, has_order=True)
    ),
    "packed-8": Format(_compressed("pack-quantized", _INT8), packed(8, 0)),
    "fp8-weights": Format(_compressed("float-quantized", _FP8), eight_bits(FLOAT8, "row", "weight_scale")),
    "fp8-tensor": Format(
        {"quant_method": "fp8", "activation_scheme": "static"},
        eight_bits(FLOAT8, "tensor", "weight_scale", input_scale=0.02),
        has_inputs=True,
    ),
    "fp8-row": Format(
        _compressed("float-quantized", _FP8, {**_TOKEN, "type": "float"}),
        eight_bits(FLOAT8, "row", "weight_scale"),
        has_inputs=True,
    ),
    "fp8-block": Format(_BLOCK, eight_bits(FLOAT8, "block", "weight_scale_inv"), has_inputs=True),
    "int8-row": Format(
        _compressed("int-quantized", _INT8, {**_TOKEN, "type": "int"}),
        eight_bits(torch.int8, "row", "weight_scale"),
        has_inputs=True,
    ),
}

_NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}
CPU_FORMATS: dict[str, Format] = {
    **FORMATS,
    "nvfp4": Format(
        _compressed("nvfp4-pack-quantized", {**_NVFP4, "strategy": "tensor_group"}),
        nvfp4("weight_packed", "weight_global_scale"),
    ),
    "nvfp4-modelopt": Format(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {"weights": _NVFP4}}},
        nvfp4("weight", "weight_scale_2"),
    ),
}
"""With those that the torch runner refuses."""


def write_tensors(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors`."""
    header: dict[str, object] = {}
    data = bytearray()
    for name, tensor in tensors.items():
        values = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class Written(NamedTuple):
    """A quantised model, its tensors, and a model of the weights that they stand for."""

    path: Path
    plain_path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor | None]) -> Path:
        """Write it with some of its `quantization_config` changed, and some tensors; None for those that are gone."""
        changed = {**self.tensors, **tensors}
        whole = {**self.config, "quantization_config": {**self.config["quantization_config"], **config}}
        write_tensors(folder, whole, {name: tensor for name, tensor in changed.items() if tensor is not None})
        return folder


def write_quantised(folder: Path, name: str, family: str = "llama", vocab_size: int = SHAPE["vocab_size"]) -> Written:
    """Write a random model of a family with every matrix of its layer quantised, and the plain one beside."""
    form, draw = CPU_FORMATS[name], torch.Generator().manual_seed(7)
    path, plain_path = folder / name, folder / f"{name}-plain"
    folder.mkdir(exist_ok=True)
    config = {**_CONFIG, "model_type": family, "rope_theta": 10_000.0, "vocab_size": vocab_size}
    plain = {"model.norm.weight": torch.ones(HIDDEN)}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        plain[f"model.layers.0.{norm}.weight"] = torch.ones(HIDDEN)
    for matrix in ("model.embed_tokens", "lm_head"):
        plain[f"{matrix}.weight"] = torch.randn(vocab_size, HIDDEN, generator=draw)
    quantised = dict(plain)
    for matrix, shape in _MATRICES[family].items():
        weight = torch.randn(shape, generator=draw) * 2 / shape[1] ** 0.5
        weight[0] = weight[0].abs()  # a zero point of 0
        tensors, plain[f"model.layers.0.{matrix}.weight"] = form.quantise(weight)
        quantised |= {f"model.layers.0.{matrix}.{end}": tensor for end, tensor in tensors.items()}
    write_tensors(plain_path, config, plain)
    config = {**config, "quantization_config": form.config}
    write_tensors(path, config, quantised)
    return Written(path, plain_path, config, quantised)
