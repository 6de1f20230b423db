"""What the APIs of the server share: who answers, the models there are, and how a request becomes a response."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent import _rust
from pyagent.core.backends import AGENT_PREFIX, Backend, classify_by, rank_by, token_embed_by
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import AwayError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.core.nearest import did_you_mean
from pyagent.core.settings import Server
from pyagent.core.trace_context import continue_trace
from pyagent.infrastructure.models.names import find_model
from pyagent.infrastructure.observability.metrics import AnswerWatch, ServerStats
from pyagent.infrastructure.server.admin_routes import engine_links
from pyagent.infrastructure.server.answer import AnswerEncoder, AnswerStream
from pyagent.infrastructure.server.api_keys import owned, tenant_of
from pyagent.infrastructure.server.body import read_pieces
from pyagent.infrastructure.server.bounds import check_request, check_texts
from pyagent.infrastructure.server.images import check_images
from pyagent.infrastructure.server.openai.prompts import side_by_side
from pyagent.infrastructure.server.streaming import EventStream, unless_gone

if TYPE_CHECKING:
    from pyagent.infrastructure.models.store import ModelStore
    from pyagent.infrastructure.observability.answer_spans import AnswerTrace
    from pyagent.infrastructure.server.cluster_routes import ClusterNode
    from pyagent.infrastructure.server.responses.kept import KeptResponses

_LONG_BYTES, _LARGE_BYTES, _TRIM_SECONDS = 100_000, 1_000_000, (2.0, 4.0, 8.0)
T = TypeVar("T")
ByModel = TypeVar("ByModel", ChatRequest, EmbedRequest, TokenEmbedRequest, RankRequest, ClassifyRequest)
OneCall = TypeVar("OneCall", EmbedRequest, TokenEmbedRequest, RankRequest, ClassifyRequest)
Pooled = TypeVar("Pooled", EmbedResult, TokenEmbedResult, RankResult, ClassifyResult)


@dataclass(slots=True)
class Service:
    """The backends behind the server, and what its APIs share."""

    backend: Backend
    agents: Backend | None
    store: ModelStore | None
    settings: Server
    emulates: bool = True
    node: ClusterNode | None = None
    stats: ServerStats = field(default_factory=ServerStats)
    kept_responses: KeptResponses | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    _asking: asyncio.Task[Health] | None = None
    _is_trimming: bool = False
    _num_trims: int = 0
    _reading: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="pyagent-read")
    )

    async def read(self, request: Request, read: Callable[[bytes], T]) -> T:
        """Return what `read` makes of the body of a JSON request; of a long one in a thread.

        Decoding keeps the interpreter's lock, so that there is one thread: between two bodies the event loop has its
        turn, however many there are.
        """
        pieces = await read_pieces(request, self.settings)
        num_bytes = sum(map(len, pieces))
        request.state.is_long = num_bytes > _LONG_BYTES
        if not request.state.is_long:
            return read(b"".join(pieces))
        try:
            return await self._aside(_read_whole, pieces, read)
        finally:
            if num_bytes > _LARGE_BYTES:
                self._trim_later()

    async def _aside(self, work: Callable[..., T], *args: object) -> T:
        """Do it in the thread that reads bodies."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, *args)

    def _trim_later(self) -> None:
        """Give memory back that a large request took: the C library would keep it for the next ones.

        More than once, since the first time the request may still be answered.
        """
        self._num_trims = 0
        if not self._is_trimming:
            self._is_trimming = True
            asyncio.get_running_loop().call_later(_TRIM_SECONDS[0], self._trim)

    def _trim(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, _give_back)
        self._num_trims += 1
        self._is_trimming = self._num_trims < len(_TRIM_SECONDS)
        if self._is_trimming:
            asyncio.get_running_loop().call_later(_TRIM_SECONDS[self._num_trims], self._trim)

    async def answer(
        self,
        request: Request,
        asked: ChatRequest,
        encoder: AnswerEncoder,
        *,
        is_streamed: bool,
        others: Sequence[ChatRequest] = (),
    ) -> Response:
        """Ask the backend that has the model; await the first delta before any status is sent.

        `others` differ from `asked` in their prompts alone; their answers follow its own by their index.
        """
        if getattr(request.state, "is_long", False):
            await self._aside(check_request, asked)
        else:
            check_request(asked)
        backend, asked = await self.addressed(asked)
        others = [msgspec.structs.replace(one, model=asked.model) for one in others]
        if asked.assistant_prefix and backend.capabilities.assistant_prefix != "continued":
            text = f"{backend.name} cannot go on from an answer's beginning; `native` can, and links with `continues`"
            raise RequestError(text, param="messages")
        if not self.settings.private_images:
            await check_images(asked.messages)
        asked = asked if is_streamed or others else msgspec.structs.replace(asked, whole=True)
        _continue_trace(request)
        trace: AnswerTrace | None = request.scope["state"].get("trace")
        if trace is not None:
            trace.ask(asked)
        answer = AnswerStream(
            self._answers([owned(one, request) for one in (asked, *others)], backend),
            backend.name,
            request.state,
            AnswerWatch(self.stats),
            trace,
        )
        if not is_streamed:
            return json_response(await unless_gone(answer.whole(encoder), request.receive))
        try:
            first = await unless_gone(answer.first(), request.receive)
        except BaseException:
            await answer.close()
            raise
        return EventStream(
            answer.events(first, encoder, str(request.state.request_id)), encoder.media_type, encoder.failed
        )

    @staticmethod
    def _answers(asked: Sequence[ChatRequest], backend: Backend) -> AsyncIterator[ChatDelta]:
        if len(asked) == 1:
            return backend.chat(asked[0])
        return side_by_side([backend.chat(one) for one in asked], asked[0].n)

    async def addressed(self, asked: ByModel) -> tuple[Backend, ByModel]:
        """Return the backend to ask, and the request with its model's own name.

        Raises `RequestError` for an unknown model, or a name that several have.
        """
        model = asked.model
        if (
            self.agents is not None
            and model.startswith(AGENT_PREFIX)
            and not await self._is_of_peer(self.agents, model)
        ):
            return self.agents, asked
        if model and not (isinstance(self.backend, Chain) and await self.backend.has_model(model)):
            own = await self._own_name(model)
            return self.backend, msgspec.structs.replace(asked, model=own)
        return self.backend, asked

    async def _own_name(self, asked: str) -> str:
        """Return the name of the model that is meant, or of its link, as it is where no model is known."""
        models = await self.models()
        if not models or any(asked in {known.id, known.backend} for known in models):
            return asked
        missing = self.backend.missing_error(asked) if isinstance(self.backend, Chain) else None
        if missing is not None:
            raise missing
        found = find_model(asked, models)
        if found is None:
            raise unknown_model(asked, models)
        return found.id

    async def _is_of_peer(self, agents: Backend, model: str) -> bool:
        """Whether another node has an agent that this one lacks, had it lately, or may have it and is away."""
        if not isinstance(self.backend, Chain) or self.backend.router is None:
            return False
        if any(model == own.id for own in await agents.models()):
            return False
        return await self.backend.has_model(model) or isinstance(self.backend.missing_error(model), AwayError)

    async def embed(self, request: Request, asked: EmbedRequest) -> EmbedResult:
        """Embed with the backend that has the model."""
        if not asked.input or not all(asked.input):
            raise RequestError("there is nothing to embed; send a text, or several, none of them empty", param="input")
        check_texts(asked.input)
        backend, asked = await self.addressed(asked)
        return await self._pooled(request, asked, backend, backend.embed)

    async def rank(self, request: Request, asked: RankRequest) -> RankResult:
        """Rank with the backend that has the model."""
        backend, asked = await self.addressed(asked)
        return await self._pooled(request, asked, backend, partial(rank_by, backend))

    async def classify(self, request: Request, asked: ClassifyRequest) -> ClassifyResult:
        """Classify with the backend that has the model."""
        backend, asked = await self.addressed(asked)
        return await self._pooled(request, asked, backend, partial(classify_by, backend))

    async def token_embed(self, request: Request, asked: TokenEmbedRequest) -> TokenEmbedResult:
        """Give vectors of tokens with the backend that has the model."""
        backend, asked = await self.addressed(asked)
        return await self._pooled(request, asked, backend, partial(token_embed_by, backend))

    async def _pooled(
        self, request: Request, asked: OneCall, backend: Backend, ask: Callable[[OneCall], Awaitable[Pooled]]
    ) -> Pooled:
        _continue_trace(request)
        found = await unless_gone(ask(msgspec.structs.replace(asked, tenant=tenant_of(request))), request.receive)
        request.state.num_tokens, request.state.usage = found.usage.prompt_tokens, found.usage
        request.state.model, request.state.backend = self.stats.label(found.model or asked.model), backend.name
        return found

    async def health(self) -> Health:
        """What the backend says of itself; asked once at a time, since each link behind it may be asked for that."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self.backend.health())
        return await asyncio.shield(self._asking)

    async def models(self) -> list[ModelInfo]:
        """Return the models of the chain, as far as its links say in time, and the agents."""
        known = [model for link in engine_links(self.backend) for model in await link.models()]  # they know it now
        now = {(model.id, model.backend): model for model in known}
        models = [now.get((model.id, model.backend), model) for model in await self.backend.models()]
        agents = await self.agents.models() if self.agents else []
        own = {agent.id for agent in agents}
        return [*(model for model in models if model.id not in own), *agents]


def _give_back() -> None:
    """Free what only errors still hold, whose frames and traces refer to each other, and give it to the system."""
    gc.collect()
    _rust.trim_memory()


def _read_whole(pieces: list[bytes], read: Callable[[bytes], T]) -> T:
    return read(b"".join(pieces))


def _continue_trace(request: Request) -> None:
    """Have backends told of the request's trace: our own span, or else the caller's."""
    continue_trace(cast("dict[str, str] | None", request.scope["state"].get("trace_headers")) or request.headers)


def unknown_model(wanted: str, models: list[ModelInfo]) -> RequestError:
    """Return the error for an unknown model, with the nearest name."""
    names = [*dict.fromkeys(model.id for model in models)]
    hint = did_you_mean(wanted, names, f"there are {', '.join(names[:20]) or 'none'}")
    return RequestError(f"there is no model {wanted[:200]!r}; {hint}", param="model", code="model_not_found")


def by_id(models: Sequence[ModelInfo]) -> dict[str, list[ModelInfo]]:
    """Return each model once, with what each link that has it says of it, in the chain's order."""
    found: dict[str, list[ModelInfo]] = {}
    for model in models:
        found.setdefault(model.id, []).append(model)
    return found


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response of JSON: `body` as it is when it is bytes."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(content, status, headers, media_type="application/json")
