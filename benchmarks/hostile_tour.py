"""Each way known to end, stall or empty a server, against `pyagent serve`, beside a client that wants short answers.

    .venv/bin/python benchmarks/hostile_tour.py [--seconds 6] [--laps 2] [--only NAME]

The server runs in a process of its own with 1,024 file descriptors, and a chain of its embedded model, itself, and
links that hang, drip, send only comments or redirect. The client asks `/ready` up to forty times a second, each time
over a new connection, and for four tokens twice a second. Beside `/ready` it asks a bare asyncio server that does
nothing else, which tells what the machine's load does to any server. For each attack the tour prints how the client
fared, and after each lap the server's memory.

Exits with 1 when the server ended, a short answer was not given, `/ready` took 250 ms or more at p99, or the memory did
not come back to within 10 %, of which a second lap (`--laps 2`) may not add half.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

READY_SECONDS, MEMORY_GROWTH = 0.25, 0.10
NUM_DESCRIPTORS = 1024
CONNECTIONS_A_SECOND, PAUSE_SECONDS = 800, 0.05
"""What attackers keep to: without a bound they would take the cores that the server and its client need."""
TEXT = "What is 2+2? Answer with the number only."
Attack = Callable[["Target"], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}
_ANONYMOUS = "from-to permissions offset device inode"  # a line of smaps whose mapping has no name


@dataclass(frozen=True, slots=True)
class Target:
    """The server under attack. `until` is when an attack is to end, on the clock of `time.monotonic`."""

    port: int
    until: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the attack has lasted long enough."""
        return time.monotonic() > self.until


class Pace(NamedTuple):
    """How long an attack lasts, how long memory has to come back after a lap, and how many laps there are."""

    attack_seconds: float
    settle_seconds: float
    num_laps: int


class Sample(NamedTuple):
    """What became of one request of the well-behaved client."""

    path: str
    at: float
    seconds: float
    status: int


def attack(function: Attack) -> Attack:
    """Enter an attack in the tour."""
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


# -- asking -----------------------------------------------------------------------------------------------------------


