"""A fake LM Studio server, true to its wire: one websocket for each namespace, JSON frames, RPCs and channels.

Written from the protocol of the `lmstudio` client and checked with it (tests/integration/test_fake_lmstudio.py).
"""

from __future__ import annotations

import asyncio
import base64
import json
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
from pyagent.testing.stand_in import GREETING, sample_call, sample_of

Frame = dict[str, object]


@dataclass(slots=True)
class LMStudioServer:
    """A running fake. Change its fields between requests; read what came in `requests`.

    `answer` None means: JSON of the schema asked for, a call of the first tool, or a greeting. `load_error` ends each
    loading (no memory), `load_seconds` is how long one takes, `auth_error` refuses clients (a version that does not
    match). Every prompt has 7 tokens; one of more than `context_length` words ends at once.
    """

    models: tuple[str, ...] = ("qwen3-4b",)
    embedding_models: tuple[str, ...] = ()
    loaded: list[str] = field(default_factory=list[str])
    answer: str | None = None
    reasoning: str = ""
    reads_images: bool = True
    context_length: int = 4096
    load_error: str = ""
    load_seconds: float = 0.0
    auth_error: str = ""
    loads: list[Frame] = field(default_factory=list[Frame])
    """What `getOrLoad` and `loadModel` channels were created with, where they loaded."""
    fault: Fault | None = None
    delay_seconds: float = 0.0
    url: str = ""
    requests: list[Frame] = field(default_factory=list[Frame])
    """What `predict` channels were created with."""
    endpoints: list[str] = field(default_factory=list[str])
    """The calls and channels that clients began, by name."""
    num_cancelled: int = 0
    num_left: int = 0
    """Predictions whose client closed the socket without cancelling."""
    num_running: int = 0
    files: list[str] = field(default_factory=list[str])
    """Names of uploaded files."""
    _num_dead: int = 0
    _num_sockets: int = 0

    def sleep(self) -> None:
        """From now on sockets that are open stay open and give no answer, as after a laptop slept."""
        self._num_dead = self._num_sockets

    def app(self) -> Starlette:
        """Return the ASGI application."""
        names = ("llm", "embedding", "system", "files", "repository")
        sockets = [WebSocketRoute(f"/{name}", self._socket) for name in names]
        return Starlette(routes=[Route("/lmstudio-greeting", _greet), *sockets])

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        self._num_sockets += 1
        session = _Session(self, socket, namespace=socket.url.path.strip("/"), number=self._num_sockets)
        with suppress(WebSocketDisconnect):
            await session.run()
        await session.stop()


