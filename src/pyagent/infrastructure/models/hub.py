"""Models of Hugging Face's hub: fetched by `huggingface_hub` with the user's settings, and compared with its checksums.

The hub's API gives each file's size and digest for one commit; the files are fetched from that commit and hashed. A
fetch that broke off goes on with the files that are whole. Nothing here decides where a model is stored.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import importlib.util
import re
import shutil
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, cast

from pyagent.core.errors import ModelError
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.models.hub_files import folder_files, gguf_files, has_weights, index_of, other_files
from pyagent.infrastructure.models.sources import Progress, folder_bytes, refuse_full

_BLOCK_BYTES = 1 << 20
_LOOK_SECONDS = 0.2
_MAX_LICENCE_CHARS = 60
_MAX_INDEX_BYTES = 64 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")
"""The package makes names of files of it."""
_RECORDS = ".cache"
"""The folder in which the package keeps what it knows of the files, and those that are not whole."""


class _File(Protocol):
    rfilename: str
    size: object
    blob_id: object
    lfs: Mapping[str, object] | None


class _Info(Protocol):
    sha: str | None
    siblings: Sequence[_File] | None
    card_data: object


class _Hub(Protocol):
    """The part of huggingface_hub in use; the package may be absent."""

    def model_info(self, repo_id: str, *, files_metadata: bool) -> _Info: ...

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, local_dir: Path) -> str: ...

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, allow_patterns: list[str], local_dir: Path
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model that was fetched: its file or folder, the SHA-256 of each file by its path, its licence where told."""

    path: Path
    digests: dict[str, str]
    licence: str


def fetch_from_hub(repository: str, folder: Path, name: str, progress: Progress) -> HubModel:
    """Put a repository's model into `folder`: `owner/name` for safetensors, `owner/name/file.gguf`.

    Of a split GGUF model any file is named, and all are fetched. What is whole in the folder already, of an earlier
    try, is not fetched again. `progress` is called in a thread of its own.

    Raises `ModelError` when the model cannot be fetched, or a file's digest is not the hub's: then the folder is empty.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(
            "models from Hugging Face need a package that is not installed: pip install huggingface_hub", model=name
        )
    import huggingface_hub

    pieces = repository.split("/", 2)
    if len(pieces) < 2 or not all(pieces) or ".." in repository.split("/"):
        raise ModelError(f"{name}: expected hf:OWNER/NAME or hf:OWNER/NAME/FILE.gguf", model=name)
    repo_id, file_name = "/".join(pieces[:2]), pieces[2] if len(pieces) == 3 else ""
    if file_name and (not file_name.casefold().endswith(".gguf") or PurePosixPath(file_name).parts[0] == _RECORDS):
        raise ModelError(f"{name}: expected hf:OWNER/NAME/FILE.gguf", model=name)
    try:
        with _without_bars():
            found = _Repository.look(cast("_Hub", huggingface_hub), repo_id)
            found.fetch(found.wanted(name, file_name, folder), folder, progress)
    except ModelError:
        raise
    except Exception as error:
        _clear_pieces(folder)
        text = f"{name} cannot be fetched from Hugging Face: {_reason(error, repo_id)}"
        raise ModelError(text, model=name) from error
    shutil.rmtree(folder / _RECORDS, ignore_errors=True)
    return HubModel(folder / file_name, _checked(folder, found.files, name), found.licence)


def has_whole_files(folder: Path) -> bool:
    """Whether a fetch that broke off left files here that the next one goes on with."""
    return any(path.is_file() for path in folder.rglob("*") if path.relative_to(folder).parts[0] != _RECORDS)


@dataclass(frozen=True, slots=True)
class _Repository:
    """A repository at one commit: its files, and the licence that its card names."""

    hub: _Hub
    id: str
    commit: str
    files: dict[str, _File]
    licence: str

    @classmethod
    def look(cls, hub: _Hub, repo_id: str) -> _Repository:
        """Raise `ModelError` where the hub's answer is none that files can be fetched by."""
        info = hub.model_info(repo_id, files_metadata=True)
        if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
            raise ModelError(f"the hub names no commit of {repo_id}, by which files are fetched", model=repo_id)
        files = {file.rfilename: file for file in info.siblings or ()}
        return cls(hub, repo_id, info.sha, files, _licence(info))

    def wanted(self, name: str, file_name: str, folder: Path) -> list[str]:
        """Return the files of a model. Raises `ModelError` where the repository has no such model."""
        if file_name:
            if wanted := gguf_files(file_name, self.files):
                return wanted
            hint = other_files(file_name, self.files)
            raise ModelError(f"{name}: there is no {file_name} in the repository; {hint}", model=name)
        told = index_of(self.files)
        wanted = folder_files(self.files, self._index(told, folder) if told else None)
        if has_weights(wanted):
            return wanted
        hint = f"name a GGUF file of it: {name}/FILE.gguf; {other_files('', self.files)}"
        raise ModelError(f"{name} has no safetensors, no model.tensors and no pytorch_model.bin; {hint}", model=name)

    def _index(self, name: str, folder: Path) -> bytes:
        path = folder / name
        if _size(self.files[name]) <= _MAX_INDEX_BYTES:
            path = Path(self.hub.hf_hub_download(self.id, name, revision=self.commit, local_dir=folder))
            if path.stat().st_size <= _MAX_INDEX_BYTES:
                return path.read_bytes()
        path.unlink(missing_ok=True)
        raise ModelError(f"{name} of {self.id} is larger than {format_bytes(_MAX_INDEX_BYTES)}", model=self.id)

    def fetch(self, names: Sequence[str], folder: Path, progress: Progress) -> None:
        """Fetch what of these files is not whole in the folder.

        Raises `ModelError` where the disk has no room, or where the hub gave not all of them.
        """
        _clear(folder, names)
        total = sum(_size(self.files[name]) for name in names)
        refuse_full(folder, total - folder_bytes(folder), self.id)
        with _watched(folder, total, progress):
            patterns = [glob.escape(name) for name in names]
            self.hub.snapshot_download(self.id, revision=self.commit, allow_patterns=patterns, local_dir=folder)
        # The package says nothing of files that the hub's list of this commit lacks, and keeps that list.
        if absent := [name for name in names if not (folder / name).is_file()]:
            shutil.rmtree(folder / _RECORDS, ignore_errors=True)
            raise ModelError(f"the hub did not give {absent[0]} of {self.id}; try again later", model=self.id)


