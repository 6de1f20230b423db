"""Any OpenAI-compatible server as a backend: `openai:URL` or `openai:URL#model` in a chain; `github` is a preset.

Every answer is streamed. Failures of the network and of the other side are mapped here, once, to our errors; the API
key goes into one header and nowhere else. Sockets open on the first call, one pool for each event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from pyagent.core.abilities import ABILITIES, SOFT, TOKEN_FIELDS, Abilities, needs, noting
from pyagent.core.backends import Backend, BackendFactory, LinkSpec, ServerSetting
from pyagent.core.capabilities import Capabilities
from pyagent.core.config import read_headers, read_secret
from pyagent.core.emulation.fulfil import fulfil
from pyagent.core.errors import BackendError, ConfigError, PyAgentError, RequestError, UnsupportedError
from pyagent.core.hooks import hookimpl
from pyagent.core.line_reader import LineTooLongError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    RankRequest,
    RankResult,
    Unsupported,
    Usage,
)
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.secrets import strike_text
from pyagent.core.trace_context import trace_headers
from pyagent.http_pool import HttpPool, error_body, load_httpx
from pyagent.infrastructure.backends.openai_errors import map_error, told_failure
from pyagent.infrastructure.backends.openai_forms import ServerKind
from pyagent.infrastructure.backends.openai_models import ListedModel, decode_models
from pyagent.infrastructure.backends.openai_requests import encode_request
from pyagent.infrastructure.backends.openai_server_forms import ServerForms, is_for_servers
from pyagent.infrastructure.backends.openai_wire import ChunkReader, decode_embeddings, decode_ranking
from pyagent.infrastructure.backends.sse import MAX_EVENT_BYTES, EventTooLargeError, SseDecoder

if TYPE_CHECKING:
    import httpx

    from pyagent.core.config import Settings

_HEALTH_SECONDS = 3.0
_MAX_MODELS = 256
_RENAMED = frozenset({"max_tokens", "stream_options"})
"""What goes under another name, or can be done without, on servers that refuse it."""
_ABILITIES = ABILITIES - {
    *("prompt_token_ids", "beam", "best_of"),
    *("choice", "regex", "grammar", "structural_tag", "any_of", "all_of"),
    # no server has these
    *("penalty_decay", "top_h", "bad_words_penalty", "bad_words_decay_tokens", "no_repeat_ngram_size"),
    *("temperature_schedule", "penalty_schedule", "top_k_entropy", "min_p_entropy"),
    # vLLM has them; others leave them out without a word
    *("bad_words", "allowed_token_ids", "thinking_token_budget", *TOKEN_FIELDS),
    "flat_logprobs",  # they say no token ids
    *("top_activations", "logit_lens"),  # the embedded engine's
    "return_entropy",  # OpenAI refuses a field that it does not know
    *("chat_template", "guided_decoding_backend"),  # theirs to trust, and other ones
    "logits_processors",  # plugins of this program's
}
_STREAMS = ("text/event-stream", "application/octet-stream", "text/plain")


@dataclass(frozen=True, slots=True)
class Preset:
    """A service whose address is known: `github` in a chain. `key_variable` holds its key."""

    name: str
    url: str
    models_url: str
    key_variable: str


GITHUB = Preset(
    "github", "https://models.github.ai/inference", "https://models.github.ai/catalog/models", "GITHUB_TOKEN"
)


class OpenAIBackend:
    """One OpenAI-compatible server. `read_seconds` bounds the silence between two pieces of an answer.

    `missing_key` is where settings say that its key is, when it is not there: nothing is asked without it.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        url: str,
        *,
        model: str = "",
        api_key: str | None = None,
        missing_key: str = "",
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
        unsupported: Unsupported = "emulate",
        preset: Preset | None = None,
        headers: Mapping[str, str] | None = None,
        server: ServerSetting = "auto",
    ) -> None:
        parts = _split(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                f"openai: takes an http(s) URL such as openai:http://host:8000/v1, got {strike_text(url)!r}",
                key="chain",
            )
        if parts.username or parts.password:
            raise ConfigError("openai: the URL may hold no password; name it in backends.api_keys", key="chain")
        if parts.query or parts.fragment:
            raise ConfigError("openai: the URL may hold no query; name a key in backends.api_keys", key="chain")
        self.url = url.rstrip("/")
        self.capabilities = Capabilities(
            abilities=_ABILITIES,
            gives_several=True,
            rank=self.rank,
            assistant_prefix="forwarded",  # vLLM and llama.cpp go on from it, OpenAI does not: the link's table says so
            sends_headers=True,
            url=self.url,
        )
        self._is_openai = parts.hostname == "api.openai.com"
        self._model = model
        self._missing_key = missing_key
        self._pool = HttpPool(
            url, api_key=api_key, headers=headers, connect_seconds=connect_seconds, read_seconds=read_seconds
        )
        self._unsupported: Unsupported = unsupported
        self._model_to_refused: dict[str, Abilities] = {}
        self._preset = preset
        if preset is not None:
            self.name = f"{preset.name}:{model}" if model else preset.name
        else:
            self.name = f"openai:{self.url}" + (f"#{model}" if model else "")
        is_service = preset is not None or self._is_openai
        self._forms = ServerForms(self.name, "openai" if is_service else server, self._listed, self._asked)

    async def models(self) -> list[ModelInfo]:
        """What GET /models lists."""
        return [
            ModelInfo(id=model.id, backend=self.name, context_length=model.context, reads_images=model.reads_images)
            for model in await self._listed()
        ]

    async def _listed(self) -> list[ListedModel]:
        async with self._errors_mapped():
            response = await self._http().get(self._preset.models_url if self._preset else f"{self.url}/models")
            if response.status_code != 200:
                raise self._mapped(response, response.content)
        return decode_models(response.content, self.name)

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Stream the answer; closing the iterator closes the connection, which aborts the server's work."""
        if is_for_servers(request.response_format):
            return self._forms.answer(request, request.model or self._model)
        return self._asked(request, None)

    def _asked(self, request: ChatRequest, server: ServerKind | None) -> AsyncGenerator[ChatDelta, None]:
        """Stream the answer of a server that holds it to the form wanted, or knows no more than OpenAI's."""
        wanted = request.response_format
        can = _ABILITIES if server is None or wanted is None else _ABILITIES | {wanted.type}
        answer = partial(self._answer, server=server)
        return fulfil(request, answer, can, backend=self.name, unsupported=self._unsupported)

    async def _answer(self, request: ChatRequest, server: ServerKind | None = None) -> AsyncGenerator[ChatDelta, None]:
        deadline = Deadline.after(request.timeout_seconds)
        model = await deadline.bound(self._pick_model(request), self.name)
        while True:
            refused = self._model_to_refused.get(model, frozenset())
            ignored = (needs(request) | set(request.sampling.fields_set)) & refused & SOFT
            path, body = encode_request(
                request, model, is_openai=self._is_openai, refused=refused, server=server, backend=self.name
            )
            reader = ChunkReader(
                self.name,
                request.model or self._model,
                request.n,
                echo=(request.prompt or "") if request.sampling.echo else "",
                has_prompt_logprobs=request.sampling.prompt_logprobs is not None,
            )
            try:
                async with aclosing(self._events(path, body)) as events:
                    while (
                        not reader.is_finished and (data := await deadline.bound(_next(events), self.name)) is not None
                    ):
                        for delta in reader.read(data):
                            yield delta
            except UnsupportedError as error:
                self._learn(model, error, request)
                continue
            for delta in reader.last():
                yield noting(delta, ignored)
            return

    def _learn(self, model: str, error: UnsupportedError, request: ChatRequest) -> None:
        """Remember fields that the server refused and can be asked without; raises the error when there are none."""
        known = self._model_to_refused.get(model, frozenset())
        # A default that a server cannot be told changes nothing of what was asked for.
        spared = SOFT.intersection(request.sampling.fields_set) if self._refuses(request) else SOFT
        found = frozenset(error.fields) & (_RENAMED | spared)
        if not found - known:
            raise error
        if len(self._model_to_refused) >= _MAX_MODELS:
            self._model_to_refused.clear()
        self._model_to_refused[model] = known | found

    def _refuses(self, request: ChatRequest) -> bool:
        return (request.unsupported or self._unsupported) == "refuse"

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One vector a text, from the model named, the link's, or the first that the server lists."""
        model = await self._pick_model(ChatRequest(model=request.model))
        body: dict[str, object] = {"model": model, "input": request.input, "encoding_format": "float"}
        if request.task:
            body["task"] = request.task
        if not request.input:
            return EmbedResult(vectors=[], model=model)
        found = await self._posted("embeddings", body, f"does not embed with {model!r}", "an embedding model")
        return decode_embeddings(found, self.name, len(request.input))

    async def rank(self, request: RankRequest) -> RankResult:
        """Return each pair's relevance, a call for each query: what vLLM, llama.cpp's server and others have."""
        model = await self._pick_model(ChatRequest(model=request.model))
        scores, num_tokens = list[float](), 0
        for query, pairs in groupby(request.pairs, key=lambda pair: pair[0]):
            documents = [document for _, document in pairs]
            body = {"model": model, "query": query, "documents": documents}
            answer = await self._posted("rerank", body, f"does not rank with {model!r}", "a ranking model")
            found = decode_ranking(answer, self.name, len(documents))
            scores += found.scores
            num_tokens += found.usage.prompt_tokens
        return RankResult(scores=scores, model=model, usage=Usage(prompt_tokens=num_tokens, total_tokens=num_tokens))

    async def _posted(self, path: str, body: Mapping[str, object], lack: str, wanted: str) -> bytes:
        """Return what the server answers at once; a path that it does not have is `lack` of what is `wanted`."""
        async with self._errors_mapped():
            response = await self._http().post(f"{self.url}/{path}", json=body, headers=trace_headers())
        if response.status_code in {404, 405, 501}:
            text = f"{self.name} {lack} (HTTP {response.status_code}); name {wanted}"
            raise RequestError(text, param="model", code="model_not_found")
        if response.status_code != 200:
            raise self._mapped(response, response.content)
        return response.content

    async def health(self) -> Health:
        """Ready when it lists its models, and the one this link names is among them."""
        try:
            models = [model.id for model in await Deadline.after(_HEALTH_SECONDS).bound(self.models(), "its models")]
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error).removeprefix(f"{self.name}: "))
        if self._model and self._model not in models:
            return Health(
                is_ready=False, detail=f"has no model {self._model!r}, but {', '.join(models)}", models=models
            )
        return Health(is_ready=True, models=models)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._pool.close()

    # -- the wire -------------------------------------------------------------------------------------------------

    async def _pick_model(self, request: ChatRequest) -> str:
        """The model to ask for: the request's, the link's, or the first that the server lists."""
        if request.model and self._model and request.model != self._model:
            raise RequestError(
                f"{self.name} serves {self._model!r}, not {request.model!r}", param="model", code="model_not_found"
            )
        if request.model or self._model:
            return request.model or self._model
        models = await self.models()
        if not models:
            raise BackendError(f"{self.name} lists no model; load one there", backend=self.name, retryable=False)
        return models[0].id

    async def _events(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        decoder = SseDecoder()
        headers = {"content-type": "application/json", "accept": "text/event-stream", **trace_headers()}
        async with (
            self._errors_mapped(),
            self._http().stream("POST", f"{self.url}/{path}", content=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise self._mapped(response, await error_body(response))
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "application/json":  # a server that streams nothing: the whole answer is one event
                yield await _whole_body(response)
                return
            if kind and kind not in _STREAMS:
                raise BackendError(f"{self.name} answered with {kind}, not a stream", backend=self.name)
            async with aclosing(self._pool.pieces(response, decoder.feed)) as events:
                async for data in events:
                    yield self._pool.without_secrets(data) if b'"error"' in data else data

    def _http(self) -> httpx.AsyncClient:
        if self._missing_key:
            text = f"{self.name}: its key {self._missing_key} is not set; set it in the environment, or name another"
            raise BackendError(text, backend=self.name, retryable=False, status=401)
        return self._pool.client()

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        await load_httpx()
        import httpx

        try:
            yield
        except (
            httpx.HTTPError,
            httpx.StreamError,
            httpx.InvalidURL,
            EventTooLargeError,
            LineTooLongError,
            OSError,
        ) as error:
            raise BackendError(f"{self.name}: {told_failure(error)}", backend=self.name) from error

    def _mapped(self, response: httpx.Response, body: bytes) -> PyAgentError:
        told = self._pool.without_secrets(body)
        return map_error(self.name, response.status_code, told, response.headers.get("retry-after"))


async def _whole_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an answer is larger than {MAX_EVENT_BYTES} bytes")
    return bytes(body)


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"openai: {url!r} is not a URL: {error}", key="chain") from error
    return parts


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry `openai:URL[#model]`, with the key that `backends.api_keys` names for its host."""
    url, _, model = link.target.partition("#")
    return _made(link, url, model, settings)


def make_github(link: LinkSpec, settings: Settings) -> Backend:
    """GitHub Models: a chain entry `github` or `github:MODEL`, with the token in GITHUB_TOKEN."""
    return _made(link, GITHUB.url, link.target, settings, GITHUB)


def _made(link: LinkSpec, url: str, model: str, settings: Settings, preset: Preset | None = None) -> Backend:
    parts = _split(url)
    references = settings.backends.api_keys
    reference = references.get(parts.netloc) or references.get(parts.hostname or "")
    if reference is None and preset is not None:
        reference = f"env:{preset.key_variable}"
    key = read_secret(reference) if reference else None
    return OpenAIBackend(
        url,
        model=model,
        api_key=key,
        missing_key=reference if reference and key is None else "",
        connect_seconds=settings.backends.connect_timeout_seconds,
        read_seconds=settings.backends.timeout_seconds,
        unsupported=settings.backends.unsupported,
        preset=preset,
        headers=read_headers(link),
        server=link.server,
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The schemes `openai` and `github`."""
    return {"openai": make_backend, "github": make_github}
