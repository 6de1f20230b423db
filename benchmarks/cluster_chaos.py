"""A storm over a cluster of five nodes: killed, paused, cut off, started anew, while 200 runs are in flight.

    python benchmarks/cluster_chaos.py [--minutes 15] [--clients 200] [--seed 1] [--keep FOLDER]

Each node is a whole `pyagent node` in a network namespace of its own, found by multicast over a switch that also loses
frames (takes root). Clients ask any node, and another when that one fails them: streamed chats, chats of the embedded
engine with a seed, and runs of an agent that only three of the nodes have. Ends with status 1 unless every run finished
with the one right answer, every effect of the agent happened once, no node failed by itself or grew, and all nodes hold
each other for members at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster_chaos_clients import Clients, FailedError, chat, request
from cluster_chaos_nodes import ChaosNode, Weather, write_plugin
from support.machines import share_cluster
from support.networks import network, slow_switch, why_not
from support.tiny_model import write_tiny_model

NUM_NODES, NUM_AGENT_NODES = 5, 3
TOLD_SECONDS = 10.0
START_SECONDS = 180.0
MAX_SHOWN = 40
MEMORY_MB, FILES = 40.0, 12
"""How much more a node may hold at the end than when all were warm, with nothing to do at both times."""


@dataclass
class Storm:
    """What was measured of a storm."""

    clients: Clients
    weather: Weather
    before: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    after: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    heal_seconds: float = -1.0
    faults: list[str] = field(default_factory=list[str])

    def look(self) -> list[str]:
        """Return what does not hold; takes the nodes' files, which go with their folder."""
        faults = [*self.clients.faults(), *(text for node in self.weather.nodes for text in node.problems)]
        if self.heal_seconds < 0:
            faults.append("the nodes do not agree on the members at the end")
        (before_mb, before_files), (after_mb, after_files) = self.before[0], self.after[0]
        if after_mb > before_mb + MEMORY_MB:
            faults.append(f"the memory of n1 grew from {before_mb:.0f} to {after_mb:.0f} MB")
        if after_files > before_files + FILES:
            faults.append(f"the open files of n1 grew from {before_files} to {after_files}")
        return faults

    def line(self, seconds: float) -> str:
        """Return a line of progress."""
        outcome, states = self.clients.outcome, {node.name: node.state for node in self.weather.nodes}
        down = ", ".join(f"{name} {state}" for name, state in states.items() if state != "up") or "all up"
        finished = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.finished.items()))
        num_wrong = len(outcome.wrong) + len(outcome.lost)
        sizes = " ".join(f"{node.size()[0]:.0f}/{node.size()[1]}" for node in self.weather.nodes if node.state == "up")
        return (
            f"{seconds:5.0f} s  finished {finished or 'none'}; {outcome.num_in_flight} in flight, "
            f"{sum(outcome.failures.values())} asked again, {num_wrong} wrong; {down}; "
            f"{self.weather.shown or 'network whole'}; MB/files {sizes}"
        )


@asynccontextmanager
async def running_nodes(folder: Path) -> AsyncIterator[tuple[list[ChaosNode], Weather]]:
    """Start the nodes on machines of their own."""
    model, ledger, site = folder / "tiny.gguf", folder / "ledger", write_plugin(folder / "site")
    write_tiny_model(model)
    async with AsyncExitStack() as stack:
        net = stack.enter_context(network(NUM_NODES, plugged=0))
        switch = stack.enter_context(slow_switch(net))
        folders = [folder / f"n{number}" for number in range(1, NUM_NODES + 1)]
        share_cluster(folders)
        nodes = [
            ChaosNode(number, machine, own, model, ledger, site, number > NUM_NODES - NUM_AGENT_NODES)
            for number, (machine, own) in enumerate(zip(net.machines, folders, strict=True), 1)
        ]
        for node in nodes:
            stack.callback(node.close)
            node.start()
        yield nodes, Weather(nodes, switch, random.Random(1))


