"""Routes of PyAgent's own: prompt caches, kept answers and engines behind the server.

Every key sees and changes what is its own; what concerns all clients needs an administrator's (`api_keys`).

They speak to whichever links of the chain have what is asked for; a server whose links have none says so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyagent.core.backends import Backend
from pyagent.core.chain import Chain
from pyagent.core.errors import CapacityError, ConfigError, RequestError
from pyagent.core.messages import COMMON_TENANT, ModelInfo
from pyagent.core.prompt_cache import (
    CacheQuery,
    CacheQueryResult,
    ExplainPrompt,
    PinPrompt,
    UnpinPrompt,
    ViewCache,
)
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import check_admin, is_admin, owned, tenant_of
from pyagent.infrastructure.server.body import read_body
from pyagent.infrastructure.server.bounds import check_request
from pyagent.infrastructure.server.endpoints import Function, route
from pyagent.infrastructure.server.openai.messages import InputMessage
from pyagent.infrastructure.server.openai.requests import read_chat
from pyagent.infrastructure.server.validation import check_name, decode

if TYPE_CHECKING:
    from pyagent.core.response_cache.cache import ResponseCache
    from pyagent.infrastructure.engine.client import EngineState

T = TypeVar("T", bound=msgspec.Struct)
_MAX_SHOWN = 1000
_LEAST_PROFILE, _MOST_PROFILE = 0.1, 60.0
_LIMIT, _MAX_LIMIT_SHOWN = re.compile(r"0{0,9}[1-9][0-9]{0,3}"), 40


@runtime_checkable
class EngineLink(Protocol):
    """A backend with an engine that can rest. Several may share one; asking each does no harm."""

    name: str

    async def models(self) -> list[ModelInfo]:
        """Return the engine's models, and which are loaded."""
        ...

    async def engine_state(self) -> EngineState:
        """Return what the engine is doing."""
        ...

    async def use_attention(self, name: str) -> None:
        """Have the loaded models compute attention by another backend. Raises `ConfigError` where one cannot."""
        ...

    async def drain(self, grace_seconds: float) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        ...

    async def sleep(self, level: int) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        ...

    async def wake(self) -> None:
        """Take requests again."""
        ...


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/cache/pin."""

    name: str
    messages: list[InputMessage]
    model: str = ""
    shared: bool = False


class NameBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/cache/unpin."""

    name: str
    shared: bool = False


class SleepBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/engine/sleep."""

    level: int = 1


class AttentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/engine/attention."""

    attention: str


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/engine/drain."""

    grace_seconds: float = 30.0


class ProfileBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/profile."""

    seconds: float = 5.0
    allocations: bool = False