def _size(file: _File) -> int:
    """Return a file's bytes as the hub has told them; 0 where it has not."""
    return max(0, file.size) if isinstance(file.size, int) else 0


def _clear_pieces(folder: Path) -> None:
    """Delete what came of files that are not whole: the next fetch begins them anew, and a full disk needs the room."""
    for path in folder.rglob("*.incomplete"):
        path.unlink(missing_ok=True)


def _clear(folder: Path, wanted: Sequence[str]) -> None:
    """Delete what a fetch that broke off left and this one does not want: pieces of files, files of another commit."""
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        is_wanted = relative.as_posix() in wanted or (relative.parts[0] == _RECORDS and path.suffix != ".incomplete")
        if path.is_file() and not is_wanted:
            path.unlink()


@contextlib.contextmanager
def _watched(folder: Path, total: int, progress: Progress) -> Generator[None]:
    """Tell how many bytes of `total` are in the folder while the block runs."""
    is_over = threading.Event()

    def watch() -> None:
        while True:
            progress(min(folder_bytes(folder), total), total)
            if is_over.wait(_LOOK_SECONDS):
                return

    thread = threading.Thread(target=watch, name="pyagent-fetch-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    progress(total, total)


@contextlib.contextmanager
def _without_bars() -> Generator[None]:
    """Have the package draw no bars of its own while the block runs."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()


def _reason(error: Exception, repo_id: str) -> str:
    """Return in one line why a fetch failed."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{repo_id} is gated; accept its terms on its page, and set HF_TOKEN to a token of your account"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no repository {repo_id}, or it is private; check its name, or set HF_TOKEN to a token"
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full; make room, or set paths.models to another disk; whole files stay for the next try"
    return " ".join(str(error).split())


def _licence(info: _Info) -> str:
    """Return what the repository's card says; `unknown` where it says nothing."""
    told = getattr(info.card_data, "license", None)
    return printable(told)[:_MAX_LICENCE_CHARS] if isinstance(told, str) and told.strip() else "unknown"


def _checked(folder: Path, name_to_file: Mapping[str, _File], name: str) -> dict[str, str]:
    """Return each file's SHA-256. Raises `ModelError` naming the file that is not what the hub says."""
    digests: dict[str, str] = {}
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        relative = path.relative_to(folder).as_posix()
        digest, blob_id = _digests(path)
        file = name_to_file.get(relative)
        expected = (file.lfs or {}).get("sha256") or file.blob_id if file is not None else None
        if expected not in (None, digest, blob_id):
            shutil.rmtree(folder)
            raise ModelError(
                f"{relative} of {name} has checksum {digest[:12]}…, expected {str(expected)[:12]}…; it was damaged or "
                "changed on its way and was thrown away; try again",
                model=name,
            )
        digests[relative] = digest
    return digests


def _digests(path: Path) -> tuple[str, str]:
    """Return a file's SHA-256 and its git blob id, by which the hub knows small files."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sha256.update(block)
            blob.update(block)
    return sha256.hexdigest(), blob.hexdigest()
