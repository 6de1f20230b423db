"""The servers a request has passed, as one header, so that a chain that leads back to its own server ends at once.

`x-pyagent-hops` lists the random ids of those servers, oldest first, separated by commas. A server enters a request
with `enter`, which refuses one that was here before or passed too many; a backend that asks another server over HTTP
sends `hop_headers()`. A context variable, as in `trace_context`: tasks inherit it, so nothing between need know of it.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from pyagent.core.errors import RequestError

HEADER = "x-pyagent-hops"
MAX_HOPS = 8
"""Servers a request may have passed before it comes here."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_hops: ContextVar[tuple[str, ...]] = ContextVar("servers passed", default=())


def new_server_id() -> str:
    """Return a server's own id, made anew at each start."""
    return secrets.token_hex(8)


def hop_headers() -> dict[str, str]:
    """Return the header for a request to another server; none outside of a server's request."""
    hops = _hops.get()
    return {HEADER: ",".join(hops)} if hops else {}


def enter(said: str, server_id: str) -> None:
    """Note the servers in a request's header and this one, for what is done now and in tasks begun from here.

    Raises `RequestError` (`loop_detected`) where this server is among them, or there are too many.
    """
    hops = tuple(hop for one in said.split(",") if _ID.fullmatch(hop := one.strip()))
    if server_id in hops:
        text = "this request came from this server: a link of its chain leads back to it; take that link out of `chain`"
        raise RequestError(text, code="loop_detected")
    if len(hops) >= MAX_HOPS:
        text = f"this request passed {len(hops)} servers, {MAX_HOPS} at most may be passed: chains lead in a circle"
        raise RequestError(text, code="loop_detected")
    _hops.set((*hops, server_id))
