"""Quantised matrices of a folder of safetensors: which there are, and their rows as one layout.

The tensors decide: a matrix is quantised where its packed numbers are, and plain where its plain weights are. Every
shape, element type and scale is looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8, Numbers, unpacked
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs, Layout, Scheme, Weights
from pyagent.infrastructure.engine.runners.torch.quantised.tensors import FLOATS, Tensors

if TYPE_CHECKING:
    from pyagent._rust import ModelFile

_PIECE_NUMBERS = 4 << 20
"""Of a matrix; unpacking takes up to ten bytes for each."""
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight neighbours is in AWQ's words."""


class QuantisedFolder:
    """As `QuantisedMatrices`, by what config.json and the tensors say."""

    def __init__(self, file: ModelFile, path: str, scheme: Scheme) -> None:
        """Over an open folder."""
        self._file = file
        self._path = path
        self._scheme = scheme

    def find(self, name: str, rows: Span, columns: Span) -> FolderMatrix | None:
        """As `QuantisedMatrices.find`."""
        found = self._stored(name, rows, columns)
        return found if found is not None and found.group_of(columns) is not None else None

    def fill(self, name: str, target: Tensor, rows: Span, columns: Span) -> bool:
        """As `QuantisedMatrices.fill`."""
        found = self._stored(name, rows, columns)
        if found is None:
            return False
        start = 0
        for numbers in found.numbers(rows, target.device):
            weights = numbers.dequantised()
            target[start : start + len(weights)].copy_(weights[:, columns.first : columns.end])
            start += len(weights)
        return True

    def _stored(self, name: str, rows: Span, columns: Span) -> FolderMatrix | None:
        place = self._file.place(name)
        if place is None:
            return None
        tensors = Tensors(self._file, self._path, place[0])
        kind = self._kind(tensors, columns.total)
        if kind is None:
            return None
        matrix = FolderMatrix(tensors, self._scheme, kind, columns.total, place[1])
        is_whole = matrix.num_rows == rows.total
        if not is_whole and not (self._is_part(name, place) and matrix.num_rows >= place[1] + rows.total):
            raise tensors.error(f"has {matrix.num_rows} rows; expected {rows.total}")
        return matrix

    def _kind(self, tensors: Tensors, num_columns: int) -> Weights | None:
        """How a matrix is quantised; None where it is not."""
        if self._scheme.layout is not Layout.COMPRESSED:
            return self._scheme.kinds[0] if tensors.find("qweight") else None
        if found := tensors.find("weight_packed"):
            bits, is_float = 8 if found[0][-1] == -(-num_columns // 4) else 4, False
        else:
            element = (tensors.find("weight") or ([], ""))[1]
            if element not in {"F8_E4M3", "I8"}:
                return None
            bits, is_float = 8, element == "F8_E4M3"
        kind = self._scheme.of(bits, is_float=is_float)
        if kind is None:
            raise tensors.error(f"is of {bits} bits, of which config.json says nothing: it has {self._scheme.title}")
        return kind

    def _is_part(self, name: str, place: tuple[str, int]) -> bool:
        """Whether several matrices lie in one, as Phi-3's do."""
        others = {"attn_q": "attn_k", "ffn_gate": "ffn_up"}
        other = next((name.replace(first, second) for first, second in others.items() if name.endswith(first)), None)
        beside = None if other is None else self._file.place(other)
        return place[1] > 0 or (beside is not None and beside[0] == place[0])


class FolderMatrix:
    """As `StoredMatrix`: a matrix of a folder, of which rows are read."""

    def __init__(self, tensors: Tensors, scheme: Scheme, kind: Weights, num_columns: int, first_row: int) -> None:
        """Over a matrix's tensors; its rows begin at `first_row` of theirs."""
        self._tensors = tensors
        self._scheme = scheme
        self._kind = kind
        self._num_columns = num_columns
        self._first_row = first_row
        self._group = min(kind.group or num_columns, num_columns)
        self._num_groups = -(-num_columns // self._group)
        self._is_packed = scheme.layout is Layout.COMPRESSED and tensors.find("weight_packed") is not None
        shape = tensors.shape(self._weight)
        at, is_words = (0, False) if scheme.layout is Layout.COMPRESSED else (1, scheme.layout is Layout.AWQ)
        if len(shape) != 2:
            raise tensors.error(f"is {shape}; expected rows and columns", self._weight)
        self.num_rows = shape[at] * (32 // kind.bits if is_words else 1)
        """Of its tensors."""

    @property
    def _weight(self) -> str:
        if self._scheme.layout is not Layout.COMPRESSED:
            return "qweight"
        return "weight_packed" if self._is_packed else "weight"

    def group_of(self, columns: Span) -> int | None:
        """How many of a rank's columns share a scale; None where they cannot stay quantised."""
        kind, group = self._kind, columns.num if self._num_groups == 1 else self._group
        is_aligned = columns.num % (64 if kind.bits == 4 else 32) == 0
        is_cut = columns.first % group or columns.num % group or (kind.has_order and not columns.is_whole)
        if self._num_groups > 1 and is_cut:
            return None
        if kind.inputs is not Inputs.NONE and self._num_groups > 1:
            return group if is_aligned and (group in {32, 64} or group % 128 == 0) else None
        return group if is_aligned and (group == 16 or group % 32 == 0) else None

    def row_bytes(self, columns: Span) -> int:
        """As `StoredMatrix.row_bytes`."""
        num_groups = columns.num // (self.group_of(columns) or columns.num)
        return columns.num * self._kind.bits // 8 + num_groups * (self._scale_bytes + (not self._kind.is_symmetric))

    @property
    def _scale_bytes(self) -> int:
        return self._tensors.dtype(self._scale, *FLOATS).itemsize if self._is_grouped else 4

    @property
    def _is_grouped(self) -> bool:
        """Whether numbers are packed in words."""
        return self._is_packed or self._scheme.layout is not Layout.COMPRESSED

    @property
    def _scale(self) -> str:
        if self._scheme.layout is not Layout.COMPRESSED:
            return "scales"
        return "weight_scale_inv" if self._tensors.find("weight_scale_inv") else "weight_scale"

    def read(self, rows: Span, columns: Span, device: torch.device) -> Iterator[GroupedMatrix]:
        """As `StoredMatrix.read`."""
        group = self.group_of(columns)
        assert group is not None
        input_scale = 0.0
        if self._kind.inputs is Inputs.STATIC:
            input_scale = self._tensors.number("input_scale", "activation_scale")
        for numbers in self.numbers(rows, device):
            yield numbers.planes(columns, group, self._kind.inputs, input_scale)

    def numbers(self, rows: Span, device: torch.device) -> Iterator[Numbers]:
        """Yield some of its rows at a time, as they are in the file, with all of their columns."""
        first, end = self._first_row + rows.first, self._first_row + rows.end
        step = max(8, _PIECE_NUMBERS // self._num_columns)
        pieces = [slice(start, min(start + step, end)) for start in range(first, end, step)]
        order = self._order(device)
        match self._scheme.layout:
            case Layout.GPTQ:
                found = self._gptq(pieces, device)
            case Layout.AWQ:
                found = self._awq(pieces, device)
            case Layout.COMPRESSED:
                found = self._packed(pieces, device) if self._is_packed else self._plain(pieces, device)
        for values, scales, zeros in found:
            yield self._checked(values, scales, zeros, order)

    def _checked(self, values: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor | None) -> Numbers:
        """Rows of 8 bits are signed; zero points that are all the middle are none."""
        middle = 1 << (self._kind.bits - 1)
        if zeros is not None and self._kind.is_symmetric and bool((zeros == middle).all()):
            zeros = None
        if values.dtype == torch.uint8 and self._kind.bits == 8:
            values = (values ^ 128).view(torch.int8)
            zeros = None if zeros is None else (zeros ^ 128).view(torch.int8)
        if values.dtype == FLOAT8 and bool((values.view(torch.uint8) & 127 == 127).any()):
            raise self._tensors.error("has numbers that are not finite", self._weight)
        return Numbers(values, scales.contiguous(), zeros, self._group, groups)

    def _order(self, device: torch.device) -> Tensor | None:
        """The group of each column, where that is not its place."""
        if not self._kind.has_order or self._num_groups == 1:
            return None
        end = "weight_g_idx" if self._is_packed else "g_idx"
        groups = self._tensors.read(end, (self._num_columns,), ("I32",)).to(torch.int64)
        sizes = groups.clamp(0, self._num_groups - 1).bincount(minlength=self._num_groups)
        is_range = bool(((groups >= 0) & (groups < self._num_groups)).all())
        if not is_range or bool((sizes[:-1] != self._group).any()):
            raise self._tensors.error(f"does not say {self._group} columns for each of {self._num_groups} groups", end)
        return groups.to(device)

    def _gptq(self, pieces: list[slice], device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Words of neighbours in a column of [K, N]."""
        per, bits = 32 // self._kind.bits, self._kind.bits
        shape = (-(-self._num_columns // per), self.num_rows)
        words = self._tensors.read("qweight", shape, ("I32",))
        scales = self._tensors.floats("scales", (self._num_groups, self.num_rows))
        zeros = self._tensors.read("qzeros", (self._num_groups, -(-self.num_rows // per)), ("I32",))
        points = unpacked(zeros.to(device), bits) + self._scheme.is_zero_one_less
        points = points if bits == 8 else points & 15  # 0 was written as the most, one less
        for rows in pieces:
            values = unpacked(words[:, rows].to(device).t(), bits)[:, : self._num_columns]
            yield values, scales[:, rows].to(device).t(), points[:, rows].t().contiguous()

    def _awq(self, pieces: list[slice], device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Words of neighbours in a row of [K, N], in an order of their own."""
        words = self._tensors.read("qweight", (self._num_columns, self.num_rows // 8), ("I32",))
        scales = self._tensors.floats("scales", (self._num_groups, self.num_rows))
        zeros = self._tensors.read("qzeros", (self._num_groups, self.num_rows // 8), ("I32",))

        def numbers(words: Tensor, rows: slice) -> Tensor:
            part = words[:, rows.start // 8 : -(-rows.stop // 8)].to(device)
            whole = unpacked(part, 4).unflatten(1, (-1, 8))[..., _AWQ_PLACES].flatten(1)
            first = rows.start % 8
            return whole[:, first : first + rows.stop - rows.start].t().contiguous()

        for rows in pieces:
            yield numbers(words, rows), scales[:, rows].to(device).t(), numbers(zeros, rows)

    def _packed(self, pieces: list[slice], device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Words of neighbours in a row of [N, K]; zero points in words of neighbours in a column."""
        per, bits, num_groups = 32 // self._kind.bits, self._kind.bits, self._num_groups
        points = None
        if not self._kind.is_symmetric:
            zeros = self._tensors.read("weight_zero_point", (-(-self.num_rows // per), num_groups), ("I32",))
            points = unpacked(zeros.t().to(device), bits)
        shape = (self.num_rows, -(-self._num_columns // per))
        for rows in pieces:
            words = self._tensors.read("weight_packed", shape, ("I32",), rows).to(device)
            scales = self._scales(rows).to(device)
            zeros = None if points is None else points[:, rows].t().contiguous()
            yield unpacked(words, bits)[:, : self._num_columns], scales, zeros

    def _plain(self, pieces: list[slice], device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Numbers of 8 bits, one by one."""
        kind = "F8_E4M3" if self._kind.is_float else "I8"
        for rows in pieces:
            values = self._tensors.read("weight", (self.num_rows, self._num_columns), (kind,), rows)
            yield values.to(device), self._scales(rows).float().to(device), None

    def _scales(self, rows: slice) -> Tensor:
        """Scales of some rows [n, groups], from one for all, for each row, for its groups, or for blocks."""
        tensors, end = self._tensors, self._scale
        shape, num_rows = tensors.shape(end), rows.stop - rows.start
        if math.prod(shape) == 1 and self._num_groups == 1:
            return tensors.floats(end, tuple(shape)).view(1, 1).expand(num_rows, 1)
        if block := self._kind.block_rows:
            scales = tensors.floats(end, (-(-self.num_rows // block), self._num_groups))
            return scales[torch.arange(rows.start, rows.stop) // block]
        if len(shape) == 1 and self._num_groups == 1:
            return tensors.floats(end, (self.num_rows,))[rows, None]
        return tensors.floats(end, (self.num_rows, self._num_groups), rows)
