"""A plugin's runner that loads a model only half until a file says that it may go on, or that it fails.

All around it is the real engine; the first half is counted by the plugin, the rest by the CPU runner it ends as.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.installed import install

_RUNNER = """
import time
from pathlib import Path
from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory
from pyagent.plugin import ModelError, hookimpl

class Slow(CpuRunnerFactory):
    name = "slow"
    def load(self, path, options, step, kv):
        options.progress.add(self.estimate(path, options, step).weight_bytes // 2)
        gate = Path(f"{path}.gate")
        end = time.monotonic() + 120
        while not gate.exists():
            if time.monotonic() > end:  # a test that was ended must leave no process
                raise ModelError("nobody opened the gate", model=str(path))
            time.sleep(0.01)
        if gate.read_text() == "fail":
            raise ModelError("the second half is lost", model=str(path))
        return super().load(path, options, step, kv)

@hookimpl
def pyagent_register_runners():
    return [Slow()]
"""


def install_slow_runner(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the runner `slow` where this process, and those it starts, find it."""
    folder.mkdir()
    install(monkeypatch, folder, "slow_runner", _RUNNER, noun="runners")
    monkeypatch.setenv("PYAGENT_ENGINE__RUNNER", "slow")


def go_on(model: Path, word: str = "") -> None:
    """Let the model's load go on, or `fail`."""
    partial = Path(f"{model}.partial")
    partial.write_text(word)
    partial.rename(f"{model}.gate")
