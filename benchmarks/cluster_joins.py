"""One node joins a living cluster of two and leaves it, again and again: what do the two keep of it?

    python benchmarks/cluster_joins.py [--times 1000] [--warm 50]

Three whole nodes in this process, on loopback; every tenth time the joiner goes without a word, as a killed one does.
After the first `--warm` rounds open files, tasks, threads, memory, the tables of members and of connections, and the
files on disk are counted, and again at the end. Ends with status 1 when one of them has grown beyond its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.nodes import is_connected, join, running_node
from support.server import Model, words
from support.waiting import until

from pyagent.infrastructure.cluster import node as node_module
from pyagent.infrastructure.cluster.node import Node

FAREWELL_SECONDS = 0.02
"""Instead of the usual third of a second, which is for networks."""
SILENT_EVERY = 10


@dataclass(frozen=True)
class Held:
    """What is held by the two nodes, and by the process they share."""

    files_open: int
    tasks: int
    threads: int
    megabytes: float
    members: int
    connections: int
    files: int
    file_kib: float


BOUNDS = Held(files_open=4, tasks=3, threads=2, megabytes=24.0, members=0, connections=0, files=0, file_kib=8.0)
"""How much more may be held at the end."""


def held(nodes: Sequence[Node]) -> Held:
    """Count."""
    gc.collect()
    files = [file for node in nodes for file in node.cluster.folder.rglob("*") if file.is_file()]
    return Held(
        files_open=len(list(Path("/proc/self/fd").iterdir())),
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        megabytes=int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6,
        members=sum(len(node.status().peers) for node in nodes),
        connections=sum(len(node._transport.stats()) for node in nodes),
        files=len(files),
        file_kib=sum(file.stat().st_size for file in files) / 1024,
    )


async def come_and_go(folder: Path, living: Sequence[Node], number: int) -> None:
    """Join, wait until all have met, and leave; the others have noticed when this returns."""
    seeds = [f"127.0.0.1:{node.door_port}" for node in living]
    async with running_node(folder, [link("c")], seeds=seeds, offer=["test"]) as node:
        await until(lambda: is_connected(node, 2) and all(is_connected(other, 2) for other in living))
        if number % SILENT_EVERY == SILENT_EVERY - 1:
            node._members.fall_silent()  # no goodbye: its connections end
    await until(lambda: all(is_connected(other, 1) for other in living))


def link(name: str) -> Model:
    return Model(lambda _: words("hello"), [name])


async def rounds(folder: Path, num_times: int, num_warm: int) -> tuple[Held, Held]:
    """Return what was held after the first rounds, and at the end."""
    async with AsyncExitStack() as stack:
        living: list[Node] = []
        for name in "ab":
            join(folder / name, living[0] if living else None)
            seeds = [f"127.0.0.1:{node.door_port}" for node in living]
            given = {"seeds": seeds, "offer": ["test"]}
            living.append(await stack.enter_async_context(running_node(folder / name, [link(name)], **given)))
        join(folder / "c", living[0])
        await until(lambda: all(is_connected(node, 1) for node in living))
        before, began = held(living), time.monotonic()
        for number in range(num_times):
            if number == num_warm:
                before = held(living)
            await come_and_go(folder / "c", living, number)
            if number % 100 == 99:
                print(f"{number + 1} times, {time.monotonic() - began:.0f} s: {asdict(held(living))}", flush=True)
        await asyncio.sleep(0.5)
        return before, held(living)


def grown(before: Held, after: Held) -> list[str]:
    """Return what has grown beyond its bound."""
    return [
        f"{name} grew from {first:g} to {last:g}, by more than {bound:g}"
        for (name, first), last, bound in zip(
            asdict(before).items(), asdict(after).values(), asdict(BOUNDS).values(), strict=True
        )
        if last > first + bound
    ]


def run(num_times: int, num_warm: int) -> tuple[Held, Held]:
    """The whole, in a folder of its own."""
    usual, node_module._FAREWELL_SECONDS = node_module._FAREWELL_SECONDS, FAREWELL_SECONDS
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(rounds(Path(folder), num_times, num_warm))
    finally:
        node_module._FAREWELL_SECONDS = usual


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--warm", type=int, default=50)
    given = parser.parse_args()
    before, after = run(given.times, given.warm)
    print(f"before {asdict(before)}\nafter  {asdict(after)}")
    faults = grown(before, after)
    print("\n".join(faults) or "nothing has grown")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
