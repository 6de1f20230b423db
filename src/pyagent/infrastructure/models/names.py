"""The names of models: short ones for files, and the model that a request means by another way to write its name.

A file or folder that the settings name by its path is offered by its file's name, with as many of the folders around it
as tell it from others. Knows nothing of what is in the files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyagent.core.adapter_stacks import JOINT, stack_fault
from pyagent.core.backends import AGENT_PREFIX, LinkSpec
from pyagent.core.errors import RequestError
from pyagent.core.messages import ModelInfo

if TYPE_CHECKING:
    from pyagent.core.settings import Settings

_GGUF, _SAFETENSORS, _LATEST = ".gguf", ".safetensors", ":latest"
TENSORIZER_FILE = "model.tensors"
"""A folder's weights as tensorizer writes them."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_TAKEN = frozenset({"default", "native"})
"""Names that requests have for other things than a file."""
_MAX_SHOWN = 8
_MAX_CHARS = 1000
"""A longer name is none that somebody shortened."""
T = TypeVar("T")


def is_path(name: str) -> bool:
    """Whether a model's name is a path: it says so by its beginning or its ending."""
    if name.startswith("hf:"):
        return False
    return name.startswith((".", "/", "~")) or name.endswith((_GGUF, _SAFETENSORS)) or os.path.isabs(name)


def is_weights(file_name: str) -> bool:
    """Whether a file of this name is one of a folder's weights: of safetensors, of tensorizer, or what torch saved."""
    is_torch = file_name.startswith("pytorch_model") and file_name.endswith(".bin")
    others = (TENSORIZER_FILE, "medusa_lm_head.pt")
    return is_torch or file_name in others or file_name.endswith(_SAFETENSORS)


def place_of(path: str) -> Path:
    """Return where a model's path leads; a `~` of no user stays as it is, and nothing lies there."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def file_names(models: Iterable[str]) -> dict[str, str]:
    """Return the names of those models that are paths, by the paths as they are written.

    The name is the file's without its ending, or the folder's; where that is another's too, the folder before it joins
    it, and so on. Two paths of one file have one name. A file for which no name is left has its path.
    """
    given = dict.fromkeys(models)
    taken = _TAKEN.union(name for name in given if not is_path(name))
    path_to_place = {path: os.path.normpath(place_of(path).absolute()) for path in given if is_path(path)}
    place_to_parts = {place: _parts(place) for place in path_to_place.values()}
    counts = Counter(name for parts in place_to_parts.values() for name in _tails(parts))
    place_to_name = {place: _name(parts, counts, taken) for place, parts in place_to_parts.items()}
    return {path: place_to_name[place] or path for path, place in path_to_place.items()}


def _parts(place: str) -> list[str]:
    """Return the words that name a file, the last one first."""
    *folders, last = place.split("/")
    if last.endswith(_SAFETENSORS):
        *folders, last = folders
    elif folders[-1:] == ["snapshots"] and folders[-2:-1] and folders[-2].startswith("models--"):
        *folders, last = folders[-2].split("--")[1:]  # as the cache of Hugging Face keeps OWNER/NAME
    words = [_SHARD.sub("", last.removesuffix(_GGUF)), *folders[::-1]]
    return [word.replace(":", "-") for word in words]  # else it would read as a scheme, or as an adapter's


def _tails(parts: Sequence[str]) -> Iterator[str]:
    """Yield the file's name, and then with one folder more each time."""
    name = ""
    for part in parts:
        name = f"{part}/{name}" if name else part
        yield name


def _name(parts: Sequence[str], counts: Mapping[str, int], taken: Iterable[str]) -> str:
    """Return the shortest name that no other file has; `counts` says how many files each would be a name of."""
    for part, name in zip(parts, _tails(parts), strict=True):
        if not part or not name.isprintable() or is_path(name):
            return ""
        if name not in taken and counts[name] == 1:
            return name
    return ""


def configured_names(settings: Settings) -> dict[str, str]:
    """Return the names of the files that the settings name as models of the embedded engine, by their paths."""
    links = (LinkSpec.parse(link.use) for link in settings.links)
    return file_names([*settings.engine.models, *(link.target for link in links if link.scheme == "native")])


def by_model_name(table: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Return a table whose keys are models, or `MODEL:ADAPTER`, with the names of those written as paths."""
    renamed = dict[str, T]()
    for key, value in table.items():
        model, colon, adapter = key.rpartition(":")
        renamed[names.get(key) or (f"{names[model]}{colon}{adapter}" if model in names else key)] = value
    return renamed


def find_model(asked: str, models: Sequence[ModelInfo]) -> ModelInfo | None:
    """Return the model that a name means; None where it means none.

    First come the models' own names, their links', and paths of files; then the ends of names after a `/`, in letters
    of either case; then, as Ollama has them, names without their tag; last `MODEL:A+B`, of several adapters. Raises
    `RequestError` where several models are meant, and for a faulty name of several adapters.
    """
    for model in models:
        if asked and asked in {model.id, model.backend, *model.aliases}:
            return model
    if len(asked) > _MAX_CHARS:
        return None
    meant = meant_name(asked, [model.id for model in models if not model.id.startswith(AGENT_PREFIX)])
    if meant is not None:
        return next(model for model in models if model.id == meant)
    return _stack(asked, models) if JOINT in asked else None


def meant_name(asked: str, names: Iterable[str]) -> str | None:
    """Return the name that another way to write it means, of those that there are; None where it means none.

    Raises `RequestError` where several are meant.
    """
    wanted, known = _normal(asked), list(dict.fromkeys(names))
    for whole in (_normal, _untagged):
        meant = [name for name in known if _ends(whole(name), wanted)]
        if len(meant) > 1:
            raise _ambiguous(asked, meant)
        if meant:
            return meant[0]
    return None


def _stack(asked: str, models: Sequence[ModelInfo]) -> ModelInfo | None:
    """Return what is said of several adapters' model, as it is with the first of them."""
    name_to_info = {name: info for info in reversed(models) for name in (info.id, info.backend, *info.aliases)}
    fault = stack_fault(asked, name_to_info)
    if fault:
        raise RequestError(fault, param="model", code="model_not_found")
    if fault is None:
        return None
    model, _, adapters = asked.rpartition(":")
    one, _, others = adapters.partition(JOINT)
    first = name_to_info[f"{model}:{one}"]
    own, backend = (f"{name}{JOINT}{others}" for name in (first.id, first.backend))
    return msgspec.structs.replace(first, id=own, backend=backend, is_loaded=None, size_bytes=None, aliases=())


def _normal(name: str) -> str:
    return name.casefold().removeprefix("hf:").removesuffix(_LATEST).removesuffix(_GGUF)


def _untagged(name: str) -> str:
    return _normal(name).rpartition(":")[0]


def _ends(name: str, wanted: str) -> bool:
    return bool(wanted) and f"/{name}".endswith(f"/{wanted}")


def _ambiguous(asked: str, names: Sequence[str]) -> RequestError:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    candidates = ", ".join(names[:_MAX_SHOWN]) + more
    text = f"model {asked!r:.200} may be any of {candidates}; name one of them"
    return RequestError(text, param="model", code="model_not_found")
