"""Audits files and folders of code: Python in Rust, JavaScript, TypeScript, Rust and Go by tree-sitter."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import current_access, readable_path, shown_path
from pyagent.logic.code.folders import files_below
from pyagent.logic.code.health import (
    CodeHealth,
    Duplicate,
    FileHealth,
    FunctionHealth,
    Place,
    RankedFunction,
    UnnamedFunction,
)
from pyagent.logic.code.history import read_trend
from pyagent.logic.code.outline import language_of

_BATCH_FILES = 256
"""Files analysed between two looks at whether anybody still waits."""
MIN_DUPLICATE_LINES = 10
_MAX_TREE_BYTES = 400_000
"""Longer files of other languages than Python were written by programs; the worst take tree-sitter 18 s a megabyte."""
_ALSO_READ = frozenset(
    (".cfg", ".css", ".html", ".ini", ".json", ".sh", ".svelte", ".toml", ".vue", ".xml", ".yaml", ".yml")
)
"""Suffixes of texts that name functions, besides those of code."""
_NAMED_BY_OTHERS = (
    "test",
    "Test",
    "Benchmark",
    "Example",
    "Fuzz",
    "setUp",
    "tearDown",
    "visit_",
    "do_",
    "pytest_",
    "pyagent_",
)
"""How names begin that frameworks look for."""


def code_files(path: str) -> Iterator[str]:
    """Yield a folder's files of code in a fixed order, or the file itself; raises `RequestError` for no such path."""
    for file in files_below(readable_path(path), lambda name: language_of(name) not in {"", "Markdown"}):
        yield str(file)


