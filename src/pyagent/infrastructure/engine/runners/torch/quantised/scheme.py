"""What config.json says of how a folder's weights are quantised: all that the tensors do not say themselves.

Pure. Which matrices are quantised, and with what scales, the tensors tell: a list of modules that are not need not be
followed. What is not implemented is refused by name, before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from pyagent.core.errors import ModelError

_MOST_GROUP = 1 << 20
_ACT_ORDER = ("group", "dynamic")
"""What compressed-tensors calls columns that are in the order of their weight, with a tensor that says which."""


class Layout(StrEnum):
    """How tensors of a quantised matrix are named and packed."""

    GPTQ = "gptq"
    AWQ = "awq"
    COMPRESSED = "compressed-tensors"
    """Also those of FP8: numbers in the matrix's own place, with scales beside them."""


class Inputs(StrEnum):
    """How what a matrix is multiplied with is quantised."""

    NONE = "none"
    DYNAMIC = "dynamic"
    """Each row by its own largest number; by those of its groups of columns where weights have scales of blocks."""
    STATIC = "static"
    """All by one scale of the file."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One kind of quantised weights. `group` columns share a scale; 0 where a whole row does, or all rows."""

    bits: int
    is_float: bool = False
    group: int = 0
    block_rows: int = 0
    """Rows that share scales, where there are blocks."""
    is_symmetric: bool = True
    has_order: bool = False
    """Whether columns are in groups by a tensor of the file, not by their places."""
    inputs: Inputs = Inputs.NONE


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a folder's weights are quantised."""

    layout: Layout
    kinds: tuple[Weights, ...]
    """One of each bits and type: which a matrix has, its tensors say."""
    is_zero_one_less: bool = False
    """GPTQ's first format has zero points less one."""

    @property
    def title(self) -> str:
        """What `models show` tells."""
        return f"{', '.join(map(_title, self.kinds))} ({self.layout})"

    def of(self, bits: int, *, is_float: bool) -> Weights | None:
        """Return the kind of weights of so many bits; None where the configuration has none."""
        return next((kind for kind in self.kinds if (kind.bits, kind.is_float) == (bits, is_float)), None)


def _title(kind: Weights) -> str:
    name = f"{'FP' if kind.is_float else 'INT'}{kind.bits}"
    inputs = "16" if kind.inputs is Inputs.NONE else str(kind.bits)
    scales = f" in groups of {kind.group}" if kind.group and not kind.block_rows else ""
    return f"{name} W{kind.bits}A{inputs}{scales}"


def read_scheme(text: str, path: str) -> Scheme:
    """Read a `quantization_config`. Raises `ModelError` naming what is not implemented, or out of range."""
    fields = _Fields(json.loads(text), "quantization_config", path)
    method = fields.text("quant_method") or ("compressed-tensors" if fields.has("config_groups") else "")
    match method:
        case "gptq":
            return _gptq(fields)
        case "awq":
            return _awq(fields)
        case "fp8":
            return _fp8(fields)
        case "compressed-tensors":
            return _compressed(fields)
        case _:
            raise fields.refused("quant_method", "gptq, awq, fp8, compressed-tensors")


def is_mxfp4(text: str) -> bool:
    """Whether a `quantization_config` is gpt-oss's, of whose experts the tensors say all."""
    about: object = json.loads(text)
    return isinstance(about, dict) and cast("dict[str, object]", about).get("quant_method") == "mxfp4"


