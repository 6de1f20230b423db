"""The values that cross rooms: chat requests, deltas, usage. Names follow OpenAI's chat schema.

Everything is a frozen msgspec struct: cheap to make, typed at the door (`msgspec.json.decode(body, type=...)`),
and the same value from the HTTP server to the engine. Fields OpenAI does not have are grouped at the end of a struct
and say so. Nothing here knows sockets, tokenizers or tensors.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort", "error"]
JsonObject = dict[str, object]
Unsupported = Literal["emulate", "refuse"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionCall(msgspec.Struct, frozen=True):
    """A call the model asks for. `arguments` is JSON text, as OpenAI sends it."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of an assistant message."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a tool call, as OpenAI streams them: the first one of a call has its `id` and whole `name`.

    The `arguments` of a call's pieces, joined, are its arguments as JSON text. Calls come one after another.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A text part of a message."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True):
    """Where an image is: an http(s) or data URL."""

    url: str
    detail: str = "auto"


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image part of a message."""

    image_url: ImageUrl


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: Role
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The message's text parts, joined."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


class FunctionDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function a model may call; `parameters` is a JSON schema, which the arguments of a `strict` one must follow."""

    name: str
    description: str = ""
    parameters: JsonObject = {}
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool offered to the model."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class JsonSchemaFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON schema the answer must follow; `description` tells the model what it is for."""

    name: str = "answer"
    schema: JsonObject = {}
    strict: bool | None = None
    description: str = ""


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the answer must look like. `choice` (one of the given texts) is ours; the rest is OpenAI's."""

    type: Literal["text", "json_object", "json_schema", "choice"] = "text"
    json_schema: JsonSchemaFormat | None = None
    choice: list[str] | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn, and when the answer ends. Checked once, by `validate`.

    The order is: bias, penalties, grammar mask, temperature, top-k, top-p, min-p, draw. `temperature=0` is greedy,
    ties going to the lowest id. With `seed`, a draw depends only on the seed, the position and the logits.
    `stop_token_ids` end the answer and are no part of it, as end-of-sequence tokens are; none of both is drawn before
    there are `min_tokens` tokens. Control tokens are written into the text unless `skip_special_tokens`.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    skip_special_tokens: bool = True

    def validate(self) -> None:
        """Raise `RequestError` naming the first field out of its range."""
        for name, low, high in _RANGES:
            value: float | None = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise RequestError(f"{name} must be between {_shown(low)} and {_shown(high)}, got {value}", param=name)
        if self.top_p == 0 or self.repetition_penalty == 0:
            name = "top_p" if self.top_p == 0 else "repetition_penalty"
            raise RequestError(f"{name} must be greater than 0, got 0", param=name)
        if len(self.stop) > 16 or any(not text for text in self.stop):
            got = "an empty one" if len(self.stop) <= 16 else len(self.stop)
            raise RequestError(f"stop takes up to 16 texts, none of them empty, got {got}", param="stop")
        if len(self.stop_token_ids) > _MAX_STOP_TOKENS:
            text = f"stop_token_ids takes up to {_MAX_STOP_TOKENS} token ids, got {len(self.stop_token_ids)}"
            raise RequestError(text, param="stop_token_ids")
        if self.stop_token_ids and (least := min(self.stop_token_ids)) < 0:
            raise RequestError(f"stop_token_ids takes token ids from 0 on, got {least}", param="stop_token_ids")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens must be at most max_tokens, got {self.min_tokens} and {self.max_tokens}"
            raise RequestError(text, param="min_tokens")


