"""What is quantised: a folder's tensors as llama.cpp's converter writes them, or those of a GGUF file."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.one_line import printable
from pyagent.infrastructure.engine.tokens.model_folder import read_json
from pyagent.infrastructure.models.quantize.architecture import (
    FREQUENCY_FACTORS,
    architecture_metadata,
    frequency_factors,
    refuse_changed,
    refuse_family,
)
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, read_metadata
from pyagent.infrastructure.models.quantize.mixture import PLAIN
from pyagent.infrastructure.models.quantize.vocabulary import vocabulary_metadata
from pyagent.infrastructure.models.split_files import first_of

_PARTS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output"),
    *("post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm"),
)
_OF_THE_FILE = ("general.alignment", "split.")
"""Keys that say how a file is laid out, or that it is one of several."""
_IGNORED = ("rotary_emb.inv_freq", "self_attn.masked_bias")
"""Ends of names of tensors that older files have, and that are computed."""


class SourceTensor(NamedTuple):
    """A tensor that is there: `dims` has the contiguous dimension first."""

    name: str
    dims: Sequence[int]
    type_name: str


class Source(Protocol):
    """A model to be quantised."""

    path: Path
    metadata: Metadata
    num_layers: int
    num_experts: int
    file_bytes: int

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the tensors in the order of the file to be."""
        ...

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Fill `out` with whole rows of a tensor."""
        ...

    def check(self, written: Path) -> None:
        """Raise `ModelError` where a file with the metadata is not the same model; its matrices may be empty yet."""
        ...


def open_source(path: Path) -> Source:
    """Open a folder or file. Raises `ModelError` naming what is wrong with it, or what GGUF has no words for."""
    try:
        return FolderSource(path) if path.is_dir() else GgufSource(path)
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(path)) from error
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        text = f"{path}: a number or text in its JSON files is beyond what a GGUF file holds: {error}"
        raise ModelError(text, model=str(path)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the library that cuts words, which has no name for it
            raise
        text = f"{path}: its tokenizer.json cannot be run: {printable(str(error))}"
        raise ModelError(text, model=str(path)) from error


def is_part(file: Path, source: Path) -> bool:
    """Whether a file is one of a model's: in its folder, or beside a split one's others."""
    if source.is_dir():
        return file.is_file()
    return file.is_file() and first_of(file.name) == first_of(source.name)


class GgufSource:
    """A GGUF file, or several that are one model: its metadata is copied as it is."""

    def __init__(self, path: Path) -> None:
        header = _rust.read_model_header(path, arrays=False)
        self.path, self.file_bytes = path, header["file_bytes"]
        number = header["metadata"].get("split.count")
        is_split = isinstance(number, int) and number > 1
        told = read_metadata(path.with_name(first_of(path.name)) if is_split else path)
        self.metadata = {key: value for key, value in told.items() if not key.startswith(_OF_THE_FILE)}
        self._tensors = [SourceTensor(name, dims, kind) for name, dims, kind, _ in header["tensors"]]
        self._file = _rust.TensorFile(path)
        name = header["metadata"].get("general.architecture")
        numbers = (header["metadata"].get(f"{name}.{key}") for key in ("block_count", "expert_count"))
        self.num_layers, self.num_experts = (number if isinstance(number, int) else 0 for number in numbers)

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the file's."""
        return self._tensors

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as they are."""
        self._file.read_floats(name, first_row, memoryview(out).cast("B"))

    def check(self, written: Path) -> None:
        """Accept it: its metadata is the source's."""