class _Fields:
    """An object of JSON, whose every value is looked at before it is taken."""

    def __init__(self, value: object, name: str, path: str) -> None:
        self.name = name
        self.path = path
        if not isinstance(value, dict):
            raise self.error("must be an object")
        self._values = cast("Mapping[str, Any]", value)

    def error(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: config.json: '{self.name}' {problem}", model=self.path)

    def refused(self, key: str, known: str) -> ModelError:
        value = json.dumps(self._values.get(key))
        return self.error(
            f"has '{key}': {value:.100}, which is not implemented; there are {known}. Take the model as a GGUF file"
        )

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def text(self, key: str) -> str:
        value = self._values.get(key)
        return value if isinstance(value, str) else ""

    def truth(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"has '{key}': {json.dumps(value):.100}; expected true or false")
        return value

    def inner(self, key: str) -> _Fields:
        return _Fields(self._values.get(key), f"{self.name}.{key}", self.path)

    def groups(self) -> list[_Fields]:
        """The objects in it."""
        return [_Fields(value, f"{self.name}.{key:.40}", self.path) for key, value in self._values.items()]

    def only(self, key: str, *known: object) -> None:
        """Refuse any value but these, and none at all."""
        if self._values.get(key) not in (None, *known):
            raise self.refused(key, ", ".join(json.dumps(value) for value in known) or "none")

    def bits(self, key: str, *known: int) -> int:
        value = self._values.get(key)
        if value not in known or isinstance(value, bool):
            raise self.refused(key, ", ".join(map(str, known)))
        return int(value)

    def size(self, key: str) -> int:
        """Columns that share a scale; 0 for -1, which is all of them."""
        value = self._values.get(key)
        if value != -1 and not _is_size(value):
            raise self.error(f"has '{key}': {json.dumps(value):.100}; expected a number of columns, or -1")
        return max(0, cast("int", value))

    def block(self, key: str) -> tuple[int, int]:
        """Rows and columns of blocks that share a scale."""
        value = self._values.get(key)
        sizes = cast("list[object]", value) if isinstance(value, list) else []
        if len(sizes) != 2 or not all(map(_is_size, sizes)):
            raise self.error(f"has '{key}': {json.dumps(value):.100}; expected rows and columns")
        rows, columns = cast("list[int]", value)
        return rows, columns


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_GROUP


def _gptq(fields: _Fields) -> Scheme:
    fields.only("checkpoint_format", "gptq", "gptq_v2")
    fields.only("dynamic", {})  # bits by module
    kind = Weights(
        bits=fields.bits("bits", 4, 8),
        group=fields.size("group_size"),
        is_symmetric=fields.truth("sym", default=True),
        has_order=fields.truth("desc_act", default=False),
    )
    return Scheme(Layout.GPTQ, (kind,), is_zero_one_less=fields.text("checkpoint_format") != "gptq_v2")


def _awq(fields: _Fields) -> Scheme:
    fields.only("version", "gemm", "GEMM")
    fields.only("zero_point", True)
    kind = Weights(fields.bits("bits", 4), group=fields.size("group_size"), is_symmetric=False)
    return Scheme(Layout.AWQ, (kind,))


def _fp8(fields: _Fields) -> Scheme:
    fields.only("fmt", "e4m3", "float8_e4m3fn")
    fields.only("scale_fmt", "float")
    fields.only("activation_scheme", "dynamic", "static")
    rows, columns = fields.block("weight_block_size") if fields.has("weight_block_size") else (0, 0)
    inputs = Inputs.STATIC if fields.text("activation_scheme") == "static" else Inputs.DYNAMIC
    if rows and inputs is Inputs.STATIC:
        raise fields.refused("activation_scheme", "dynamic, for blocks of weights")
    return Scheme(Layout.COMPRESSED, (Weights(8, is_float=True, group=columns, block_rows=rows, inputs=inputs),))


_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision", "dense")


def _compressed(fields: _Fields) -> Scheme:
    fields.only("format", *_FORMATS)
    fields.only("quantization_status", "compressed", "frozen")
    if fields.has("sparsity_config"):
        fields.inner("sparsity_config").only("format", "dense")
    if fields.has("transform_config"):
        fields.inner("transform_config").only("config_groups", {})
    kinds: dict[tuple[int, bool], Weights] = {}
    for group in fields.inner("config_groups").groups():
        group.only("format", *_FORMATS)
        group.only("output_activations")
        kind = _kind(group)
        if kinds.setdefault((kind.bits, kind.is_float), kind) != kind:
            problem = f"has two kinds of {_title(kind)}, which is not implemented; take the model as a GGUF file"
            raise fields.inner("config_groups").error(problem)
    if not kinds:
        raise fields.error("has no 'config_groups'")
    return Scheme(Layout.COMPRESSED, tuple(kinds.values()))


def _kind(group: _Fields) -> Weights:
    weights = group.inner("weights")
    weights.only("type", "int", "float")
    weights.only("strategy", "tensor", "channel", "group", "block")
    weights.only("dynamic", False)
    weights.only("actorder", "weight", "static", *_ACT_ORDER)
    is_float, strategy = weights.text("type") == "float", _strategy(weights)
    bits = weights.bits("num_bits", 8) if is_float else weights.bits("num_bits", 4, 8)
    rows, columns = weights.block("block_structure") if strategy == "block" else (0, 0)
    inputs = _inputs(group.inner("input_activations"), bits, weights) if group.has("input_activations") else Inputs.NONE
    is_symmetric = weights.truth("symmetric", default=True)
    if not is_symmetric and (is_float or inputs is not Inputs.NONE):
        raise weights.refused("symmetric", "true, for these weights")
    return Weights(
        bits,
        is_float=is_float,
        group=weights.size("group_size") if strategy == "group" else columns,
        block_rows=rows,
        is_symmetric=is_symmetric,
        has_order=weights.text("actorder") in _ACT_ORDER,
        inputs=inputs,
    )


def _strategy(weights: _Fields) -> str:
    """What shares a scale; where it is not said, a group, if its size is."""
    return weights.text("strategy") or ("group" if weights.has("group_size") else "")


def _inputs(inputs: _Fields, bits: int, weights: _Fields) -> Inputs:
    """How inputs are quantised: as the weights are, or the configuration is refused."""
    inputs.bits("num_bits", bits)
    inputs.only("type", weights.text("type") or "int")
    inputs.only("symmetric", True)
    inputs.only("strategy", "tensor", "token", *(["group"] if weights.text("strategy") == "block" else []))
    if bits != 8:
        raise inputs.refused("num_bits", "8")
    if inputs.text("strategy") == "group":
        inputs.only("group_size", weights.block("block_structure")[1])
    is_dynamic = inputs.truth("dynamic", default=False)
    if weights.text("strategy") == "block" and not is_dynamic:
        raise inputs.refused("dynamic", "true, for blocks of weights")
    if _strategy(weights) == "group":
        raise weights.refused("strategy", "tensor, channel, block, where inputs are quantised")
    return Inputs.DYNAMIC if is_dynamic else Inputs.STATIC
