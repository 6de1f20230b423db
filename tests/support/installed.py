"""Plugins as an installer puts them on the path, for this process and those it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, code: str, noun: str = "queue_policies") -> None:
    """Put a plugin where this process, and those it starts, find it."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pyagent]\n{name}.{noun} = {name}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
