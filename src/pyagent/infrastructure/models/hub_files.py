"""Which files of a hub's repository are a model: what the engine reads of it, and its weights once.

Repositories have more than that: the same weights under another program's names (`consolidated.safetensors`,
`original/`), exported graphs, pictures. Knows no network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

import msgspec

from pyagent.core.nearest import nearest
from pyagent.infrastructure.models.names import TENSORIZER_FILE
from pyagent.infrastructure.models.split_files import set_of

INDEX, TORCH_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
"""Say in which files the weights are, where they are in several."""
_WHOLE, _TORCH_WHOLE = "model.safetensors", "pytorch_model.bin"
_WEIGHTS = "*.safetensors"
_TORCH_WEIGHTS = ("pytorch_model*.bin", "medusa_lm_head.pt")
"""What torch saved: models, and heads of Medusa as its authors publish them."""
_SETTINGS = (
    *("config.json", "generation_config.json", "modules.json", "adapter_config.json", "chat_template.json"),
    *("sentence_bert_config.json", "config_sentence_transformers.json", "preprocessor_config.json"),
    *("quantize_config.json", "quant_config.json", "hf_quant_config.json", "params.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    "tekken.json",
)
"""JSON files that this engine or another reads beside weights; repositories have any number of others."""
_BESIDE = (
    *_SETTINGS,
    "*.jinja",
    "*.tiktoken",
    "tiktoken.model",
    "tokenizer.model",
    "*.model.v[0-9]*",
    "spiece.model",
    "vocab.txt",
)
"""Settings, templates and vocabularies that lie beside weights."""
STEP_FILE = re.compile(r"(\d{1,3}_\w+)/(config\.json|model\.safetensors|pytorch_model\.bin)")
"""A file of a step that sentence-transformers has after the model, such as `1_Pooling/config.json`."""
_OURS = "model.json"
"""What the store keeps beside a model has this name; where a repository has such a file, it is of an exported graph."""
_MAX_SHOWN = 8


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def index_of(there: Collection[str]) -> str | None:
    """Return the index to be looked into, of those that a repository has: what torch saved only without safetensors."""
    if INDEX in there:
        return INDEX
    return TORCH_INDEX if TORCH_INDEX in there and not _like([_WEIGHTS, TENSORIZER_FILE], _at_top(there)) else None


def folder_files(there: Collection[str], index: bytes | None) -> list[str]:
    """Return the files of a model as a folder, of those that a repository has; `index` is what its `index_of` says.

    Without weights among them the repository has no model as a folder.
    """
    at_top = [name for name in _at_top(there) if name not in {_OURS, ".", ".."}]
    forms = ((_WHOLE, (_WEIGHTS,)), (TENSORIZER_FILE, (TENSORIZER_FILE,)), (_TORCH_WHOLE, _TORCH_WEIGHTS))
    whole, patterns = next((form for form in forms if _like(form[1], at_top)), forms[-1])
    weights = _indexed(index, at_top) or ([whole] if whole in at_top else _like(patterns, at_top))
    told = [name for name in (index_of(there),) if name]
    return list(dict.fromkeys([*_like(_BESIDE, at_top), *told, *weights, *_steps(there)]))


def has_weights(files: Iterable[str]) -> bool:
    """Whether some of a folder's files are weights of the model itself."""
    return bool(_like([_WEIGHTS, TENSORIZER_FILE, *_TORCH_WEIGHTS], _at_top(files)))


def _at_top(names: Iterable[str]) -> list[str]:
    return [name for name in names if "/" not in name]


def _steps(there: Collection[str]) -> list[str]:
    """Return the files of steps; what torch saved only where a step has no safetensors."""
    steps = [step for name in there if (step := STEP_FILE.fullmatch(name))]
    return [step[0] for step in steps if step[2] != _TORCH_WHOLE or f"{step[1]}/{_WHOLE}" not in there]


def gguf_files(file_name: str, there: Collection[str]) -> list[str]:
    """Return the files of a GGUF model: of a split one (`NAME-00001-of-00003.gguf`) all; none where it is not there."""
    wanted = set_of(file_name)
    return [name for name in there if set_of(name) == wanted] if wanted else [file_name] if file_name in there else []


def other_files(file_name: str, there: Collection[str]) -> str:
    """Say which GGUF files there are in place of one that is not, the most similar alone where there is such a one."""
    known = sorted(name for name in there if name.endswith(".gguf"))
    if not known:
        return "the repository has no GGUF files"
    if file_name and (like := nearest(file_name.casefold(), folded := {name.casefold(): name for name in known})):
        return f"did you mean {folded[like]}?"
    more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
    return f"there are {', '.join(known[:_MAX_SHOWN])}{more}"


def _indexed(index: bytes | None, at_top: Collection[str]) -> list[str]:
    """Return the files that an index names; none where one is not there, or it is no index."""
    if index is None:
        return []
    try:
        names = set(msgspec.json.decode(index, type=_Index).weight_map.values())
    except (msgspec.MsgspecError, RecursionError):
        return []
    return sorted(names) if names.issubset(at_top) else []


def _like(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
