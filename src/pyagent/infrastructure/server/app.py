"""The ASGI application: routes, and what each does with a backend.

A request's hops: `measured.Measured` (counts) -> `guards.Guard` (id, key, host) -> a route here -> `wire` (JSON to
`ChatRequest`) -> the backend's stream -> `answer`, `replies` (deltas to OpenAI's JSON) -> `streaming` (watches the
client). No state outlives a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, Router

from pyagent.core.backends import Backend
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, ModelInfo
from pyagent.infrastructure.observability.engine_metrics import collect_engines
from pyagent.infrastructure.observability.metrics import CONTENT_TYPE, AnswerWatch, ServerFigures, render
from pyagent.infrastructure.server.answer import Answer, logged_error
from pyagent.infrastructure.server.bodies import RefusedError, read_body
from pyagent.infrastructure.server.engine_routes import EngineRoutes, engine_links
from pyagent.infrastructure.server.guards import Guard
from pyagent.infrastructure.server.measured import Measured
from pyagent.infrastructure.server.replies import Reply, model_entry, refusal
from pyagent.infrastructure.server.streaming import ClientLeftError, EventStream, unless_gone
from pyagent.infrastructure.server.wire import Asked, read_chat, read_completion

AGENT_PREFIX = "agent:"
_MODELS_SECONDS = 5.0
logger = logging.getLogger("pyagent.server")


@dataclass(slots=True)
class _Server:
    """What the routes share: who answers, and the list of models, looked up again when it is a few seconds old."""

    backend: Backend
    agents: Backend | None
    max_body_bytes: int
    version: str
    figures: ServerFigures = field(default_factory=ServerFigures)
    created: int = field(default_factory=lambda: int(time.time()))
    _models: tuple[float, list[ModelInfo]] = (0.0, [])

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._complete(request, read_chat)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._complete(request, read_completion)

    async def list_models(self, _request: Request) -> Response:
        """GET /v1/models."""
        listed = [model_entry(model, self.created) for model in await self._all_models()]
        return _json({"object": "list", "data": listed})

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        wanted = str(request.path_params["id"])
        models = await self._all_models()
        for model in models:
            if model.id == wanted:
                return _json(model_entry(model, self.created))
        raise _unknown_model(wanted, models)

    async def health(self, _request: Request) -> Response:
        """GET /health: what the backend itself says."""
        health = await self.backend.health()
        body = {
            "status": "ok" if health.is_ready else "unavailable",
            "backend": self.backend.name,
            "detail": health.detail,
            "models": health.models,
            "version": self.version,
        }
        return _json(body, 200 if health.is_ready else 503)

    async def ready(self, _request: Request) -> Response:
        """GET /ready: whether to send requests here, by status alone."""
        is_ready = (await self.backend.health()).is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics: figures for Prometheus."""
        states = [await link.engine_state() for link in engine_links(self.backend)]
        collected = [*self.figures.collect(), *(collect_engines(states) if states else ())]
        return Response(render(collected), media_type=CONTENT_TYPE)

    async def home(self, _request: Request) -> Response:
        """GET /: what this is, for somebody with a browser."""
        return HTMLResponse(_HOME.format(version=self.version))

    async def _complete(self, request: Request, read: Callable[[bytes], Asked]) -> Response:
        asked = read(await read_body(request, self.max_body_bytes))
        backend = await self._who(asked)
        request_id = str(request.state.request_id)
        reply = Reply(request_id, asked.model, asked.is_chat, asked.has_usage_chunk)
        answer = Answer(
            backend.chat(_of_client(asked.request, request.state.client)),
            backend.name,
            request.state,
            AnswerWatch(self.figures),
        )
        if not asked.is_streamed:
            whole = await unless_gone(answer.whole(reply), request.receive)
            return Response(whole, media_type="application/json")
        try:
            first = await unless_gone(answer.first(), request.receive)
        except BaseException:
            await answer.close()
            raise
        return EventStream(answer.events(first, reply, request_id), {})

    async def _who(self, asked: Asked) -> Backend:
        """The backend to ask; raises `RequestError` for a model that nobody here has."""
        model = asked.request.model
        if self.agents is not None and model.startswith(AGENT_PREFIX):
            return self.agents
        if model:
            models = await self._all_models()
            if models and not any(model in {known.id, known.backend} for known in models):
                raise _unknown_model(model, models)
        return self.backend

    async def _all_models(self) -> list[ModelInfo]:
        read_at, models = self._models
        if time.monotonic() - read_at > _MODELS_SECONDS:
            models = [*await self.backend.models(), *(await self.agents.models() if self.agents else ())]
            self._models = (time.monotonic(), models)
        return models


