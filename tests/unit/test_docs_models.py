"""The table of compared models says what tests compare, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> Any:
    """docs/model_reference.py, as a module."""
    spec = importlib.util.spec_from_file_location("model_reference", ROOT / "docs/model_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_compared_models_is_current(reference: Any) -> None:
    """docs/reference/models.md is what docs/model_reference.py prints, and every cell of it says something."""
    page = (ROOT / "docs/reference/models.md").read_text()
    assert page == reference.render(), "run .venv/bin/python docs/model_reference.py > docs/reference/models.md"
    rows = reference.rows()
    assert all(cell and cell.strip() == cell for row in rows for cell in row.values())
    lines = [tuple(row.values()) for row in rows]
    assert lines == sorted(set(lines)), "one line a family, in order"


def test_every_row_is_a_test_that_there_is(reference: Any) -> None:
    """pytest finds each test that the table names, so that no family is listed that none compares."""
    named = {row["test"] for row in reference.rows()}
    files = sorted({test.partition("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "oracle or converter", *files]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120).stdout
    assert not named - set(found.splitlines())
