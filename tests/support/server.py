"""A server over a scripted backend, and ways to ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import openai
import uvicorn
from starlette.types import ASGIApp

from pyagent.core.capabilities import PLAIN
from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    PromptTokensDetails,
    Usage,
)
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import ApiKey
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.header_timeout import KEEP_ALIVE_SECONDS
from pyagent.infrastructure.server.uvicorn_server import address, bind
from pyagent.testing.prompt_server import PromptServer

Script = Callable[[ChatRequest], Sequence[ChatDelta | float | Exception]]


KEY = "sk-0123456789abcdef"


def keys(*secrets: str, admin: str = "") -> list[ApiKey]:
    """API keys `key 1`, `key 2`, ... of clients, and `admin`."""
    clients = [ApiKey(f"key {number}", secret.encode()) for number, secret in enumerate(secrets, 1)]
    return [*clients, ApiKey("admin", admin.encode(), is_admin=True)] if admin else clients


def words(*texts: str, **last: Any) -> list[ChatDelta]:
    usage = Usage(3, len(texts), 3 + len(texts), PromptTokensDetails(2))
    return [*(ChatDelta(content=text) for text in texts), ChatDelta(finish_reason="stop", usage=usage, **last)]


class Model:
    """A backend that plays a script for each request and counts the answers under way."""

    def __init__(self, script: Script | None = None, models: Sequence[str] = ("m",)) -> None:
        self.name = "test:m"
        self.capabilities = PLAIN
        self.script = script or (lambda _request: words("Hel", "lo"))
        self.model_ids = models
        self.requests: list[ChatRequest] = []
        self.num_running = 0
        self.num_aborted = 0
        self.is_ready = True

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=model, backend=self.name, context_length=2048) for model in self.model_ids]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        self.num_running += 1
        is_whole = False
        try:
            for step in self.script(request):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
            is_whole = True
        finally:
            self.num_running -= 1
            self.num_aborted += not is_whole

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        raise RequestError("no")

    async def health(self) -> Health:
        return Health(is_ready=self.is_ready, detail="as told", models=list(self.model_ids))

    async def close(self) -> None:
        return None


def _app(backend: Any, **options: Any) -> ASGIApp:
    """The application; what is no part of it itself is a setting of the server."""
    parts = {name: options.pop(name) for name in ("agents", "store", "api_keys", "emulates") if name in options}
    return create_app(backend, settings=Server(**options), **parts)


@asynccontextmanager
async def listening_at(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """The address of a server of this event loop; `options` are uvicorn's."""
    listening = bind("127.0.0.1", 0)
    options = {"timeout_keep_alive": KEEP_ALIVE_SECONDS, **options}
    server = PromptServer(uvicorn.Config(app, lifespan="off", log_config=None, **options))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield address(listening)
    finally:
        server.should_exit = True
        await task
        listening.close()


def serving(backend: Any, **options: Any) -> AbstractAsyncContextManager[str]:
    """The address of a server over a backend; `options` are settings of the server and parts of the application."""
    return listening_at(_app(backend, **options))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server, without a bound on connections."""
    async with (
        httpx.AsyncClient(verify=False, timeout=60, limits=httpx.Limits(max_connections=None)) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http) as client,
    ):
        yield client


def run(work: Callable[[str, openai.AsyncOpenAI], Any], backend: Any = None, **options: Any) -> Any:
    """Run `work(url, client)` against a server over `backend`."""

    async def main() -> Any:
        async with serving(backend or Model(), **options) as url, connected(url) as client:
            return await work(url, client)

    return asyncio.run(main())


HI: Any = [{"role": "user", "content": "hi"}]


def post(body: Any, backend: Any = None, *, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
    """One plain request; `body` is bytes as they are, or something to send as JSON."""

    async def work(url: str, _client: openai.AsyncOpenAI) -> httpx.Response:
        headers = {"content-type": "application/json"} | options.get("headers", {})
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient(verify=False, timeout=60) as http:
            return await http.post(url + path, content=content, headers=headers)

    return run(work, backend, **{name: value for name, value in options.items() if name != "headers"})


def fault(response: httpx.Response) -> dict[str, Any]:
    return response.json()["error"]
