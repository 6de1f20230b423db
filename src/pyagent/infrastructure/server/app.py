"""The ASGI application: the table of routes, and those that belong to no API.

A request's hops: `measured.Measured` (counts) -> `guards.Guard` (id, key, host) -> a route, in the folder of its API
-> that API's `requests` (JSON to `ChatRequest`) -> `service` (the backend's stream) -> `answer` and the API's `replies`
(deltas to JSON) -> `streaming` (watches the client). An API's modules are imported by its first request: a server
should answer before it has read what nobody may ask for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from pyagent import __version__
from pyagent.core.backends import Backend
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.settings import Server
from pyagent.infrastructure.observability.engine_metrics import collect_engines
from pyagent.infrastructure.observability.link_metrics import collect_links
from pyagent.infrastructure.observability.metrics import CONTENT_TYPE, render
from pyagent.infrastructure.server.apis import APIS, Api
from pyagent.infrastructure.server.bodies import RefusedError
from pyagent.infrastructure.server.engine_routes import EngineRoutes, engine_links
from pyagent.infrastructure.server.errors import logged_error, refusal
from pyagent.infrastructure.server.guards import Guard
from pyagent.infrastructure.server.measured import Measured
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.streaming import ClientLeftError

if TYPE_CHECKING:
    from pyagent.infrastructure.models.store import ModelStore

_Endpoint = Callable[[Service, Request], Awaitable[Response]]


def _api_route(service: Service, api: Api) -> Route:
    async def endpoint(request: Request) -> Response:
        routes = import_module(f"pyagent.infrastructure.server.{api.module}")
        return await cast("_Endpoint", getattr(routes, api.function))(service, request)

    return Route(api.path, endpoint, methods=[api.method])


async def _health(service: Service, _request: Request) -> Response:
    """GET /health: what the backend itself says."""
    health = await service.backend.health()
    body = {
        "status": "ok" if health.is_ready else "unavailable",
        "backend": service.backend.name,
        "detail": health.detail,
        "models": health.models,
        "version": __version__,
    }
    return json_response(body, 200 if health.is_ready else 503)


async def _ready(service: Service, _request: Request) -> Response:
    """GET /ready: whether to send requests here, by status alone."""
    is_ready = (await service.backend.health()).is_ready
    return json_response({"ready": is_ready}, 200 if is_ready else 503)


async def _metrics(service: Service, _request: Request) -> Response:
    """GET /metrics: figures for Prometheus."""
    states = [await link.engine_state() for link in engine_links(service.backend)]
    collected = [*service.figures.collect(), *(collect_engines(states) if states else ())]
    if isinstance(service.backend, Chain):
        collected += collect_links(service.backend.link_states())
        if service.backend.answers is not None:
            from pyagent.infrastructure.observability.answer_metrics import collect_answers

            collected += collect_answers(service.backend.answers.figures())
    return Response(render(collected), media_type=CONTENT_TYPE)


async def _chain(service: Service, _request: Request) -> Response:
    """GET /pyagent/chain: how each link stands, and what it did."""
    if not isinstance(service.backend, Chain):
        raise RequestError(f"{service.backend.name} is no chain", code="chain_not_found")
    return json_response(service.backend.link_states())


async def _home(_service: Service, request: Request) -> Response:
    """GET /: what this is, for somebody with a browser; Ollama's clients look for its words."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_HOME.format(version=__version__))
    return PlainTextResponse("Ollama is running")


_OWN: dict[str, _Endpoint] = {
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/pyagent/chain": _chain,
    "/": _home,
}


def _own_route(service: Service, path: str, function: _Endpoint) -> Route:
    async def endpoint(request: Request) -> Response:
        return await function(service, request)

    return Route(path, endpoint, methods=["GET"])


async def _answer_error(request: Request, error: Exception) -> Response:
    """Whatever a route raised, as the API that was called would say it."""
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
    return json_response(told.body_at(request.url.path), told.status, headers | told.headers)


def create_app(
    backend: Backend,
    *,
    agents: Backend | None = None,
    store: ModelStore | None = None,
    api_keys: Sequence[bytes] = (),
    settings: Server = Server(),  # noqa: B008 - frozen
) -> Measured:
    """The application over `backend`; `agents` answers for models called `agent:NAME`, when there is a fleet."""
    service = Service(backend, agents, store, settings)
    routes = [
        *(_api_route(service, api) for api in APIS),
        *EngineRoutes(backend, settings).routes(),
        *(_own_route(service, path, function) for path, function in _OWN.items()),
    ]
    handlers = dict.fromkeys((HTTPException, Exception), _answer_error)
    app: ASGIApp = ExceptionMiddleware(Router(routes), handlers)
    if settings.requests_per_minute or settings.tokens_per_minute:
        from pyagent.infrastructure.server.limits import Limited

        app = Limited(app, settings.requests_per_minute, settings.tokens_per_minute)
    paths = frozenset(route.path for route in routes)
    guarded: ASGIApp = Guard(app, tuple(api_keys))
    if settings.otlp_endpoint is not None:
        guarded = _traced(guarded, settings.otlp_endpoint, paths)
    return Measured(guarded, service.figures, paths)


def _traced(app: ASGIApp, endpoint: str, paths: frozenset[str]) -> ASGIApp:
    """The application with traces of its requests; raises `ConfigError` where OpenTelemetry is not installed."""
    try:
        from pyagent.infrastructure.server.traced import Traced, make_tracer
    except ModuleNotFoundError as error:
        text = f"traces need an extra: pip install 'pyagent[otel]' ({error})"
        raise ConfigError(text, key="server.otlp_endpoint") from error
    return Traced(app, make_tracer(endpoint), paths)


_HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>PyAgent</title>
<body style="font: 1rem/1.5 system-ui; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
<h1>PyAgent {version}</h1>
<p>This is a PyAgent server. It speaks OpenAI's API at <code>/v1</code> of this address, Anthropic's and Ollama's.</p>
<ul><li><a href="/v1/models">/v1/models</a> lists models and agents</li>
<li><a href="/metrics">/metrics</a> has figures for Prometheus</li>
<li><a href="/health">/health</a> says whether it can answer</li>
<li>POST /v1/chat/completions and /v1/completions answer, streamed or whole</li></ul></body></html>
"""