class _Session:
    """One websocket: answers RPCs at once, runs each channel as a task."""

    def __init__(self, server: LMStudioServer, socket: WebSocket, *, namespace: str, number: int) -> None:
        self._number = number
        self._server = server
        self._socket = socket
        self._namespace = namespace
        self._channels: dict[object, asyncio.Task[None]] = {}
        self._cancelled: dict[object, asyncio.Event] = {}

    async def run(self) -> None:
        greeting = cast("Frame", await self._socket.receive_json())
        if greeting.get("authVersion") != 1 or not greeting.get("clientIdentifier"):
            await self._socket.send_json({"success": False, "error": {"title": "expected authVersion 1"}})
            return
        if self._server.auth_error:
            await self._socket.send_json({"success": False, "error": {"title": self._server.auth_error}})
            return
        await self._socket.send_json({"success": True})
        while True:
            frame = cast("Frame", await self._socket.receive_json())
            if self._number > self._server._num_dead:  # pyright: ignore[reportPrivateUsage]
                await self._take(frame)

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
            case "communicationWarning" | "keepAlive":
                pass
            case _:
                await self._socket.send_json(
                    {"type": "communicationWarning", "warning": f"unknown frame {frame!r:.80}"}
                )

    def _rpc(self, frame: Frame) -> Frame:
        server, call_id = self._server, frame["callId"]
        server.endpoints.append(str(frame["endpoint"]))
        parameter = cast("Frame", frame.get("parameter") or {})
        result: object
        match frame["endpoint"]:
            case "listDownloadedModels":
                result = [_model_info(key, server.reads_images) for key in server.models]
                result += [_embedding_info(key) for key in server.embedding_models]
            case "listLoaded":
                result = [self._instance(key) for key in server.loaded if key in self._own_models()]
            case "getModelInfo":
                key = _wanted(cast("Frame", parameter.get("specifier") or {})) or next(iter(server.loaded), "")
                if key not in server.loaded:
                    return {"type": "rpcError", "callId": call_id, "error": _no_model(key)}
                result = self._instance(key)
            case "getLoadConfig":
                result = {"fields": [{"key": "llm.load.contextLength", "value": server.context_length}]}
            case "countTokens":
                result = {"tokenCount": len(str(parameter["inputString"]).split())}
            case "tokenize":
                result = {"tokens": [*range(len(str(parameter["inputString"]).split()))]}
            case "embedString":
                result = {"embedding": [float(len(str(parameter["inputString"]))), 1.0]}
            case "uploadFileBase64":
                size = len(base64.b64decode(str(parameter["contentBase64"])))
                server.files.append(str(parameter["name"]))
                result = {"identifier": f"file-{len(server.files)}", "fileType": "image", "sizeBytes": size}
            case "unloadModel":
                key = str(parameter["identifier"])
                if key not in server.loaded:
                    return {"type": "rpcError", "callId": call_id, "error": _no_model(key)}
                server.loaded.remove(key)
                return {"type": "rpcResult", "callId": call_id}
            case endpoint:
                error: Frame = {"title": f"No RPC endpoint {endpoint}"}
                return {"type": "rpcError", "callId": call_id, "error": error}
        return {"type": "rpcResult", "callId": call_id, "result": result}

    def _own_models(self) -> tuple[str, ...]:
        return self._server.embedding_models if self._namespace == "embedding" else self._server.models

    def _instance(self, key: str) -> Frame:
        is_embedding, reads_images = key in self._server.embedding_models, self._server.reads_images
        info = _embedding_info(key) if is_embedding else _model_info(key, reads_images)
        told: Frame = {
            "identifier": key,
            "instanceReference": f"ref-{key}",
            "contextLength": self._server.context_length,
        }
        return info | told

    async def _channel(self, frame: Frame) -> None:
        parameter = cast("Frame", frame.get("creationParameter") or {})
        self._server.endpoints.append(str(frame["endpoint"]))
        match frame["endpoint"]:
            case "getOrLoad":
                await self._load(frame["channelId"], str(parameter.get("identifier") or ""), parameter)
            case "loadModel":
                await self._load(frame["channelId"], str(parameter.get("modelKey") or ""), parameter, is_jit=False)
            case "predict":
                self._server.num_running += 1
                try:
                    await self._predict(frame["channelId"], parameter)
                finally:
                    self._server.num_running -= 1
            case endpoint:
                await self._fail(frame["channelId"], {"title": f"No channel endpoint {endpoint}"})

    async def _load(self, channel_id: object, key: str, parameter: Frame, *, is_jit: bool = True) -> None:
        server = self._server
        if key not in self._own_models():
            await self._fail(channel_id, _no_model(key))
            return
        if key in server.loaded and is_jit:
            await self._send(channel_id, {"type": "alreadyLoaded", "info": self._instance(key)})
            await self._socket.send_json({"type": "channelClose", "channelId": channel_id})
            return
        server.loads.append(parameter)
        begun = {"type": "startLoading", "identifier": key} if is_jit else {"type": "resolved"}
        await self._send(channel_id, {**begun, "info": self._instance(key)})
        for step in range(1, 5):
            await asyncio.sleep(server.load_seconds / 4)
            await self._send(channel_id, {"type": "loadProgress" if is_jit else "progress", "progress": step / 4})
        if server.load_error:
            await self._fail(channel_id, {"title": "Failed to load model", "cause": server.load_error})
            return
        server.loaded.append(key)
        await self._send(channel_id, {"type": "loadSuccess" if is_jit else "success", "info": self._instance(key)})
        await self._socket.send_json({"type": "channelClose", "channelId": channel_id})

    async def _predict(self, channel_id: object, parameter: Frame) -> None:
        server = self._server
        server.requests.append(parameter)
        key = _wanted(cast("Frame", parameter["modelSpecifier"])) or next(iter(server.loaded), "")
        if key not in server.loaded:
            await self._fail(channel_id, _no_model(key))
            return
        said = _Said(server, parameter)
        await self._send(channel_id, {"type": "promptProcessingProgress", "progress": 1.0})
        try:
            stop_reason = await self._fragments(channel_id, said)
        except asyncio.CancelledError:
            server.num_left += 1
            raise
        if stop_reason:
            num_tokens = 0 if stop_reason == "contextLengthReached" else max(1, len(said.pieces()))
            await self._send(channel_id, _success(self._instance(key), stop_reason, num_tokens))
            await self._socket.send_json({"type": "channelClose", "channelId": channel_id})

    async def _fragments(self, channel_id: object, said: _Said) -> str:
        """Send the answer; gives the stop reason, empty when a fault ended it."""
        server, call = self._server, said.call()
        if said.num_words > server.context_length:
            return "contextLengthReached"
        pieces = [(piece, "reasoning") for piece in re.findall(r"\s*\S+", server.reasoning)]
        pieces += [(piece, "none") for piece in said.pieces()] if call is None else []
        for index, (piece, kind) in enumerate(pieces):
            if await self._wait(channel_id, server.delay_seconds):
                return "userStopped"
            if server.fault is not None and index == server.fault.at:
                return await self._break(channel_id, server.fault)
            fragment = {"content": piece, "tokensCount": 1, "containsDrafted": False, "reasoningType": kind}
            fragment["isStructural"] = False
            await self._send(channel_id, {"type": "fragment", "fragment": fragment})
        if call is None:
            return "maxPredictedTokensReached" if said.is_cut else "eosFound"
        await self._send(channel_id, {"type": "toolCallGenerationStart"})
        await self._send(channel_id, {"type": "toolCallGenerationNameReceived", "name": call[0]})
        asked = {"type": "function", "id": "365174485", "name": call[0], "arguments": call[1]}
        await self._send(channel_id, {"type": "toolCallGenerationEnd", "toolCallRequest": asked})
        return "toolCalls"

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


