"""Writes pictures where a person says: by a run on this machine only, and never over a file that is no picture."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access, short_path
from pyagent.logic.stats.picture import Picture, to_png, to_svg

ALLOW, DENY = "allow", "deny"
_BEGINNINGS = (b"<svg", b"<?xml", b"\x89PNG\r\n\x1a\n")


def checked_target(plot: str | None) -> Path | None:
    """Return where to write, before anything is computed; raises `RequestError` where that may not be."""
    if plot is None:
        return None
    if current_access().is_limited:
        raise RequestError("pictures are written by a run on this machine only, not over the network", param="plot")
    if "\0" in plot or Path(plot).suffix.lower() not in {".svg", ".png"}:
        raise RequestError(f"expected plot to end in .svg or .png, got {plot[:80]!r}", param="plot")
    try:
        path = Path(os.path.abspath(Path(plot).expanduser()))
    except RuntimeError as error:  # ~ of a user that is not there
        raise RequestError(f"{plot[:80]!r} is no path: {error}", param="plot") from error
    try:
        if not path.parent.is_dir():
            raise RequestError(f"there is no folder {str(path.parent)!r} for the picture", param="plot")
        _check_replaceable(path)
    except OSError as error:
        raise RequestError(f"{plot[:80]} cannot be written: {error.strerror or error}", param="plot") from error
    return path


def _check_replaceable(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_file() or path.is_symlink():
        raise RequestError(f"{path} is there already, and is no plain file", param="plot")
    with path.open("rb") as file:
        beginning = file.read(8)
    if beginning and not beginning.startswith(_BEGINNINGS):
        raise RequestError(f"{path} is there already, and is no picture: name another file", param="plot")


async def save_picture(context: Context, task: Task, target: Path | None, draw: Callable[[], Picture]) -> str | None:
    """Write the picture, and return its path; a person allows it first where an agent or a sentence asked for it."""
    if target is None:
        return None
    if context.depth or not task.arguments:
        answer = await context.ask(f"write a picture to {target}?", options=(ALLOW, DENY), kind="approval")
        if answer != ALLOW:
            raise RequestError(f"the picture {target} was not allowed", param="plot")
    await asyncio.to_thread(_write, target, draw)
    return short_path(str(target))


def _write(target: Path, draw: Callable[[], Picture]) -> None:
    picture = draw()
    written = to_png(picture) if target.suffix.lower() == ".png" else to_svg(picture).encode()
    try:
        _check_replaceable(target)
        beside = target.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with beside.open("xb") as file:
                file.write(written)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(f"{target} cannot be written: {error.strerror or error}", param="plot") from error