@dataclass(frozen=True, slots=True)
class EngineRoutes:
    """The routes over one backend."""

    backend: Backend
    settings: Server

    def routes(self) -> list[Route]:
        """Return the routes."""
        paths: dict[str, tuple[str, Function]] = {
            "/pyagent/cache": ("GET", self.show),
            "/pyagent/cache/explain": ("POST", self.explain),
            "/pyagent/cache/pin": ("POST", self.pin),
            "/pyagent/cache/unpin": ("POST", self.unpin),
            "/pyagent/response_cache": ("GET", self.answers),
            "/pyagent/response_cache/clear": ("POST", self.clear_answers),
            "/pyagent/engine": ("GET", self.state),
            "/pyagent/engine/sleep": ("POST", self.sleep),
            "/pyagent/engine/wake": ("POST", self.wake),
            "/pyagent/engine/attention": ("POST", self.attention),
            "/pyagent/engine/drain": ("POST", self.drain),
            "/pyagent/profile": ("POST", self.profile),
        }
        return [route(method, path, function) for path, (method, function) in paths.items()]

    # -- the prompt cache ---------------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        """GET /pyagent/cache: the caller's own prompts and pins; to administrators shared ones and counts of all."""
        limit = request.query_params.get("limit", "20")
        if not _LIMIT.fullmatch(limit) or int(limit) > _MAX_SHOWN:
            shown = repr(limit) if len(limit) <= _MAX_LIMIT_SHOWN else f"{len(limit)} characters"
            raise RequestError(f"limit is a number from 1 to {_MAX_SHOWN}, got {shown}", param="limit")
        if is_admin(request):
            return _json((await self._ask(ViewCache(int(limit), (tenant_of(request), COMMON_TENANT)))).models)
        models = (await self._ask(ViewCache(int(limit), (tenant_of(request),)))).models
        return _json([msgspec.structs.replace(model, pages=None) for model in models])

    async def explain(self, request: Request) -> Response:
        """POST /pyagent/cache/explain: how much of a chat request would be found, and why not more."""
        asked = read_chat(await read_body(request, self.settings))
        check_request(asked.request)
        return _json((await self._ask(ExplainPrompt(owned(asked.request, request)))).report)

    async def pin(self, request: Request) -> Response:
        """POST /pyagent/cache/pin: compute a beginning and keep it, for the caller or, `shared`, for all."""
        parsed = await self._read(request, PinBody)
        check_name("name", parsed.name)
        asked = read_chat(msgspec.json.encode({"messages": parsed.messages, "model": parsed.model or None})).request
        if not parsed.name or not any(message.text.strip() for message in asked.messages):
            raise RequestError("a pin needs a name, and messages with some text", param="messages")
        origin = msgspec.structs.replace(asked.origin, tenant=_tenant(request, is_shared=parsed.shared))
        asked = msgspec.structs.replace(asked, origin=origin)
        return _json({"name": parsed.name, "num_tokens": (await self._ask(PinPrompt(parsed.name, asked))).num_tokens})

    async def unpin(self, request: Request) -> Response:
        """POST /pyagent/cache/unpin: end a pin."""
        parsed = await self._read(request, NameBody)
        name, tenant = parsed.name, _tenant(request, is_shared=parsed.shared)
        num_tokens = (await self._ask(UnpinPrompt(name, tenant))).num_tokens
        if num_tokens == 0:
            raise RequestError(f"nothing is pinned as {name!r}", param="name", code="pin_not_found")
        return _json({"name": name, "num_tokens": num_tokens})

    async def _ask(self, question: CacheQuery) -> CacheQueryResult:
        query = self.backend.capabilities.query_cache
        if query is None:
            raise RequestError(f"{self.backend.name} keeps no prompts", code="prompt_cache_not_found")
        return await query(question)

    # -- kept answers -------------------------------------------------------------------------------------------------

    async def answers(self, request: Request) -> Response:
        """GET /pyagent/response_cache: how many are kept and were given again; an administrator is told of all."""
        return _json(self._answers().stats(_owner(request)))

    async def clear_answers(self, request: Request) -> Response:
        """POST /pyagent/response_cache/clear: forget the caller's kept answers; an administrator forgets all."""
        await read_body(request, self.settings)  # a page of another origin is refused there
        return _json({"num_forgotten": self._answers().clear(_owner(request))})

    def _answers(self) -> ResponseCache:
        kept = self.backend.response_cache if isinstance(self.backend, Chain) else None
        if kept is None:
            text = (
                'no answers are kept here; to keep them, set `keep = "determined"` in [response_cache] of pyagent.toml'
            )
            raise RequestError(text, code="answers_not_found")
        return kept

    # -- the engine ---------------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """GET /pyagent/engine: what the engines are doing; for an administrator, as it counts what all ask."""
        check_admin(request)
        return _json({link.name: await link.engine_state() for link in self._engines()})

    async def sleep(self, request: Request) -> Response:
        """POST /pyagent/engine/sleep: give memory back until the next request."""
        check_admin(request)
        level = (await self._read(request, SleepBody)).level
        for link in self._engines():
            await link.sleep(level)
        return await self.state(request)

    async def wake(self, request: Request) -> Response:
        """POST /pyagent/engine/wake: take requests again."""
        check_admin(request)
        await read_body(request, self.settings)  # as in `clear_answers`
        for link in self._engines():
            await link.wake()
        return await self.state(request)

    async def attention(self, request: Request) -> Response:
        """POST /pyagent/engine/attention: compute attention by another backend, until a model is loaded anew."""
        check_admin(request)
        name = (await self._read(request, AttentionBody)).attention
        for link in self._engines():
            if not (await link.engine_state()).attention:
                text = f"{link.name} has no loaded model with several attention backends: the torch runner's have"
                raise RequestError(text, param="attention")
            try:
                await link.use_attention(name)
            except ConfigError as error:
                raise RequestError(str(error), param="attention") from error
        return await self.state(request)

    async def drain(self, request: Request) -> Response:
        """POST /pyagent/engine/drain: take no more requests, and wait for those that run."""
        check_admin(request)
        grace_seconds = (await self._read(request, DrainBody)).grace_seconds
        if not 0 <= grace_seconds <= 3600:
            raise RequestError(f"grace_seconds is from 0 to 3600, got {grace_seconds}", param="grace_seconds")
        num_left = [await link.drain(grace_seconds) for link in self._engines()]
        return _json({"num_running": max(num_left)})

    async def profile(self, request: Request) -> Response:
        """POST /pyagent/profile: what this process does for some seconds, and what memory it has."""
        from pyagent.infrastructure.observability.profile import take_profile

        check_admin(request)
        body = await self._read(request, ProfileBody)
        if not _LEAST_PROFILE <= body.seconds <= _MOST_PROFILE:
            text = f"seconds is from {_LEAST_PROFILE} to {_MOST_PROFILE:.0f}, got {body.seconds}"
            raise RequestError(text, param="seconds")
        states = [await link.engine_state() for link in engine_links(self.backend)]
        process_ids = [copy.process_id for state in states for copy in state.copies or [state] if copy.process_id]
        taken = await asyncio.to_thread(take_profile, body.seconds, process_ids, traces_allocations=body.allocations)
        if taken is None:
            raise CapacityError("a profile is being taken; ask again when it is", retry_after_seconds=body.seconds)
        return _json(taken)

    def _engines(self) -> Sequence[EngineLink]:
        engines = engine_links(self.backend)
        if not engines:
            raise RequestError(f"{self.backend.name} has no engine of its own", code="engine_not_found")
        return engines

    async def _read(self, request: Request, kind: type[T]) -> T:
        return decode(await read_body(request, self.settings) or b"{}", kind, {})


def _owner(request: Request) -> str | None:
    """Whose kept answers a request is about; those of all are None."""
    return None if is_admin(request) else tenant_of(request)


def _tenant(request: Request, *, is_shared: bool) -> str:
    """Whose a pin is."""
    if not is_shared:
        return tenant_of(request)
    check_admin(request)
    return COMMON_TENANT


def engine_links(backend: Backend) -> Sequence[EngineLink]:
    """Return the links of a backend that have an engine."""
    links = backend.links if isinstance(backend, Chain) else (backend,)
    return [link for link in links if isinstance(link, EngineLink)]


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
