"""Where a model is written anew: room for it, and one process at a time. Knows nothing of what is written."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from pyagent.core.errors import ModelError
from pyagent.core.sizes import format_bytes


def refuse_no_room(target: Path, num_bytes: int) -> None:
    """Raise `ModelError` where the disk of a place has no room for so many bytes."""
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        needs = f"{format_bytes(num_bytes)} are needed, {format_bytes(free)} are free"
        raise ModelError(f"the disk of {target.parent} has no room: {needs}", model=str(target))


def lock_alone(descriptor: int, partial: Path, target: Path) -> None:
    """Have for oneself what was opened at `partial`.

    Raises `ModelError` where another process has it, or had it until now.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_own = os.path.samestat(os.fstat(descriptor), partial.stat())
    except (BlockingIOError, FileNotFoundError):
        is_own = False
    if not is_own:
        raise ModelError(f"{target} is being written by another process", model=str(target))