async def ask(port: int, path: str, body: bytes | None = None, *, seconds: float = 60.0, head: str = "") -> int:
    """The status of one request over a new connection; 0 when there is none."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                method = "GET" if body is None else "POST"
                more = "" if body is None else f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                lines = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}{head}\r\n"
                writer.write(lines.encode() + (body or b""))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                answer = await reader.read()
                return int(answer.split(b" ", 2)[1])
            finally:
                writer.close()
    return 0


def chat(content: object = TEXT, **fields: object) -> bytes:
    """The body of a chat that wants four tokens."""
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return json.dumps({"model": "default", "messages": messages, "max_tokens": 4} | fields).encode()


def hostile(content: object = TEXT, **fields: object) -> bytes:
    """The body of a chat that may reach the links that hang, and is given up after 3 s."""
    return chat(content, **{"timeout_seconds": 3} | fields)


async def keep_asking(target: Target, *bodies: bytes, path: str = "/v1/chat/completions", at_once: int = 2) -> None:
    """Send these bodies over and over until the attack is over."""

    async def worker(number: int) -> None:
        while not target.is_over:
            await ask(target.port, path, bodies[number % len(bodies)])
            number += at_once
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*map(worker, range(at_once)))


# -- the attacks ------------------------------------------------------------------------------------------------------


async def _hold(target: Target, count: int, begin: bytes = b"", drip: bytes = b"") -> None:
    """Open connections, a few hundred a second, that send `begin` and then `drip` now and then."""
    held: list[asyncio.StreamWriter] = []
    try:
        for number in range(count):
            with contextlib.suppress(OSError):
                held.append((await asyncio.open_connection("127.0.0.1", target.port))[1])
                held[-1].write(begin)
            if number % 16 == 0:
                await asyncio.sleep(16 / CONNECTIONS_A_SECOND)
        while not target.is_over:
            for writer in held if drip else ():
                if not writer.is_closing():
                    writer.write(drip)
            await asyncio.sleep(0.5)
    finally:
        for writer in held:
            writer.close()


@attack
async def idle_connections(target: Target) -> None:
    """Three times as many as the server has descriptors."""
    await _hold(target, 3 * NUM_DESCRIPTORS)


@attack
async def slow_heads(target: Target) -> None:
    """Heads that come byte by byte."""
    await _hold(target, NUM_DESCRIPTORS, drip=b"x")


@attack
async def slow_bodies(target: Target) -> None:
    """Bodies that never come."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    await _hold(target, NUM_DESCRIPTORS, head + b"content-length: 1000\r\n\r\n{")


@attack
async def one_huge_word(target: Target) -> None:
    """30 MB without a space, and 1 MB, which a thousand tokens of context cannot hold either."""
    await keep_asking(target, hostile("a" * 30_000_000), hostile("aB3/" * 250_000))


@attack
async def a_huge_word_to_count(target: Target) -> None:
    """The same to the route that only counts."""
    await keep_asking(target, chat("xyz" * 5_000_000), path="/v1/messages/count_tokens")


@attack
async def a_huge_text(target: Target) -> None:
    """16 MB of words, which the template would have to write."""
    await keep_asking(target, hostile("hello world " * 1_400_000))


@attack
async def many_messages(target: Target) -> None:
    """400,000 messages of a letter."""
    await keep_asking(target, hostile([{"role": "user", "content": "x"}] * 400_000), at_once=1)


def _tools(count: int) -> list[dict[str, object]]:
    return [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(count)]


@attack
async def many_tools(target: Target) -> None:
    """10,000 tools, and 200,000."""
    small, large = hostile(tools=_tools(10_000)), hostile(tools=_tools(200_000))
    await keep_asking(target, small, small, small, large)


def _nested(depth: int) -> dict[str, object]:
    text = '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth
    return json.loads(text)  # type: ignore[no-any-return]


@attack
async def nested_schemas(target: Target) -> None:
    """Schemas nested 400 and 900 deep, as a form and as a tool's."""
    sys.setrecursionlimit(10_000)
    bodies = [
        hostile(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": _nested(depth)}})
        for depth in (400, 900)
    ]
    bodies.append(hostile(tools=[{"type": "function", "function": {"name": "x", "parameters": _nested(400)}}]))
    await keep_asking(target, *bodies)


@attack
async def wide_schemas(target: Target) -> None:
    """A choice of 100,000 texts, one of 3,000, and an object of 20,000 properties."""
    choices = [hostile(response_format={"type": "choice", "choice": list(map(str, range(n)))}) for n in (100_000, 3000)]
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wide}}
    await keep_asking(target, *choices, hostile(response_format=form))


@attack
async def lists_of_models(target: Target) -> None:
    """The lists of models, which ask all links, by clients that leave at once."""

    async def worker(path: str) -> None:
        while not target.is_over:
            await ask(target.port, path, seconds=0.2)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(worker(path) for path in ("/v1/models", "/api/tags", "/v1/models/nobody", "/health") * 4))


@attack
async def unknown_models(target: Target) -> None:
    """Chats with a model that no link has: a link that hangs must not hold up those of the others."""
    await keep_asking(target, hostile(model="nobody"), at_once=8)


@attack
async def bad_links(target: Target) -> None:
    """Chats that go to the links that loop back, hang, drip, send only comments or redirect."""
    await keep_asking(target, *(hostile(model=model) for model in BAD_LINKS), at_once=10)


@attack
async def bad_http(target: Target) -> None:
    """Lengths that lie, heads that are too long, garbage."""
    start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    pieces = (
        start + b"content-length: 99999999999999\r\n\r\n",
        start + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        start + b"x: " + b"y" * 200_000,
        os.urandom(4096),
        start + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
    )
    while not target.is_over:
        for piece in pieces:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", target.port)
                writer.write(piece)
                await asyncio.sleep(0.02)
                writer.close()


# -- the links that are no use ----------------------------------------------------------------------------------------

BAD_LINKS = ("loop", "hang", "drip", "comments", "redirect")
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


