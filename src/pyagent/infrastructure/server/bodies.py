"""Bodies of JSON requests, bounded, and what HTTP's own rules turn away."""

from __future__ import annotations

from starlette.requests import Request

from pyagent.infrastructure.server.errors import refusal

_MAX_DROPPED_BYTES = 8_000_000


class RefusedError(Exception):
    """A request that HTTP's own rules turn away."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.error = refusal(status, message, code)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request, never more of it than `limit`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also keeps a page in a browser from sending a request without asking first
        raise RefusedError(415, f"send Content-Type: application/json, got {kind or 'none'}", "wrong_content_type")
    body, num_bytes = bytearray(), 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= limit:
            body += chunk
        elif (
            num_bytes > limit + _MAX_DROPPED_BYTES
        ):  # up to here the rest is read and dropped, so that the client hears the answer
            break
    if num_bytes <= limit:
        return bytes(body)
    raise RefusedError(413, f"the body is larger than {limit} bytes (server.max_body_bytes)", "body_too_large")
