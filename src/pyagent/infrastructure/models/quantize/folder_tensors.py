"""A folder's tensors as GGUF files have them: some lie in one, such as a layer's experts, some have other rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.quantize.layouts.stored import is_of_another_sense

if TYPE_CHECKING:
    from pyagent import _rust

_PARTS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output"),
    *("post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm"),
)
_OF_EXPERTS = ("ffn_gate", "ffn_up", "ffn_down")
_ROUTERS = ("ffn_gate_inp", "ffn_gate_inp_shexp")
_JOINED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "phi3": {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}
}
"""Of an architecture, which matrices lie in one."""
_REORDERED = frozenset({"llama", "smollm3", "granite"})
"""Architectures of which llama.cpp pairs neighbours: their files have the rows so."""
_IGNORED = ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq", "self_attn.masked_bias")
"""Ends of names of tensors that older files have, and that are computed."""


Kept = Mapping[str, Callable[[int, int], bytes]]
"""Tensors that stay of their type: what returns so many rows from one on."""
NONE_KEPT: Kept = MappingProxyType({})


class SourceTensor(NamedTuple):
    """A tensor that is there: `dims` has the contiguous dimension first."""

    name: str
    dims: Sequence[int]
    type_name: str


class FolderTensors:
    """The tensors of an open folder."""

    def __init__(self, path: Path, file: _rust.ModelFile, stored: Collection[str]) -> None:
        """`stored` are the names of all tensors in the folder.

        Raises `ModelError` for one that is missing or of another size, and for one that would be lost.
        """
        self._path, self._file, self._model = path, file, file.config
        self._is_reordered = self._model.architecture in _REORDERED and not self._model.is_rope_interleaved
        self._to_parts = self._found()
        self._refuse_missing()
        self._refuse_left_over(set(stored))

    def all(self) -> Sequence[SourceTensor]:
        """Return them, in the order of the file to be."""
        return [self._described(name, parts) for name, parts in self._to_parts.items()]

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Fill `out` with whole rows of a tensor."""
        parts = self._to_parts[name]
        cols = self._dims(parts[0])[0]
        done = 0
        for part in parts:
            num_rows = self._num_rows(part)
            if first_row < num_rows and done < len(out):
                count = min((num_rows - first_row) * cols, len(out) - done)
                rows = array("f", bytes(4 * count))
                self._read_part(part, first_row, rows)
                out[done : done + count] = rows
                done += count
            first_row = max(0, first_row - num_rows)

    def _found(self) -> dict[str, Sequence[str]]:
        """Return the tensors that are there, each with what it is made of."""
        return {name: parts for name, parts in self._expected_names() if self._file.find(parts[0]) is not None}

    def _expected_names(self) -> Iterator[tuple[str, Sequence[str]]]:
        yield "token_embd.weight", ["token_embd.weight"]
        for layer in range(self._model.num_layers):
            yield from self._of_layer(f"blk.{layer}")
        yield "output_norm.weight", ["output_norm.weight"]
        if not self._model.is_output_tied:
            yield "output.weight", ["output.weight"]

    def _of_layer(self, block: str) -> Iterator[tuple[str, Sequence[str]]]:
        joined = _JOINED.get(self._model.architecture, {})
        inner = {part for parts in joined.values() for part in parts}
        plain = {part: [part] for part in _PARTS if part not in inner}
        for name, parts in {**plain, **joined}.items():
            for end in ("weight", "bias"):
                yield f"{block}.{name}.{end}", [f"{block}.{part}.{end}" for part in parts]
        if not self._model.num_experts:
            return
        for name in (*_ROUTERS, *(f"{part}_shexp" for part in _OF_EXPERTS)):
            yield f"{block}.{name}.weight", [f"{block}.{name}.weight"]
        for name in (f"{part}_exps" for part in _OF_EXPERTS):
            numbers = range(self._model.num_experts)
            yield f"{block}.{name}.weight", [f"{block}.{name}.{number}.weight" for number in numbers]

    def _described(self, name: str, parts: Sequence[str]) -> SourceTensor:
        (cols, *rows), kind = cast("tuple[list[int], str]", self._file.find(parts[0]))
        if name.endswith("_exps.weight"):
            return SourceTensor(name, [cols, *rows, len(parts)], kind)
        whole = [sum(map(self._num_rows, parts))] if rows else []
        return SourceTensor(name, [cols, *whole], kind)

    def _dims(self, part: str) -> list[int]:
        found = self._file.find(part)
        assert found is not None, part
        return found[0]

    def _num_rows(self, part: str) -> int:
        dims = self._dims(part)
        return dims[1] if len(dims) > 1 else 1

    def _read_part(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as GGUF has them."""
        if self._is_reordered and name.endswith(("attn_q.weight", "attn_k.weight")):
            self._read_reordered(name, first_row, out)
        else:
            self._file.read_floats(name, first_row, memoryview(out).cast("B"))
        if self._is_reordered and name.endswith(("attn_q.bias", "attn_k.bias")):
            out[:] = array("f", [out[_row_before(row, self._model.head_dim)] for row in range(len(out))])
        if (offset := self._model.norm_weight_offset) and name.endswith("norm.weight"):
            out[:] = array("f", [value + offset for value in out])

    def _read_reordered(self, name: str, first_row: int, out: array[float]) -> None:
        cols = self._dims(name)[0]
        bytes_of = memoryview(out).cast("B")
        for row in range(len(out) // cols):
            source = _row_before(first_row + row, self._model.head_dim)
            self._file.read_floats(name, source, bytes_of[4 * row * cols : 4 * (row + 1) * cols])

    def _refuse_missing(self) -> None:
        """Refuse a matrix that is not there or of another size, and what not all layers have."""
        for name, dims in self._needed():
            about = self._file.find(name)
            if about is None:
                there = self._file.place(name.removesuffix(".weight")) or self._file.place(name)
                what = f"tensor '{there[0] if there else name}' is missing"
                raise ModelError(f"{self._path}: {what}; the folder is incomplete", model=str(self._path))
            if dims and about[0] != [*dims]:
                text = f"{self._path}: tensor '{name}' is {about[0]}; expected {[*dims]} by config.json"
                raise ModelError(text, model=str(self._path))

    def _needed(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield the tensors that have to be there, with their dimensions where these are known."""
        model = self._model
        hidden, queries, keys = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        sizes: dict[str, Sequence[int]] = {"attn_q": (hidden, queries), "attn_k": (hidden, keys)}
        sizes |= {"attn_v": (hidden, keys), "attn_output": (queries, hidden)}
        ffn: dict[str, Sequence[int]] = {"ffn_gate": (hidden, model.ffn_size), "ffn_up": (hidden, model.ffn_size)}
        ffn |= {"ffn_down": (model.ffn_size, hidden)}
        yield "output_norm.weight", [hidden]
        if not model.is_output_tied:
            yield "output.weight", [hidden, model.vocab_size]
        experts = {f"{part}_exps.{number}": dims for part, dims in ffn.items() for number in range(model.num_experts)}
        experts |= {"ffn_gate_inp": (hidden, model.num_experts)}
        common = self._common_parts()
        for layer in range(model.num_layers):
            is_mixture = model.num_experts > 0 and not model.dense_layers[layer]
            # Dense layers among mixtures have a width of their own.
            blocks = experts if is_mixture else ffn if not model.num_experts else dict.fromkeys(ffn, ())
            needed = {f"{part}.weight": dims for part, dims in {**sizes, **blocks}.items()}
            for part, dims in sorted({**dict.fromkeys(common, ()), **needed}.items()):
                yield f"blk.{layer}.{part}", dims

    def _common_parts(self) -> set[str]:
        """Return the parts that some layer has and all have to, but for those of feed-forward blocks."""
        parts = {part for names in self._to_parts.values() for part in names if part.startswith("blk.")}
        ends = {part.split(".", 2)[2] for part in parts}
        return {end for end in ends if not (self._model.num_experts and end.startswith(_OF_EXPERTS))}

    def _refuse_left_over(self, names: set[str]) -> None:
        names -= {name for name in names if is_of_another_sense(name)}
        for name in (part for parts in self._to_parts.values() for part in parts):
            base = name.rpartition(".")[0]
            place = self._file.place(name) if base.endswith("norm") else self._file.place(base)
            if place is not None:
                names.discard(place[0] if base.endswith("norm") else place[0] + name.removeprefix(base))
        embedding = cast("tuple[str, int]", self._file.place("token_embd"))[0]
        names -= {embedding.replace("embed_tokens", "norm") + ".weight", "lm_head.weight"}
        left = sorted(name for name in names if not name.endswith(_IGNORED))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            text = f"tensor '{left[0]:.100}'{more} would be lost: GGUF files of this family have none such"
            raise ModelError(f"{self._path}: {text}", model=str(self._path))


def _row_before(row: int, head_dim: int) -> int:
    """Return which of a head's rows, whose pairs are halves of a head apart, comes here, where pairs are neighbours."""
    head, place = divmod(row, head_dim)
    return head * head_dim + place // 2 + place % 2 * (head_dim // 2)
