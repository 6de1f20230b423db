"""`pyagent node` on machines of their own: each in a network namespace, with a folder and a tiny model of its own."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from support.networks import Machine

from pyagent.infrastructure.cluster.cluster_file import ClusterFile

HTTP_PORT, DOOR_PORT = 8321, 8322
_LIMIT_SECONDS = 240.0
_URL = f"http://127.0.0.1:{HTTP_PORT}"
_COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()"]


def share_cluster(folders: list[Path]) -> None:
    """Give folders of nodes one new cluster, as if each had joined by a code."""
    first = ClusterFile(folders[0] / "data" / "cluster")
    first.folder.mkdir(parents=True)
    state = first.init("test")
    for folder in folders[1:]:
        other = ClusterFile(folder / "data" / "cluster")
        other.folder.mkdir(parents=True)
        other.join(state)


@dataclass
class RunningNode:
    """A node's process, and what a program beside it sees of the cluster."""

    name: str
    machine: Machine
    process: subprocess.Popen[str]
    watcher: subprocess.Popen[str]
    seen: list[tuple[float, dict[str, str] | None]] = field(default_factory=list[tuple[float, dict[str, str] | None]])
    _lines: queue.Queue[str] = field(default_factory=queue.Queue[str])

    @classmethod
    def start(cls, machine: Machine, folder: Path, model: Path, *options: str) -> RunningNode:
        """Start `pyagent node` with this model; `options` come last."""
        flags = ["--model", str(model), "--name", folder.name, "--config", str(_config(folder)), *options]
        process = machine.popen(*_COMMAND, "node", *flags)
        node = cls(folder.name, machine, process, machine.popen(sys.executable, "-m", "support.watch_node", _URL))
        threading.Thread(target=node._drop, daemon=True).start()
        threading.Thread(target=node._read, daemon=True).start()
        return node

    def _drop(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            pass

    def _read(self) -> None:
        assert self.watcher.stdout is not None
        for line in self.watcher.stdout:
            self._lines.put(line)

    def wait_for(self, is_so: Callable[[dict[str, str]], bool], after: float = 0.0) -> float:
        """Return when the node's view first was so, after a time; monotonic seconds, which all processes share."""
        end = time.monotonic() + _LIMIT_SECONDS
        for at, peers in self.seen:
            if at >= after and peers is not None and is_so(peers):
                return at
        if self.seen and self.seen[-1][1] is not None and is_so(self.seen[-1][1]):
            return after
        while True:
            try:
                told = json.loads(self._lines.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"{self.name} saw {self.seen[-3:]}") from None
            self.seen.append((told["at"], told["peers"]))
            if told["at"] >= after and told["peers"] is not None and is_so(told["peers"]):
                return told["at"]

    def wait_for_peers(self, number: int, after: float = 0.0) -> float:
        """Return when so many peers were connected."""
        return self.wait_for(lambda peers: list(peers.values()).count("connected") == number, after)

    def call(self, path: str, body: dict[str, object] | None = None) -> str:
        """Return what the node's server answers, asked on its own machine."""
        data = [] if body is None else ["--data", json.dumps(body), "--header", "content-type: application/json"]
        return self.machine.run("curl", "--silent", "--max-time", "60", *data, _URL + path)

    def kill(self) -> float:
        """End it as `kill -9` does; return when."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return at

    def pause(self) -> None:
        """Stop it without a word, as a laptop that sleeps."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it as Ctrl+C does; return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_LIMIT_SECONDS)

    def close(self) -> None:
        """End what still runs."""
        for process in (self.watcher, self.process):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _config(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyagent.toml"
    file.write_text(
        f'[paths]\ndata = "{folder / "data"}"\nmodels = "{folder / "models"}"\n[engine]\nthreads = 1\n',
        encoding="utf-8",
    )
    return file


@contextlib.contextmanager
def running(*nodes: RunningNode) -> Generator[None]:
    """End nodes with the block."""
    try:
        yield
    finally:
        for node in nodes:
            node.close()
