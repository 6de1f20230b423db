"""What a model is and what it needs, said from its header before anything is loaded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.messages import DrafterKind, ModelTask
from pyagent.infrastructure.engine.runners.family import Family, refusal

if TYPE_CHECKING:
    from pyagent.core.runners.architecture import BroughtArchitecture


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A model's card. Bytes of weights are those the packed weights take in memory.

    `kv_bytes_per_token` is what a token takes while every layer sees it. `kv_groups` are the engine's groups of layers:
    kind, size (a window's tokens, or the blocks of which one keeps a state), pages of `page_bytes` for a block. With
    `has_mtp`, a head that drafts further tokens is a part of it. `family` is what the file calls itself; `attention` is
    said where it is peculiar; `layer_kinds` counts a hybrid's layers of each kind. A `fault` is a tensor that is
    missing, or of another size than the file says. `runners` are those shipped that compute it.
    """

    architecture: str
    family: str
    attention: str | None
    fault: str | None
    quantization: str
    num_parameters: int
    vocab_size: int
    context_length: int
    num_layers: int
    layer_kinds: tuple[tuple[str, int], ...]
    has_mtp: bool
    is_encoder_decoder: bool
    file_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_groups: tuple[tuple[str, int, int], ...]
    page_bytes: int
    licence: str
    has_chat_template: bool
    runners: tuple[str, ...]

    def kv_bytes(self, context: int) -> int:
        """Memory for the keys and values of one sequence of `context` tokens, without what slid out of windows."""
        return kv_bytes(self.kv_groups, self.page_bytes, context)

    def memory_bytes(self, context: int) -> int:
        """Memory for the weights and the keys and values of one sequence of `context` tokens."""
        return self.weight_bytes + self.kv_bytes(context)


class EncoderDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The card of an encoder; one that embeds has no `labels`. `max_tokens` are those of a text, all included.

    `tasks` are those that a request may name, each with what is put before its texts. `long_text_bytes` is what a text
    of `max_tokens` takes beside the workspace while it is computed, where that is in steps. A text has `closing_token`
    behind it; a model that `skips_instructions` pools what follows one alone.
    """

    task: ModelTask
    architecture: str
    quantization: str
    num_parameters: int
    vocab_size: int
    num_dimensions: int
    num_layers: int
    max_tokens: int
    pooling: str
    closing_token: int | None
    skips_instructions: bool
    labels: list[str] | None
    num_outputs: int
    ranks_by_words: bool
    ranks_by_tokens: bool
    labels_steps: bool
    tasks: list[tuple[str, str]]
    file_bytes: int
    weight_bytes: int
    workspace_bytes: int
    long_text_bytes: int
    licence: str


class DrafterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The card of an `assistant`, a `head` or `medusa`, which drafts for a model whose stream is `backbone_size` wide.

    It answers nothing. Of the vocabulary it drafts `num_drafted` tokens; where `num_clusters` is not 0, a draft looks
    at a part of them. In a step it drafts `most_drafts` of a request, a head of Medusa each; None is without a bound.
    """

    kind: DrafterKind
    backbone_size: int
    quantization: str
    num_parameters: int
    hidden_size: int
    num_layers: int
    vocab_size: int
    num_drafted: int
    num_clusters: int
    most_drafts: int | None
    file_bytes: int
    weight_bytes: int
    licence: str


def task_of(path: Path) -> ModelTask:
    """Return what a model's files, right or wrong, are for."""
    return _rust.model_task(path)


def describe_encoder(path: Path, licence: str = "unknown") -> EncoderDescription | None:
    """Read an encoder's header; None for another model. Raises `ModelError` saying why the files cannot be run."""
    try:
        about = _rust.describe_encoder(path, threads=_rust.available_cores())
        if about is None:
            return None
        elements = _count_elements(_rust.read_model_header(path, arrays=False))
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(path)) from error
    kind, number = elements.most_common(1)[0][0], elements.total()
    return EncoderDescription(quantization=kind, num_parameters=number, licence=licence, task=task_of(path), **about)


def describe_drafter(path: Path, licence: str = "unknown") -> DrafterDescription | None:
    """Read the header of an assistant or of heads; None for another model.

    Raises `ModelError` saying why the files cannot be run.
    """
    try:
        about = _rust.describe_drafter(path)
        if about is None:
            return None
        header = _rust.read_model_header(path, arrays=False)
    except _rust.ModelFileError as error:
        raise ModelError(str(error), model=str(path)) from error
    elements = _count_elements(header)
    return DrafterDescription(
        kind=about["kind"],
        backbone_size=about["backbone_size"],
        quantization=elements.most_common(1)[0][0],
        num_parameters=elements.total(),
        hidden_size=about["hidden_size"],
        num_layers=about["num_layers"],
        vocab_size=about["vocab_size"],
        num_drafted=about["num_drafted"],
        num_clusters=about["num_clusters"],
        most_drafts=about["most_drafts"],
        file_bytes=header["file_bytes"],
        weight_bytes=about["weight_bytes"],
        licence=licence,
    )


def _count_elements(header: _rust.ModelHeader) -> Counter[str]:
    """Return how many numbers there are, by element type."""
    elements: Counter[str] = Counter()
    for _, dims, kind, _ in header["tensors"]:
        count = 1
        for dim in dims:
            count *= dim
        elements[kind] += count
    return elements


