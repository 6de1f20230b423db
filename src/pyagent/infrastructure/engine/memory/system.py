"""How much memory this machine, or the container the process is in, has to give."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyagent.infrastructure.engine.memory.process import resident_bytes

AUTO_SHARE = 0.7
"""What `engine.memory = "auto"` takes of the memory available when the engine starts, beside what the process has."""
_UNKNOWN_BYTES = 4 << 30


def total_for(setting: int | None) -> int:
    """The ledger's total: the bytes the setting names, or what the process has and a share of what is available."""
    return setting or resident_bytes() + int(AUTO_SHARE * (available_memory() or _UNKNOWN_BYTES))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes a new program can have: the system's estimate, bounded by the limits of its cgroups; None where unknown."""
    found = [*_of_system(proc), *_of_cgroups(proc, cgroups)]
    if not found and "SC_PHYS_PAGES" in os.sysconf_names:  # not Linux: half of what is built in
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2]
    return max(0, min(found)) if found else None


def _of_system(proc: Path) -> Iterator[int]:
    for name, value in _table(proc / "meminfo"):
        if name == "MemAvailable:":
            yield value * 1024


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What is left below each limit from the process's own group (version 2) up to the root."""
    own = next((line[3:] for line in _lines(proc / "self/cgroup") if line.startswith("0::")), "/")
    folder = cgroups / own.lstrip("/")
    for group in (folder, *folder.parents):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            # The kernel drops unused file pages before it refuses memory.
            cached = dict(_table(group / "memory.stat")).get("inactive_file", 0)
            yield limit - used + cached
        if group == cgroups:
            return


def _number(path: Path) -> int | None:
    text = next(_lines(path), "")
    return int(text) if text.isdigit() else None


def _table(path: Path) -> Iterator[tuple[str, int]]:
    for line in _lines(path):
        match line.split():
            case [name, value, *_] if value.isdigit():
                yield name, int(value)
            case _:
                pass


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
