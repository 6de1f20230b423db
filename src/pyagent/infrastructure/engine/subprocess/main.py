"""The engine's own process: `python -m pyagent.infrastructure.engine.subprocess.main`, started by `supervisor`.

Reads where its socket is, and the settings, from standard input; answers requests with an engine like that of any other
process. It ends when told to, or when standard input closes: whoever started it is gone then.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.plugin import make_engine
from pyagent.infrastructure.engine.subprocess.protocol import (
    Abort,
    Alive,
    Ask,
    Call,
    Done,
    Dropped,
    Failed,
    Fault,
    FromEngine,
    GiveBack,
    Load,
    Look,
    Outputs,
    Ping,
    QueryCache,
    Raised,
    Returned,
    Start,
    Stop,
    ToEngine,
    Told,
    decode_to_engine,
    encode,
)
from pyagent.infrastructure.observability.logging import configure_logging


class _Served:
    """An engine at the end of a socket."""

    def __init__(self, engine: LocalEngine, socket: zmq.asyncio.Socket) -> None:
        self.engine = engine
        self.socket = socket
        self._tasks = set[asyncio.Task[None]]()
        self._answers: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer until told to stop."""
        await self._send(Alive())
        while True:
            frame: bytes = await self.socket.recv()
            message: ToEngine = decode_to_engine(frame)
            match message:
                case Ask():
                    task = self._begin(self._answer(message))
                    self._answers[message.id] = task
                    task.add_done_callback(lambda _, wire_id=message.id: self._answers.pop(wire_id))
                case Abort(wire_id):
                    if wire_id in self._answers:
                        self._answers[wire_id].cancel()
                case Call():
                    self._begin(self._call(message))
                case Ping():
                    await self._send(Alive(self.engine.turn_seconds()))
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

    async def _answer(self, ask: Ask) -> None:
        try:
            async with aclosing(self.engine.pieces(ask.request, ask.log, ask.past)) as pieces:
                async for piece in pieces:
                    await self._send(Outputs(ask.id, piece.delta, piece.tokens, piece.prompt))
        except asyncio.CancelledError:
            await self._send(Dropped(ask.id))
        except Exception as error:  # noqa: BLE001 - whatever it was, the one who waits must hear of it
            await self._send(Failed(ask.id, Fault.of(error)))
        else:
            await self._send(Done(ask.id))

    async def _call(self, call: Call) -> None:
        result: object = None
        try:
            match call.what:
                case Load(model):
                    await self.engine.load(model)
                case Look():
                    result = await self.engine.state()
                case GiveBack(level):
                    await asyncio.to_thread(self.engine.give_back, level)
                case Told(hint):
                    self.engine.hint(hint)
                case QueryCache(question):
                    result = await self.engine.query_cache(question)
        except Exception as error:  # noqa: BLE001 - as above
            await self._send(Raised(call.id, Fault.of(error)))
        else:
            await self._send(Returned(call.id, msgspec.Raw(encode(result))))

    async def _send(self, message: FromEngine) -> None:
        await self.socket.send(encode(message))


def main() -> None:
    """Serve one engine, then end."""
    (size,) = struct.unpack("!I", sys.stdin.buffer.read(4))
    start = msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=Start)
    threading.Thread(target=_end_with_parent, name="pyagent-parent", daemon=True).start()
    settings = msgspec.json.decode(start.settings, type=Settings, dec_hook=_path)
    configure_logging(settings.log.level, settings.log.format)
    asyncio.run(_serve(settings, start.endpoint))


def _path(kind: type[Path], value: str) -> Path:
    """Paths stand in the settings as texts."""
    return kind(value)


async def _serve(settings: Settings, endpoint: str) -> None:
    engine = make_engine(settings, PluginHost.discover(settings.plugins))
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    try:
        await _Served(engine, socket).run()
    finally:
        socket.close()
        context.term()


def _end_with_parent() -> None:
    """Standard input has nothing more to say: it ends when the process at its other end does."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
