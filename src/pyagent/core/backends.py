"""One way to ask a model: the `Backend` protocol, and how backends are named and made.

A chain of backends is a backend. Agents, the HTTP server and the command line talk to this protocol and cannot tell an
embedded model from a remote one. Nothing here opens a socket.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, Protocol, cast
from urllib.parse import parse_qsl

import msgspec

from pyagent.core.abilities import Abilities
from pyagent.core.capabilities import PLAIN, Capabilities
from pyagent.core.errors import BackendError, ConfigError, RequestError
from pyagent.core.flat_logprobs import FlatLogprobs
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Health,
    Hint,
    ModelInfo,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
    ToolCall,
    Usage,
)
from pyagent.core.tool_call_deltas import whole_calls

if TYPE_CHECKING:
    from pyagent.core.activations import TokenActivations
    from pyagent.core.config import Settings


AGENT_PREFIX = "agent:"
"""How a model's name says that it is an agent."""
logger = logging.getLogger(__name__)


class Backend(Protocol):
    """Something that answers chat requests. Every method may raise `BackendError`, `RequestError` or `ModelError`."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond plain text; an attribute will do. A plugin's backend may leave it out."""
        return PLAIN

    async def models(self) -> list[ModelInfo]:
        """Return the models on offer."""
        ...

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        ...

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed texts, or raise `RequestError` when it cannot."""
        ...

    async def health(self) -> Health:
        """Return whether it can answer now. Never raises."""
        ...

    async def close(self) -> None:
        """Release what it holds. Safe to call twice."""
        ...


def pass_hint(backend: Backend, hint: Hint) -> None:
    """Hand a hint to a backend that takes some. What it gets wrong there is logged: no answer depends on a hint."""
    take = backend.capabilities.hint
    if take is None:
        return
    try:
        take(hint)
    except Exception:
        logger.exception("%s failed to take a hint", backend.name)


async def rank_by(backend: Backend, request: RankRequest) -> RankResult:
    """Return a backend's relevances. Raises `RequestError` where it ranks nothing."""
    rank = backend.capabilities.rank
    if rank is None:
        text = f"{backend.name} cannot rank documents; `native` does with a model that ranks or embeds"
        raise RequestError(text, param="model")
    return await rank(request)


async def classify_by(backend: Backend, request: ClassifyRequest) -> ClassifyResult:
    """Return a backend's labels. Raises `RequestError` where it classifies nothing."""
    classify = backend.capabilities.classify
    if classify is None:
        text = f"{backend.name} cannot classify texts; `native` does with a model that classifies"
        raise RequestError(text, param="model")
    return await classify(request)


async def token_embed_by(backend: Backend, request: TokenEmbedRequest) -> TokenEmbedResult:
    """Return a backend's vectors of tokens, or their labels' numbers. Raises `RequestError` where it has none."""
    token_embed = backend.capabilities.token_embed
    if token_embed is None:
        what, model = ("vectors", "embeds") if request.task == "token_embed" else ("labels", "labels tokens")
        text = f"{backend.name} gives no {what} of tokens; `native` does with a model that {model}"
        raise RequestError(text, param="model")
    return await token_embed(request)


async def abilities_of(backend: Backend, model: ModelInfo) -> Abilities:
    """Return what a backend's model can be asked for without emulation, as far as the backend knows."""
    says = backend.capabilities
    found = says.abilities if says.abilities_of is None else await says.abilities_of(model.id)
    return found if model.reads_images is not False else found - {"images"}


ServerSetting = Literal["auto", "openai", "vllm", "sglang", "llama.cpp"]
"""Which program answers at a link's URL: what it says itself, one that takes OpenAI's fields alone, or one of these."""


