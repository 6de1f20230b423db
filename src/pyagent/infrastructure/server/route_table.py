"""The table of the APIs' routes. A route's module is imported by its first request."""

from __future__ import annotations

from typing import NamedTuple


class Api(NamedTuple):
    """A method and a path, and the function that answers: its module, below this package, and its name there."""

    method: str
    path: str
    module: str
    function: str


APIS = (
    Api("POST", "/v1/chat/completions", "openai.routes", "chat_completions"),
    Api("POST", "/v1/completions", "openai.routes", "completions"),
    Api("POST", "/v1/embeddings", "openai.routes", "embeddings"),
    Api("POST", "/v1/rerank", "ranking.routes", "rerank"),
    Api("POST", "/v2/rerank", "ranking.routes", "rerank"),
    Api("POST", "/v1/score", "ranking.routes", "score"),
    Api("POST", "/v1/classify", "ranking.routes", "classify"),
    Api("POST", "/pooling", "ranking.routes", "pooling"),
    Api("POST", "/v1/responses", "responses.routes", "create"),
    Api("GET", "/v1/responses/{id}", "responses.routes", "show"),
    Api("DELETE", "/v1/responses/{id}", "responses.routes", "delete"),
    Api("GET", "/v1/responses/{id}/input_items", "responses.routes", "input_items"),
    Api("POST", "/v1/runs", "runs.routes", "create"),
    Api("GET", "/v1/runs", "runs.routes", "list_runs"),
    Api("GET", "/v1/runs/{id}", "runs.routes", "show"),
    Api("DELETE", "/v1/runs/{id}", "runs.routes", "delete"),
    Api("GET", "/v1/runs/{id}/events", "runs.routes", "events"),
    Api("GET", "/v1/runs/{id}/export", "runs.routes", "export"),
    Api("POST", "/v1/runs/{id}/cancel", "runs.control", "cancel"),
    Api("POST", "/v1/runs/{id}/resume", "runs.control", "resume"),
    Api("POST", "/v1/runs/{id}/fork", "runs.control", "fork"),
    Api("POST", "/v1/runs/{id}/answer", "runs.control", "answer"),
    Api("POST", "/v1/runs/{id}/mark", "runs.control", "mark"),
    Api("POST", "/v1/webhooks", "webhooks.routes", "create"),
    Api("GET", "/v1/webhooks", "webhooks.routes", "list_webhooks"),
    Api("GET", "/v1/webhooks/{id}", "webhooks.routes", "show"),
    Api("DELETE", "/v1/webhooks/{id}", "webhooks.routes", "delete"),
    Api("GET", "/v1/webhooks/{id}/messages", "webhooks.routes", "messages"),
    Api("POST", "/v1/webhooks/{id}/replay", "webhooks.routes", "replay"),
    Api("POST", "/v1/webhooks/{id}/test", "webhooks.routes", "ping"),
    Api("POST", "/v1/webhooks/{id}/rotate", "webhooks.routes", "rotate"),
    Api("POST", "/v1/webhooks/{id}/enable", "webhooks.routes", "enable"),
    Api("POST", "/v1/hooks/{id}", "hooks.routes", "receive"),
    Api("GET", "/v1/models", "openai.routes", "list_models"),
    Api("GET", "/v1/models/{id:path}", "openai.routes", "show_model"),
    Api("POST", "/v1/messages", "anthropic.routes", "messages"),
    Api("POST", "/v1/messages/count_tokens", "anthropic.routes", "count_tokens"),
    Api("POST", "/api/chat", "ollama.routes", "chat"),
    Api("POST", "/api/generate", "ollama.routes", "generate"),
    Api("POST", "/api/embed", "ollama.routes", "embed"),
    Api("POST", "/api/embeddings", "ollama.routes", "embeddings"),
    Api("GET", "/api/tags", "ollama.routes", "tags"),
    Api("GET", "/api/ps", "ollama.routes", "show_loaded"),
    Api("POST", "/api/show", "ollama.routes", "show"),
    Api("POST", "/api/pull", "ollama.routes", "pull"),
    Api("GET", "/api/version", "ollama.routes", "version"),
    Api("GET", "/openapi.json", "openapi", "show"),
)