class FolderSource:
    """A folder of safetensors; reorders and shifts what GGUF files have otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json")
        if config:  # first: what the engine says of a family it lacks is not about files to write
            refuse_family(path, config)
        self._file = _rust.ModelFile(path)
        self._model = self._file.config
        if self._file.quantization is not None:
            text = f"{path}: its weights are quantised already; give the folder of the model as it was published before"
            raise ModelError(text, model=str(path))
        self.metadata = architecture_metadata(path, config, self._model)
        self.metadata |= vocabulary_metadata(path, self._model.vocab_size)
        self.num_layers, self.num_experts = self._model.num_layers, self._model.num_experts
        self._made: Mapping[str, array[float]] = {}
        if (factors := frequency_factors(config, self._model.head_dim)) is not None:
            self._made = {FREQUENCY_FACTORS: factors}
        header = _rust.read_model_header(path, arrays=False)
        self.file_bytes = sum(size for *_, size in header["tensors"])
        self._refuse_missing()
        self._refuse_left_over({name for name, *_ in header["tensors"]})
        # llama.cpp pairs neighbours in these families; their files have the rows so.
        self._is_reordered = (
            self._model.architecture in {"llama", "smollm3", "granite"} and not self._model.is_rope_interleaved
        )

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the model's, those that are computed first."""
        made = [SourceTensor(name, [len(values)], "F32") for name, values in self._made.items()]
        found = ((name, self._file.find(name)) for name in self._names())
        return made + [SourceTensor(name, *about) for name, about in found if about is not None]

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as GGUF has them."""
        if name in self._made:
            out[:] = self._made[name]
        elif self._is_reordered and name.endswith(("attn_q.weight", "attn_k.weight")):
            self._read_reordered(name, first_row, out)
        else:
            self._file.read_floats(name, first_row, memoryview(out).cast("B"))
        if self._is_reordered and name.endswith(("attn_q.bias", "attn_k.bias")):
            out[:] = array("f", [out[_row_before(row, self._model.head_dim)] for row in range(len(out))])
        if (offset := self._model.norm_weight_offset) and name.endswith("norm.weight"):
            out[:] = array("f", [value + offset for value in out])

    def check(self, written: Path) -> None:
        """Compare the two as the engine reads them."""
        try:
            after = _rust.ModelFile(written).config
        except _rust.ModelFileError as error:
            raise ModelError(f"{self.path}: cannot be written as GGUF: {error}", model=str(self.path)) from error
        refuse_changed(self.path, self._model, after)

    def _names(self) -> Iterator[str]:
        yield "token_embd.weight"
        for layer in range(self.num_layers):
            for part in _PARTS:
                yield f"blk.{layer}.{part}.weight"
                yield f"blk.{layer}.{part}.bias"
        yield "output_norm.weight"
        if not self._model.is_output_tied:
            yield "output.weight"

    def _refuse_missing(self) -> None:
        """Refuse a matrix that is not there or of another size, and what not all layers have."""
        found = {name: about[0] for name in self._names() if (about := self._file.find(name)) is not None}
        for name, dims in self._expected(found):
            if name not in found:
                there = self._file.place(name.removesuffix(".weight")) or self._file.place(name)
                what = f"tensor '{there[0] if there else name}' is missing"
                raise ModelError(f"{self.path}: {what}; the folder is incomplete", model=str(self.path))
            if dims and found[name] != dims:
                text = f"{self.path}: tensor '{name}' is {found[name]}; expected {dims} by config.json"
                raise ModelError(text, model=str(self.path))

    def _expected(self, found: Collection[str]) -> Iterator[tuple[str, list[int]]]:
        """Yield the tensors that have to be there, with their dimensions where these are known."""
        model = self._model
        hidden, queries, keys = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        dims = {
            "attn_q": [hidden, queries],
            "attn_k": [hidden, keys],
            "attn_v": [hidden, keys],
            "ffn_gate": [hidden, model.ffn_size],
            "ffn_up": [hidden, model.ffn_size],
            "attn_output": [queries, hidden],
            "ffn_down": [model.ffn_size, hidden],
        }
        parts = {f"{part}.weight" for part in dims}
        parts |= {name.split(".", 2)[2] for name in found if name.startswith("blk.")}
        yield "output_norm.weight", [hidden]
        if not model.is_output_tied:
            yield "output.weight", [hidden, model.vocab_size]
        for layer in range(self.num_layers):
            yield from ((f"blk.{layer}.{part}", dims.get(part.removesuffix(".weight"), [])) for part in sorted(parts))

    def _refuse_left_over(self, names: set[str]) -> None:
        for name in self._names():
            base = name.rpartition(".")[0]
            place = self._file.place(name) if base.endswith("norm") else self._file.place(base)
            if place is not None:
                names.discard(place[0] if base.endswith("norm") else place[0] + name.removeprefix(base))
        embedding = cast("tuple[str, int]", self._file.place("token_embd"))[0]
        names -= {embedding.replace("embed_tokens", "norm") + ".weight", "lm_head.weight"}
        left = sorted(name for name in names if not name.endswith(_IGNORED))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            text = f"{self.path}: tensor '{left[0]:.100}'{more} would be lost: GGUF files of this family have none such"
            raise ModelError(text, model=str(self.path))

    def _read_reordered(self, name: str, first_row: int, out: array[float]) -> None:
        about = self._file.find(name)
        cols = about[0][0] if about else 1
        bytes_of = memoryview(out).cast("B")
        for row in range(len(out) // cols):
            source = _row_before(first_row + row, self._model.head_dim)
            self._file.read_floats(name, source, bytes_of[4 * row * cols : 4 * (row + 1) * cols])


def _row_before(row: int, head_dim: int) -> int:
    """Return which of a head's rows, whose pairs are halves of a head apart, comes here, where pairs are neighbours."""
    head, place = divmod(row, head_dim)
    return head * head_dim + place // 2 + place % 2 * (head_dim // 2)


def refuse_quantised(source: Source, base: str) -> None:
    """Raise `ModelError` where quantised weights would be quantised again; more bits lose nothing."""
    if base in PLAIN:
        return
    for tensor in source.tensors():
        if tensor.type_name not in PLAIN | {"Q8_0"}:
            what = f"{source.path}: tensor '{tensor.name}' is {tensor.type_name} already, and would lose once more"
            text = f"{what}; give the model in F32, F16, BF16 or Q8_0, or write it as F16 first (--type F16)"
            raise ModelError(text, model=str(source.path))