def _of_client(asked: ChatRequest, key: str) -> ChatRequest:
    """The request with its client's name: the API key's place in the file, then what it calls itself."""
    if not key:
        return asked
    client = f"{key}/{asked.origin.client}" if asked.origin.client else key
    return msgspec.structs.replace(asked, origin=msgspec.structs.replace(asked.origin, client=client))


def _unknown_model(wanted: str, models: list[ModelInfo]) -> RequestError:
    names = [model.id for model in models]
    close = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names[:20]) or 'none'}"
    return RequestError(f"there is no model {wanted!r}; {hint}", param="model", code="model_not_found")


async def _answer_error(request: Request, error: Exception) -> Response:
    """Whatever a route raised, as OpenAI would say it."""
    headers: dict[str, str] = {}
    match error:
        case ClientLeftError() | ClientDisconnect():
            return Response(status_code=499)  # nobody reads it; the access log does
        case RefusedError():
            told = error.error
            headers["connection"] = "close"  # part of the body may not have been read
        case HTTPException():
            what, code = ("no such path", "not_found") if error.status_code == 404 else (error.detail, "wrong_method")
            told = refusal(error.status_code, f"{what}: {request.method} {request.url.path}", code)
            headers = dict(error.headers or {})
        case _:
            told = logged_error(error, str(request.state.request_id))
    if told.retry_after_seconds is not None:
        headers["retry-after"] = str(max(1, round(told.retry_after_seconds)))
    return _json(told.body, told.status, headers)


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def create_app(
    backend: Backend,
    *,
    agents: Backend | None = None,
    api_keys: list[bytes] | None = None,
    max_body_bytes: int = 32_000_000,
    version: str = "",
) -> Measured:
    """The application over `backend`; `agents` answers for models called `agent:NAME`, when there is a fleet."""
    server = _Server(backend, agents, max_body_bytes, version)
    routes = [
        Route("/v1/chat/completions", server.chat_completions, methods=["POST"]),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.list_models, methods=["GET"]),
        Route("/v1/models/{id:path}", server.show_model, methods=["GET"]),
        Route("/health", server.health, methods=["GET"]),
        Route("/ready", server.ready, methods=["GET"]),
        *EngineRoutes(backend, max_body_bytes).routes(),
        Route("/metrics", server.metrics, methods=["GET"]),
        Route("/", server.home, methods=["GET"]),
    ]
    handlers = dict.fromkeys((HTTPException, Exception), _answer_error)
    guard = Guard(ExceptionMiddleware(Router(routes), handlers), tuple(api_keys or ()))
    return Measured(guard, server.figures, frozenset(route.path for route in routes))


_HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>PyAgent</title>
<body style="font: 1rem/1.5 system-ui; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
<h1>PyAgent {version}</h1>
<p>This is a PyAgent server. It speaks OpenAI's API; point any client at <code>/v1</code> of this address.</p>
<ul><li><a href="/v1/models">/v1/models</a> lists models and agents</li>
<li><a href="/metrics">/metrics</a> has figures for Prometheus</li>
<li><a href="/health">/health</a> says whether it can answer</li>
<li>POST /v1/chat/completions and /v1/completions answer, streamed or whole</li></ul></body></html>
"""
