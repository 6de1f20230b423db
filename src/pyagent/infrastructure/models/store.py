"""The model store: one folder per model, complete or absent.

A model is fetched into a folder of its own with a name nobody looks for, checked, and renamed into place in one step; a
fetch that dies leaves nothing behind that could be taken for a model, and the next one clears it away.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.sources import CATALOG, Progress, WheelSource, fetch_from_hub

_PARTIAL = ".partial-"
_MANIFEST = "model.json"


class Manifest(msgspec.Struct, frozen=True):
    """What the store knows of a model: its name, its file (or "." for a folder), where it came from, its licence."""

    name: str
    file: str
    source: str
    licence: str = "unknown"
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store."""

    manifest: Manifest
    path: Path
    size_bytes: int


class ModelStore:
    """Models in a folder. Cheap to make; nothing is touched before a method is called."""

    def __init__(self, folder: Path, catalog: dict[str, WheelSource] | None = None) -> None:
        self.folder = folder
        self.catalog = CATALOG if catalog is None else catalog

    def list(self) -> list[StoredModel]:
        """Every model in the store, by name."""
        if not self.folder.is_dir():
            return []
        entries = [self._read(entry) for entry in self.folder.iterdir() if not entry.name.startswith(".")]
        return sorted((model for model in entries if model), key=lambda model: model.manifest.name)

    def find(self, name: str) -> StoredModel | None:
        """The model of this name, if the store has it."""
        return self._read(self.folder / _folder_name(name))

    def locate(self, name: str, progress: Progress | None = None) -> Path:
        """The file or folder to load for a name or path, fetched first when it is a known name.

        Raises `ModelError` naming what was looked for, what is there, and what to do.
        """
        if is_path(name):
            path = Path(name).expanduser()
            if not path.exists():
                raise ModelError(f"model file {path} does not exist; give the path of a GGUF file or a safetensors folder", model=name)
            return path
        found = self.find(name)
        return found.path if found else self.pull(name, progress).path

    def pull(self, name: str, progress: Progress | None = None) -> StoredModel:
        """Fetch a model by name (`smollm2:135m`, `hf:owner/name`, `hf:owner/name/file.gguf`) unless it is there."""
        if found := self.find(name):
            return found
        if name not in self.catalog and not name.startswith("hf:"):
            raise self._unknown(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_partial()
        partial = self.folder / f"{_PARTIAL}{os.getpid()}-{_folder_name(name)}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            manifest = self._fetch(name, partial, progress or (lambda done, total: None))
            (partial / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
            target = self.folder / _folder_name(name)
            try:
                partial.rename(target)
            except OSError:
                if not self.find(name):  # else somebody else was faster: theirs is as good
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        stored = self.find(name)
        if stored is None:
            raise ModelError(f"{name} was fetched but cannot be read back from {self.folder}", model=name)
        return stored

    def remove(self, name: str) -> StoredModel:
        """Delete a model from the store; returns what was deleted."""
        found = self.find(name)
        if found is None:
            have = ", ".join(model.manifest.name for model in self.list()) or "none"
            raise ModelError(f"{name} is not in the store; there are: {have}", model=name)
        folder = self.folder / _folder_name(name)
        doomed = self.folder / f"{_PARTIAL}{os.getpid()}-removed-{folder.name}"
        folder.rename(doomed)
        shutil.rmtree(doomed)
        return found

    def _fetch(self, name: str, folder: Path, progress: Progress) -> Manifest:
        source = self.catalog.get(name)
        if source is None:
            path = fetch_from_hub(name.removeprefix("hf:"), folder, name)
            file = "." if path.is_dir() else path.name
            return Manifest(name=name, file=file, source="Hugging Face")
        path = source.fetch(folder, progress)
        return Manifest(name, path.name, ", ".join(source.requirements), source.licence, source.sha256)

    def _read(self, folder: Path) -> StoredModel | None:
        try:
            manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError):
            return None
        path = folder / manifest.file
        if not path.exists():
            return None
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return StoredModel(manifest, path, sum(file.stat().st_size for file in files))

    def _clear_partial(self) -> None:
        """Delete what fetches that died left behind."""
        for entry in self.folder.glob(f"{_PARTIAL}*"):
            owner = re.match(rf"{re.escape(_PARTIAL)}(\d+)-", entry.name)
            if owner and not _is_alive(int(owner[1])):
                shutil.rmtree(entry, ignore_errors=True)

    def _unknown(self, name: str) -> ModelError:
        known = sorted({*self.catalog, *(model.manifest.name for model in self.list())})
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}, hf:OWNER/NAME, or a file's path"
        return ModelError(f"model {name!r} is not known; {hint}", model=name)


def is_path(name: str) -> bool:
    """Whether a model's name is a path: it says so by its beginning or its ending."""
    return name.startswith((".", "/", "~")) or name.endswith((".gguf", ".safetensors")) or os.path.isabs(name)


def _folder_name(name: str) -> str:
    """A model's name as a folder's: unique, and harmless whatever was typed."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: f"%{ord(match[0]):02x}", name).lstrip(".") or "%"


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