async def until_all_agree(nodes: Sequence[ChaosNode], seconds: float) -> float:
    """Wait until each node has all others as peers and no member besides; return how long that took, or -1."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        for node in nodes:
            try:
                _, told = await request(node.machine, "/pyagent/cluster")
                peers = json.loads(told).get("peers", [])
            except (FailedError, ValueError):
                break
            expected = {other.name for other in nodes if other is not node}
            alive = {
                peer["name"] for peer in peers if peer["state"] == "alive" and peer["is_connected"] and peer["models"]
            }
            if alive != expected or len(peers) != len(expected):
                break
        else:
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return -1.0


async def known_answers(nodes: Sequence[ChaosNode]) -> tuple[str, list[tuple[dict[str, object], str]]]:
    """Load the small model on each node, and return its name, and prompts with their right answers."""
    _, told = await request(nodes[0].machine, "/v1/models")
    tiny = next(str(one["id"]) for one in json.loads(told)["data"] if "tiny" in str(one["id"]))
    sums: list[tuple[dict[str, object], str]] = []
    for number in range(8):
        body: dict[str, object] = {
            "model": tiny,
            "messages": [{"role": "user", "content": f"the user {number} and the system"}],
            "max_tokens": 24,
            "temperature": 1.0,
            "seed": number,
        }
        texts = [await chat(node.machine, body | {"private": True}) for node in nodes]
        if len(set(texts)) != 1:
            raise SystemExit(f"the nodes do not agree on the answer to {body}: {texts}")
        sums.append((body, texts[0]))
    return tiny, sums


async def storm(folder: Path, seconds: float, num_clients: int, seed: int) -> Storm:
    """Start the nodes, let clients ask and the weather rage, and look at what is left."""
    async with running_nodes(folder) as (nodes, weather):
        if await until_all_agree(nodes, START_SECONDS) < 0:
            raise SystemExit("the nodes did not meet; see their logs with --keep")
        weather.draw = random.Random(seed)
        tiny, sums = await known_answers(nodes)
        clients = Clients(nodes, folder / "ledger", tiny, sums, seed)
        result = Storm(clients, weather)
        await clients.run(num_clients, time.monotonic() + 8.0)  # warm: each has loaded what it loads later
        await asyncio.sleep(5.0)
        result.before = [node.size() for node in nodes]
        began = time.monotonic()
        telling = asyncio.create_task(_tell(result, began))
        async with asyncio.TaskGroup() as group:
            group.create_task(weather.run(began + seconds))
            group.create_task(clients.run(num_clients, began + seconds))
        result.heal_seconds = await until_all_agree(nodes, 60.0)
        await asyncio.sleep(5.0)
        telling.cancel()
        for node in nodes:
            node.check()
        result.after = [node.size() for node in nodes]
        result.faults = result.look()
        print(result.line(time.monotonic() - began), flush=True)
        return result


async def _tell(result: Storm, began: float) -> None:
    while True:
        await asyncio.sleep(TOLD_SECONDS)
        for node in result.weather.nodes:
            node.check()
        print(result.line(time.monotonic() - began), flush=True)


def run(seconds: float, num_clients: int, seed: int, folder: Path | None = None) -> Storm:
    """The whole; logs of the nodes are kept in `folder`, where there is one."""
    if folder is not None:
        folder.mkdir(parents=True)
        return asyncio.run(storm(folder, seconds, num_clients, seed))
    with tempfile.TemporaryDirectory() as home:
        return asyncio.run(storm(Path(home), seconds, num_clients, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="A new folder for the nodes' files and logs.")
    given = parser.parse_args()
    if reason := why_not():
        print(f"not run: {reason}")
        return 2
    result = run(given.minutes * 60, given.clients, given.seed, given.keep)
    outcome = result.clients.outcome
    print(f"{sum(outcome.finished.values())} runs finished, {outcome.num_asked} requests: {dict(outcome.finished)}")
    print(f"weather: {result.weather.counts}; longest run {outcome.longest_seconds:.1f} s")
    print(
        f"all agree {result.heal_seconds:.1f} s after the last run; "
        f"MB, files before {result.before}, after {result.after}"
    )
    for kind, count in outcome.failures.most_common(12):
        print(f"  asked again {count:5}: {kind}")
    more = [f"and {len(result.faults) - MAX_SHOWN} more"] if len(result.faults) > MAX_SHOWN else []
    print("\n".join(result.faults[:MAX_SHOWN] + more) or "all claims hold")
    return bool(result.faults)


if __name__ == "__main__":
    sys.exit(main())
