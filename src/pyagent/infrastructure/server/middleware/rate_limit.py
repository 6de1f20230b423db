"""How much each API key may ask: requests and tokens a minute, told in `x-ratelimit-` headers. A plain ASGI wrapper.

Only what begins an answer counts. Tokens are known when the answer is whole, so a key may overdraw by what it has under
way; until that is made good it is refused. Without keys all clients share one allowance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.core.resilience.rate import TokenBucket
from pyagent.infrastructure.server.errors import HttpError
from pyagent.infrastructure.server.middleware.auth import send_error

_PREFIXES = ("/v1/", "/v2/", "/api/")
_MINUTE = 60.0


@dataclass(slots=True)
class _Client:
    requests: TokenBucket | None
    tokens: TokenBucket | None

    @property
    def buckets(self) -> dict[str, TokenBucket]:
        pairs = (("requests", self.requests), ("tokens", self.tokens))
        return {name: bucket for name, bucket in pairs if bucket is not None}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what is left, as OpenAI tells it."""
        headers: list[tuple[bytes, bytes]] = []
        for name, bucket in self.buckets.items():
            told = {
                "limit": str(bucket.count),
                "remaining": str(max(0, int(bucket.level))),
                "reset": f"{bucket.wait_seconds(bucket.count):.3f}s",
            }
            headers += [(f"x-ratelimit-{kind}-{name}".encode(), value.encode()) for kind, value in told.items()]
        return headers


@dataclass(slots=True)
class RateLimitMiddleware:
    """The wrapper; it stands after the guard, which says whose key it is. Routes note `num_tokens` in the state."""

    app: ASGIApp
    requests_per_minute: int | None
    tokens_per_minute: int | None
    _clients: dict[str, _Client] = field(default_factory=dict[str, _Client])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_PREFIXES):
            await self.app(scope, receive, send)
            return
        client = self._client(scope["state"]["client"])
        refused = _refusal(client)
        if refused is None and client.requests is not None:
            client.requests.take(1)

        if client.tokens is not None:
            scope["state"]["take_tokens"] = client.tokens.take  # for work that goes on when the answer is over
        is_settled = False

        def settle() -> None:
            nonlocal is_settled
            if client.tokens is not None and not is_settled:
                client.tokens.take(scope["state"].get("num_tokens", 0))
            is_settled = True

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *client.headers()]
            elif not message.get("more_body"):  # before the client can ask again
                settle()
            await send(message)

        if refused:
            await send_error(scope["path"], send_with_limits, refused)
            return
        try:
            await self.app(scope, receive, send_with_limits)
        finally:
            settle()

    def _client(self, name: str) -> _Client:
        """Return the client's buckets; there are as many clients as keys."""
        if name not in self._clients:
            limits = (self.requests_per_minute, self.tokens_per_minute)
            buckets = (TokenBucket(limit, _MINUTE, burst=limit) if limit else None for limit in limits)
            self._clients[name] = _Client(*buckets)
        return self._clients[name]


def _refusal(client: _Client) -> HttpError | None:
    for name, bucket in client.buckets.items():
        wait_seconds = bucket.wait_seconds()
        if wait_seconds > 0:
            text = f"this key may use {bucket.count} {name} a minute; try again in {wait_seconds:.1f} s"
            return HttpError(429, text, "rate_limit_exceeded", "rate_limit_error", retry_after_seconds=wait_seconds)
    return None
