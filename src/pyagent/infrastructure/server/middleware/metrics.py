"""Counts and logs every request: its path, model, status and time. A plain ASGI wrapper around everything else."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyagent.infrastructure.observability.metrics import ServerStats
from pyagent.infrastructure.server.middleware.request_log import log_request


@dataclass(frozen=True, slots=True)
class MetricsMiddleware:
    """The wrapper. `paths` are those counted by name; the rest is `other`.

    Routes may set `scope["state"]["model"]`, and `scope["state"]["outcome"]` when an answer broke off after its status.
    """

    app: ASGIApp
    stats: ServerStats
    paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and count it when it is over."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started, is_counted = "none", time.perf_counter(), False
        state = scope.setdefault("state", {})
        path = scope["path"] if scope["path"] in self.paths else "other"

        def count() -> None:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                self.stats.num_running -= 1
                seconds = time.perf_counter() - started
                outcome = state.get("outcome", status)
                self.stats.answered(path, state.get("model", ""), outcome, seconds)
                self.stats.used(state.get("client", ""), outcome, state.get("num_tokens", 0))
                log_request(scope["method"], path, outcome, seconds, state)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            elif not message.get("more_body"):  # before the client can ask for the stats
                count()
            await send(message)

        self.stats.num_running += 1
        try:
            await self.app(scope, receive, send_and_note)
        finally:
            count()
