"""A fake LM Studio server, true to its wire: one websocket for each namespace, JSON frames, RPCs and channels.

Written from the protocol of the `lmstudio` client and checked with it (tests/integration/test_fake_lmstudio.py).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pyagent.testing.servers import Fault, serve

Frame = dict[str, object]


@dataclass(slots=True)
class LMStudioServer:
    """A running fake. Change `answer`, `fault` and `delay_seconds` between requests; read what came in `requests`."""

    models: tuple[str, ...] = ("qwen3-4b",)
    loaded: list[str] = field(default_factory=list[str])
    answer: str = "Hello from the fake."
    reasoning: str = ""
    fault: Fault | None = None
    delay_seconds: float = 0.0
    url: str = ""
    requests: list[Frame] = field(default_factory=list[Frame])
    """What `predict` channels were created with."""
    num_cancelled: int = 0
    num_left: int = 0
    """Predictions whose client closed the socket without cancelling."""

    def app(self) -> Starlette:
        """The ASGI application."""
        names = ("llm", "embedding", "system", "files", "repository")
        sockets = [WebSocketRoute(f"/{name}", self._socket) for name in names]
        return Starlette(routes=[Route("/lmstudio-greeting", _greet), *sockets])

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        session = _Session(self, socket, namespace=socket.url.path.strip("/"))
        with suppress(WebSocketDisconnect):
            await session.run()
        await session.stop()


class _Session:
    """One websocket: answers RPCs at once, runs each channel as a task."""

    def __init__(self, server: LMStudioServer, socket: WebSocket, *, namespace: str) -> None:
        self._server = server
        self._socket = socket
        self._namespace = namespace
        self._channels: dict[object, asyncio.Task[None]] = {}
        self._cancelled: dict[object, asyncio.Event] = {}

    async def run(self) -> None:
        greeting = cast("Frame", await self._socket.receive_json())
        if greeting.get("authVersion") != 1 or not greeting.get("clientIdentifier"):
            await self._socket.send_json({"success": False, "error": "expected authVersion 1 and a clientIdentifier"})
            return
        await self._socket.send_json({"success": True})
        while True:
            await self._take(cast("Frame", await self._socket.receive_json()))

    async def stop(self) -> None:
        for task in self._channels.values():
            task.cancel()
        await asyncio.gather(*self._channels.values(), return_exceptions=True)

    async def _take(self, frame: Frame) -> None:
        match frame.get("type"):
            case "rpcCall":
                await self._socket.send_json(self._rpc(frame))
            case "channelCreate":
                channel_id = frame["channelId"]
                self._cancelled[channel_id] = asyncio.Event()
                self._channels[channel_id] = asyncio.create_task(self._channel(frame))
            case "channelSend" if cast("Frame", frame["message"]).get("type") == "cancel":
                self._cancelled[frame["channelId"]].set()
            case _:
                await self._socket.send_json(
                    {"type": "communicationWarning", "warning": f"unknown frame {frame!r:.80}"}
                )

    def _rpc(self, frame: Frame) -> Frame:
        server, call_id = self._server, frame["callId"]
        parameter = cast("Frame", frame.get("parameter") or {})
        result: object
        match frame["endpoint"]:
            case "listDownloadedModels":
                result = [_model_info(key) for key in server.models]
            case "listLoaded":
                result = [_instance_info(key) for key in server.loaded] if self._namespace == "llm" else []
            case "getModelInfo":
                key = _wanted(cast("Frame", parameter.get("specifier") or {})) or next(iter(server.loaded), "")
                if key not in server.loaded:
                    return {"type": "rpcError", "callId": call_id, "error": _no_model(key)}
                result = _instance_info(key)
            case endpoint:
                error: Frame = {"title": f"No RPC endpoint {endpoint}"}
                return {"type": "rpcError", "callId": call_id, "error": error}
        return {"type": "rpcResult", "callId": call_id, "result": result}

    async def _channel(self, frame: Frame) -> None:
        parameter = cast("Frame", frame.get("creationParameter") or {})
        match frame["endpoint"]:
            case "getOrLoad":
                await self._load(frame["channelId"], str(parameter.get("identifier") or ""))
            case "predict":
                await self._predict(frame["channelId"], parameter)
            case endpoint:
                await self._fail(frame["channelId"], {"title": f"No channel endpoint {endpoint}"})

    async def _load(self, channel_id: object, key: str) -> None:
        server = self._server
        if key not in server.models:
            await self._fail(channel_id, _no_model(key))
            return
        if key in server.loaded:
            await self._send(channel_id, {"type": "alreadyLoaded", "info": _instance_info(key)})
        else:
            server.loaded.append(key)
            await self._send(channel_id, {"type": "startLoading", "identifier": key, "info": _model_info(key)})
            await self._send(channel_id, {"type": "loadProgress", "progress": 1.0})
            await self._send(channel_id, {"type": "loadSuccess", "info": _instance_info(key)})
        await self._socket.send_json({"type": "channelClose", "channelId": channel_id})

    async def _predict(self, channel_id: object, parameter: Frame) -> None:
        server = self._server
        server.requests.append(parameter)
        key = _wanted(cast("Frame", parameter["modelSpecifier"])) or next(iter(server.loaded), "")
        if key not in server.loaded:
            await self._fail(channel_id, _no_model(key))
            return
        await self._send(channel_id, {"type": "promptProcessingProgress", "progress": 1.0})
        try:
            stop_reason = await self._fragments(channel_id)
        except asyncio.CancelledError:
            server.num_left += 1
            raise
        if stop_reason:
            await self._send(channel_id, _success(key, stop_reason, len(server.answer.split())))
            await self._socket.send_json({"type": "channelClose", "channelId": channel_id})

    async def _fragments(self, channel_id: object) -> str:
        """Send the answer; gives the stop reason, empty when a fault ended it."""
        server = self._server
        pieces = [(piece, "reasoning") for piece in re.findall(r"\s*\S+", server.reasoning)]
        pieces += [(piece, "none") for piece in re.findall(r"\s*\S+", server.answer)]
        for index, (piece, kind) in enumerate(pieces):
            if await self._wait(channel_id, server.delay_seconds):
                return "userStopped"
            if server.fault is not None and index == server.fault.at:
                return await self._break(channel_id, server.fault)
            fragment = {"content": piece, "tokensCount": 1, "containsDrafted": False, "reasoningType": kind}
            await self._send(channel_id, {"type": "fragment", "fragment": fragment})
        return "eosFound"

    async def _wait(self, channel_id: object, seconds: float) -> bool:
        """Wait; True when the client cancels meanwhile."""
        cancelled = self._cancelled[channel_id]
        with suppress(TimeoutError):
            await asyncio.wait_for(cancelled.wait(), seconds or 0.001)
        self._server.num_cancelled += cancelled.is_set()
        return cancelled.is_set()

    async def _break(self, channel_id: object, fault: Fault) -> str:
        match fault.kind:
            case "error":
                await self._fail(channel_id, {"title": fault.text, "rootTitle": fault.text})
            case "end":
                await self._socket.send_json({"type": "channelClose", "channelId": channel_id})
            case "drop":
                await self._socket.close(code=1011)
            case "stall":
                return "userStopped" if await self._wait(channel_id, 3600) else ""
        return ""

    async def _send(self, channel_id: object, message: Frame) -> None:
        await self._socket.send_json({"type": "channelSend", "channelId": channel_id, "message": message})

    async def _fail(self, channel_id: object, error: Frame) -> None:
        await self._socket.send_json({"type": "channelError", "channelId": channel_id, "error": error})


@contextmanager
def lmstudio_server(**scripted: object) -> Generator[LMStudioServer]:
    """A fake LM Studio on a free port; takes the fields of `LMStudioServer`."""
    server = LMStudioServer(**scripted)  # pyright: ignore[reportArgumentType]
    with serve(server.app(), websockets=True) as url:
        server.url = url
        yield server


def _greet(_: Request) -> Response:
    return JSONResponse({"lmstudio": True})


def _wanted(specifier: Frame) -> str:
    if specifier.get("type") == "instanceReference":
        return str(specifier["instanceReference"]).removeprefix("ref-")
    query = cast("Frame", specifier.get("query") or {})
    return str(query.get("identifier") or "")


def _model_info(key: str) -> Frame:
    return {
        "type": "llm",
        "modelKey": key,
        "format": "gguf",
        "displayName": key,
        "path": f"fake/{key}/{key}.gguf",
        "sizeBytes": 2_497_281_120,
        "paramsString": "4B",
        "architecture": "qwen3",
        "vision": False,
        "trainedForToolUse": True,
        "maxContextLength": 32768,
    }


def _instance_info(key: str) -> Frame:
    return _model_info(key) | {"identifier": key, "instanceReference": f"ref-{key}", "contextLength": 4096}


def _no_model(key: str) -> Frame:
    title = f"No model found that matches the query: {key}"
    return {"title": title, "rootTitle": title, "displayData": {"code": "generic.noModelMatchingQuery", "query": {}}}


def _success(key: str, stop_reason: str, num_tokens: int) -> Frame:
    stats = {
        "stopReason": stop_reason,
        "tokensPerSecond": 100.0,
        "timeToFirstTokenSec": 0.05,
        "promptTokensCount": 7,
        "predictedTokensCount": num_tokens,
        "totalTokensCount": num_tokens + 7,
    }
    empty: Frame = {"fields": []}
    info = _instance_info(key)
    return {"type": "success", "stats": stats, "modelInfo": info, "loadModelConfig": empty, "predictionConfig": empty}
