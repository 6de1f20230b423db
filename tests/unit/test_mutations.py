"""The faults of `make mutations` still fit the source; whether tests notice them is that command's to say."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/mutations"))
FAULTS: list[Any] = list(importlib.import_module("faults").FAULTS)
sys.path.pop(0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_applies_exactly_once(fault: Any) -> None:
    """Each fault changes one place of a file that is there, and names tests that are there."""
    source = (ROOT / fault.path).read_text(encoding="utf-8")
    assert source.count(fault.old) == 1
    changed = source.replace(fault.old, fault.new)
    assert changed != source
    if fault.path.endswith(".py"):
        ast.parse(changed)
    named = [word.partition("::")[::2] for word in fault.tests.split() if word.startswith("tests/")]
    assert named
    assert all(f"def {test}" in (ROOT / file).read_text(encoding="utf-8") for file, test in named)


def test_faults_have_names_of_their_own() -> None:
    """No two faults have one name."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 28
