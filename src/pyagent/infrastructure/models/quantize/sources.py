"""What is quantised: a folder's tensors as llama.cpp's converter writes them, or those of a GGUF file."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

import msgspec

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.one_line import printable
from pyagent.infrastructure.engine.tokens.model_folder import read_json
from pyagent.infrastructure.models.quantize.architecture import (
    Config,
    architecture_metadata,
    frequency_factors,
    original_context,
    refuse_changed,
    refuse_family,
    text_half,
)
from pyagent.infrastructure.models.quantize.encoder_families import ENCODER_FAMILIES
from pyagent.infrastructure.models.quantize.encoder_source import EncoderSource
from pyagent.infrastructure.models.quantize.folder_tensors import NONE_KEPT, FolderTensors, Kept, SourceTensor
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, read_metadata
from pyagent.infrastructure.models.quantize.layouts import attention_sinks
from pyagent.infrastructure.models.quantize.layouts.attention_sinks import MXFP4, Mxfp4
from pyagent.infrastructure.models.quantize.layouts.families import LAID_OUT, Family, laid_out
from pyagent.infrastructure.models.quantize.layouts.stored import Reader, Stored
from pyagent.infrastructure.models.quantize.mixture import PLAIN
from pyagent.infrastructure.models.quantize.vocabulary import vocabulary_metadata
from pyagent.infrastructure.models.split_files import first_of

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

_OF_THE_FILE = ("general.alignment", "split.")
"""Keys that say how a file is laid out, or that it is one of several."""


class Source(Protocol):
    """A model to be quantised."""

    path: Path
    metadata: Metadata
    num_layers: int
    num_experts: int
    file_bytes: int
    kept: Kept

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
        return _folder_source(path) if path.is_dir() else GgufSource(path)
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

    kept = NONE_KEPT

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


def _folder_source(path: Path) -> Source:
    config = read_json(path / "config.json")
    if str(config.get("model_type")) in ENCODER_FAMILIES:
        return EncoderSource(path, config)
    told = text_half(config)
    family = laid_out(told)
    return FolderSource(path, told) if family is None else LaidOutSource(path, told, family)


class FolderSource:
    """A folder of safetensors; reorders and shifts what GGUF files have otherwise."""

    kept = NONE_KEPT

    def __init__(self, path: Path, config: Config) -> None:
        """`config` is what its `config.json` says of the half that reads and writes text."""
        self.path = path
        if config:  # first: what the engine says of a family it lacks is not about files to write
            refuse_family(path, config, [*ENCODER_FAMILIES])
        self._file = _unquantised(path)
        self._model = self._file.config
        self._short = original_context(config)
        self.metadata = architecture_metadata(path, config, self._model)
        self.metadata |= vocabulary_metadata(path, self._model.vocab_size)
        self.num_layers, self.num_experts = self._model.num_layers, self._model.num_experts
        self._made = frequency_factors(config, self._model.head_dim)
        header = _rust.read_model_header(path, arrays=False)
        self.file_bytes = sum(size for *_, size in header["tensors"])
        self._tensors = FolderTensors(path, self._file, [name for name, *_ in header["tensors"]])

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the model's, those that are computed first."""
        made = [SourceTensor(name, [len(values)], "F32") for name, values in self._made.items()]
        return [*made, *self._tensors.all()]

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as GGUF has them."""
        if name in self._made:
            out[:] = self._made[name]
        else:
            self._tensors.read(name, first_row, out)

    def check(self, written: Path) -> None:
        """Compare the two as the engine reads them."""
        # Of LongRoPE short texts have frequencies of their own.
        _compare(self.path, written, (None, self._short))


class LaidOutSource:
    """A folder of safetensors of a family whose GGUF files have other tensors: cut, joined, ordered otherwise."""

    def __init__(self, path: Path, config: Config, family: Family) -> None:
        """`config` is what its `config.json` says of the half that reads and writes text."""
        self.path = path
        self._file = _rust.ModelFile(path)
        model = self._file.config
        header = _rust.read_model_header(path, arrays=False)
        self._stored = Stored(path, {name: dims for name, dims, *_ in header["tensors"]})
        config = {**config, "num_nextn_predict_layers": self._stored.num_heads_that_draft(model.num_layers)}
        self._mxfp4 = self._in_mxfp4(model)
        self.kept: Kept = {one.name: partial(one.read, self._file.read_stored) for one in self._mxfp4}
        words = vocabulary_metadata(path, model.vocab_size, has_merges=family is LAID_OUT["gemma4"])
        self.metadata = architecture_metadata(path, config, model) | words
        self.num_layers, self.num_experts = model.num_layers, model.num_experts
        self.file_bytes = header["file_bytes"]
        made = [*family.tensors(self._stored, config, model)]
        left_out = [name for name, *_ in header["tensors"] if family.left_out and name.startswith(family.left_out)]
        self._stored.check(made, [*left_out, *(["lm_head.weight"] if model.is_output_tied else [])])
        self._computed = {**frequency_factors(config, model.head_dim), **family.computed(config, model)}
        self._short, self._in_weights = original_context(config), family.in_weights
        self._to_made = {tensor.name: tensor for tensor in made}
        self._to_kind = {name: kind for name, _, kind, _ in header["tensors"]}
        self._reader = Reader(self._stored, _rust.TensorFile(path).read_floats)

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the model's, those that are computed first."""
        made = [SourceTensor(one.name, one.dims, self._to_kind[one.parts[0].name]) for one in self._to_made.values()]
        computed = [SourceTensor(name, [len(values)], "F32") for name, values in self._computed.items()]
        kept = [SourceTensor(one.name, one.dims, MXFP4) for one in self._mxfp4]
        return [*computed, *made, *kept]

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as GGUF has them."""
        if name in self._computed:
            out[:] = self._computed[name]
        else:
            self._reader.read(self._to_made[name], first_row, out)

    def check(self, written: Path) -> None:
        """Compare the two as the engine reads them."""
        _compare(self.path, written, (None, self._short), self._in_weights)

    def _in_mxfp4(self, model: ModelConfig) -> Sequence[Mxfp4]:
        """Return experts that are MXFP4 already, told of or not; raise `ModelError` for other weights of few bits."""
        kept = [*attention_sinks.kept(self._stored, model)] if model.architecture == "gpt-oss" else []
        told = self._file.quantization
        if told is not None and not (kept and _is_mxfp4(msgspec.json.decode(told))):
            _refuse_quantised_folder(self.path)
        for tensor in kept:
            tensor.check(self._file.find_stored, self._stored.refuse)
        return kept


def _is_mxfp4(told: object) -> bool:
    return isinstance(told, dict) and cast("Config", told).get("quant_method") == "mxfp4"


def _unquantised(path: Path) -> _rust.ModelFile:
    """Open a folder. Raises `ModelError` where its weights are quantised already."""
    file = _rust.ModelFile(path)
    if file.quantization is not None:
        _refuse_quantised_folder(path)
    return file


def _refuse_quantised_folder(path: Path) -> NoReturn:
    text = f"{path}: its weights are quantised already; give the folder of the model as it was published before"
    raise ModelError(text, model=str(path))


def _compare(
    path: Path, written: Path, lengths: Sequence[int | None], in_weights: frozenset[str] = frozenset()
) -> None:
    """Raise `ModelError` where a file is read as another model than a folder, for texts of some length."""
    for most in lengths:
        try:
            before, after = (_rust.ModelFile(one, most).config for one in (path, written))
        except _rust.ModelFileError as error:
            raise ModelError(f"{path}: cannot be written as GGUF: {error}", model=str(path)) from error
        refuse_changed(path, before, after, in_weights)


def refuse_quantised(source: Source, base: str) -> None:
    """Raise `ModelError` where quantised weights would be quantised again; more bits lose nothing."""
    if base in PLAIN:
        return
    for tensor in source.tensors():
        if tensor.name not in source.kept and tensor.type_name not in PLAIN | {"Q8_0"}:
            what = f"{source.path}: tensor '{tensor.name}' is {tensor.type_name} already, and would lose once more"
            text = f"{what}; give the model in F32, F16, BF16 or Q8_0, or write it as F16 first (--type F16)"
            raise ModelError(text, model=str(source.path))
