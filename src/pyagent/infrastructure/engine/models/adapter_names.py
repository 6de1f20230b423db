"""The names of adapters: requests name `MODEL:ADAPTER` where they name a model.

An entry of `engine.adapters` is of every model that answers, or of one where its key is `MODEL:NAME`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

TRIAL = "\n"
"""The end of a key under which an adapter is tried, that no request can name and no list has."""


def split_name(name: str, adapters: Mapping[str, str]) -> tuple[str, str]:
    """Return a model's name and the key of its adapter, empty for the bare model."""
    model, colon, adapter = name.rpartition(":")
    if colon and model:
        if name in adapters:
            return model, name
        if adapter in adapters:
            return model, adapter
    return name, ""


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
