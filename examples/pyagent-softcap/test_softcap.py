import math
import shutil
import subprocess
from array import array
from types import SimpleNamespace

import pyagent_softcap
import pytest


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")
def test_compiled_function_changes_the_logits_in_place(tmp_path, monkeypatch):
    """What Rust computes is in the row; what was excluded stays so."""
    library, source = tmp_path / "soft_cap.so", pyagent_softcap.LIBRARY.with_name("soft_cap.rs")
    build = ["rustc", "-O", "--edition", "2024", "--crate-type", "cdylib", "-o", library, source]
    subprocess.run(build, check=True, capture_output=True)  # noqa: S603 - the line above
    monkeypatch.setattr(pyagent_softcap, "LIBRARY", library)
    logits = memoryview(array("f", [60.0, -1.0, -math.inf]))
    function = pyagent_softcap.SoftCap().make({"cap": 30}, SimpleNamespace(size=3))
    function([], [], logits)
    assert list(logits) == pytest.approx([30 * math.tanh(2), 30 * math.tanh(-1 / 30), -math.inf])
