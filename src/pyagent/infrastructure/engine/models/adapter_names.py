"""The names of adapters: requests name `MODEL:ADAPTER` where they name a model, or `MODEL:A+B` for several that add up.

An entry of `engine.adapters` is of every model that answers, or of one where its key is `MODEL:NAME`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from pyagent.core.adapter_stacks import JOINT, MAX_ADAPTERS

TRIAL = "\n"
"""The end of a key under which an adapter is tried, that no request can name and no list has."""


def split_name(name: str, adapters: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return a model's name and the keys of its adapters, in the order of their own names; none for the bare model."""
    model, _, named = name.rpartition(":")
    if not model or named.count(JOINT) >= MAX_ADAPTERS:
        return name, ()
    keys = [_key_of(model, adapter, adapters) for adapter in named.split(JOINT)]
    if not all(keys) or len(set(keys)) < len(keys):
        return name, ()
    return model, tuple(sorted(keys, key=own_name))


def _key_of(model: str, adapter: str, adapters: Mapping[str, str]) -> str:
    """Return the key of one adapter, empty where there is none."""
    return next((key for key in (f"{model}:{adapter}", adapter) if key in adapters), "")


def own_name(key: str) -> str:
    """Return an adapter's own name, without a model's."""
    return key.rpartition(":")[2].removesuffix(TRIAL)


def adapters_of(model: str, adapters: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of a model's adapters by their own names; one of this model alone goes before one of all."""
    keys = [(*key.rpartition(":")[::2], key) for key in adapters]
    of_all = {name: key for of_model, name, key in keys if not of_model}
    return of_all | {name: key for of_model, name, key in keys if of_model == model}


def names_of(models: Iterable[str], adapters: Mapping[str, str]) -> list[str]:
    """Return the names by which requests name these models' adapters."""
    return [f"{model}:{name}" for model in models for name in adapters_of(model, adapters) if not name.endswith(TRIAL)]


class AdapterPaths:
    """The paths of adapters by their keys: those of `engine.adapters`, and what was loaded and unloaded since.

    `all` is a snapshot, replaced and never changed. Safe from any thread.
    """

    def __init__(self, adapters: Mapping[str, str]) -> None:
        self.all: Mapping[str, str] = dict(adapters)
        self._lock = threading.Lock()

    def put(self, key: str, path: str) -> None:
        """Have a key name what is at a path; an empty path takes the key back."""
        with self._lock:
            others = {name: other for name, other in self.all.items() if name != key}
            self.all = others | ({key: path} if path else {})
