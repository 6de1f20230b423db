"""The ASGI application: the table of routes, and those that belong to no API.

A request's hops: `middleware.metrics` (counts) -> `middleware.auth` (id, key, host) -> `endpoints` (errors) -> a route,
in the folder of its API -> its `requests` (JSON to `ChatRequest`) -> `service` (the backend's stream) -> `answer` and
its `replies` (deltas to JSON) -> `streaming` (watches the client). An API's modules are imported by its first request,
so that a server starts without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from pyagent import __version__
from pyagent.core.backends import Backend
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.settings import Server
from pyagent.core.trace_context import missing_packages
from pyagent.infrastructure.observability.engine_metrics import collect_engines
from pyagent.infrastructure.observability.link_metrics import collect_links
from pyagent.infrastructure.observability.metrics import CONTENT_TYPE, render
from pyagent.infrastructure.server.adapter_routes import AdapterRoutes
from pyagent.infrastructure.server.admin_routes import EngineRoutes, engine_links
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.api_keys import ApiKey, check_admin, check_origins, is_admin, tenant_of
from pyagent.infrastructure.server.cluster_routes import ClusterNode, ClusterRoutes
from pyagent.infrastructure.server.endpoints import Routed, route
from pyagent.infrastructure.server.errors import without_folders
from pyagent.infrastructure.server.middleware.auth import AuthMiddleware
from pyagent.infrastructure.server.middleware.metrics import MetricsMiddleware
from pyagent.infrastructure.server.plugin_routes import PluginRoutes, ServerPlugins
from pyagent.infrastructure.server.route_table import APIS, Api
from pyagent.infrastructure.server.service import Service, json_response

if TYPE_CHECKING:
    from pyagent.infrastructure.models.store import ModelStore

_Endpoint = Callable[[Service, Request], Awaitable[Response]]


def _api_route(service: Service, api: Api) -> Route:
    answer: _Endpoint | None = None

    async def endpoint(request: Request) -> Response:
        nonlocal answer
        if answer is None:
            module = import_module(f"pyagent.infrastructure.server.{api.module}")
            answer = cast("_Endpoint", getattr(module, api.function))
        return await answer(service, request)

    return route(api.method, api.path, endpoint)


async def _health(service: Service, _request: Request) -> Response:
    """GET /health: what the backend itself says."""
    health = await service.health()
    body = {
        "status": "ok" if health.is_ready else "unavailable",
        "backend": service.backend.name,
        "detail": without_folders(health.detail),
        "models": health.models,
        "version": __version__,
    }
    return json_response(body, 200 if health.is_ready else 503)


async def _ready(service: Service, _request: Request) -> Response:
    """GET /ready: whether to send requests here, by status alone."""
    backend = service.backend
    is_ready = await backend.is_ready() if isinstance(backend, Chain) else (await backend.health()).is_ready
    return json_response({"ready": is_ready}, 200 if is_ready else 503)


async def _metrics(service: Service, request: Request) -> Response:
    """GET /metrics for Prometheus; a client's key sees its own metrics alone, as totals show what others do."""
    if not is_admin(request):
        return Response(render(service.stats.collect_keys(tenant_of(request))), media_type=CONTENT_TYPE)
    states = [await link.engine_state() for link in engine_links(service.backend)]
    collected = [
        *service.stats.collect(),
        *service.stats.collect_keys(),
        *(collect_engines(states) if states else ()),
    ]
    if service.node is not None:
        from pyagent.infrastructure.observability.cluster_metrics import collect_cluster

        collected += collect_cluster(service.node.status())
    if isinstance(service.agents, AgentBackend):
        collected += service.agents.metrics()
    if isinstance(service.backend, Chain):
        collected += collect_links(service.backend.link_states())
        if service.backend.response_cache is not None:
            from pyagent.infrastructure.observability.response_cache_metrics import collect_response_cache

            collected += collect_response_cache(service.backend.response_cache.stats())
    return Response(render(collected), media_type=CONTENT_TYPE)


async def _chain(service: Service, request: Request) -> Response:
    """GET /pyagent/chain: how each link stands, and what it did; for an administrator, as it counts what all ask."""
    check_admin(request)
    if not isinstance(service.backend, Chain):
        raise RequestError(f"{service.backend.name} is no chain", code="chain_not_found")
    return json_response(service.backend.link_states())


