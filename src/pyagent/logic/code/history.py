"""The trend of a folder's code over its commits, read from git's objects; nothing is checked out.

Git runs with the user's own settings switched off where they would start programs: a repository is hostile input.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from shutil import which

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import current_access, shown_path
from pyagent.logic.code.health import FileHealth, Hotspot, Snapshot, Trend
from pyagent.logic.code.outline import language_of

MAX_SNAPSHOTS = 100
MAX_COMMITS = 10_000
"""Of the newest commits: those that the snapshots are chosen from, and that hotspots are counted over."""
_MAX_BLOB_BYTES = 1_000_000
_MAX_TOTAL_BYTES = 512 << 20
_BATCH_BLOBS = 500
_GIT_SECONDS = 120.0
_COMPLEX = 10
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "protocol.allow=never")
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}

Analyse = Callable[[Sequence[str]], Sequence[FileHealth | str]]


class _Blob(msgspec.Struct, frozen=True):
    """A version of a file: the name that git keeps it under, its size, and the suffix of its path."""

    digest: str
    size: int
    suffix: str


async def read_trend(
    path: Path, count: int, files: Sequence[FileHealth], analyse: Analyse, progress: Callable[[str], object]
) -> Trend:
    """Return `count` snapshots of the code below a path, evenly over its commits, and its hotspots.

    Raises `RequestError` for a path in no repository, for one without commits, or when git is not installed.
    """
    if current_access().is_limited:  # a folder's .git may point to any repository of this machine
        raise RequestError("history is told to a person at this machine only", param="history")
    if not 1 <= count <= MAX_SNAPSHOTS:
        raise RequestError(f"history must be from 1 to {MAX_SNAPSHOTS}, got {count}", param="history")
    reader = await asyncio.to_thread(_Repository, path)
    commits = await asyncio.to_thread(reader.commits)
    if not commits:
        raise RequestError(f"{shown_path(str(path))} has no commits", param="history")
    chosen = _evenly(commits, count)
    trees = [await asyncio.to_thread(reader.blobs, commit) for commit, _ in chosen]
    unique = {blob.digest: blob for tree in trees for blob in tree}
    if sum(blob.size for blob in unique.values()) > _MAX_TOTAL_BYTES:
        raise RequestError(
            f"the commits hold more than {_MAX_TOTAL_BYTES >> 20} MiB of code: ask for fewer", param="history"
        )
    known: dict[str, FileHealth] = {}
    blobs = list(unique.values())
    for start in range(0, len(blobs), _BATCH_BLOBS):
        known |= await asyncio.to_thread(reader.analyse, blobs[start : start + _BATCH_BLOBS], analyse)
        progress(f"history: {min(start + _BATCH_BLOBS, len(blobs)):,} of {len(blobs):,} versions of files")
    snapshots = [
        _snapshot(commit, date, [known[b.digest] for b in tree if b.digest in known])
        for (commit, date), tree in zip(chosen, trees, strict=True)
    ]
    changes = await asyncio.to_thread(reader.changes)
    spots = [
        Hotspot(shown_path(file.path), changes[name], file.complexity)
        for file in files
        if (name := reader.name(file.path)) in changes
    ]
    spots = sorted(
        (spot for spot in spots if spot.complexity), key=lambda spot: (-spot.commits * spot.complexity, spot.path)
    )
    return Trend(snapshots, spots, len(commits))


def _evenly(commits: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Return `count` of the commits, the oldest first, with the first and the last among them."""
    oldest_first = commits[::-1]
    if count == 1 or len(commits) == 1:
        return [oldest_first[-1]]
    steps = min(count, len(commits)) - 1
    return [oldest_first[math.floor(step * (len(commits) - 1) / steps + 0.5)] for step in range(steps + 1)]


def _snapshot(commit: str, seconds: int, files: Sequence[FileHealth]) -> Snapshot:
    indices = [file.maintainability for file in files if file.maintainability is not None]
    functions = [function for file in files for function in file.functions]
    return Snapshot(
        commit=commit,
        date=datetime.fromtimestamp(seconds, UTC).date().isoformat(),
        files=len(files),
        functions=len(functions),
        complexity=sum(function.complexity for function in functions),
        complex_functions=sum(function.complexity > _COMPLEX for function in functions),
        maintainability=sum(indices) / len(indices) if indices else None,
    )