async def _bad_link(kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        if kind == "redirect":
            writer.write(b"HTTP/1.1 302 Found\r\nlocation: /v1/models\r\ncontent-length: 0\r\n\r\n")
        elif kind == "hang":
            await reader.read()
        else:
            writer.write(_STREAM)
            while not reader.at_eof():
                writer.write(b": comment\n\n" if kind == "comments" else b"d")
                await writer.drain()
                await asyncio.sleep(0.05)
    writer.close()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all on to the server itself: a loop that its address does not give away."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    with contextlib.suppress(OSError):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back), copy(there, writer))
    writer.close()


@contextlib.asynccontextmanager
async def bad_links_at(port: int) -> AsyncGenerator[dict[str, int]]:
    """The ports of links that loop back to `port`, hang, drip, send only comments or redirect."""

    def behaves(kind: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        return partial(_relay, port) if kind == "loop" else partial(_bad_link, kind)

    servers = {kind: await asyncio.start_server(behaves(kind), "127.0.0.1", 0) for kind in BAD_LINKS}
    try:
        yield {kind: server.sockets[0].getsockname()[1] for kind, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # links under way are cut


# -- the server and its client ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tour:
    """The server, and what its client saw so far."""

    server: subprocess.Popen[str]
    port: int
    echo_port: int

    @property
    def resident_bytes(self) -> int:
        """The server's resident memory but for KV blocks: prompts are kept there on purpose, up to `engine.memory`.

        They lie in the largest anonymous mapping, which has room for all of them and is touched as they are used.
        """
        sizes: list[tuple[int, int]] = []
        for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", self._mappings(), flags=re.MULTILINE)[1:]:
            size, resident = (
                int(re.findall(rf"^{name}:\s+(\d+) kB", mapping, re.MULTILINE)[0]) for name in ("Size", "Rss")
            )
            is_anonymous = len(mapping.splitlines()[0].split()) == len(_ANONYMOUS.split())
            sizes.append((size if is_anonymous else 0, resident))
        return 1024 * (sum(resident for _, resident in sizes) - max(sizes)[1]) if sizes else 0

    def _mappings(self) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.server.pid}/smaps").read_text()
        return ""


async def echo() -> None:
    """A server that answers whoever ends a head, and does nothing else; prints its port, and serves until killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def watch(port: int, echo_port: int) -> None:
    """Ask as a well-behaved client does, in a process of its own, and print what came of it, until killed."""

    async def keep(port: int, path: str, body: bytes | None, pause_seconds: float) -> None:
        while True:
            at = time.monotonic()
            # again, as clients do when a connection is lost
            status = await ask(port, path, body) or await ask(port, path, body)
            print(json.dumps((path, at, time.monotonic() - at, status)), flush=True)
            await asyncio.sleep(pause_seconds)

    await asyncio.gather(
        keep(echo_port, "echo", None, 0.025),
        keep(port, "/ready", None, 0.025),
        keep(port, "/v1/chat/completions", chat(), 0.5),
    )


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(folder: Path, model: str, port: int, links: dict[str, int]) -> Path:
    """The server's file of settings: its model first, then itself, then the bad links."""
    chain = ["native", *(f"openai:http://127.0.0.1:{at}/v1#{kind}" for kind, at in links.items())]
    text = f"chain = {json.dumps(chain)}\n[engine]\nmodels = {json.dumps([model])}\n[server]\nport = {port}\n"
    file = folder / "pyagent.toml"
    file.write_text(text + '[log]\nlevel = "error"\n')
    return file


def start(file: Path) -> subprocess.Popen[str]:
    """`pyagent serve` with few descriptors, once it answers."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_DESCRIPTORS, NUM_DESCRIPTORS))

    command = [str(Path(sys.executable).with_name("pyagent")), "serve", "--config", str(file)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)  # noqa: PLW1509 - no threads yet
    assert server.stdout is not None
    if "answers on" not in server.stdout.readline():
        raise SystemExit("the server did not start")
    return server


def at_rank(values: Sequence[float], part: float) -> float:
    """The value that so large a part of all are at most."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def report(name: str, samples: Sequence[Sample], resident_bytes: int) -> list[str]:
    """Print how the client fared; returns what was not as promised."""
    ready = [sample.seconds for sample in samples if sample.path == "/ready"]
    bare = [sample.seconds for sample in samples if sample.path == "echo"]
    chats = [sample for sample in samples if sample.path not in {"/ready", "echo"}]
    late, worst, bare_late = at_rank(ready, 0.99), max(ready, default=float("nan")), at_rank(bare, 0.99)
    lost = sum(sample.status != 200 for sample in samples)
    slowest = max((sample.seconds for sample in chats), default=float("nan"))
    print(
        f"{name:24} {len(ready):5} {at_rank(ready, 0.5) * 1e3:8.0f} {late * 1e3:8.0f} {worst * 1e3:8.0f} "
        f"{bare_late * 1e3:8.0f} "
        f"{len(chats):6} {slowest * 1e3:9.0f} {lost:6} {resident_bytes / 1e6:8.0f}",
        flush=True,
    )
    faults = [f"{name}: {lost} requests of the well-behaved client failed"] if lost else []
    if not late < READY_SECONDS:
        faults.append(f"{name}: /ready took {late * 1e3:.0f} ms at p99 (a bare server: {bare_late * 1e3:.0f} ms)")
    return faults


async def _attacked(tour: Tour, function: Attack, seconds: float) -> list[Sample]:
    """What the client saw during an attack."""
    command = (sys.executable, __file__, "--watch", str(tour.port), str(tour.echo_port))
    watcher = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert watcher.stdout is not None
    await watcher.stdout.readline()
    await function(Target(tour.port, time.monotonic() + seconds))
    watcher.terminate()
    lines = (await watcher.communicate())[0].splitlines()
    return [Sample(*json.loads(line)) for line in lines if line.endswith(b"]")]


async def _settled(tour: Tour, most: float, seconds: float) -> int:
    """The memory once it has come back, or after so long."""
    for _ in range(int(seconds / 0.5)):
        if tour.resident_bytes <= most:
            break
        await asyncio.sleep(0.5)
    return tour.resident_bytes


async def run(model: str, pace: Pace, names: Sequence[str]) -> list[str]:
    """The tour; returns what was not as promised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    with tempfile.TemporaryDirectory() as folder, echoing() as echo_port:
        port = free_port()
        async with bad_links_at(port) as links:
            server = start(settings(Path(folder), model, port, links))
            try:
                faults = await _laps(Tour(server, port, echo_port), pace, names)
            finally:
                server.terminate()
                code = server.wait(30)
                if server.stdout is not None:
                    server.stdout.close()
    return faults + ([f"the server did not end cleanly: {server.returncode}"] if code != 0 else [])


@contextlib.contextmanager
def echoing() -> Generator[int]:
    """The port of a bare server in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--echo"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


async def _laps(tour: Tour, pace: Pace, names: Sequence[str]) -> list[str]:
    for _ in range(20):  # the model is there, and what grows with first requests has grown
        await ask(tour.port, "/v1/chat/completions", chat(), seconds=120)
    # structured output makes its tables of the vocabulary once, 25 MB that the ledger has
    await ask(tour.port, "/v1/chat/completions", chat(response_format={"type": "choice", "choice": ["3", "4"]}))
    faults: list[str] = []
    before = tour.resident_bytes
    most = before * (1 + MEMORY_GROWTH)
    for lap in range(1, pace.num_laps + 1):
        print(
            f"{'attack':24} {'ready':>5} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'bare p99':>8} "
            f"{'chats':>6} {'max ms':>9} {'failed':>6} {'RSS MB':>8}"
        )
        for name in ("nothing", *names):
            samples = await _attacked(tour, ATTACKS.get(name, _nothing), pace.attack_seconds)
            if tour.server.poll() is not None:
                return [*faults, f"{name}: the server ended with {tour.server.returncode}"]
            faults += report(name, samples, tour.resident_bytes)
        after = await _settled(tour, most, pace.settle_seconds)
        told = f"memory {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after lap {lap}"
        print(told, flush=True)
        if after > most:
            faults.append(told)
        most = after + before * MEMORY_GROWTH / 2
    return faults


async def _nothing(target: Target) -> None:
    await asyncio.sleep(target.until - time.monotonic())


def main() -> int:
    """Read the flags, run the tour, say what was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each attack lasts, at least")
    parser.add_argument("--model", default="smollm2:135m", help="the embedded engine's model: a name or a file")
    parser.add_argument("--laps", type=int, default=1, help="how often to go round")
    parser.add_argument("--settle-seconds", type=float, default=20.0, help="how long memory may take to come back")
    parser.add_argument("--only", action="append", choices=list(ATTACKS), help="this attack alone; may be repeated")
    parser.add_argument("--watch", type=int, nargs=2, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.watch is not None:
        asyncio.run(watch(*said.watch))
    if said.echo:
        asyncio.run(echo())
    pace = Pace(said.seconds, said.settle_seconds, said.laps)
    faults = asyncio.run(run(said.model, pace, said.only or list(ATTACKS)))
    for fault in faults:
        print(f"missed: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
