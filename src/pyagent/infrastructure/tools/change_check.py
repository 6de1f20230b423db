"""Checks of a proposed change, in a copy of the folder: its Python files compile, are imported, and a test passes.

The programs have the limits of the shell tool (`programs`): time, memory, no network. The copy has no links, no folder
that begins with a dot, and no file over 10 MB.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.infrastructure.tools.folder import MAX_ENTRIES, Folder
from pyagent.infrastructure.tools.programs import ProgramLimits, run_program
from pyagent.infrastructure.tools.proposals import Proposal

_MAX_COPIED_BYTES = 500_000_000
_MAX_TOLD_CHARACTERS = 4_000
_NOT_IMPORTED = {"__main__", "setup"}
"""Modules that do something when they are imported, by what they are."""
_IMPORT = """
import importlib, os, sys
for name, file in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        module = importlib.import_module(name)
    except SystemExit as error:
        raise ImportError(f"{file} ends the program when it is imported") from error
    if os.path.realpath(module.__file__ or "") != os.path.realpath(file):
        raise ImportError(f"{name} is not {file} but {module.__file__}")
"""


class Outcome(msgspec.Struct, frozen=True):
    """How one check ended; of one that did not pass `told` is the end of what it wrote."""

    check: Literal["compile", "import", "test"]
    passed: bool
    told: str = ""


async def check(proposal: Proposal, limits: ProgramLimits, test: str = "") -> list[Outcome]:
    """Return how the checks of a proposal ended, up to the first that did not pass. The folder is only read."""
    with tempfile.TemporaryDirectory(prefix="pyagent-change-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder, "copy")
        await asyncio.to_thread(_copy, proposal, copy)
        outcomes = list[Outcome]()
        async for outcome in _checked(proposal, copy, limits, test):
            outcomes.append(outcome)
            if not outcome.passed:
                break
        return outcomes


async def _checked(proposal: Proposal, copy: Path, limits: ProgramLimits, test: str) -> AsyncIterator[Outcome]:
    names = [file.name for file in proposal.files if file.new is not None and file.name.endswith(".py")]
    python = shutil.which("python") or shutil.which("python3") or sys.executable
    if names:
        program = [python, "-I", "-m", "py_compile", *(f"./{name}" for name in names)]
        yield await _run("compile", program, copy, limits)
    for top, modules in _modules(copy, names).items():
        named = [word for name, file in modules for word in (name, file)]
        yield await _run("import", [python, "-c", _IMPORT, *named], copy, limits, top)
    if test:
        yield await _run("test", ["/bin/sh", "-c", test], copy, limits)


async def _run(
    kind: Literal["compile", "import", "test"], program: list[str], copy: Path, limits: ProgramLimits, top: str = ""
) -> Outcome:
    """Run a program in the copy, whose modules come before those that are installed."""
    path = os.pathsep.join(str(copy / part) for part in dict.fromkeys((top, "src", "")))
    ended = await run_program(["/usr/bin/env", f"PYTHONPATH={path}", *program], copy, limits)
    return Outcome(kind, passed=True) if ended.code == 0 else Outcome(kind, passed=False, told=_cut(str(ended)))


def _cut(told: str) -> str:
    left = len(told) - _MAX_TOLD_CHARACTERS
    return told if left <= 0 else f"[{left:,} characters before are not shown]\n{told[left:]}"


def _modules(copy: Path, names: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the modules with their files, by the folder that they are imported from."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        path = PurePosixPath(name)
        parts, top = [path.stem], path.parent
        while str(top) != "." and (copy / top / "__init__.py").is_file():
            parts.insert(0, top.name)
            top = top.parent
        parts = parts[:-1] if path.stem == "__init__" and len(parts) > 1 else parts
        if path.stem not in _NOT_IMPORTED and all(part.isidentifier() for part in parts):
            found.setdefault("" if str(top) == "." else str(top), []).append((".".join(parts), name))
    return found


def _copy(proposal: Proposal, copy: Path) -> None:
    """Copy the folder's files, with the proposal's in their place; raises `RequestError` for too many."""
    source, num_bytes = Folder(proposal.root), 0
    proposed = {file.name for file in proposal.files}
    copy.mkdir()
    for name in source.files(most=MAX_ENTRIES):
        if name in proposed:
            continue
        try:
            data = source.read_bytes(name)
        except RequestError:  # too large, gone, or not to be read
            continue
        num_bytes += len(data)
        if num_bytes > _MAX_COPIED_BYTES:
            text = f"the folder has over {_MAX_COPIED_BYTES:,} bytes to copy; name a smaller one"
            raise RequestError(text, param="root")
        _write(proposal.root, copy, name, data)
    for file in proposal.files:
        if file.new is not None:
            _write(proposal.root, copy, file.name, file.new)


def _write(root: Path, copy: Path, name: str, data: bytes) -> None:
    """Write a file of the copy, which runs where the one that it is a copy of does."""
    path, original = copy / name, root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if original.is_file() and os.access(original, os.X_OK):
        path.chmod(0o700)
