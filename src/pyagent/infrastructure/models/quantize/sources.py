"""What is quantised: a folder's tensors as llama.cpp's converter writes them, or those of a GGUF file."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.one_line import printable
from pyagent.infrastructure.engine.tokens.model_folder import read_json
from pyagent.infrastructure.models.quantize import encoder_source
from pyagent.infrastructure.models.quantize.architecture import (
    Config,
    architecture_metadata,
    frequency_factors,
    original_context,
    refuse_changed,
    refuse_family,
)
from pyagent.infrastructure.models.quantize.folder_tensors import FolderTensors, SourceTensor
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, read_metadata
from pyagent.infrastructure.models.quantize.mixture import PLAIN
from pyagent.infrastructure.models.quantize.vocabulary import vocabulary_metadata
from pyagent.infrastructure.models.split_files import first_of

_OF_THE_FILE = ("general.alignment", "split.")
"""Keys that say how a file is laid out, or that it is one of several."""


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
    if config.get("model_type") == encoder_source.FAMILY:
        return encoder_source.EncoderSource(path, config)
    return FolderSource(path, config)


class FolderSource:
    """A folder of safetensors; reorders and shifts what GGUF files have otherwise."""

    def __init__(self, path: Path, config: Config) -> None:
        """`config` is what its `config.json` says."""
        self.path = path
        if config:  # first: what the engine says of a family it lacks is not about files to write
            refuse_family(path, config)
        self._file = _rust.ModelFile(path)
        self._model = self._file.config
        if self._file.quantization is not None:
            text = f"{path}: its weights are quantised already; give the folder of the model as it was published before"
            raise ModelError(text, model=str(path))
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
        for most in (None, self._short):
            try:
                before, after = (_rust.ModelFile(path, most).config for path in (self.path, written))
            except _rust.ModelFileError as error:
                raise ModelError(f"{self.path}: cannot be written as GGUF: {error}", model=str(self.path)) from error
            refuse_changed(self.path, before, after)


def refuse_quantised(source: Source, base: str) -> None:
    """Raise `ModelError` where quantised weights would be quantised again; more bits lose nothing."""
    if base in PLAIN:
        return
    for tensor in source.tensors():
        if tensor.type_name not in PLAIN | {"Q8_0"}:
            what = f"{source.path}: tensor '{tensor.name}' is {tensor.type_name} already, and would lose once more"
            text = f"{what}; give the model in F32, F16, BF16 or Q8_0, or write it as F16 first (--type F16)"
            raise ModelError(text, model=str(source.path))
