"""PySide6 makes the widgets that are written for it, shows hostile texts as texts, and emits their values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.interfaces import HOSTILE, everything

from pyagent.logic.interfaces.frameworks import FRAMEWORKS

pytestmark = pytest.mark.oracle
SCRIPT = """
import json, runpy, sys
from PySide6.QtWidgets import QApplication, QPushButton
made = runpy.run_path(sys.argv[1])
app = QApplication([])
page = next(each for name, each in made.items() if name.endswith("Page"))()
page.show()
page.action.connect(lambda name, values: print(json.dumps([page.windowTitle(), name, values])))
page.findChild(QPushButton, "go").click()
"""


def test_pyside6_runs_what_we_write(tmp_path: Path) -> None:
    """The widget is made without a screen, and its button tells its id and all values."""
    pytest.importorskip("PySide6", reason="needs the package PySide6-Essentials")
    path = tmp_path / "page.py"
    path.write_text(FRAMEWORKS["pyside6"].write(everything()), encoding="utf-8")
    env = os.environ | {"QT_QPA_PLATFORM": "offscreen", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if "cannot open shared object file" in ran.stderr:
        pytest.skip("libraries of the system that Qt needs are missing")
    assert ran.returncode == 0, ran.stderr
    title, name, values = json.loads(ran.stdout)
    assert (title, name, values["email"], values["size"], values["box"]) == (HOSTILE, "go", HOSTILE, HOSTILE, True)
