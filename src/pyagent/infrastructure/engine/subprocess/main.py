"""The engine's own process: `python -m pyagent.infrastructure.engine.subprocess.main`, started by `supervisor`.

Read hello, socket and settings from standard input, then answer requests with an engine like that of any other process.
End at `Stop`, or when standard input closes: the process that started this one has ended then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from functools import partial
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from pyagent.core.cluster.coordinator import CopyLoad
from pyagent.core.errors import WireError
from pyagent.core.load_progress import LoadProgress
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.load_watch import LoadWatcher
from pyagent.infrastructure.engine.plugin import make_engine
from pyagent.infrastructure.engine.subprocess.protocol import (
    CLIENT,
    HELLO,
    Abort,
    Aborted,
    Busyness,
    Call,
    ClassifyTexts,
    Command,
    Done,
    EmbedTexts,
    EmbedTokens,
    Failed,
    FreeMemory,
    FromEngine,
    GetState,
    Loading,
    LoadModel,
    NameAdapter,
    Outputs,
    Ping,
    Pong,
    QueryCache,
    Raised,
    RankTexts,
    Returned,
    Start,
    Stop,
    Submit,
    TakeHint,
    UnloadModel,
    UseAttention,
    Withdraw,
    from_engine,
    hello_codec,
    start_codec,
    to_engine,
)
from pyagent.infrastructure.observability.logging import configure_logging
from pyagent.infrastructure.processes import end_with_parent
from pyagent.infrastructure.wire.codec import MAX_FRAME_BYTES, read_frame
from pyagent.infrastructure.wire.fault import Fault

_LOAD_SECONDS = 0.1
_LOADS_A_SPEED = 10
"""Percentiles take a millisecond to compute, and change slowly."""


class _EngineServer:
    """Serve an engine over a socket."""

    def __init__(self, engine: LocalEngine, socket: zmq.asyncio.Socket, *, tells_load: bool) -> None:
        self.engine = engine
        self.socket = socket
        self._tells_load = tells_load
        self._telling: asyncio.Task[None] | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer until `Stop`."""
        await self._send(HELLO)
        self.engine.models.watch.watch = self._loading_sent(asyncio.get_running_loop())
        while True:
            message = to_engine.decode(await self.socket.recv())
            match message:
                case Submit():
                    task = self._begin(self._generate(message))
                    self._running[message.id] = task
                    if self._tells_load and (self._telling is None or self._telling.done()):
                        self._telling = self._begin(self._tell_load())
                    task.add_done_callback(partial(self._ended, message.id))
                case Abort(wire_id):
                    if wire_id in self._running:
                        self._running[wire_id].cancel()
                case Call():
                    self._begin(self._call(message))
                case Ping():
                    await self._send(Pong(self.engine.turn_seconds()))
                case Stop():
                    break
        await self.engine.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, wire_id: int, task: asyncio.Task[None]) -> None:
        del self._running[wire_id]
        if task.cancelled():  # before it began: it could not say so itself
            self._begin(self._send(Aborted(wire_id)))

    async def _generate(self, submitted: Submit) -> None:
        try:
            async with aclosing(self.engine.pieces(submitted.request, submitted.log, submitted.past)) as pieces:
                async for piece in pieces:
                    await self._send(Outputs(submitted.id, piece.delta, piece.tokens, piece.prompt))
        except asyncio.CancelledError:
            await self._send(Aborted(submitted.id))
        except Exception as error:  # noqa: BLE001 - the client waits for an end, whatever the error is
            await self._send(Failed(submitted.id, Fault.of(error, "native")))
        else:
            await self._send(Done(submitted.id))

    def _loading_sent(self, loop: asyncio.AbstractEventLoop) -> LoadWatcher:
        """Return what has the client told how far loads are, by the event loop."""

        def send(load: LoadProgress) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(lambda: self._begin(self._send(Loading(load))))

        return send

    async def _tell_load(self) -> None:
        """Say how busy the engine is, again and again while it is, and once when it no longer is."""
        told: CopyLoad | None = None
        for number in itertools.count():
            await asyncio.sleep(_LOAD_SECONDS)
            load = self.engine.load_now(told if number % _LOADS_A_SPEED else None)
            if load != told:
                await self._send(Busyness(load))
                told = load
            if not self._running and not load.num_running:
                return

    async def _call(self, call: Call) -> None:
        try:
            result = msgspec.msgpack.encode(await self._execute(call.command))
            await self._send(Returned(call.id, msgspec.Raw(result)))
        except Exception as error:  # noqa: BLE001 - as above
            await self._send(Raised(call.id, Fault.of(error, "native")))

    async def _execute(self, command: Command) -> object:
        match command:
            case EmbedTexts() | EmbedTokens() | RankTexts() | ClassifyTexts():
                return await self._pooled(command)
            case LoadModel(model, beside):
                await self.engine.load(model, beside=beside)
            case UnloadModel(model):
                await self.engine.unload(model)
            case GetState():
                return await self.engine.state()
            case FreeMemory(level):
                await asyncio.to_thread(self.engine.give_back, level)
            case TakeHint(hint):
                self.engine.hint(hint)
            case QueryCache(query):
                return await self.engine.query_cache(query)
            case Withdraw(wanted):
                return await self.engine.withdraw(wanted)
            case UseAttention(name):
                await self.engine.use_attention(name)
            case NameAdapter(key, path):
                await self.engine.name_adapter(key, path)
        return None

    async def _pooled(self, command: EmbedTexts | EmbedTokens | RankTexts | ClassifyTexts) -> object:
        match command:
            case EmbedTexts(request):
                return await self.engine.embed(request)
            case EmbedTokens(request):
                return await self.engine.token_embed(request)
            case RankTexts(request):
                return await self.engine.rank(request)
            case ClassifyTexts(request):
                return await self.engine.classify(request)

    async def _send(self, message: FromEngine) -> None:
        await self.socket.send(from_engine.encode(message))


def main() -> None:
    """Serve one engine, then end."""
    try:
        start = _read_start()
    except WireError as error:
        sys.exit(str(error))
    end_with_parent()
    settings = msgspec.json.decode(start.settings, type=Settings, dec_hook=_path)
    configure_logging(settings.log.level, settings.log.format)
    if start.cores:
        with contextlib.suppress(OSError):  # they were taken away meanwhile: it computes where it may
            os.sched_setaffinity(0, start.cores)
    asyncio.run(_serve(settings, start))


def _read_start() -> Start:
    """Read the client's hello and start. Raises `WireError` for another version, or anything else."""
    read = sys.stdin.buffer.read
    HELLO.check(hello_codec.decode(read_frame(read, CLIENT)), CLIENT)
    return start_codec.decode(read_frame(read, CLIENT))


def _path(kind: type, value: object) -> object:
    """Make a path of its text in the settings; options of plugins, which may be anything, stay as they are."""
    return Path(value) if kind is Path and isinstance(value, str) else value


async def _serve(settings: Settings, start: Start) -> None:
    engine = make_engine(settings, PluginHost.discover(settings.plugins), _end_lost)
    if start.adapters is not None:
        engine.adapters.all = start.adapters
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.connect(start.endpoint)
    try:
        await _EngineServer(engine, socket, tells_load=start.tells_load).run()
    finally:
        socket.close()
        context.term()


def _end_lost(reason: str) -> None:
    """End the process, as its runner is lost: the next one goes on with every answer. The reason is in the log."""
    del reason
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    main()
