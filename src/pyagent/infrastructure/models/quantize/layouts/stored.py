"""What tensors of a GGUF file are made of, in a folder whose tensors are cut, joined or ordered otherwise.

Every number of the folder is counted: one that no tensor to be has is refused, as is one that two have.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

from pyagent.core.errors import ModelError

Change: TypeAlias = "Callable[[array[float]], None]"
"""What whole rows become, in their place."""
Runs = Iterable[tuple[int, int]]
"""The first of so many neighbours, and how many, in the order that they are to have."""

_BEGINS = ("model.language_model.", "model.", "", "language_model.model.", "backbone.", "gpt_neox.")
_EMBEDDINGS = ("embed_tokens.weight", "embeddings.weight", "embed_in.weight")
_OTHER_SENSES = (
    *("visual.", "vision_tower.", "vision_model.", "embed_vision.", "embed_audio.", "audio_tower."),
    "multi_modal_projector.",
)
"""What the names of pictures' and sounds' halves begin with, after `model.`."""

_COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq", "self_attn.masked_bias")
"""Ends of names of tensors that older files have, and that are computed."""


class Rows(NamedTuple):
    """Neighbouring rows of a stored tensor, multiplied by factors in turn, each rounded to 32 bits."""

    name: str
    first: int
    num: int
    factors: Sequence[float] = ()


class Columns(NamedTuple):
    """Columns of a matrix that lies in a stored tensor, which are rows here: every `step`-th from `first` on."""

    name: str
    first_row: int
    num_rows: int
    first: int
    num: int
    step: int


class Spread(NamedTuple):
    """Of neighbouring rows every second number, from `offset` on."""

    name: str
    first: int
    num: int
    offset: int


Part = Rows | Columns | Spread


class Made(NamedTuple):
    """A tensor to be: `dims` has the contiguous dimension first, `parts` have its rows in turn."""

    name: str
    dims: Sequence[int]
    parts: Sequence[Part]
    change: Change | None = None


class Stored:
    """The tensors of a folder by name: dimensions, the contiguous one first."""

    def __init__(self, path: Path, dims: Mapping[str, Sequence[int]]) -> None:
        """Raise `ModelError` where there is no embedding."""
        self.path, self._dims = path, dims
        names = (begin for begin in _BEGINS if any(f"{begin}{name}" in dims for name in _EMBEDDINGS))
        begin = next(names, None)
        if begin is None:
            self.refuse("the embedding is missing; the folder is incomplete")
        self.begin = begin

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._dims

    def dims(self, name: str) -> Sequence[int]:
        """Return its dimensions."""
        if name not in self._dims:
            self.refuse(f"tensor '{name}' is missing; the folder is incomplete")
        return self._dims[name]

    def num_rows(self, name: str) -> int:
        """Return how many rows it has, of all its matrices."""
        rows = 1
        for dim in self.dims(name)[1:]:
            rows *= dim
        return rows

    def whole(self, gguf: str, name: str, dims: Sequence[int], change: Change | None = None) -> Made:
        """Make a tensor of all rows of another, which has `dims`, but for dimensions of 1."""
        found = self.dims(name)
        if [found[0], *_wide(found[1:])] != [dims[0], *_wide(dims[1:])]:
            self.refuse(f"tensor '{name}' is {[*found]}; expected {[*dims]} by config.json")
        return Made(gguf, dims, [Rows(name, 0, self.num_rows(name))], change)

    def cut(self, gguf: str, name: str, runs: Runs, dims: Sequence[int]) -> Made:
        """Make a tensor of some rows of another."""
        return Made(gguf, dims, [Rows(name, first, count) for first, count in runs])

    def stacked(self, gguf: str, names: Sequence[str], dims: Sequence[int]) -> Made:
        """Make a tensor of several, each of which has `dims`."""
        parts = [part for name in names for part in self.whole(gguf, name, dims).parts]
        return Made(gguf, [*dims, len(names)], parts)

    def refuse(self, why: str) -> NoReturn:
        """Raise `ModelError`."""
        raise ModelError(f"{self.path}: {why}", model=str(self.path))

    def refuse_others(self, config: Mapping[str, object], said: Mapping[str, object]) -> None:
        """Raise `ModelError` where `config.json` says something else than a family's files, which lack a key."""
        for key, expected in said.items():
            value = config.get(key)
            if value is not None and value != expected:
                self.refuse(f"its '{key}' cannot be written as GGUF: {value!s:.80} would be read {expected}")

    def num_heads_that_draft(self, num_layers: int) -> int:
        """Return how many layers behind so many predict further tokens, whatever `config.json` says of them."""
        heads = 0
        while self.has(f"{self.begin}layers.{num_layers + heads}.eh_proj.weight"):
            heads += 1
        return heads

    def row_values(self, part: Part) -> int:
        """Return how many numbers a row of a part has."""
        if isinstance(part, Columns):
            return part.num_rows
        return self.dims(part.name)[0] // (2 if isinstance(part, Spread) else 1)

    def check(self, tensors: Sequence[Made], ignored: Iterable[str]) -> None:
        """Raise `ModelError` for a tensor that would be lost, or of which not every number is there once."""
        used = dict.fromkeys(self._dims, 0)
        for tensor in tensors:
            for part in tensor.parts:
                if not self._is_inside(part) or self.row_values(part) % tensor.dims[0]:
                    self._refuse_size(part.name)
                used[part.name] += part.num * self.row_values(part)
        for name in (*ignored, *filter(is_of_another_sense, self._dims)):
            used.pop(name, None)
        for name, count in sorted(used.items()):
            if count == 0 and not name.endswith(_COMPUTED):
                self.refuse(f"tensor '{name:.100}' would be lost: GGUF files of this family have none such")
            if count not in {0, self.dims(name)[0] * self.num_rows(name)}:
                self._refuse_size(name)

    def _is_inside(self, part: Part) -> bool:
        cols, rows = self.dims(part.name)[0], self.num_rows(part.name)
        if isinstance(part, Columns):
            return part.first + part.step * (part.num - 1) < cols and part.first_row + part.num_rows <= rows
        return part.first + part.num <= rows

    def _refuse_size(self, name: str) -> NoReturn:
        self.refuse(f"tensor '{name:.100}' is {[*self.dims(name)]}, of another size than config.json says")


