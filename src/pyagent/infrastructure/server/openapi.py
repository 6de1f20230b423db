"""The OpenAPI description of what the server answers, made from the table of routes and the structs of the bodies."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyagent import __version__
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.server.adapter_routes import AdapterRoutes, LoadAdapterBody, UnloadAdapterBody
from pyagent.infrastructure.server.admin_routes import (
    DrainBody,
    EngineRoutes,
    NameBody,
    PinBody,
    ProfileBody,
    SleepBody,
)
from pyagent.infrastructure.server.anthropic.requests import CountBody, MessagesBody
from pyagent.infrastructure.server.cluster_routes import ClusterDrainBody, ClusterRoutes, NodeBody
from pyagent.infrastructure.server.hooks.routes import HookBody
from pyagent.infrastructure.server.ollama.requests import ChatBody as OllamaChatBody
from pyagent.infrastructure.server.ollama.requests import EmbedBody, EmbeddingsBody, GenerateBody, ModelBody
from pyagent.infrastructure.server.openai.embeddings import EmbeddingsBody as OpenAiEmbeddingsBody
from pyagent.infrastructure.server.openai.requests import ChatBody, CompletionBody
from pyagent.infrastructure.server.plugin_routes import PluginBody, PluginRoutes
from pyagent.infrastructure.server.ranking.requests import ClassifyBody, PoolingBody, RerankBody, ScoreBody
from pyagent.infrastructure.server.responses.requests import ResponsesBody
from pyagent.infrastructure.server.route_table import APIS
from pyagent.infrastructure.server.runs.requests import AnswerBody, CancelBody, ForkBody, MarkBody, ResumeBody, RunBody
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.webhooks.routes import NothingBody, ReplayBody, WebhookBody

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/embeddings": OpenAiEmbeddingsBody,
    "/v1/rerank": RerankBody,
    "/v2/rerank": RerankBody,
    "/v1/score": ScoreBody,
    "/v1/classify": ClassifyBody,
    "/pooling": PoolingBody,
    "/v1/responses": ResponsesBody,
    "/v1/runs": RunBody,
    "/v1/runs/{id}/cancel": CancelBody,
    "/v1/runs/{id}/resume": ResumeBody,
    "/v1/runs/{id}/fork": ForkBody,
    "/v1/runs/{id}/answer": AnswerBody,
    "/v1/runs/{id}/mark": MarkBody,
    "/v1/webhooks": WebhookBody,
    "/v1/webhooks/{id}/replay": ReplayBody,
    "/v1/webhooks/{id}/test": NothingBody,
    "/v1/webhooks/{id}/rotate": NothingBody,
    "/v1/webhooks/{id}/enable": NothingBody,
    "/v1/hooks/{id}": HookBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/api/chat": OllamaChatBody,
    "/api/generate": GenerateBody,
    "/api/embed": EmbedBody,
    "/api/embeddings": EmbeddingsBody,
    "/api/show": ModelBody,
    "/api/pull": ModelBody,
    "/pyagent/cache/explain": ChatBody,
    "/pyagent/cache/pin": PinBody,
    "/pyagent/cache/unpin": NameBody,
    "/pyagent/engine/sleep": SleepBody,
    "/pyagent/engine/drain": DrainBody,
    "/pyagent/profile": ProfileBody,
    "/pyagent/cluster/drain": ClusterDrainBody,
    "/pyagent/cluster/revoke": NodeBody,
    "/pyagent/cluster/forget": NodeBody,
    "/v1/load_lora_adapter": LoadAdapterBody,
    "/v1/unload_lora_adapter": UnloadAdapterBody,
    "/pyagent/plugins/reload": PluginBody,
    "/pyagent/plugins/unload": PluginBody,
}
"""What is sent to each path that takes something."""
_KEYED = (("header", "Idempotency-Key", "string"),)
_PARAMETERS: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {
    ("POST", "/v1/runs"): _KEYED,
    ("POST", "/v1/runs/{id}/resume"): _KEYED,
    ("POST", "/v1/runs/{id}/fork"): _KEYED,
    ("POST", "/v1/runs/{id}/answer"): _KEYED,
    ("GET", "/v1/runs"): (("query", "limit", "integer"), ("query", "after", "string")),
    ("GET", "/v1/webhooks/{id}/messages"): (("query", "state", "string"), ("query", "limit", "integer")),
    ("GET", "/v1/runs/{id}/events"): (("query", "start", "integer"), ("header", "Last-Event-ID", "integer")),
}
"""Where each stands, its name and its type, of what is sent beside a body and the path's `id`."""
_OWN = {
    "/health": "what the backend itself says",
    "/v1/health": "the same",
    "/ready": "whether to send requests here",
    "/metrics": "figures for Prometheus",
    "/pyagent/chain": "the state of each link of the chain",
}


async def show(service: Service, _request: Request) -> Response:
    """GET /openapi.json: this description."""
    own = tuple(
        (method, route.path, (route.endpoint.__doc__ or "")) for route in _own(service) for method in _methods(route)
    )
    return json_response(_described(own))


def _own(service: Service) -> list[Route]:
    """Return PyAgent's own routes."""
    return [
        *EngineRoutes(service.backend, service.settings).routes(),
        *ClusterRoutes(None, service.settings).routes(),
        *AdapterRoutes(service.backend, service.settings).routes(),
        *PluginRoutes(None, service.settings).routes(),
    ]


def _methods(route: Route) -> list[str]:
    return sorted((route.methods or set()) - {"HEAD"})


@cache
def _described(own: tuple[tuple[str, str, str], ...]) -> bytes:
    references, components = msgspec.json.schema_components(
        list(BODIES.values()), schema_hook=_anything, ref_template="#/components/schemas/{name}"
    )
    path_to_schema = dict(zip(BODIES, references, strict=True))
    documented = [(api.method, api.path, _words(api.module, api.function)) for api in APIS]
    documented += [*own, *(("GET", path, text) for path, text in _OWN.items())]
    paths: dict[str, JsonObject] = {}
    for method, path, text in documented:
        plain = path.replace(":path", "")
        schema = path_to_schema.get(path) if method == "POST" else None
        paths.setdefault(plain, {})[method.lower()] = _operation(method, plain, text, schema)
    body: JsonObject = {"openapi": "3.1.0", "info": {"title": "PyAgent", "version": __version__}, "paths": paths}
    body["security"] = [{"bearer": []}, {"key": []}]
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return msgspec.json.encode(body | {"components": {"schemas": components, "securitySchemes": schemes}})


def _anything(_kind: type) -> JsonObject:
    """Return the schema of `object`: a field that may hold anything."""
    return {"description": "Anything: it is ignored, or refused unless it asks for nothing."}


def _words(module: str, function: str) -> str:
    routes = import_module(f"pyagent.infrastructure.server.{module}")
    return str(getattr(routes, function).__doc__)


def _operation(method: str, path: str, text: str, schema: JsonObject | None) -> JsonObject:
    summary = re.sub(rf"^{method} \S+?(: |\.$)", "", text)
    operation: JsonObject = {"summary": summary} if summary else {}
    operation["responses"] = {
        "2XX": {"description": "The answer; streamed as events or lines where that was asked for."},
        "4XX": {"description": "What is wrong with the request, in the shape of the API."},
        "5XX": {"description": "Why nothing could answer."},
    }
    parameters = _PARAMETERS.get((method, path), ())
    if "{id}" in path:
        parameters = (("path", "id", "string"), *parameters)
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": kind}}
            for place, name, kind in parameters
        ]
    if schema is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