class _Repository:
    """The repository that a path lies in."""

    def __init__(self, path: Path) -> None:
        self._root = path if path.is_dir() else path.parent
        self._root = Path(os.fsdecode(self._git("rev-parse", "--show-toplevel").rstrip(b"\n"))).resolve()
        self._inside = self.name(str(path.resolve()))

    def name(self, path: str) -> str:
        """Return a path as git names it."""
        full = Path(path).resolve()
        return full.relative_to(self._root).as_posix() if full.is_relative_to(self._root) else ""

    def commits(self) -> list[tuple[str, int]]:
        """Return the newest commits that touch the path, with their times, the newest first."""
        said = self._git(
            "rev-list", "--first-parent", f"--max-count={MAX_COMMITS}", "--timestamp", "HEAD", "--", self._inside
        )
        rows = (line.split() for line in said.decode().splitlines())
        return [(commit, int(seconds)) for seconds, commit in rows]

    def changes(self) -> Counter[str]:
        """Return how many of the newest commits touched each file."""
        commits = self._git("rev-list", "--no-merges", f"--max-count={MAX_COMMITS}", "HEAD", "--", self._inside)
        words = (
            "diff-tree",
            "--stdin",
            "--root",
            "-r",
            "--name-only",
            "--no-commit-id",
            "--no-ext-diff",
            "-z",
            "--",
            self._inside,
        )
        return Counter(os.fsdecode(name) for name in self._git(*words, said=commits).split(b"\0") if name)

    def blobs(self, commit: str) -> list[_Blob]:
        """Return the files of code that a commit has below the path."""
        where = ("--", self._inside) if self._inside != "." else ()
        found: list[_Blob] = []
        for row in self._git("ls-tree", "-r", "-z", "--long", "--full-tree", commit, *where).split(b"\0"):
            about, _, name = row.partition(b"\t")
            path = PurePosixPath(os.fsdecode(name))
            if (
                not row
                or language_of(path.name) in {"", "Markdown"}
                or any(part.startswith(".") for part in path.parts)
            ):
                continue
            mode, kind, digest, size = about.decode().split()
            if kind == "blob" and mode != "120000" and int(size) <= _MAX_BLOB_BYTES:
                found.append(_Blob(digest, int(size), path.suffix.lower()))
        return found

    def analyse(self, blobs: Sequence[_Blob], analyse: Analyse) -> dict[str, FileHealth]:
        """Return the metrics of each version of a file, by its digest; those that cannot be read have none."""
        contents = self._git("cat-file", "--batch", said="".join(f"{blob.digest}\n" for blob in blobs).encode())
        with tempfile.TemporaryDirectory(prefix="pyagent-") as folder:
            paths: dict[str, str] = {}
            at = 0
            for blob in blobs:
                begin = contents.index(b"\n", at) + 1
                at = begin + blob.size + 1
                path = Path(folder, f"{blob.digest}{blob.suffix}")
                path.write_bytes(contents[begin : begin + blob.size])
                paths[str(path)] = blob.digest
            found = analyse(list(paths))
        return {paths[file.path]: file for file in found if not isinstance(file, str)}

    def _git(self, *words: str, said: bytes = b"") -> bytes:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        git = which("git")
        if git is None:
            raise RequestError("history needs git, which is not installed", param="history")
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and paths are literal
                [git, "--no-pager", "--literal-pathspecs", *settings, "-C", self._root, *words],
                input=said,
                capture_output=True,
                check=False,
                timeout=_GIT_SECONDS,
                env={**os.environ, **_ENVIRONMENT},
            )
        except subprocess.TimeoutExpired:
            raise RequestError(
                f"git took longer than {_GIT_SECONDS:.0f} s: ask for less history", param="history"
            ) from None
        if done.returncode:
            fault = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"])[0]
            raise RequestError(f"git says of {self._root}: {fault}", param="history")
        return done.stdout
