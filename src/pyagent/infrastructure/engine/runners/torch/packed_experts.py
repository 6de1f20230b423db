"""Experts in other forms than a plain matrix each: gpt-oss's in a folder of safetensors, and MXFP4 of GGUF files.

A folder has those of a layer in one tensor each, a gate's row followed by its up's. Plain numbers are
`[experts, in, out]`; MXFP4 is `[experts, out, in / 32, 16]` bytes beside `[experts, out, in / 32]` exponents. Every
tensor's shape and type is looked at when a layer's experts are found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import GGUF_BYTES, GROUP, Mxfp4, of_gguf

if TYPE_CHECKING:
    from pyagent._rust import ModelFile

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class PackedExperts:
    """A layer's experts of a folder. What is read has gates first, then ups."""

    def __init__(self, file: ModelFile, path: str, block: str, num_experts: int, hidden: Span, inside: Span) -> None:
        """Those that the file calls `block`, of which a rank has the columns `inside`. Raises `ModelError`."""
        self._file = file
        self._path = path
        self._block = block
        self._num_experts = num_experts
        self._inside = inside
        self._shapes = {"gate_up_proj": (2 * inside.total, hidden.total), "down_proj": (hidden.total, inside.total)}
        self.is_mxfp4 = file.find_stored(f"{block}.gate_up_proj_blocks") is not None
        for name, (rows, columns) in self._shapes.items():
            if self.is_mxfp4:
                if columns % GROUP:
                    raise self._error(name, f"has {columns} columns, which are no whole groups of {GROUP}")
                groups = columns // GROUP
                self._check(f"{name}_blocks", [num_experts, rows, groups, GROUP // 2], ("U8",))
                self._check(f"{name}_scales", [num_experts, rows, groups], ("U8",))
            else:
                self._check(name, [num_experts, columns, rows], tuple(_PLAIN))
            self._check(f"{name}_bias", [num_experts, rows], tuple(_PLAIN))

    def dense(self, expert: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the rank's gate and up [2 F, hidden] and down [hidden, F] of an expert; MXFP4 dequantised."""
        if self.is_mxfp4:
            gate_up, down = (self._mxfp4(name, expert, device).dequantised(dtype) for name in self._shapes)
        else:
            gate_up, down = (self._read(name, expert, device).t() for name in self._shapes)
        return self._sorted(gate_up), down[:, self._inside.first : self._inside.end]

    def kept(self, expert: int, device: torch.device) -> tuple[Mxfp4, Mxfp4]:
        """As `dense`, as they are in the file: the rank's columns of down are whole groups."""
        gate_up, down = (self._mxfp4(name, expert, device) for name in self._shapes)
        return Mxfp4(*map(self._sorted, gate_up)), down.columns(self._inside)

    def biases(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """All experts' biases [E, 2 F] and [E, hidden], float32."""
        gate_up, down = (
            torch.stack([self._read(f"{name}_bias", expert, device) for expert in range(self._num_experts)]).float()
            for name in self._shapes
        )
        return self._sorted(gate_up.t()).t(), down

    def _mxfp4(self, name: str, expert: int, device: torch.device) -> Mxfp4:
        numbers, scales = (self._read(f"{name}_{end}", expert, device) for end in ("blocks", "scales"))
        return Mxfp4(numbers.flatten(1), scales)

    def _sorted(self, rows: Tensor) -> Tensor:
        """Rows in turns as gates, then ups, of the rank's columns."""
        own = rows[2 * self._inside.first : 2 * self._inside.end]
        return torch.cat((own[::2], own[1::2]))

    def _read(self, name: str, expert: int, device: torch.device) -> Tensor:
        """An expert's part of a tensor."""
        dims, kind = self._found(name)
        shape = dims[::-1][1:]
        part = torch.empty(shape, dtype=_PLAIN.get(kind, torch.uint8), pin_memory=device.type == "cuda")
        num_rows = part.numel() // shape[-1]
        self._file.read_stored(f"{self._block}.{name}", expert * num_rows, part.view(torch.uint8).numpy().data)
        return part.to(device)

    def _found(self, name: str) -> tuple[list[int], str]:
        found = self._file.find_stored(f"{self._block}.{name}")
        if found is None:
            raise self._error(name, "is missing: is the model whole?")
        return found

    def _check(self, name: str, shape: list[int], kinds: tuple[str, ...]) -> None:
        dims, kind = self._found(name)
        if dims[::-1] != shape:
            raise self._error(name, f"is {dims[::-1]}; expected {shape}")
        if kind not in kinds:
            raise self._error(name, f"is of element type {kind:.20}; expected {', '.join(kinds)}")

    def _error(self, name: str, problem: str) -> ModelError:
        return ModelError(f"{self._path}: tensor '{self._block}.{name}' {problem}", model=self._path)


class GgufExperts:
    """A layer's experts of a GGUF file in MXFP4."""

    def __init__(self, file: ModelFile, block: str, hidden: Span, inside: Span) -> None:
        """Those of a layer that `has_mxfp4`, of which a rank has the columns `inside`, whole groups."""
        self._file = file
        self._block = block
        self._hidden = hidden
        self._inside = inside

    def kept(self, expert: int, device: torch.device) -> tuple[Mxfp4, Mxfp4]:
        """As `PackedExperts.kept`."""
        gate, up = (self._read(name, expert, self._inside, self._hidden, device) for name in ("gate", "up"))
        down = self._read("down", expert, self._hidden, Span.whole(self._inside.total), device)
        return Mxfp4(*(torch.cat(both) for both in zip(gate, up, strict=True))), down.columns(self._inside)

    def _read(self, name: str, expert: int, rows: Span, columns: Span, device: torch.device) -> Mxfp4:
        shape = (rows.num, columns.total // GROUP, GGUF_BYTES)
        blocks = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._file.read_bytes(f"{self._block}.ffn_{name}_exps.{expert}.weight", rows.first, blocks.numpy().data)
        return of_gguf(blocks.to(device))


def packed_place(file: ModelFile, block: str) -> str | None:
    """What a folder calls a layer's experts that lie in one tensor each; None where they do not."""
    place = file.place(f"{block}.ffn_exps")
    return None if place is None else place[0]


def has_mxfp4(file: ModelFile, block: str, hidden: Span, inside: Span) -> bool:
    """Whether a layer's experts are MXFP4 of which a rank's columns can be kept: whole groups."""
    if any(size % GROUP for size in (hidden.total, inside.total, inside.first, inside.num)):
        return False
    place = packed_place(file, block)
    if place is not None:
        return file.find_stored(f"{place}.gate_up_proj_blocks") is not None
    found = (file.find(f"{block}.ffn_{name}_exps.0.weight") for name in ("gate", "up", "down"))
    shapes = ([hidden.total, inside.total],) * 2 + ([inside.total, hidden.total],)
    return all(one == (shape, "MXFP4") for one, shape in zip(found, shapes, strict=True))
