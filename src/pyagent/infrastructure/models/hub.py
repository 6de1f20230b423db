"""Models of Hugging Face's hub: fetched by `huggingface_hub` with the user's settings, and compared with its checksums.

The hub's API gives each file's digest for one commit; the files are fetched from that commit and hashed. Nothing here
decides where a model is stored.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.split_files import set_of

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
_BLOCK_BYTES = 1 << 20


class _File(Protocol):
    rfilename: str
    size: int | None
    blob_id: str | None
    lfs: Mapping[str, object] | None


class _Info(Protocol):
    sha: str | None
    siblings: Sequence[_File] | None


class _Hub(Protocol):
    """The part of huggingface_hub in use; the package may be absent."""

    def model_info(self, repo_id: str, *, files_metadata: bool) -> _Info: ...

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, local_dir: Path) -> str: ...

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, allow_patterns: list[str], local_dir: Path
    ) -> str: ...


def fetch_from_hub(repository: str, folder: Path, name: str) -> tuple[Path, dict[str, str]]:
    """Put a repository's model into `folder`: `owner/name` for safetensors, `owner/name/file.gguf`.

    Of a split GGUF model any file is named, and all are fetched.

    Return the model's file or folder, and the SHA-256 of each file by its path in `folder`. Raises `ModelError` when
    the model cannot be fetched, or a file's digest is not the hub's.
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
    hub = cast("_Hub", huggingface_hub)
    try:
        info = hub.model_info(repo_id, files_metadata=True)
        if file_name:
            for each in _files_of(file_name, [file.rfilename for file in info.siblings or ()]):
                hub.hf_hub_download(repo_id, each, revision=info.sha, local_dir=folder)
            path = folder / file_name
        else:
            path = Path(hub.snapshot_download(repo_id, revision=info.sha, allow_patterns=_PATTERNS, local_dir=folder))
    except Exception as error:
        raise ModelError(f"{name} cannot be fetched from Hugging Face: {error}", model=name) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the package's records of the download
    if not file_name and not any(path.glob("*.safetensors")):
        raise ModelError(f"{name} has no safetensors files; name a GGUF file of it: {name}/FILE.gguf", model=name)
    return path, _checked(folder, {file.rfilename: file for file in info.siblings or ()}, name)


def _files_of(file_name: str, there: Sequence[str]) -> list[str]:
    """Return the files of a model: of a split one (`NAME-00001-of-00003.gguf`) all that are there."""
    wanted = set_of(file_name)
    return [name for name in there if set_of(name) == wanted] if wanted else [file_name]


def _checked(folder: Path, name_to_file: Mapping[str, _File], name: str) -> dict[str, str]:
    """Return each file's SHA-256. Raises `ModelError` naming the file that is not what the hub says."""
    digests: dict[str, str] = {}
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        relative = path.relative_to(folder).as_posix()
        digest, blob_id = _digests(path)
        file = name_to_file.get(relative)
        expected = (file.lfs or {}).get("sha256") or file.blob_id if file is not None else None
        if expected not in {None, digest, blob_id}:
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