def kv_bytes(kv_groups: Sequence[tuple[str, int, int]], page_bytes: int, num_tokens: int) -> int:
    """Return the memory for the keys and values of one sequence, without what slid out of windows."""
    return _rust.BlockPool(1, groups=kv_groups).most_pages(num_tokens, 1) * page_bytes


def describe_model(  # noqa: PLR0913 - ways in which it may be loaded
    path: Path,
    licence: str = "unknown",
    kv_type: str = "bf16",
    *,
    mtp: bool = True,
    head: Path | None = None,
    architectures: Mapping[str, BroughtArchitecture] = MappingProxyType({}),
) -> ModelDescription:
    """Read a model's header, for KV in `kv_type`, with or without its head that drafts, or with one of another folder.

    A folder of one of the `architectures` is read as that describes it. Raises `ModelError` saying why the file cannot
    be run, `PluginError` or `ConfigError` where an architecture is at fault.
    """
    family = Family.of(path, architectures)
    inner = None if family is None else family.inner
    try:
        with nullcontext() if family is None else family.named():
            header = _rust.read_model_header(path, arrays=False)
            shape = _rust.describe_model(path, kv_type, mtp=mtp, head=head, family=inner)
            file = _rust.ModelFile(path, family=inner)
    except _rust.ModelFileError as error:
        raise refusal(path, architectures, error) from error
    if family is not None:
        family.check_tables()
    elements = _count_elements(header)
    metadata = header["metadata"]
    quantised = _quantised(file) if path.is_dir() else None
    declared = metadata.get("general.license")
    folder_template = path.is_dir() and any(
        (path / name).is_file() for name in ("chat_template.jinja", "tokenizer_config.json")
    )
    return ModelDescription(
        architecture=shape["architecture"],
        family=_family(path, metadata) or shape["architecture"],
        attention=shape["attention"],
        fault=shape["fault"],
        quantization=quantised[0] if quantised else elements.most_common(1)[0][0],
        num_parameters=quantised[1] if quantised else elements.total(),
        vocab_size=shape["vocab_size"],
        context_length=shape["context_length"],
        num_layers=shape["num_layers"],
        layer_kinds=tuple(shape["layer_kinds"]),
        has_mtp=shape["has_mtp"],
        is_encoder_decoder=shape["is_encoder_decoder"],
        file_bytes=header["file_bytes"],
        weight_bytes=shape["weight_bytes"],
        kv_bytes_per_token=shape["kv_bytes_per_token"],
        kv_groups=tuple(shape["kv_groups"]),
        page_bytes=shape["page_bytes"],
        licence=declared if isinstance(declared, str) else licence,
        has_chat_template="tokenizer.chat_template" in metadata or folder_template,
        runners=_runners(path, file.config, family),
    )


def _runners(path: Path, config: _rust.ModelConfig, family: Family | None) -> tuple[str, ...]:
    """Return the shipped runners that compute a model; of GPT-2 and GPT-NeoX the torch runner describes folders."""
    has_own = config.architecture in {"gpt2", "gptneox"} and path.is_dir()
    is_cpu_only = config.is_cpu_only and not has_own
    if family is not None:
        has_network = family.brought.network is not None
        is_cpu_only = not has_network and (config.is_cpu_only or family.has_score_functions)
    return ("cpu",) if is_cpu_only else ("cpu", "torch")


def _quantised(file: _rust.ModelFile) -> tuple[str, int] | None:
    """Return how a folder's config.json says its weights are quantised, and how many there are; None for plain ones."""
    if file.quantization is None:
        return None
    about: object = json.loads(file.quantization)
    fields = cast("dict[str, object]", about) if isinstance(about, dict) else {}
    kind = [str(fields[key]) for key in ("quant_method", "format", "checkpoint_format", "fmt") if fields.get(key)]
    kind += [f"{fields['bits']} bits"] if fields.get("bits") else []
    shape = file.config
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    ffn = 3 * shape.ffn_size * max(1, shape.num_experts) + shape.num_experts
    layer = shape.hidden_size * (2 * queries + 2 * keys + ffn)
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.is_output_tied else 2)
    return f"{', '.join(kind):.80}", shape.num_layers * layer + embeddings


def _family(path: Path, metadata: Mapping[str, object]) -> str | None:
    """Return what a folder's `config.json`, or a file's metadata, calls the family of the text half."""
    from pyagent.infrastructure.engine.tokens.model_folder import read_json

    config = read_json(path / "config.json") if path.is_dir() else {}
    text: object = config.get("text_config")
    of_text = cast("dict[str, object]", text) if isinstance(text, dict) else {}
    name = of_text.get("model_type") or config.get("model_type") or metadata.get("general.architecture")
    return f"{name:.80}" if isinstance(name, str) else None


_BESIDE_TEXT = {"vision_config": "pictures", "audio_config": "sound"}


def inputs_left_aside(path: Path) -> list[str]:
    """Return what a folder's `config.json` says that the model reads beside text, and the engine does not."""
    from pyagent.infrastructure.engine.tokens.model_folder import read_json

    config = read_json(path / "config.json")
    return [name for key, name in _BESIDE_TEXT.items() if config.get(key)]
