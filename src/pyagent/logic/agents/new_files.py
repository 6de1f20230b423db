"""Writes code to a new file where a person says: by a run on this machine only, and never over a file that is there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access, short_path

ALLOW, DENY = "allow", "deny"


def checked_target(output: str | None) -> Path | None:
    """Return where to write, before anything is made; raises `RequestError` where that may not be."""
    if output is None:
        return None
    if current_access().is_limited:
        raise RequestError("files are written by a run on this machine only, not over the network", param="output")
    try:
        path = Path(os.path.abspath(Path(output).expanduser()))
        if os.path.lexists(path):
            raise RequestError(f"{output[:80]} is there already: name a new file", param="output")
        if not path.parent.is_dir():
            raise RequestError(f"there is no folder {str(path.parent)[:200]!r} for the file", param="output")
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~ of a user that is not there, a null character
        raise RequestError(f"{output[:80]!r} cannot be written: {error}", param="output") from error
    return path


async def save_code(context: Context, target: Path | None, code: str) -> str:
    """Write code, and return its path, nothing without one; a person allows it first where an agent asked for it."""
    if target is None:
        return ""
    if context.depth:
        answer = await context.ask(f"write {target}?", options=(ALLOW, DENY), kind="approval")
        if answer != ALLOW:
            raise RequestError(f"the file {target} was not allowed", param="output")
    await asyncio.to_thread(_write, target, code)
    return short_path(str(target))


def _write(target: Path, code: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(code)
    except OSError as error:
        raise RequestError(f"{target} cannot be written: {error.strerror or error}", param="output") from error