async def _home(_service: Service, request: Request) -> Response:
    """GET /: a page for browsers; for others the text that Ollama's clients look for."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_HOME.format(version=__version__))
    return PlainTextResponse("Ollama is running")


_OWN: dict[str, _Endpoint] = {
    "/health": _health,
    "/v1/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/pyagent/chain": _chain,
    "/": _home,
}


def _own_route(service: Service, path: str, function: _Endpoint) -> Route:
    async def endpoint(request: Request) -> Response:
        return await function(service, request)

    return route("GET", path, endpoint)


def create_app(  # noqa: PLR0913 - each is a part of its own
    backend: Backend,
    *,
    agents: Backend | None = None,
    store: ModelStore | None = None,
    api_keys: Sequence[ApiKey] = (),
    emulates: bool = True,
    settings: Server = Server(),  # noqa: B008 - frozen
    node: ClusterNode | None = None,
    plugins: ServerPlugins | None = None,
) -> MetricsMiddleware:
    """Return the application over `backend`; `agents` answers for models called `agent:NAME`, when there is a fleet.

    `emulates` is whether backends emulate what they lack, as far as that can be (`backends.unsupported`). `node` is
    this server's part in a cluster, where it has one; `plugins` loads those of this server anew.
    """
    service = Service(backend, agents, store, settings, emulates=emulates, node=node)
    routes = [
        *(_api_route(service, api) for api in APIS),
        *EngineRoutes(backend, settings).routes(),
        *ClusterRoutes(node, settings).routes(),
        *AdapterRoutes(backend, settings).routes(),
        *PluginRoutes(plugins, settings).routes(),
        *(_own_route(service, path, function) for path, function in _OWN.items()),
    ]
    if settings.a2a and isinstance(agents, AgentBackend):
        from pyagent.infrastructure.a2a.mount import a2a_routes

        routes += a2a_routes(agents, settings)
    app: ASGIApp = Routed(Router(routes))
    if settings.requests_per_minute or settings.tokens_per_minute:
        from pyagent.infrastructure.server.middleware.rate_limit import RateLimitMiddleware

        app = RateLimitMiddleware(app, settings.requests_per_minute, settings.tokens_per_minute)
    paths = frozenset(one.path for one in routes)
    guarded: ASGIApp = AuthMiddleware(app, tuple(api_keys), has_hooks=bool(settings.hooks))
    if settings.allowed_origins:
        guarded = _shared(guarded, settings.allowed_origins, has_keys=bool(api_keys))
    if settings.otlp_endpoint is not None:
        guarded = _traced(guarded, settings.otlp_endpoint, paths)
    return MetricsMiddleware(guarded, service.stats, paths)


def _shared(app: ASGIApp, origins: Sequence[str], *, has_keys: bool) -> ASGIApp:
    """Return the application for pages of these origins too; before the guard, since browsers ask without a key."""
    from starlette.middleware.cors import CORSMiddleware

    check_origins(origins, has_keys=has_keys)
    told = ("x-request-id", "request-id", "retry-after")
    return CORSMiddleware(app, origins, allow_methods=("*",), allow_headers=("*",), expose_headers=told, max_age=600)


def _traced(app: ASGIApp, endpoint: str, paths: frozenset[str]) -> ASGIApp:
    """Return the application with traces of its requests; raises `ConfigError` where OpenTelemetry is not installed."""
    try:
        from pyagent.infrastructure.server.middleware.tracing import TracingMiddleware, make_tracer
    except ModuleNotFoundError as error:
        raise ConfigError(missing_packages(error), key="server.otlp_endpoint") from error
    return TracingMiddleware(app, make_tracer(endpoint), paths)


_HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>PyAgent</title>
<body style="font: 1rem/1.5 system-ui; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
<h1>PyAgent {version}</h1>
<p>An inference server with the APIs of OpenAI (base URL: this address and <code>/v1</code>), Anthropic and Ollama
(base URL: this address).</p>
<ul><li><a href="/v1/models">/v1/models</a>: models and agents</li>
<li><a href="/health">/health</a>: whether requests can be answered, and why not</li>
<li><a href="/metrics">/metrics</a>: metrics for Prometheus</li>
<li><a href="/pyagent/chain">/pyagent/chain</a>: the links of the fallback chain</li>
<li><a href="/openapi.json">/openapi.json</a>: all routes and their fields</li></ul></body></html>
"""
