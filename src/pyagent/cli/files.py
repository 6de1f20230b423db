"""Files named on the command line, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyagent.core.errors import RequestError


def checked_files(names: Iterable[str]) -> list[str]:
    """The names as absolute paths; raises `RequestError` for the first that cannot be read."""
    paths: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        if not path.exists():
            raise RequestError(f"there is no file {name}", param="file")
        paths.append(str(path.resolve()))
    return paths
