"""The program that stands in for `copilot`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "stand_in_copilot.py"


@pytest.fixture(scope="session")
def copilot(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an executable file that behaves like `copilot`."""
    path = tmp_path_factory.mktemp("bin") / "copilot"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{PROGRAM}" "$@"\n')
    path.chmod(0o755)
    return str(path)
