"""How soon real nodes agree that one of them was killed: processes on loopback, `kill -9`, beside Debian's serf.

    .venv/bin/python benchmarks/cluster_deaths.py [--nodes 3 8] [--deaths 5] [--busy 4] [--serf /usr/bin/serf]

Each node is a process with a whole `Node` (door, CURVE, gossip) and no links. One is killed; the time runs until the
last of the others holds it for dead, read every 5 ms on the clock they share. `--busy` runs so many endless loops
beside them, and a table for an idle machine first. Figures of serf are by its own `members`, asked every 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.nodes import join, running_node

POLL_SECONDS = 0.005
MAX_SECONDS = 60


class NodeProcess:
    """A node in a process of its own; what it says comes as lines of JSON."""

    def __init__(self, folder: Path, seeds: list[str]) -> None:
        command = [sys.executable, __file__, "--node", str(folder), *(f"--seed={seed}" for seed in seeds)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = self.next("id")
        self.id, self.port = str(told["id"]), int(str(told["port"]))

    def next(self, key: str, value: object = None) -> dict[str, object]:
        assert self.process.stdout
        for line in self.process.stdout:
            told = json.loads(line)
            if key in told and value in {None, told[key]}:
                return told
        raise SystemExit(f"a node ended with {self.process.wait()}")

    def kill(self) -> float:
        began = time.monotonic()
        self.process.kill()
        return began


async def be_a_node(folder: Path, seeds: list[str]) -> None:
    """Run a node; tell how many others live, and of each death."""
    seen: dict[str, str] = {}
    async with running_node(folder, [], seeds=seeds) as node:
        print(json.dumps({"id": node.keys.node_id, "port": node.door_port}), flush=True)
        while True:
            states = {view.member.id: view.state for view in node._members.views().values()}
            for one, state in states.items():
                if state == "dead" and seen.get(one) != "dead":
                    print(json.dumps({"dead": one, "at": time.monotonic()}), flush=True)
            live = sum(state == "alive" for state in states.values())
            if states != seen:
                print(json.dumps({"live": live}), flush=True)
            seen = states
            await asyncio.sleep(POLL_SECONDS)


def our_death(num_nodes: int) -> float:
    """Start nodes, kill one, return the seconds until all others hold it for dead."""
    from pyagent.infrastructure.cluster.cluster_file import ClusterFile

    with tempfile.TemporaryDirectory() as home:
        folders = [Path(home, f"n{n}") for n in range(num_nodes)]
        join(folders[0], None)
        state = ClusterFile(folders[0]).load()
        for folder in folders[1:]:
            folder.mkdir()
            ClusterFile(folder).join(type(state)(state.cluster_id, state.name, state.secrets[:1]))
        signal.alarm(MAX_SECONDS)  # ends this program
        nodes = [NodeProcess(folders[0], [])]
        try:
            nodes += [NodeProcess(folder, [f"127.0.0.1:{nodes[0].port}"]) for folder in folders[1:]]
            for node in nodes:
                node.next("live", num_nodes)
            time.sleep(2)
            victim = nodes.pop()
            began = victim.kill()
            return max(float(str(node.next("dead", victim.id)["at"])) for node in nodes) - began
        finally:
            signal.alarm(0)
            for node in nodes:
                node.process.kill()
                node.process.wait()


def death_in_serf(serf: str, num_nodes: int, port: int) -> float:
    """The same of serf's agents with the profile for a local network."""
    agents: list[subprocess.Popen[bytes]] = []

    def count(agent: int, status: str) -> int:
        command = [serf, "members", "-format=json", f"-rpc-addr=127.0.0.1:{port + 100 + agent}"]
        out = subprocess.run(command, capture_output=True, check=False).stdout
        return sum(one["status"] == status for one in json.loads(out or "{}").get("members", []))

    try:
        for n in range(num_nodes):
            command = [serf, "agent", f"-node=n{n}", f"-bind=127.0.0.1:{port + n}", "-profile=lan"]
            command += [f"-rpc-addr=127.0.0.1:{port + 100 + n}", *([f"-join=127.0.0.1:{port}"] if n else [])]
            agents.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.3)
        wait(lambda: all(count(n, "alive") == num_nodes for n in range(num_nodes)))
        time.sleep(2)
        agents[-1].kill()
        return wait(lambda: all(count(n, "failed") for n in range(num_nodes - 1)))
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def wait(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < MAX_SECONDS
        time.sleep(0.05)
    return time.monotonic() - began


def spin() -> None:
    while True:
        pass


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def row(label: str, seconds: list[float]) -> None:
    print(f"| {label} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--serf", default="")
    parser.add_argument("--node", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", action="append", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        asyncio.run(be_a_node(options.node, options.seed))
        return
    print("Seconds from kill -9 until all others agree.\n\n| | p50 | worst |\n|---|---|---|")
    for num_busy in dict.fromkeys([0, options.busy]):
        with busy_loops(num_busy):
            for num_nodes in options.nodes:
                label = f"{num_nodes} nodes, {num_busy} busy loops"
                row(f"pyagent, {label}", [our_death(num_nodes) for _ in range(options.deaths)])
                if options.serf:
                    times = [death_in_serf(options.serf, num_nodes, 17_000 + 300 * n) for n in range(options.deaths)]
                    row(f"serf, {label}", times)


if __name__ == "__main__":
    main()