@dataclass(frozen=True, slots=True)
class _Said:
    """What one prediction asked for, and what it gets."""

    server: LMStudioServer
    parameter: Frame

    def _setting(self, name: str) -> object:
        layers = cast("list[Frame]", cast("Frame", self.parameter["predictionConfigStack"])["layers"])
        for layer in layers:
            for entry in cast("list[Frame]", cast("Frame", layer["config"])["fields"]):
                if entry["key"] == f"llm.prediction.{name}":
                    return entry.get("value")
        return None

    @property
    def _messages(self) -> list[Frame]:
        return cast("list[Frame]", cast("Frame", self.parameter["history"])["messages"])

    @property
    def num_words(self) -> int:
        parts = (part for message in self._messages for part in cast("list[Frame]", message["content"]))
        return sum(len(str(part.get("text") or "").split()) for part in parts)

    @property
    def is_cut(self) -> bool:
        return self._limit() is not None and len(re.findall(r"\s*\S+", self._text())) >= cast("int", self._limit())

    def _limit(self) -> int | None:
        limit = cast("Frame", self._setting("maxPredictedTokens") or {})
        return cast("int", limit["value"]) if limit.get("checked") else None

    def pieces(self) -> list[str]:
        """Return the answer, a word each."""
        return re.findall(r"\s*\S+", self._text())[: self._limit()]

    def _text(self) -> str:
        if self.server.answer is not None:
            return self.server.answer
        structured = cast("Frame", self._setting("structured") or {})
        if structured.get("jsonSchema"):
            return json.dumps(sample_of(cast("Frame", structured["jsonSchema"])))
        return "{}" if structured.get("type") == "json" else GREETING

    def call(self) -> tuple[str, object] | None:
        """Return the call of a tool that it gets, if any."""
        tools = cast("Frame", self._setting("tools") or {}).get("tools")
        return None if self.server.answer is not None else sample_call(tools, self._messages)


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


def _model_info(key: str, reads_images: bool = False) -> Frame:
    return {
        "type": "llm",
        "modelKey": key,
        "format": "gguf",
        "displayName": key,
        "path": f"fake/{key}/{key}.gguf",
        "sizeBytes": 2_497_281_120,
        "paramsString": "4B",
        "architecture": "qwen3",
        "vision": reads_images,
        "trainedForToolUse": True,
        "maxContextLength": 32768,
    }


def _embedding_info(key: str) -> Frame:
    dropped = {"vision", "trainedForToolUse"}
    info = {name: value for name, value in _model_info(key).items() if name not in dropped}
    return info | {"type": "embedding", "architecture": "nomic-bert"}


def _no_model(key: str) -> Frame:
    title = f"No model found that matches the query: {key}"
    return {"title": title, "rootTitle": title, "displayData": {"code": "generic.noModelMatchingQuery", "query": {}}}


def _success(info: Frame, stop_reason: str, num_tokens: int) -> Frame:
    stats = {
        "stopReason": stop_reason,
        "tokensPerSecond": 100.0,
        "timeToFirstTokenSec": 0.05,
        "promptTokensCount": 7,
        "predictedTokensCount": num_tokens,
        "totalTokensCount": num_tokens + 7,
    }
    empty: Frame = {"fields": []}
    return {"type": "success", "stats": stats, "modelInfo": info, "loadModelConfig": empty, "predictionConfig": empty}
