"""A function that answers a request, as a route; what it raises is told as the API that was called would say it.

Plain ASGI, one call deep: each layer between the socket and a function costs a request its share of a cold cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from pyagent.core import hops
from pyagent.core.errors import RequestError
from pyagent.infrastructure.server.body import RefusedError, check_page
from pyagent.infrastructure.server.errors import logged_error, refusal
from pyagent.infrastructure.server.streaming import ClientLeftError, unless_gone

Function = Callable[[Request], Awaitable[Response]]


def route(method: str, path: str, function: Function) -> Route:
    """Return the route of one method and path."""
    return Route(path, _Endpoint(function), methods=[method])


@dataclass(frozen=True, slots=True)
class _Endpoint:
    function: Function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            answering = self.function(request)
            # who only looks may leave, too; a request with a body is watched once that is read
            response = await (unless_gone(answering, receive) if request.method == "GET" else answering)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must be told
            response = _response_of(request, error)
        await response(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Routed:
    """The table of routes; a path or a method that is not in it is told like any other error, and so is a loop.

    `server_id` is what this server adds to the servers that a request has passed (`core.hops`).
    """

    router: Router
    server_id: str = field(default_factory=hops.new_server_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the route that the path names."""
        try:
            headers = Headers(scope=scope)
            hops.enter(headers.get(hops.HEADER, ""), self.server_id)
            check_page(scope["method"], headers)
            await self.router(scope, receive, send)
        except (HTTPException, RequestError, RefusedError) as error:
            await _response_of(Request(scope), error)(scope, receive, send)


def _response_of(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = {}
    match error:
        case ClientLeftError() | ClientDisconnect():
            return Response(status_code=499)  # the client has left; only the access log reads it
        case RefusedError():
            told = error.error
            headers["connection"] = "close"  # part of the body may not have been read
        case HTTPException():
            what, code = ("no such path", "not_found") if error.status_code == 404 else (error.detail, "wrong_method")
            told = refusal(error.status_code, f"{what}: {request.method} {request.url.path}", code)
            headers = dict(error.headers or {})
        case _:
            told = logged_error(error, str(request.state.request_id))
    body = told.body_at(request.url.path)
    return Response(body, told.status, headers | told.headers, media_type="application/json")
