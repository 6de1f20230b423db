"""What the server takes beside the engine: from a request's bytes on the socket into the engine's queue, and back.

    .venv/bin/python benchmarks/server_cost.py [--rate 100] [--seconds 20]

Requests for one token with a short prompt come at random moments, so many a second, over connections that stay open.
The engine tells when a request came to it (`usage.timings.queued_at`, by the clock that this program reads too) and how
long it took. "There" is HTTP, reading the request, the chain, template and tokens; "back" is the answer's way, reading
it here included. The first is the claim: below 1 ms in the median at 100 requests a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Times:
    """One request's, in milliseconds."""

    whole: float
    there: float
    engine: float

    @property
    def back(self) -> float:
        """From the engine's last token to the whole answer here."""
        return self.whole - self.there - self.engine


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Times:
    """Ask once."""
    body = request(number)
    start = time.perf_counter()
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(head.decode())
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0]))
    whole = time.perf_counter() - start
    timings = json.loads(body)["usage"]["timings"]
    return Times(whole * 1e3, (timings["queued_at"] - start) * 1e3, timings["total_seconds"] * 1e3)


async def run(url: str, rate: float, seconds: float) -> list[Times]:
    """The times of all requests."""
    split = urlsplit(url)
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(NUM_CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection(split.hostname, split.port))
    draw, times = random.Random(5), list[Times]()

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
    print(f"{len(times)} requests, {arguments.rate:g} a second, {model.name}; {machine()}")
    print("| ms | median | 95th percentile |\n|---|---|---|")
    for name in ("whole", "there", "engine", "back"):
        values = sorted(getattr(one, name) for one in times)
        print(f"| {name} | {statistics.median(values):.2f} | {values[len(values) * 95 // 100]:.2f} |")


if __name__ == "__main__":
    main()
