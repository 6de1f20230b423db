"""What the cluster's transport costs on loopback, beside plain TCP: `python benchmarks/cluster_transport.py`.

Two processes, as two nodes are. Calls of 64 bytes beside an echo over asyncio's streams, in turn; casts of 100 bytes;
tensors beside a copy over a plain socket, with CURVE and (in this benchmark only) without.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from pyagent.infrastructure.cluster import transport as transport_module
from pyagent.infrastructure.cluster import zap
from pyagent.infrastructure.cluster.transport import LinkChange, Reply, Transport

SMALL = bytes(64)
MIB = 1 << 20


async def echo(_peer: str, payload: bytes, _buffers: Sequence[memoryview]) -> Reply:
    return Reply(payload)


def without_curve() -> None:
    """Let nodes say who they are instead of proving it, unencrypted: for the figure without CURVE."""

    def guard(socket: zmq.Socket[bytes], _public: str, _secret: str) -> None:
        socket.plain_server = 1
        socket.setsockopt(zmq.ZAP_DOMAIN, b"pyagent-cluster")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def present(socket: zmq.Socket[bytes], public: str, _secret: str, _server_key: str) -> None:
        socket.plain_username = public.encode()
        socket.plain_password = b"x"

    def answer(self: zap.AllowList, frames: list[zmq.Frame]) -> None:
        _, request_id, _, _, _, _, user, _ = (frame.bytes for frame in frames)
        peer_id = self._key_to_peer[zap.decode_key(user.decode(), "")]
        self._socket.send([b"1.0", request_id, b"200", b"", peer_id.encode(), b""])

    transport_module.guard, transport_module.present = guard, present
    zap.AllowList._answer = answer


async def serve(peer_key: str) -> None:
    """Be the other node, until standard input closes."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    node = Transport("server", public, secret)
    (endpoint,) = await node.start(["tcp://127.0.0.1:0"])
    node.allow("client", peer_key)
    num_casts = 0

    def count(_peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> None:
        nonlocal num_casts
        num_casts += 1

    async def counted(*_: object) -> Reply:
        return Reply(str(num_casts).encode())

    node.handle("echo", echo)
    node.handle("count", count)
    node.handle("counted", counted)
    echo_server = await asyncio.start_server(echo_lines, "127.0.0.1", 0)
    copier = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=take_copies, args=(copier,), daemon=True).start()
    ports = echo_server.sockets[0].getsockname()[1], copier.getsockname()[1]
    print(endpoint, public, *ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await node.stop()


async def echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(len(SMALL)):
        writer.write(data)


def take_copies(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    while header := connection.recv(8, socket.MSG_WAITALL):
        size = int.from_bytes(header, "big")
        view, filled = memoryview(bytearray(size)), 0
        while filled < size:
            filled += connection.recv_into(view[filled:])
        connection.send(b"x")


@contextmanager
def other_node(public: str, options: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    command = [sys.executable, __file__, f"--serve={public}", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.communicate()


async def measure(name: str, options: list[str], num_calls: int, tensor_bytes: int) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    node = Transport("client", public, secret)
    await node.start(["tcp://127.0.0.1:0"])
    with other_node(public, options) as (process, (endpoint, server_key, echo_port, copy_port)):
        node.connect("server", server_key, [endpoint])
        await measure_calls(name, node, int(echo_port), num_calls)
        await measure_casts(name, node, 5 * num_calls)
        await measure_tensors(name, node, int(copy_port), tensor_bytes)
        await measure_death(name, node, process)
        await node.stop()


async def measure_calls(name: str, node: Transport, port: int, num_calls: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    plain, calls = list[float](), list[float]()
    for _ in range(10):
        for _ in range(num_calls // 10):
            begin = time.perf_counter()
            writer.write(SMALL)
            await reader.readexactly(len(SMALL))
            plain.append(time.perf_counter() - begin)
        for _ in range(num_calls // 10):
            begin = time.perf_counter()
            await node.call("server", "echo", SMALL, timeout=60)
            calls.append(time.perf_counter() - begin)
    writer.close()
    begin = time.perf_counter()
    await asyncio.gather(*(in_turn(node, num_calls // 64) for _ in range(64)))
    parallel = num_calls // 64 * 64 / (time.perf_counter() - begin)
    for title, times in (("asyncio TCP echo", plain), ("call", calls)):
        quantiles = statistics.quantiles(times, n=100)
        print(f"{name}: {title}: p50 {quantiles[49] * 1e3:.3f} ms, p99 {quantiles[98] * 1e3:.3f} ms")
    print(f"{name}: added by a call: p50 {(statistics.median(calls) - statistics.median(plain)) * 1e3:.3f} ms")
    print(f"{name}: calls, 64 at a time: {parallel:,.0f} a second", flush=True)


async def in_turn(node: Transport, num_calls: int) -> None:
    for _ in range(num_calls):
        await node.call("server", "echo", SMALL, timeout=60)


async def measure_casts(name: str, node: Transport, num_casts: int) -> None:
    payload, num_refused = bytes(100), 0
    begin = time.perf_counter()
    for number in range(num_casts):
        while not node.cast("server", "count", payload):
            num_refused += 1
            await asyncio.sleep(0)
        if number % 50 == 0:
            await asyncio.sleep(0)
    while int((await node.call("server", "counted", b"", timeout=60)).payload) < num_casts:
        pass
    seconds = time.perf_counter() - begin
    print(f"{name}: casts: {num_casts / seconds:,.0f} a second ({num_refused} times told to wait)", flush=True)


async def measure_tensors(name: str, node: Transport, port: int, num_bytes: int) -> None:
    tensor = bytearray(num_bytes)
    tensor[:] = bytes(range(256)) * (num_bytes // 256)
    connection = socket.create_connection(("127.0.0.1", port))

    def copy() -> None:
        connection.sendall(num_bytes.to_bytes(8, "big"))
        connection.sendall(tensor)
        connection.recv(1)

    plain, sent = list[float](), list[float]()
    for _ in range(7):
        plain.append(seconds_of(copy))
        begin = time.perf_counter()
        await node.call("server", "echo", b"", buffers=[tensor], timeout=600)
        sent.append(time.perf_counter() - begin)
    connection.close()
    pinged = list[float]()
    long = asyncio.create_task(node.call("server", "echo", b"", buffers=[tensor] * 4, timeout=600))
    while not long.done():
        begin = time.perf_counter()
        await node.call("server", "echo", SMALL, timeout=60)
        pinged.append(time.perf_counter() - begin)
    await long
    rates = [num_bytes / statistics.median(times) / 1e9 for times in (plain, sent)]
    print(
        f"{name}: tensor of {num_bytes // MIB} MiB: plain TCP {rates[0]:.2f} GB/s, call {rates[1]:.2f} GB/s", end=", "
    )
    print(f"{rates[1] / rates[0]:.0%}")
    print(f"{name}: calls beside {4 * num_bytes // MIB} MiB: median {statistics.median(pinged) * 1e3:.2f} ms", end=", ")
    print(f"longest {max(pinged) * 1e3:.2f} ms, {len(pinged)} of them", flush=True)


async def measure_death(name: str, node: Transport, process: subprocess.Popen[str]) -> None:
    told = dict[LinkChange, float]()
    refused = asyncio.Event()

    def note(_peer: str, change: LinkChange) -> None:
        told.setdefault(change, time.perf_counter())
        if change == "refused":
            refused.set()

    node.on_link(note)
    begin = time.perf_counter()
    process.kill()
    await refused.wait()
    down, gone = ((told[change] - begin) * 1e3 for change in ("down", "refused"))
    print(f"{name}: after kill -9: down told after {down:.1f} ms, refused after {gone:.1f} ms", flush=True)


def seconds_of(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--tensor-mib", type=int, default=256)
    parser.add_argument("--serve", metavar="KEY", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help="without CURVE")
    options = parser.parse_args()
    if options.plain:
        without_curve()
    if options.serve:
        asyncio.run(serve(options.serve))
    else:
        name = "without CURVE" if options.plain else "CURVE"
        passed = ["--plain"] * options.plain
        asyncio.run(measure(name, passed, options.calls, options.tensor_mib * MIB))


if __name__ == "__main__":
    main()
