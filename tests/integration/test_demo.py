"""`pyagent demo` beside plugins that are broken in every way it meets: they are named, and its six agents finish."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.installed import install

README = Path(__file__).parents[2] / "README.md"
BACKEND = """
from pyagent.plugin import ChatDelta, Health, ModelInfo, hookimpl
from pyagent.testing import EchoBackend

class Backend(EchoBackend):
    async def chat(self, request):
        {chat}
        yield ChatDelta(content="A fine text.", finish_reason="stop", model="m", backend=self.name)

@hookimpl
def pyagent_register_backends():
    return {{{name!r}: lambda link, settings: Backend(name=str(link))}}
"""
AGENT = """
from pyagent.plugin import hookimpl

class Agent:
    name = {name!r}
    description = "Breaks."
    def score(self, task):
        raise SystemExit(3)
    async def run(self, context, task):
        raise SystemExit(4)
    async def close(self):
        raise SystemExit(5)

@hookimpl
def pyagent_register_agents():
    return [Agent()]
"""


def test_demo_runs_its_agents_beside_bad_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that raises gives way to the next, and agents that cannot be closed, or loaded, are named.

    README.md shows as many agents as there are without those of the test.
    """
    install(monkeypatch, tmp_path, "exits", BACKEND.format(name="exits", chat="raise SystemExit(1)"), "backends")
    install(monkeypatch, tmp_path, "good", BACKEND.format(name="good", chat="pass"), "backends")
    install(monkeypatch, tmp_path, "breaks", AGENT.format(name="breaks"), "agents")
    install(monkeypatch, tmp_path, "unloadable", "1 / 0", "agents")
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / "pyagent.toml").write_text('chain = ["exits", "good"]\n')
    own = {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH"}}
    places = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from pyagent.cli.main import main; sys.exit(main())", "demo", "code"],
        env=own | {name: str(tmp_path / name) for name in places} | {"PYTHONUTF8": "1"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    of_readme = re.search(r"fleet of (\d+) agents", README.read_text())
    assert of_readme is not None
    for text in (
        f"fleet of {int(of_readme[1]) + 1} agents",
        "391 + sqrt(2)",
        "code-health",
        "summarize",
        "unloadable",
        "breaks cannot be closed",
    ):
        assert text in shown, (text, shown)
    for text in ("y is rising with row", "Winner: Porto", "override at character 28", "A fine text."):
        assert text in shown, (text, shown)
    assert shown.count("\u25cf") == 6, shown
