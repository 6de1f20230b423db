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
from pyagent.infrastructure.models.split_files import set_of

INDEX = "model.safetensors.index.json"
"""Says in which files the weights are, where they are in several."""
_WHOLE = "model.safetensors"
_WEIGHTS = "*.safetensors"
_BESIDE = ("*.json", "*.jinja", "*.tiktoken", "tiktoken.model", "tokenizer.model", "*.model.v[0-9]*", "vocab.txt")
"""Settings, templates and vocabularies that lie beside weights."""
_STEP = re.compile(r"\d+_\w+/([^/]+)")
"""A file of a step that sentence-transformers has after the model, such as `1_Pooling/config.json`."""
_OURS = "model.json"
"""What the store keeps beside a model has this name; where a repository has such a file, it is of an exported graph."""
_MAX_SHOWN = 8


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def folder_files(there: Collection[str], index: bytes | None) -> list[str]:
    """Return the files of a model as a folder, of those that a repository has; `index` is what its `INDEX` says.

    Without weights among them the repository has no model as a folder.
    """
    at_top = [name for name in there if "/" not in name and name not in {_OURS, ".", ".."}]
    weights = _indexed(index, at_top) or ([_WHOLE] if _WHOLE in at_top else _like([_WEIGHTS], at_top))
    steps = [name for name in there if (step := _STEP.fullmatch(name)) and _like(["*.json", _WEIGHTS], [step[1]])]
    return list(dict.fromkeys([*_like(_BESIDE, at_top), *weights, *steps]))


def has_weights(files: Iterable[str]) -> bool:
    """Whether some of a folder's files are weights of the model itself."""
    return any("/" not in name and fnmatchcase(name, _WEIGHTS) for name in files)


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
