"""Plugins as an installer puts them on the path, for this process and those it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def write_distribution(folder: Path, name: str, entries: str, *, version: str = "1.0", requires: str = "") -> None:
    """Write what an installer leaves of a package: its metadata, with these entry points of PyAgent's, a line each."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    requirement = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}")
    (info / "entry_points.txt").write_text(f"[pyagent]\n{entries}\n")


def find_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have this process, and those it starts, look for packages in a folder first."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, code: str, noun: str = "queue_policies") -> None:
    """Put a plugin where this process, and those it starts, find it."""
    (folder / f"{name}.py").write_text(code)
    write_distribution(folder, name, f"{name}.{noun} = {name}")
    find_first(monkeypatch, folder)
