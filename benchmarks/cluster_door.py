"""What the door of a node costs: a knock, a join by a code, and a knock while outsiders flood the door.

`python benchmarks/cluster_door.py [COUNT]`: all on loopback in one process, so a knock is both ends' work. A plain TCP
connection with one byte each way stands beside it. The flood is a process that opens connections from 50 addresses as
quickly as it can, each with a valid hello and then nothing. The limit of new connections a second is off, which would
turn the flood away, and the knocks with it: what is left is the bound of connections at a time.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.doors import Node, copy_cluster

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.join import Newcomer, ask_to_join
from pyagent.infrastructure.cluster.visitors import DoorLimits

FLOOD = """
import itertools, socket, sys
port, hello = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
held = []
for number in itertools.count():
    opened = socket.socket()
    try:
        opened.bind((f"127.0.2.{number % 50 + 1}", 0))
        opened.connect(("127.0.0.1", port))
        opened.send(hello)
    except OSError:
        pass
    held.append(opened)
    if len(held) > 500:
        held.pop(0).close()
    if number % 50 == 0:
        print(number, flush=True)
"""


def row(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"| {name} | {p50 * 1e3:.2f} | {p99 * 1e3:.2f} | {len(ordered)} |", flush=True)


async def timed(count: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - began)
    return seconds


async def echo(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    await reader.readexactly(1)
    writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(1))
    writer.close()


async def join_once(one: Node, two: Node) -> None:
    code = one.invitations.make().code
    await ask_to_join("127.0.0.1", one.door.port, code, Newcomer(two.keys.public, "laptop"))


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        calm = DoorLimits(per_second=1e6)
        one, two = Node(Path(folder) / "one", "desk", limits=calm), Node(Path(folder) / "two", "laptop")
        one.cluster.init("home")
        copy_cluster(one, two)
        port = await one.start()
        plain = await asyncio.start_server(answer, "127.0.0.1", 0)
        print("| | p50 ms | p99 ms | times |\n|---|---|---|---|")
        row("plain TCP, one byte and back", await timed(count, lambda: echo(plain.sockets[0].getsockname()[1])))
        await two.knock(one)
        row("knock", await timed(count, lambda: two.knock(one)))
        row("join by a code", await timed(max(3, count // 50), lambda: join_once(one, two)))
        await one.door.stop()
        port = await one.open_door().start("127.0.0.1", 0)
        await beside_a_flood(one, two, port, count)
        plain.close()


async def beside_a_flood(one: Node, two: Node, port: int, count: int) -> None:
    from pyagent.infrastructure.cluster.handshake import HELLO, HELLOS
    from pyagent.infrastructure.wire.codec import with_length

    command = [sys.executable, "-c", FLOOD, str(port), with_length(HELLOS.encode(HELLO)).hex()]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it takes a moment
    failures = 0

    async def knock() -> None:
        nonlocal failures
        while True:
            try:
                await two.knock(one)
            except ClusterError:
                failures += 1
                await asyncio.sleep(0.02)
            else:
                return

    try:
        await asyncio.sleep(1)
        began = time.perf_counter()
        row("knock beside the flood", await timed(count, knock))
        took = time.perf_counter() - began
    finally:
        flood.kill()
        output, _ = flood.communicate()
    opened = int(output.split()[-1]) if output.split() else 0
    print(f"\nknocks that had to be repeated: {failures}; connections of the flood: about {opened} in {took + 1:.1f} s")
    await one.door.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
