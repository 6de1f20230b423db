"""The five nodes of `cluster_chaos.py`, on machines of their own, and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.installed import write_distribution
from support.networks import Machine, SlowSwitch

COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()"]
SOURCES = Path(__file__).parents[1]
HTTP_PORT = 8321
STOP_SECONDS = 30.0
ENDED_WELL = (0, 128 + signal.SIGTERM)
"""By SIGTERM: a server has drained, or was not yet one and has closed what it had opened."""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Task exception was never retrieved|never awaited")


def write_plugin(folder: Path) -> Path:
    """Write what an installer leaves of the plugin's package; the module itself is beside this one."""
    nouns = ("agents", "backends", "tools")
    write_distribution(folder, "chaos", "\n".join(f"chaos.{noun} = cluster_chaos_plugin" for noun in nouns))
    return folder


@dataclass
class ChaosNode:
    """One node: its machine, its process, and what was measured of it."""

    number: int
    machine: Machine
    folder: Path
    model: Path
    ledger: Path
    site: Path
    has_agent: bool
    process: subprocess.Popen[bytes] | None = None
    state: str = "down"
    problems: list[str] = field(default_factory=list[str])
    _num_read: int = 0
    _num_before: int = 0

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def has_started(self) -> bool:
        """Whether it is up and answers: a program that is stopped while it is still read in ends as any does."""
        return self.state == "up" and "knock at port" in self.log.read_text()[self._num_before :]

    def start(self) -> None:
        """Start `pyagent node`, with the files it had."""
        config = self.folder / "pyagent.toml"
        config.write_text(
            f'chain = ["native", "story"]\n[paths]\ndata = "{self.folder / "data"}"\n'
            f'[engine]\nmodels = ["{self.model}"]\nthreads = 1\n'
            '[rules]\nretries = 4\ndeadline_seconds = 60\nafter_first_token = "continue"\n'
            f'[cluster]\nname = "{self.name}"\nrouting = "power_of_two"\noffer = ["native", "story", "agents"]\n',
            encoding="utf-8",
        )
        own = {"CHAOS_LEDGER": str(self.ledger), "CHAOS_NODE": self.name, "PYTHONUNBUFFERED": "1"}
        own |= {"CHAOS_AGENT": "yes"} if self.has_agent else {}
        paths = [self.site, Path(__file__).parent, SOURCES / "src", os.environ.get("PYTHONPATH", "")]
        own["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        entered = ["nsenter", "--net", f"--target={self.machine.pid}", *COMMAND, "node", "--config", str(config)]
        with self.log.open("ab") as log:
            self._num_before = log.tell()
            self.process = subprocess.Popen(
                entered,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
                start_new_session=True,
                cwd=self.folder,
            )
        self.state = "up"

    def signal(self, number: signal.Signals) -> None:
        """Signal the node and what it started."""
        assert self.process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it as `kill -9` does; its engine's process is left to notice."""
        assert self.process
        self.process.kill()
        self.process.wait()
        self.state = "down"

    async def stop(self) -> None:
        """End it as SIGTERM does, and note when it does not end well."""
        assert self.process
        ends_well = ENDED_WELL if self.has_started else (*ENDED_WELL, -signal.SIGTERM)
        self.state = "stopping"
        self.process.terminate()
        end = time.monotonic() + STOP_SECONDS
        while self.process.poll() is None and time.monotonic() < end:  # noqa: ASYNC110 - a process
            await asyncio.sleep(0.05)
        if (status := self.process.poll()) not in ends_well:
            self.problems.append(f"{self.name} ended with {status} after SIGTERM, with {STOP_SECONDS:g} s to do so")
            self.kill()
        self.state = "down"

    def check(self) -> None:
        """Note whether it ended by itself, and failures in its log that nobody meant."""
        if self.state in {"up", "paused"} and self.process and (status := self.process.poll()) is not None:
            self.problems.append(f"{self.name} ended by itself with {status}")
            self.state = "down"
            self.start()
        with contextlib.suppress(FileNotFoundError), self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._num_read)
            told = log.read()
            self._num_read = log.tell()
            if found := _TRACEBACK.search(told):
                self.problems.append(f"{self.name} logs {told[max(0, found.start() - 300) : found.start() + 1500]}")

    def size(self) -> tuple[float, int]:
        """Return the megabytes of memory, and the open files, of the node's own process."""
        assert self.process
        own = Path("/proc") / str(self.process.pid)
        with contextlib.suppress(OSError):
            pages = int((own / "statm").read_text().split()[1])
            return pages * 4096 / 1e6, len(list((own / "fd").iterdir()))
        return 0.0, 0

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()


@dataclass
class Weather:
    """What happens to the nodes: each in turn is killed, paused or started anew, and the network parts or loses frames.

    The first node is paused and cut off as the others are, but runs all the time: what grows, grows there.
    """

    nodes: Sequence[ChaosNode]
    switch: SlowSwitch
    draw: random.Random
    shown: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])

    async def run(self, until: float) -> None:
        """Make weather until then, and clear it up."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._network(until))
            for _ in range(2):
                group.create_task(self._nodes(until))

    async def _nodes(self, until: float) -> None:
        while True:
            await asyncio.sleep(self.draw.uniform(1.0, 5.0))
            if time.monotonic() > until:
                return
            kind = self.draw.choice(("kill", "kill", "pause", "restart"))
            able = [
                node for node in self.nodes if node.state == "up" and (kind == "pause" or node is not self.nodes[0])
            ]
            if able:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                await getattr(self, f"_{kind}")(self.draw.choice(able))

    async def _kill(self, node: ChaosNode) -> None:
        node.kill()
        await asyncio.sleep(self.draw.uniform(1.0, 8.0))
        node.start()

    async def _restart(self, node: ChaosNode) -> None:
        await node.stop()
        node.start()

    async def _pause(self, node: ChaosNode) -> None:
        node.state = "paused"
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.draw.uniform(1.0, 8.0))
        finally:
            node.signal(signal.SIGCONT)
            node.state = "up"

    async def _network(self, until: float) -> None:
        while True:
            await asyncio.sleep(self.draw.uniform(3.0, 8.0))
            if time.monotonic() > until:
                return
            kind = self.draw.choice(("partition", "loss"))
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if kind == "partition":
                places = self.draw.sample(range(len(self.nodes)), len(self.nodes))
                cut = self.draw.randint(1, len(places) - 1)
                parts = [places[:cut], places[cut:]]
                self.shown = "parted " + " | ".join(" ".join(self.nodes[one].name for one in part) for part in parts)
                self.switch.change(parts=parts)
            else:
                loss, delay = self.draw.uniform(0.02, 0.1), self.draw.uniform(0.0, 0.03)
                self.shown = f"{loss:.0%} lost, {delay * 1000:.0f} ms"
                self.switch.change(delay, loss)
            await asyncio.sleep(self.draw.uniform(2.0, 10.0))
            self.switch.change()
            self.shown = ""
