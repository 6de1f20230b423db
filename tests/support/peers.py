"""Servers and programs of others, installed by `make peers` into `.peers`, started for the time of a test."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.server import KEY

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers" / "bin" / "python"
NODE_MODULES = ROOT / ".peers" / "node" / "node_modules"


def node_module(name: str) -> Path:
    """A package of npm's; skips where `make peers` could not get it."""
    if not (NODE_MODULES / name).exists():
        pytest.skip(f"npm's {name} is not in .peers; `make peers` installs it where npm is")
    return NODE_MODULES / name


def finished(words: list[str | Path], home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that ran to its end in a home of its own; it must not fail."""
    environment |= {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=home,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def claude_code(url: str, home: Path, *words: str, **environment: str) -> str:
    """What Claude Code writes to these words, with a server in the place of Anthropic's."""
    program = node_module("@anthropic-ai/claude-code").parents[1] / ".bin" / "claude"
    variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": KEY, **environment}
    variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
    return finished([program, "-p", *words, "--model", "chain"], home, **variables).stdout


def codex(url: str, home: Path, question: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    """Codex asked a question, with a server in the place of OpenAI's, and with further settings, a line each."""
    program = node_module("@openai/codex").parents[1] / ".bin" / "codex"
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        f'model = "chain"\nmodel_provider = "pyagent"\nweb_search = "disabled"\n{settings}'
        f'[model_providers.pyagent]\nname = "PyAgent"\nbase_url = "{url}/v1"\n'
        'wire_api = "responses"\nenv_key = "PYAGENT_KEY"\n'
    )
    flags = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return finished([program, *flags, question], home, PYAGENT_KEY=KEY)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(
    url: str,
    words: list[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    start_seconds: float = 120.0,
) -> Iterator[str]:
    """A server of others as a process, from when `url` answers until the end of the block; it ends with its input."""
    if not Path(words[0]).exists():
        pytest.skip(f"{words[0]} is not here; `make peers` installs .peers")
    variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **(environment or {})}  # nothing is fetched
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output, env=variables)
    try:
        _wait_for(url, process, log, time.monotonic() + start_seconds)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended:\n{log.read_text(errors='replace')[-2000:]}")
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text(errors='replace')[-2000:]}")
