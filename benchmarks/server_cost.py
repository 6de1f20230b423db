"""What the server takes beside the engine: from a request's bytes on the socket to the answer's, less the engine's.

    .venv/bin/python benchmarks/server_cost.py [--rate 100] [--seconds 20]

Requests for one token with a short prompt come at random moments, so many a second, over connections that stay open. Of
each answer's time the engine's own is taken away (`usage.timings`: from its queue to its last token). What is left is
HTTP, reading the request, the chain, template, tokens, the way into the engine's queue and the way back: more than the
way from the socket to the queue, for which the target is 1 ms in the median. The client's own cost is in it too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from urllib.parse import urlsplit

from peers import pyagent_server
from quiet import machine

from pyagent.core.settings import Settings
from pyagent.infrastructure.models.store import ModelStore

NUM_CONNECTIONS = 16


def request(number: int) -> bytes:
    """A request as bytes; only its last words are new."""
    body = json.dumps(
        {
            "model": "default",
            "messages": [{"role": "user", "content": f"Say a number after {number % 50}."}],
            "max_tokens": 1,
            "temperature": 0,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> tuple[float, float]:
    """Seconds until the whole answer was there, and of these the engine's."""
    start = time.perf_counter()
    writer.write(request(number))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(head.decode())
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0]))
    seconds = time.perf_counter() - start
    return seconds, json.loads(body)["usage"]["timings"]["total_seconds"]


async def run(url: str, rate: float, seconds: float) -> list[tuple[float, float]]:
    """The times of all requests."""
    split = urlsplit(url)
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(NUM_CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection(split.hostname, split.port))
    draw, times = random.Random(5), list[tuple[float, float]]()

    async def one(number: int) -> None:
        connection = await idle.get()
        times.append(await ask(*connection, number))
        idle.put_nowait(connection)

    for number in range(50):
        await one(number)
    times.clear()
    end, number = time.monotonic() + seconds, 0
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < end:
            group.create_task(one(number))
            number += 1
            await asyncio.sleep(draw.expovariate(rate))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    model = ModelStore(Settings().paths.models).locate("smollm2:135m")
    with pyagent_server(model, context=2048) as server:
        times = asyncio.run(run(server.url, arguments.rate, arguments.seconds))
    beside = sorted((whole - engine) * 1e3 for whole, engine in times)
    print(f"{len(times)} requests, {arguments.rate:g} a second, {model.name}; {machine()}")
    print("| ms | median | 95th percentile |\n|---|---|---|")
    for name, values in (("whole", sorted(whole * 1e3 for whole, _ in times)), ("beside the engine", beside)):
        print(f"| {name} | {statistics.median(values):.2f} | {values[len(values) * 95 // 100]:.2f} |")


if __name__ == "__main__":
    main()