async def audit(
    paths: Sequence[str],
    *,
    top: int = 3,
    min_lines: int = MIN_DUPLICATE_LINES,
    history: int = 0,
    progress: Callable[[str], object] = str,
) -> CodeHealth:
    """Return the health of files and folders, with the trend over `history` commits of the first's repository.

    Raises `RequestError` for a path that is not there, has no code or, with `history`, is in no repository.
    """
    if top < 0:
        raise RequestError(f"top must be 0 or more, got {top}", param="top")
    if min_lines < 2:
        raise RequestError(f"duplicate_lines must be 2 or more, got {min_lines}", param="duplicate_lines")
    started = time.perf_counter()
    found = await asyncio.to_thread(lambda: list(dict.fromkeys(file for path in paths for file in code_files(path))))
    if not found:
        raise RequestError(f"there are no files of code in {', '.join(paths)}", param="path")
    progress(count_text := f"{len(found):,} files")
    files: list[FileHealth] = []
    not_read: Counter[str] = Counter()
    told = 0
    for start in range(0, len(found), _BATCH_FILES):
        for file in await asyncio.to_thread(analyse, found[start : start + _BATCH_FILES]):
            if isinstance(file, str):
                not_read[file] += 1
            else:
                files.append(file)
        if start - told >= max(len(found) // 10, 4 * _BATCH_FILES):
            told = start
            progress(f"{start:,} of {count_text}")
    duplicates = await asyncio.to_thread(_duplicates, found, min_lines)
    unnamed = await asyncio.to_thread(_unnamed, files, found, paths)
    trend = None
    if history:
        trend = await read_trend(readable_path(paths[0]), history, files, analyse, progress)
    return CodeHealth(
        files=[_shown(file) for file in files],
        most_complex=most_complex(files, top),
        seconds=time.perf_counter() - started,
        duplicates=duplicates,
        unnamed=unnamed,
        trend=trend,
        not_read=dict(not_read),
        top=top,
    )


def analyse(paths: Sequence[str]) -> list[FileHealth | str]:
    """Return the metrics of each file; where its parser is not installed, its language instead."""
    from pyagent import _rust

    python = [path for path in paths if language_of(path) in {"Python", ""}]
    rows = {
        path: FileHealth(path, maintainability, [FunctionHealth(*function) for function in functions], error)
        for path, maintainability, functions, error in _rust.analyse_code(python, os.cpu_count() or 1)
    }
    return [rows[path] if path in rows else _by_tree(path) for path in paths]


def _by_tree(path: str) -> FileHealth | str:
    from pyagent.logic.code.tree_metrics import tree_metrics

    language = language_of(path)
    try:
        if os.stat(path).st_size > _MAX_TREE_BYTES:
            return FileHealth(path, None, [], f"it has more than {_MAX_TREE_BYTES:,} bytes", language)
        metrics = tree_metrics(language, Path(path).read_bytes())
    except ImportError:
        return language
    except ValueError as error:
        return FileHealth(path, None, [], str(error), language)
    except OSError as error:
        return FileHealth(path, None, [], error.strerror or str(error), language)
    functions = [FunctionHealth(one.name, one.line, one.complexity) for one in metrics.functions]
    return FileHealth(path, metrics.maintainability, functions, metrics.fault or None, language)


def _shown(file: FileHealth) -> FileHealth:
    return FileHealth(shown_path(file.path), file.maintainability, file.functions, file.error, file.language)


def most_complex(files: Sequence[FileHealth], count: int) -> list[RankedFunction]:
    """Return the functions of highest complexity; among equals the first by path and line."""
    rows = [
        RankedFunction(shown_path(file.path), function.name, function.line, function.complexity)
        for file in files
        for function in file.functions
    ]
    return sorted(rows, key=lambda row: (-row.complexity, row.path, row.line))[:count]


def _duplicates(paths: Sequence[str], min_lines: int) -> list[Duplicate]:
    from pyagent import _rust

    return [
        Duplicate(lines, [Place(shown_path(paths[file]), first, last) for file, first, last in places])
        for lines, places in _rust.find_duplicates(paths, min_lines)
    ]


def _unnamed(files: Sequence[FileHealth], found: Sequence[str], asked: Sequence[str]) -> list[UnnamedFunction]:
    """Return the functions whose name stands once only in the whole repository; functions before methods."""
    from pyagent import _rust

    candidates = [
        (file.path, function.name, function.line)
        for file in files
        for function in file.functions
        if _may_be_dead(function.name)
    ]
    if not candidates:
        return []
    texts = {str(file) for path in asked for file in _texts_around(readable_path(path))} | set(found)
    names = sorted({name.rpartition(".")[2] for _, name, _ in candidates})
    once = {name for name, count in zip(names, _rust.count_names(sorted(texts), names), strict=True) if count <= 1}
    rows = [
        UnnamedFunction(shown_path(path), name, line)
        for path, name, line in candidates
        if name.rpartition(".")[2] in once and not _is_registered(path, line)
    ]
    return sorted(rows, key=lambda row: ("." in row.name, row.path, row.line))


def _may_be_dead(name: str) -> bool:
    own = name.rpartition(".")[2]
    is_special = own.startswith("__") or own in {"main", "init", "constructor", "<anonymous>"}
    return own.isidentifier() and not is_special and not own.startswith(_NAMED_BY_OTHERS)


def _texts_around(path: Path) -> Iterator[Path]:
    """Yield the texts of the repository that a path lies in, as far as the run may read them; else those below it."""
    access = current_access()
    folder = path if path.is_dir() else path.parent
    for root in (folder, *folder.parents):
        if access.is_limited and (access.root is None or not root.is_relative_to(access.root)):
            break
        if (root / ".git").exists():
            folder = root
            break
    yield from files_below(folder, lambda name: bool(language_of(name)) or Path(name).suffix.lower() in _ALSO_READ)


def _is_registered(path: str, line: int) -> bool:
    """Whether a decorator, an attribute or an export stands on a function, or the line before it."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    before, own = (["", *lines, ""][line - 1 + step].strip() for step in (0, 1))
    return before.startswith(("@", "#[", ")", "//export")) or own.startswith(("@", "#[", "export ", "module.exports"))
