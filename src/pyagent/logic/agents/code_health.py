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
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl

_SKIPPED = frozenset({"__pycache__", "node_modules"})
_BATCH_FILES = 256
"""Files analysed between two looks at whether anybody still waits."""
_ASKS_FOR_HEALTH = re.compile(r"\b(complex\w*|maintainab\w+|code[- ]health)\b", re.IGNORECASE)
_ABOUT_CODE = re.compile(r"\b(functions?|methods?|code|repo(sitory)?|modules?|python|source files?)\b", re.IGNORECASE)


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
        num_errors = sum(1 for file in self.files if file.error)
        unread = f", {num_errors} of them unreadable" if num_errors else ""
        head = f"{len(self.files):,} files{unread}, {self.seconds:.2g} s"
        rows = [f"{row.complexity:>5}  {_short(row.path)}:{row.line}  {row.name}" for row in self.most_complex]
        if not rows:
            return f"{head}; no functions"
        return "\n".join([f"{len(rows)} most complex functions of {head}", *rows])


def _short(path: str) -> str:
    """The path as seen from the working folder, where that is shorter."""
    return min(path, os.path.relpath(path), key=len)


class HealthArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at, and how many of the most complex functions to name."""

    path: str = "."
    top: int = 3


class CodeHealthAgent:
    """Audits Python code."""

    name = "code-health"
    description = "Measures Python code: complexity and maintainability of a file, folder or repository."
    arguments = HealthArguments

    def score(self, task: Task) -> float | None:
        """Asks about the complexity or maintainability of code; never without naming code or a path."""
        is_about_code = bool(task.files or _ABOUT_CODE.search(task.text) or _named_path(task.text))
        found = _ASKS_FOR_HEALTH.search(task.text)
        if found and is_about_code:
            return Score(0.9, f"it asks about {found[0].lower()}, of code")
        return None if is_about_code and not task.files else 0.0

    async def run(self, context: Context, task: Task) -> CodeHealth:
        """The health of the files and folders named."""
        arguments = task.arguments_as(HealthArguments)
        paths: Sequence[str] = task.files
        if not paths:
            paths = [arguments.path if task.arguments else _path_in(task.text)]
        return await audit(paths, top=_top_in(task.text) or arguments.top, progress=context.progress)


async def audit(paths: Sequence[str], *, top: int = 3, progress: Callable[[str], object] = str) -> CodeHealth:
    """The health of files and folders. Raises `RequestError` for a path that is not there."""
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
            FileHealth(path, maintainability, [FunctionHealth(*function) for function in functions], error)
            for path, maintainability, functions, error in rows
        ]
    return CodeHealth(files=files, most_complex=most_complex(files, top), seconds=time.perf_counter() - started)


def most_complex(files: Sequence[FileHealth], count: int) -> list[RankedFunction]:
    """The functions of highest complexity; among equals the first by path and line."""
    rows = [
        RankedFunction(file.path, function.name, function.line, function.complexity)
        for file in files
        for function in file.functions
    ]
    return sorted(rows, key=lambda row: (-row.complexity, row.path, row.line))[:count]


def python_files(path: str) -> Iterator[str]:
    """The Python files of a folder in a fixed order, or the file itself; raises `RequestError` when there is none."""
    root = Path(path).expanduser()
    if root.is_file():
        yield str(root)
    elif not root.is_dir():
        raise RequestError(f"there is no file or folder {path!r}", param="path")
    for folder, inner, names in os.walk(root, followlinks=False):
        inner[:] = sorted(name for name in inner if not _is_skipped(Path(folder, name)))
        for name in sorted(names):
            file = Path(folder, name)
            if name.endswith(".py") and not file.is_symlink():
                yield str(file)


def _is_skipped(folder: Path) -> bool:
    return folder.name in _SKIPPED or folder.name.startswith(".") or (folder / "pyvenv.cfg").is_file()


def _path_in(text: str) -> str:
    """The path a sentence names: all of it, or the word that is one; the working folder when it names none."""
    if Path(text.strip()).expanduser().exists():
        return text.strip()
    named = _named_path(text)
    if named is not None:
        return named
    words = text.split()
    missing = words[:1] if len(words) == 1 else [word for word in words if "/" in word]
    if missing:
        raise RequestError(f"there is no file or folder {missing[0]!r}", param="path")
    return "."


def _named_path(text: str) -> str | None:
    for word in text.split():
        bare = word.strip("\"'`,;:?!()")
        for candidate in (bare, bare.rstrip(".")):
            if ("/" in candidate or candidate.endswith(".py") or candidate == ".") and Path(candidate).exists():
                return candidate
    return None


def _top_in(text: str) -> int | None:
    found = re.search(r"\b(\d{1,4}) (?:\w+ ){0,2}?(?:most|functions|worst)", text)
    return int(found[1]) if found else None


async def _tool(arguments: HealthArguments) -> CodeHealth:
    return await audit([arguments.path], top=arguments.top)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The code-health agent."""
    return [CodeHealthAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The audit as a tool."""
    function: Callable[[HealthArguments], Awaitable[object]] = _tool
    description = "Measures complexity and maintainability of the Python files under a path."
    return [FleetTool("code_health", description, HealthArguments, function)]
