"""The whole way of a stranger who writes an agent: scaffold, edit, install by pip, list, and use it everywhere."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

import httpx
from support.command_line import fresh_environment
from support.run_server import ended

MAIN = "from pyagent.cli.main import main; main()"


class Stranger:
    """A user with a virtual environment that has PyAgent, with a home folder of their own, and without a network."""

    def __init__(self, home: Path) -> None:
        self.home = home
        venv.create(home / "venv", symlinks=True)
        self.python = str(home / "venv" / "bin" / "python")
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(home / "venv")}))
        ours = sysconfig.get_path("purelib")
        (packages / "pyagent_is_here.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        self.environment = fresh_environment(home) | {"PIP_NO_INDEX": "1"}
        self.environment.pop("PYTHONPATH", None)

    def run(self, *words: str) -> str:
        """Run Python with some words, and return what it wrote; fails when it does."""
        command = [self.python, *words]
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def pyagent(self, *words: str) -> str:
        """Run a command of PyAgent's."""
        return self.run("-c", MAIN, *words)

    def install(self, *packages: str) -> None:
        """Do what `pyagent plugins new` says to do: `pip install -e '.[test]'`; what builds it is here already."""
        edits = [word for package in packages for word in ("-e", f"{package}[test]")]
        self.run("-m", "pip", "install", "--quiet", "--no-build-isolation", *edits)


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _ask_server(stranger: Stranger) -> None:
    """The agent answers as a model of the OpenAI API, and its run can be followed over HTTP."""
    command = [stranger.python, "-c", MAIN, "serve", "--port", "0"]
    server = subprocess.Popen(
        command, cwd=stranger.home, env=stranger.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        url = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        with httpx.Client(base_url=url, timeout=30) as client:
            assert "agent:tide" in {model["id"] for model in client.get("/v1/models").json()["data"]}
            asked = {"model": "agent:tide", "messages": [{"role": "user", "content": "Calais"}]}
            answer = client.post("/v1/chat/completions", json=asked).json()
            assert "When is high water at Calais" in answer["choices"][0]["message"]["content"]
            run = client.post("/v1/runs", json={"agent": "tide", "task": "Bruges"}).json()
            assert "When is high water at Bruges" in ended(client, run["id"])["output"]
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_a_stranger_writes_installs_and_uses_plugins(tmp_path: Path) -> None:
    """Nothing but what the commands themselves say to do: an agent and a backend, in the CLI, the API and runs."""
    stranger = Stranger(tmp_path)
    told = stranger.pyagent("plugins", "new", "agent", "tide", "--description", "Tells when the water comes.")
    assert "pip install -e '.[test]'" in told
    stranger.pyagent("plugins", "new", "backend", "pipe")
    source = tmp_path / "pyagent-tide" / "src" / "pyagent_tide" / "__init__.py"
    _replace(source, "Answer in one sentence:", "When is high water at")
    stranger.install("./pyagent-tide", "./pyagent-pipe")

    listed = {line.split()[0]: line for line in stranger.pyagent("plugins", "list").splitlines() if line.strip()}
    assert "agents=1" in listed["tide"]
    assert "backends=1" in listed["pipe"]
    for words in (["agent", "tide", "Dover"], ["run", "tide: Dover"]):
        assert "When is high water at" in stranger.pyagent(*words, "--chain", "pipe:cat")
    (tmp_path / "pyagent.toml").write_text('chain = ["pipe:cat"]\n')
    _ask_server(stranger)
