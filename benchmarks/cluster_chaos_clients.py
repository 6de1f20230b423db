"""The clients of `cluster_chaos.py`: each has a list of all nodes, asks one, and the next when that one fails it.

A client speaks HTTP as a user's does. A chat has no effect, so it is asked again at once. A run of the agent has one:
it is given a time limit, and when the answer does not come, the client waits until the limit is over, looks into the
ledger, and asks again only when nothing is written there.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster_chaos_nodes import HTTP_PORT, ChaosNode
from cluster_chaos_plugin import MODEL, NUM_PIECES
from fake_upstream import answer_to
from support.networks import Machine, entered

SILENT_SECONDS = 20.0
RUN_SECONDS = 8.0
MARGIN_SECONDS = 2.0
MAX_RUN_SECONDS = 240.0


class FailedError(Exception):
    """A node gave no answer, or not a whole one. `is_refused` is whether it surely did not take the request."""

    def __init__(self, text: str, *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused


async def request(machine: Machine, path: str, body: dict[str, object] | None = None) -> tuple[int, bytes]:
    """Ask the server on a machine, from a program there; return the status and the body. Raises `FailedError`."""
    with entered(machine.pid):
        connection = socket.socket()
    connection.setblocking(False)
    writer = None
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            try:
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", HTTP_PORT))
            except OSError as error:
                raise FailedError(f"{error}", is_refused=True) from error
            reader, writer = await asyncio.open_connection(sock=connection)
            data = b"" if body is None else json.dumps(body).encode()
            method = "GET" if body is None else "POST"
            head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{HTTP_PORT}\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
            return await _answer(reader)
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        raise FailedError(f"{type(error).__name__} {error}") from error
    finally:
        writer.close() if writer else connection.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head:
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return status, await reader.readexactly(length)
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return status, body


async def chat(machine: Machine, body: dict[str, object]) -> str:
    """Return the text of an answer, streamed or not. Raises `FailedError`."""
    status, told = await request(machine, "/v1/chat/completions", body)
    if status != 200:
        raise FailedError(f"status {status}: {told[:300].decode(errors='replace')}")
    if not body.get("stream"):
        return json.loads(told)["choices"][0]["message"]["content"]
    text, finish = "", None
    for line in told.decode().splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise FailedError(f"broke off: {event['error']}")
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    if finish is None:
        raise FailedError("the stream ended without its end")
    return text


@dataclass
class Outcome:
    """What came of the runs."""

    finished: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    agent_runs: list[str] = field(default_factory=list[str])
    longest_seconds: float = 0.0
    num_in_flight: int = 0
    num_asked: int = 0


@dataclass
class Clients:
    """So many clients, and what they ask. `sums` are prompts for the small model with the right answers."""

    nodes: Sequence[ChaosNode]
    ledger: Path
    tiny: str
    sums: Sequence[tuple[dict[str, object], str]]
    seed: int
    num_begun: int = 0
    outcome: Outcome = field(default_factory=Outcome)

    async def run(self, num_clients: int, until: float) -> None:
        """Ask one thing after the other until then, and wait for what is in flight."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(self._client(number, until))

    async def _client(self, number: int, until: float) -> None:
        draw = random.Random(self.seed * 1000 + number)
        await asyncio.sleep(draw.uniform(0.0, 2.0))
        while time.monotonic() < until:
            self.num_begun += 1
            kind = draw.choices(("story", "sum", "agent"), (6, 2, 2))[0]
            began = time.monotonic()
            self.outcome.num_in_flight += 1
            try:
                await self._finish(kind, f"r{self.num_begun}", draw, began + MAX_RUN_SECONDS)
            finally:
                self.outcome.num_in_flight -= 1
            self.outcome.longest_seconds = max(self.outcome.longest_seconds, time.monotonic() - began)

    async def _finish(self, kind: str, run: str, draw: random.Random, end: float) -> None:
        """Ask until the run has finished, each time another node."""
        body, right = self._asked(kind, run, draw)
        nodes = draw.sample(self.nodes, len(self.nodes))
        for attempt in range(1_000_000):
            node = nodes[attempt % len(nodes)]
            began = time.monotonic()
            if began > end:
                self.outcome.lost.append(f"{kind} {run} did not finish in {attempt} attempts")
                return
            if kind == "agent":
                body["messages"] = [{"role": "user", "content": f"{run} {attempt}"}]
            self.outcome.num_asked += 1
            try:
                text = await chat(node.machine, body)
            except FailedError as error:
                self.outcome.failures[_kind_of(error)] += 1
                if kind == "agent" and not error.is_refused:
                    await asyncio.sleep(began + RUN_SECONDS + MARGIN_SECONDS - time.monotonic())
                    if run in self._written():
                        self.outcome.finished["agent, by the ledger"] += 1
                        return
                await asyncio.sleep(draw.uniform(0.05, 0.3))
                continue
            if text != right:
                self.outcome.wrong.append(f"{kind} {run} of {node.name}, attempt {attempt}: {text!r}, not {right!r}")
            self.outcome.finished[kind] += 1
            return

    def _asked(self, kind: str, run: str, draw: random.Random) -> tuple[dict[str, object], str]:
        if kind == "story":
            question = f"question {run}"
            body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
            return body, "".join(answer_to(question, NUM_PIECES))
        if kind == "sum":
            return draw.choice(self.sums)
        self.outcome.agent_runs.append(run)
        body = {"model": "agent:ledger", "stream": draw.random() < 0.5, "timeout_seconds": RUN_SECONDS}
        return body, f"{run} is written"

    def _written(self) -> set[str]:
        return {line.split()[0] for line in self.ledger.read_text().splitlines()} if self.ledger.exists() else set()

    def faults(self) -> list[str]:
        """Return what is wrong with the outcome: answers, runs without an end, effects doubled or missing."""
        entries = [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []
        runs = Counter(entry[0] for entry in entries)
        doubled = [" / ".join(" ".join(entry) for entry in entries if entry[0] == run) for run in runs if runs[run] > 1]
        lost = {line.split()[1] for line in self.outcome.lost}
        missing = [run for run in self.outcome.agent_runs if run not in runs and run not in lost]
        return [
            *(f"wrong answer: {text}" for text in self.outcome.wrong),
            *self.outcome.lost,
            *(f"effect twice: {told}" for told in doubled),
            *(f"effect of {run} is missing" for run in missing),
        ]


def _kind_of(error: FailedError) -> str:
    return "refused" if error.is_refused else " ".join(str(error).split()[:12])
