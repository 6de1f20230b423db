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
