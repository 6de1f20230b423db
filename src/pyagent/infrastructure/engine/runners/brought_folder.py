"""The `config.json` of a folder whose `model_type` is that of a plugin's architecture: found, bounded, and watched."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import BroughtArchitecture

_MOST_CONFIG_BYTES = 16 << 20


class ReadFields(Mapping[str, Any]):
    """A `config.json` that knows which of its fields were looked at."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._read: set[str] = {"model_type"}

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field; null is as if it were not there."""
        self._read.add(key)
        value = self._fields.get(key)
        return default if value is None else value

    def check_read(self, path: Path, architecture: str, read_by_others: Collection[str] = ()) -> None:
        """Raise `ModelError` for a field that says something and was not looked at, if it may change a number."""
        known = {*self._read, *read_by_others, *_rust.TensorFile.irrelevant_fields()}
        unsaid: tuple[object, ...] = (None, False, {}, [])
        unread = [name for name, value in self._fields.items() if name not in known and value not in unsaid]
        if unread:
            field = unread[0]
            text = (
                f"{path}: config.json: {field!r} is not implemented for {architecture}, and ignoring it may change the "
                f"model's answers; what reads {architecture} must use it, or look at it by config.get({field!r}) where "
                "it changes no number"
            )
            raise ModelError(text, model=str(path))


class BroughtFolder(NamedTuple):
    """A folder's fields, and the architecture that they name."""

    fields: ReadFields
    brought: BroughtArchitecture


def brought_folder(path: Path, architectures: Mapping[str, BroughtArchitecture]) -> BroughtFolder | None:
    """Return what a folder's `config.json` says, if its `model_type` is one of the architectures; else None."""
    try:
        fields = json.loads(_config_text(path))
    except (OSError, ValueError, RecursionError):
        return None  # opened as any other, it is refused with what is wrong
    name = cast("dict[str, Any]", fields).get("model_type") if isinstance(fields, dict) else None
    brought = architectures.get(name) if isinstance(name, str) else None
    return None if brought is None else BroughtFolder(ReadFields(_of_text(cast("dict[str, Any]", fields))), brought)


def _of_text(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's text half: those of `text_config`, where it is one of several, beside the rest."""
    text = fields.get("text_config")
    if not isinstance(text, dict):
        return fields
    named = cast("dict[str, Any]", text)
    is_tied = bool(fields.get("tie_word_embeddings")) or bool(named.get("tie_word_embeddings"))
    others = {name: value for name, value in fields.items() if name != "text_config"}
    return others | named | {"model_type": fields["model_type"], "tie_word_embeddings": is_tied}


def _config_text(path: Path) -> bytes:
    """Return a folder's `config.json`: nothing where it is no file, which may never end, or too long for one."""
    file = path / "config.json"
    if not file.is_file() or file.stat().st_size > _MOST_CONFIG_BYTES:
        return b""
    return file.read_bytes()
