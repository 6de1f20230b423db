"""A cluster of `pyagent node` on loopback, for benchmarks: one thread each, the default model, new folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from peers import post

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder

NUM_NODES, MODEL = 3, "smollm2:135m"
FIRST_PORT = 18400
"""The first node serves HTTP here, the next one on the next port; their doors are `_DOORS` above."""
_DOORS = 20
_START_SECONDS, _STOP_SECONDS = 120, 60
COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()"]
WORDS = (
    "the",
    "review",
    "of",
    "contracts",
    "needs",
    "care",
    "about",
    "dates",
    "parties",
    "money",
    "risk",
    "law",
    "notice",
)
HELLO: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
Tables = Mapping[str, Mapping[str, object]]
"""Settings by table, such as `{"cluster": {"steal": False}}`."""


def url(number: int, path: str = "") -> str:
    """Return a node's address, by its number."""
    return f"http://127.0.0.1:{FIRST_PORT + number}{path}"


def get(number: int, path: str) -> bytes:
    """Return what a node answers at a path."""
    with urllib.request.urlopen(url(number, path), timeout=30) as answer:
        return answer.read()


@contextmanager
def fleet(each: Sequence[Tables], *, first_chain: str = "native") -> Generator[list[subprocess.Popen[bytes]]]:
    """Start a node for each of these settings; stop them at the end. `first_chain` is what the first answers with."""
    processes: list[subprocess.Popen[bytes]] = []
    state = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, more in enumerate(each):
                home = Path(folder) / f"n{number}"
                file = ClusterFile(cluster_folder(home))
                file.folder.mkdir(parents=True)
                state = file.init("benchmark") if state is None else (file.join(state), state)[1]
                config = home / "pyagent.toml"
                config.write_text("\n".join(_lines(home, number, more)), encoding="utf-8")
                chain = "native" if number else first_chain
                flags = ["--chain", chain, "--port", str(FIRST_PORT + number), "--config", str(config)]
                command = [*COMMAND, "node", *flags]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)))
            yield processes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(_STOP_SECONDS)


def _lines(home: Path, number: int, more: Tables) -> Iterable[str]:
    tables: dict[str, dict[str, object]] = {
        "paths": {"data": str(home)},
        "engine": {"threads": 1, "models": [MODEL]},
        "cluster": {
            "name": f"n{number}",
            "multicast": False,
            "bind": ["127.0.0.1"],
            "port": FIRST_PORT + _DOORS + number,
            "seeds": [f"127.0.0.1:{FIRST_PORT + _DOORS}"],
        },
    }
    for table, settings in more.items():
        tables.setdefault(table, {}).update(settings)
    for table, settings in tables.items():
        yield f"[{table}]"
        yield from (f"{name} = {json.dumps(value)}" for name, value in settings.items())  # JSON's values are TOML's


def wait_until_connected(num_nodes: int = NUM_NODES, *, computing: Iterable[int] | None = None) -> None:
    """Wait until each node has all others, and those that compute, or all, have their model in memory."""
    end = time.monotonic() + _START_SECONDS
    for number in range(num_nodes):
        while _num_connected(number) < num_nodes - 1:
            if time.monotonic() > end:
                raise SystemExit(f"node {number} did not find the others")
            time.sleep(0.1)
    for number in range(num_nodes) if computing is None else computing:
        ask_alone(number)


def _num_connected(number: int) -> int:
    with suppress(OSError, KeyError):  # it does not listen yet
        return [peer["is_connected"] for peer in json.loads(get(number, "/pyagent/cluster"))["peers"]].count(True)
    return -1


def ask_alone(number: int) -> None:
    """Ask a node itself: a private request stays where it is."""
    post(url(number, "/v1/chat/completions"), {"private": True, **HELLO})
