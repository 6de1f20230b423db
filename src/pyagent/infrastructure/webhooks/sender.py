"""Sends one delivery by HTTP POST: signed, to a public address, following no redirect, in a bounded time.

Of the answer the status and `Retry-After` count; its body is not read. Nothing of the URL, which may hold a secret, is
in what an attempt is said to come to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib import import_module
from socket import gaierror
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyagent import __version__
from pyagent.core.config import read_secret
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.secrets import is_reference
from pyagent.core.webhooks.schedule import Answer, retry_after_seconds
from pyagent.core.webhooks.signing import key_of, signed_headers

if TYPE_CHECKING:
    import httpcore

_SECONDS = 15.0
_MAX_CONNECTIONS = 16


class Sender:
    """Connections to endpoints. It belongs to one event loop, and is closed there."""

    def __init__(self, *, allows_private: bool = False, seconds: float = _SECONDS) -> None:
        self._allows_private = allows_private
        self._seconds = seconds
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def send(self, url: str, secrets: Sequence[str], message_id: str, body: bytes) -> Answer:
        """Return what an attempt comes to; raises nothing that an endpoint or a setting could cause."""
        try:
            keys = [key_of(_secret(secret)) for secret in secrets]
        except (RequestError, ConfigError) as error:
            return Answer(None, f"its secret cannot be used: {error}")
        headers = signed_headers(keys, message_id, int(time.time()), body)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._post(url, headers, body)
        except TimeoutError:
            return Answer(None, f"it did not answer within {self._seconds:g} s")
        except RequestError as error:  # an address that is not public
            return Answer(None, str(error))

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        pool = self._pool or await self._opened()
        import httpcore

        told = {
            "host": urlsplit(url).netloc,
            "user-agent": f"pyagent/{__version__}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **headers,
        }
        try:
            async with pool.stream("POST", url, headers=list(told.items()), content=body) as answer:
                names = {name.lower(): value for name, value in answer.headers}
                asked = names.get(b"retry-after", b"").decode("latin-1")
                return Answer(answer.status, retry_after=retry_after_seconds(asked, time.time()))
        except httpcore.ProtocolError:
            return Answer(None, "what it answered is no HTTP")
        except gaierror:
            return Answer(None, "the name of its host is not known")
        except (httpcore.NetworkError, httpcore.TimeoutException, OSError, UnicodeError) as error:
            return Answer(None, f"it cannot be reached: {type(error).__name__}")

    async def _opened(self) -> httpcore.AsyncConnectionPool:
        await asyncio.to_thread(import_module, "httpcore")
        import httpcore

        from pyagent.infrastructure.web.fetching import checked_backend

        if self._pool is None:
            backend = checked_backend(allows_private=self._allows_private)
            self._pool = httpcore.AsyncConnectionPool(
                network_backend=backend, max_connections=_MAX_CONNECTIONS, keepalive_expiry=30.0
            )
        return self._pool

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None


def _secret(given: str) -> str:
    if not is_reference(given):
        return given
    found = read_secret(given)
    if found is None:
        raise RequestError(f"{given} is not set", param="secret")
    return found