class Reader(NamedTuple):
    """Reads rows of tensors to be. `read_floats` fills a buffer with a stored tensor's rows from one on."""

    stored: Stored
    read_floats: Callable[[str, int, memoryview], None]

    def read(self, tensor: Made, first_row: int, out: array[float]) -> None:
        """Fill `out` with whole rows, from `first_row` on."""
        # A row of the folder may be several here.
        first, done = first_row * tensor.dims[0], 0
        for part in tensor.parts:
            cols = self.stored.row_values(part)
            size = part.num * cols
            if first < size and done < len(out):
                count = min(size - first, len(out) - done)
                self._read_part(part, first // cols, memoryview(out)[done : done + count])
                done += count
            first = max(0, first - size)
        if tensor.change:
            tensor.change(out)

    def _read_part(self, part: Part, first_row: int, out: memoryview) -> None:
        if isinstance(part, Rows):
            self.read_floats(part.name, part.first + first_row, out.cast("B"))
            for factor in array("f", part.factors):
                out[:] = array("f", [factor * value for value in out])
        elif isinstance(part, Spread):
            whole = array("f", bytes(8 * len(out)))
            self.read_floats(part.name, part.first + first_row, memoryview(whole).cast("B"))
            out[:] = whole[part.offset :: 2]
        else:
            self._read_columns(part, first_row, out)

    def _read_columns(self, part: Columns, first: int, out: memoryview) -> None:
        cols, num = self.stored.dims(part.name)[0], len(out) // part.num_rows
        start = part.first + part.step * first
        line = array("f", bytes(4 * cols))
        for row in range(part.num_rows):
            self.read_floats(part.name, part.first_row + row, memoryview(line).cast("B"))
            out[row :: part.num_rows] = line[start : start + part.step * num : part.step]


def scaled(tensor: Made, *factors: float) -> Made:
    """Return a tensor of whole rows with other numbers: multiplied by each factor in turn."""
    others = [factor for factor in factors if factor != 1]
    return tensor._replace(parts=[part._replace(factors=others) for part in tensor.parts if isinstance(part, Rows)])


def plus_one(values: array[float]) -> None:
    """Add what norms of some families lack."""
    values[:] = array("f", [value + 1 for value in values])


def ordered(runs: Runs, cols: int) -> Change:
    """Return what gives the columns of rows another order."""
    order = [*runs]

    def change(values: array[float]) -> None:
        before = values[:]
        place = 0
        for start in range(0, len(values), cols):
            for first, count in order:
                values[place : place + count] = before[start + first : start + first + count]
                place += count

    return change


def _wide(dims: Sequence[int]) -> list[int]:
    return [dim for dim in dims if dim != 1]


def is_of_another_sense(name: str) -> bool:
    """Whether a tensor is of the half of a model that sees or hears."""
    return name.removeprefix("model.").startswith(_OTHER_SENSES)