def _shown(bound: float) -> str:
    """A bound in digits: 2147483647 rather than 2.14748e+09."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


_MAX_STOP_TOKENS = 256
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 0, 100),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("top_logprobs", 0, 20),
    ("seed", -(2**63), 2**64 - 1),
)


COMMON_TENANT = "*"
"""The tenant whose computed prompts all tenants find; only what an administrator shares is computed for it."""


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks: fairness is kept between clients, runs or agents, as settings say. These names are free text.

    `tenant` is whose text it is: nothing computed, kept or remembered for one tenant is used for or shown to another.
    A server sets it to the API key's name; it is never read from a request.
    """

    tenant: str = ""
    client: str = ""
    agent: str = ""
    run: str = ""


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Search with `width` beams; a beam's score is its log probability over its length ** `length_penalty`.

    With `early_stopping` the search ends when `width` beams are finished; without, when none that runs can do better.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a model. Backends answer it with a stream of `ChatDelta`.

    `prompt` (plain text, no chat template; OpenAI's /v1/completions) is used when `messages` is empty, or
    `prompt_token_ids` are. `n` answers are
    wanted; with `best_of` so many are drawn and the `n` likeliest told; with `beam` they are searched for.
    `timeout_seconds`, `private` and `session` are ours: the time the caller still has, whether the text may leave
    this machine, and a name under which consecutive requests continue one token log. `origin`, `priority` (lower goes
    first, as in vLLM) and `request_class` (a queue of the settings) steer the order in which the engine works.
    `reasoning_effort` is how much a model that reasons should do so; None leaves it to the model.
    `unsupported` says what becomes of a field that the backend lacks: emulated where that is sound, or refused; None
    leaves it to the settings.

    With `assistant_prefix` the answer begins with that text, which the caller wrote, as a part of the prompt; with
    `answer_prefix` it begins, after that, with text that was drawn elsewhere, as a part of the answer. Neither is told
    again, and only backends that say they go on from a beginning (`capabilities.assistant_prefix`) are asked so.
    `whole` says that the caller reads the answer when it is over, so that a chain may check it and begin it anew
    elsewhere: what was told before a `restart` is void.
    """

    model: str = ""
    messages: list[Message] = []
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    tools: list[Tool] = []
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    reasoning_effort: ReasoningEffort | None = None
    sampling: SamplingParams = SamplingParams()
    timeout_seconds: float | None = None
    private: bool = False
    session: str | None = None
    n: int = 1
    best_of: int | None = None
    beam: BeamSearch | None = None
    origin: Origin = Origin()
    priority: int = 0
    request_class: str = ""
    unsupported: Unsupported | None = None
    assistant_prefix: str = ""
    answer_prefix: str = ""
    whole: bool = False


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in seconds (ours).

    It waited for `queue_seconds`, then took `prefill_seconds` to its first token (their sum is
    `first_token_seconds`), then `inter_token_seconds` a token on average. `queued_at` is when it came to the engine,
    by the monotonic clock of the engine's machine: of use to those who read the same clock.

    `forward_seconds` and `scheduler_seconds` are its shares of the steps it was in: of a forward pass the fraction of
    the batch's tokens that were its own, of scheduling the same part as every other request of the batch.
    """

    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    inter_token_seconds: float = 0.0
    total_seconds: float = 0.0
    num_preemptions: int = 0
    queued_at: float | None = None
    forward_seconds: float = 0.0
    scheduler_seconds: float = 0.0


class CacheMiss(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a prompt left what was computed before, and why.

    `position` is the first token that had to be computed though an earlier prompt, the session's own or else the
    nearest, reached further; `found` and `expected` are texts from there on; `source` names what it was rendered from
    (`messages[2] (user)`, `tools`).
    """

    reason: Literal["changed", "evicted", "cold"]
    position: int
    found: str = ""
    expected: str = ""
    source: str = ""


class CacheReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a prompt met the prefix cache (ours).

    `log_tokens` were taken over from the conversation's token log; `note` says why a conversation that has a log was
    tokenised anew; `normalized` names spans of the system prompt that change each time and were taken out or moved.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    log_tokens: int = 0
    note: str = ""
    normalized: list[str] = []
    miss: CacheMiss | None = None


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the fleet knows of the future of what was computed for a prompt (ours).

    - `retain`: it will be asked for again, in `expected_seconds` where that is known;
    - `demote`: it will hardly be asked for again, except for what begins with `messages`;
    - `release`: nothing said so far holds any more.

    It is about the `tenant`'s conversation called `session`; else about all that begins with `messages`, on behalf of a
    `run`, or about the whole run.
    """

    kind: Literal["retain", "demote", "release"]
    tenant: str = ""
    session: str = ""
    run: str = ""
    messages: list[Message] = []
    expected_seconds: float | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens counted for one answer.

    `answer` (ours): computed for this request, kept from an equal one before, or shared with an equal one under way.
    `ignored` (ours): sampling parameters that the backend does not know, and that it was asked without.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    timings: Timings | None = None
    cache: CacheReport | None = None
    answer: Literal["computed", "kept", "shared"] = "computed"
    ignored: tuple[str, ...] = ()


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a link of a chain did not answer. `reason` may quote the request, `kind` never does."""

    backend: str
    reason: str
    kind: str = ""


class Resumption(msgspec.Struct, frozen=True):
    """An answer broken off by `backend` goes on elsewhere (ours).

    `continue`: what follows goes on after the text told so far. `restart`: that text is void, the answer begins anew.
    """

    kind: Literal["continue", "restart"]
    backend: str
    reason: str


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token's log probability, and those of its best rivals."""

    token: str
    logprob: float
    top_logprobs: list[tuple[str, float]] = []


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of an answer. The last one of a stream has `finish_reason` and `usage`.

    Of `n` answers, `index` says which one the piece belongs to; each ends with its own `finish_reason`, and the last
    delta of all has the `usage`. `backend` says who answers (on every delta); a chain puts the links that did not, with
    reasons, in `attempts` of the first delta.
    """

    index: int = 0
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = []
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    model: str = ""
    backend: str = ""
    logprobs: list[TokenLogprob] = []
    attempts: list[FailedAttempt] = []
    resumed: Resumption | None = None


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model a backend offers. `reads_images` is None where only an image would tell."""

    id: str
    backend: str = ""
    context_length: int | None = None
    architecture: str | None = None
    quantization: str | None = None
    size_bytes: int | None = None
    is_loaded: bool | None = None
    reads_images: bool | None = None


class Health(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Whether a backend can answer now, and if not, why and what to do."""

    is_ready: bool
    detail: str = ""
    models: list[str] = []


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed; those of different tenants are never sent in one call (`Origin.tenant`)."""

    model: str
    input: list[str]
    tenant: str = ""
    private: bool = False


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One vector per text, in order."""

    vectors: list[list[float]]
    model: str = ""
    usage: Usage = Usage()
