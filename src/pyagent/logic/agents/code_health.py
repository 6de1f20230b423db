"""The code-health agent: complexity and maintainability of every Python file under a folder, and the worst functions.

Cyclomatic complexity is counted as C901 does and the maintainability index as radon defines it, in Rust. Here files are
found and results ranked. Walks into no hidden folder, environment or cache below the folder given, and follows no link.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import find_path, readable_path, shown_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.documents import short_path

_SKIPPED = frozenset({"__pycache__", "node_modules"})
_MAX_UNREAD = 20
_DEFAULT_TOP = 3
_BATCH_FILES = 256
"""Files analysed between two looks at whether anybody still waits."""
_ASKS_FOR_HEALTH = re.compile(
    r"(?<!time )(?<!space )\bcomplexity\b(?! theory)|\b(?:most|least|more|less|too|so|how|overly|cyclomatic) complex\w*"
    r"|\bmaintainab\w+|\bcode[- ](?:health|quality)\b",
    re.IGNORECASE,
)
_REVIEWS = re.compile(
    r"\b(?:review|audit|check|lint|inspect|measure|refactor\w*|quality|health|smells?|clean)\b|\bcomplex|\bmaintainab",
    re.IGNORECASE,
)
_ABOUT_CODE = re.compile(
    r"\b(functions?|methods?|code|codebase|repo(sitory)?|modules?|python|source files?)\b", re.IGNORECASE
)


class FunctionHealth(msgspec.Struct, frozen=True):
    """A function, the line it starts on, and its cyclomatic complexity."""

    name: str
    line: int
    complexity: int


class FileHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file. `maintainability` goes from 0 to 100; it is None when the file could not be read, with the `error`."""

    path: str
    maintainability: float | None
    functions: list[FunctionHealth]
    error: str | None = None


class RankedFunction(msgspec.Struct, frozen=True):
    """A function among the most complex."""

    path: str
    name: str
    line: int
    complexity: int


class CodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """All files, and the most complex functions, the worst first."""

    files: list[FileHealth]
    most_complex: list[RankedFunction]
    seconds: float

    def __str__(self) -> str:
        unread = [file for file in self.files if file.error]
        known = [file for file in self.files if file.maintainability is not None]
        head = f"{len(self.files):,} file{'' if len(self.files) == 1 else 's'}" + (
            f", {len(unread)} of them unreadable" if unread else ""
        )
        lines = [f"{head}, {self.seconds:.2g} s"]
        if self.most_complex:
            count = len(self.most_complex)
            lines[0] = (
                f"{count} most complex functions of {lines[0]}" if count > 1 else f"most complex function of {lines[0]}"
            )
            lines += [
                f"{row.complexity:>5}  {short_path(row.path)}:{row.line}  {row.name}" for row in self.most_complex
            ]
        elif not any(file.functions for file in known):
            lines[0] += "; no functions"
        if known:
            lines.append(_maintainability(known, len(self.most_complex)))
        lines += [f"unreadable: {short_path(file.path)}: {file.error}" for file in unread[:_MAX_UNREAD]]
        if len(unread) > _MAX_UNREAD:
            lines.append(f"unreadable: and {len(unread) - _MAX_UNREAD:,} more")
        return "\n".join(lines)


def _maintainability(files: Sequence[FileHealth], count: int) -> str:
    """Return the mean of the files, and the files that are worst, on a line each."""
    ranked = sorted(files, key=lambda file: (file.maintainability or 0.0, file.path))
    mean = sum(file.maintainability or 0.0 for file in files) / len(files)
    rows = [f"{file.maintainability:>5.0f}  {short_path(file.path)}" for file in ranked[:count]]
    return "\n".join([f"maintainability {mean:.0f} of 100" + (", lowest:" if rows else ""), *rows])


class HealthArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at (the working folder), and how many of the most complex functions to name (3)."""

    path: str | None = None
    top: int | None = None


class CodeHealthAgent:
    """Audits Python code."""

    name = "code-health"
    description = "Measures Python code: complexity and maintainability of a file, folder or repository."
    is_pure = True
    arguments = HealthArguments

    def score(self, task: Task) -> float:
        """Asks about the complexity or maintainability of code, to review Python files, or is just a path to them."""
        text = task.text.strip()
        has_code = bool(task.files) and all(name.endswith(".py") for name in task.files)
        if has_code and (not text or _REVIEWS.search(text)):
            return Score(0.9, "it is Python code to be reviewed")
        is_about_code = bool(has_code or (not task.files and (_ABOUT_CODE.search(text) or _named_path(text))))
        if is_about_code and (found := _ASKS_FOR_HEALTH.search(text)):
            return Score(0.9, f"it asks about {found[0].lower()}, of code")
        path = _named_path(text) or (text if text.isidentifier() and _is_folder(text) else None)
        is_code = path is not None and (path.endswith(".py") or _is_folder(path))
        if is_code and not task.files and (_REVIEWS.search(text) or text == path):
            return Score(0.8, f"it names {path}")
        return 0.0

    async def run(self, context: Context, task: Task) -> CodeHealth:
        """Return the health of the files and folders named."""
        arguments = task.arguments_as(HealthArguments)
        paths: Sequence[str] = task.files or [_path_asked(task, arguments.path)]
        top = arguments.top if arguments.top is not None else _top_in(task.text)
        return await audit(paths, top=_DEFAULT_TOP if top is None else top, progress=context.progress)


async def audit(
    paths: Sequence[str], *, top: int = _DEFAULT_TOP, progress: Callable[[str], object] = str
) -> CodeHealth:
    """Return the health of files and folders. Raises `RequestError` for a path that is not there."""
    from pyagent import _rust

    if top < 0:
        raise RequestError(f"top must be 0 or more, got {top}", param="top")
    started = time.perf_counter()
    found = await asyncio.to_thread(lambda: list(dict.fromkeys(file for path in paths for file in python_files(path))))
    if not found:
        raise RequestError(f"there are no Python files in {', '.join(paths)}", param="path")
    progress(f"{len(found):,} files")
    files: list[FileHealth] = []
    for start in range(0, len(found), _BATCH_FILES):
        batch = found[start : start + _BATCH_FILES]
        rows = await asyncio.to_thread(_rust.analyse_code, batch, os.cpu_count() or 1)
        files += [
            FileHealth(shown_path(path), maintainability, [FunctionHealth(*function) for function in functions], error)
            for path, maintainability, functions, error in rows
        ]
    return CodeHealth(files=files, most_complex=most_complex(files, top), seconds=time.perf_counter() - started)


def most_complex(files: Sequence[FileHealth], count: int) -> list[RankedFunction]:
    """Return the functions of highest complexity; among equals the first by path and line."""
    rows = [
        RankedFunction(file.path, function.name, function.line, function.complexity)
        for file in files
        for function in file.functions
    ]
    return sorted(rows, key=lambda row: (-row.complexity, row.path, row.line))[:count]


def python_files(path: str) -> Iterator[str]:
    """The Python files of a folder in a fixed order, or the file itself; raises `RequestError` when there is none."""
    root = readable_path(path)
    if root.is_file():
        yield str(root)
    for folder, inner, names in os.walk(root, followlinks=False):
        inner[:] = sorted(name for name in inner if not _is_skipped(Path(folder, name)))
        for name in sorted(names):
            file = Path(folder, name)
            if name.endswith(".py") and not file.is_symlink():
                yield str(file)


def _is_skipped(folder: Path) -> bool:
    return folder.name in _SKIPPED or folder.name.startswith(".") or (folder / "pyvenv.cfg").is_file()


def _path_asked(task: Task, path: str | None) -> str:
    """Return the path named as an option or in the text; raises `RequestError` for two of them."""
    if path is None:
        return _path_in(task.text)
    if task.text.strip():
        raise RequestError(f"name one path: {task.text.strip()[:80]!r} or path={path!r}", param="path")
    return path


def _path_in(text: str) -> str:
    """Return the path a sentence names: all of it, or the word that is one; the working folder when it names none."""
    if text.strip() and find_path(text.strip()) is not None:
        return text.strip()
    named = _named_path(text)
    if named is not None:
        return named
    words = text.split()
    missing = words[:1] if len(words) == 1 else [word for word in words if "/" in word]
    if missing:
        raise RequestError(f"there is no file or folder {missing[0]!r}", param="path")
    return "."


def _is_folder(name: str) -> bool:
    path = find_path(name)
    return path is not None and path.is_dir()


def _named_path(text: str) -> str | None:
    for word in text.split():
        bare = word.strip("\"'`,;:?!()")
        for candidate in (bare, bare.rstrip(".")):
            if ("/" in candidate or candidate.endswith(".py") or candidate == ".") and find_path(candidate):
                return candidate
    return None


def _top_in(text: str) -> int | None:
    found = re.search(r"\b(\d{1,4}) (?:\w+ ){0,2}?(?:most|functions|worst)", text)
    return int(found[1]) if found else None


async def _tool(arguments: HealthArguments) -> CodeHealth:
    return await audit([arguments.path or "."], top=_DEFAULT_TOP if arguments.top is None else arguments.top)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The code-health agent."""
    return [CodeHealthAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The audit as a tool."""
    function: Callable[[HealthArguments], Awaitable[object]] = _tool
    description = "Measures complexity and maintainability of the Python files under a path."
    return [FleetTool("code_health", description, HealthArguments, function, effect="none")]