class LinkSpec(msgspec.Struct, frozen=True):
    """One entry of a chain as a user writes it: `scheme[:target]`.

    `native:smollm2:135m`, `openai:http://gpu-box:8000/v1`, `openai:http://host/v1#model`, `ollama:llama3.2`. `headers`
    go with each of its HTTP requests, values as written: texts, or where they are (`env:NAME`, `file:PATH`). `server`
    says which program answers at an `openai:` URL.
    """

    scheme: str
    target: str = ""
    headers: dict[str, str] = {}
    server: ServerSetting = "auto"

    @classmethod
    def parse(cls, text: str) -> LinkSpec:
        """Split a chain entry; raises `ConfigError` for an empty one."""
        scheme, _, target = text.strip().partition(":")
        if not scheme:
            raise ConfigError(f"a chain entry is SCHEME or SCHEME:TARGET, got {text!r}", key="chain")
        return cls(scheme, target)

    def options(self, known: Collection[str]) -> dict[str, str]:
        """Return the options after the target's `?`, `NAME=VALUE&NAME=VALUE`; raise `ConfigError` for unknown names."""
        query = self.target.partition("?")[2]
        try:
            given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
        except ValueError as error:
            text = f"{self.scheme}: options are written NAME=VALUE&NAME=VALUE, got {query!r}"
            raise ConfigError(text, key="chain") from error
        for name in given:
            if name not in known:
                text = f"{self.scheme}: there is no option {name!r}; there are {', '.join(known)}"
                raise ConfigError(text, key="chain")
        return given

    def __str__(self) -> str:
        return f"{self.scheme}:{self.target}" if self.target else self.scheme


BackendFactory = Callable[[LinkSpec, "Settings"], Backend]
"""Makes a backend of one scheme. Cheap: models load and sockets open on first use."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, collected from a stream."""

    text: str
    last: ChatDelta
    deltas: list[ChatDelta]

    @property
    def usage(self) -> Usage:
        """Return the tokens counted, zeros when the backend did not say."""
        return self.last.usage or Usage()

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls it makes, their pieces joined."""
        return whole_calls(self.deltas)

    def flat_logprobs(self, index: int = 0) -> FlatLogprobs:
        """Return the log probabilities of an answer's tokens in arrays, which `SamplingParams.flat_logprobs` asks for.

        Raises `ValueError` where they came in another form.
        """
        entries = [entry for delta in self.deltas if delta.index == index for entry in delta.logprobs]
        if not all(entry.flat for entry in entries):
            raise ValueError("these log probabilities are not flat: ask for flat_logprobs and top_logprobs")
        return FlatLogprobs.of(entry.flat for entry in entries)

    def activations(self, index: int = 0) -> list[TokenActivations]:
        """Return what is behind an answer's tokens, in their order.

        Empty where neither `SamplingParams.top_activations` nor `logit_lens` asked for it.
        """
        return [one for delta in self.deltas if delta.index == index for one in delta.activations]


def without_void(deltas: list[ChatDelta]) -> list[ChatDelta]:
    """Return the deltas since the answer was last begun anew; the first has all attempts."""
    if not any(delta.resumed for delta in deltas):
        return deltas
    anew = (index for index, delta in enumerate(deltas) if delta.resumed and delta.resumed.kind == "restart")
    kept = deltas[max(anew, default=0) :]
    resumed = next(delta.resumed for delta in reversed(deltas) if delta.resumed)
    attempts = [attempt for delta in deltas for attempt in delta.attempts]
    return [msgspec.structs.replace(kept[0], attempts=attempts, resumed=resumed), *kept[1:]]


def check_end(delta: ChatDelta, name: str) -> ChatDelta:
    """Return the delta; raise `BackendError` where it ends the answer in an error, which is then not whole."""
    if delta.finish_reason in {"error", "abort"}:
        text = f"{name} broke off its answer: finish_reason {delta.finish_reason!r}"
        raise BackendError(text, backend=delta.backend or name)
    return delta


async def collect(stream: AsyncIterator[ChatDelta]) -> Answer:
    """Read a stream to its end."""
    deltas = without_void([delta async for delta in stream])
    if not deltas:
        raise BackendError("the backend ended its answer without a single delta", backend="(unnamed)")
    return Answer(text="".join(delta.content for delta in deltas), last=deltas[-1], deltas=deltas)


async def accumulate(stream: AsyncIterator[ChatDelta]) -> AsyncGenerator[Answer, None]:
    """Yield with each delta the answer so far; of several answers the one that the delta is of.

    Where an answer is begun anew, what was said of it before is void. Closing it closes the stream.
    """
    index_to_deltas = defaultdict[int, list[ChatDelta]](list)
    index_to_text = defaultdict[int, str](str)
    async with aclosing(cast("AsyncGenerator[ChatDelta, None]", stream)) as deltas:
        async for delta in deltas:
            if delta.resumed and delta.resumed.kind == "restart":
                index_to_deltas.clear()
                index_to_text.clear()
            index_to_deltas[delta.index].append(delta)
            index_to_text[delta.index] += delta.content
            yield Answer(text=index_to_text[delta.index], last=delta, deltas=[*index_to_deltas[delta.index]])
