"""The values that all parts exchange: chat requests, deltas, usage. Names follow OpenAI's chat schema.

All are frozen msgspec structs: cheap to make, typed where they are decoded (`msgspec.json.decode(body, type=...)`), the
same value from the HTTP server to the engine. Docstrings mark the fields that OpenAI does not have as ours. Knows no
sockets, tokenizers or tensors.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.activations import TokenActivations
from pyagent.core.errors import RequestError
from pyagent.core.response_format import JsonSchemaFormat as JsonSchemaFormat  # noqa: PLC0414 - a part of requests
from pyagent.core.response_format import ResponseFormat
from pyagent.core.sampling_params import SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort", "error"]
JsonObject = dict[str, object]
Unsupported = Literal["emulate", "refuse"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionCall(msgspec.Struct, frozen=True):
    """A function call by the model. `arguments` is JSON text, as OpenAI sends it."""

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
    """One message of a conversation. `reasoning_content` is what led to it, which a chat template may show again."""

    role: Role
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        """Return the message's text parts, joined."""
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


COMMON_TENANT = "*"
"""The tenant whose cached prompts all tenants share; only prompts that an administrator pins are computed for it."""


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a request comes from: queues can be fair between clients, runs or agents. The names are free text.

    `tenant` owns the text: nothing computed, cached or stored for one tenant is used for or shown to another. A server
    sets it to the API key's name; it is never read from a request. `node` is the id of the node of the cluster that
    asked, empty for this one's own clients.
    """

    tenant: str = ""
    client: str = ""
    agent: str = ""
    run: str = ""
    node: str = ""


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Beam search with `width` beams; a beam's score is its log probability over its length ** `length_penalty`.

    With `early_stopping` the search ends when `width` beams are finished; without, when no running beam can score
    higher than they do.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model. Backends answer it with a stream of `ChatDelta`.

    `prompt` (plain text without a chat template, as in OpenAI's /v1/completions) or `prompt_token_ids` are used when
    `messages` is empty. `n` is the number of answers; with `best_of`, that many are sampled and the `n` likeliest
    returned; with `beam`, beam search finds them.

    These fields are ours: `timeout_seconds` is the time left to the caller's deadline, `private` keeps the text on
    this machine, `session` names a conversation whose requests continue one token log. `origin`, `priority` (lower goes
    first, as in vLLM) and `request_class` (a queue of the settings) decide the order in which the engine works.
    `reasoning_effort` is a hint to reasoning models; None leaves it to the model. `chat_template_kwargs` (vLLM's) are
    variables for the model's chat template, as `enable_thinking`; `chat_template` is one to use instead of it, and
    `guided_decoding_backend` the grammar backend to ask first (both vLLM's). Of a prompt only the last
    `truncate_prompt_tokens` tokens are read (-1: as many as leave room for the answer); a plain text has the model's
    first token before it unless `add_special_tokens` is False (both vLLM's). `unsupported` decides about
    fields that the backend lacks: emulate them where that is sound, or refuse; None leaves it to the settings.

    With `assistant_prefix` the answer begins with that text, which the caller wrote, as a part of the prompt; with
    `answer_prefix` it begins, after that, with text generated elsewhere, as a part of the answer. Neither is repeated
    in the deltas, and only backends that can continue an answer (`capabilities.assistant_prefix`) get them. `whole`:
    the caller reads the answer when it is complete, so that a chain may validate it, and begin it anew with another
    link; deltas before a `restart` are void. `after_link` names a link of the chain: only those after
    it are asked. `is_movable`: the chain that sends it can ask another node, so an engine
    may give it back while it waits (`MovedError`). `prediction` is a text that the answer is expected to be like
    (OpenAI's predicted output): a backend may be quicker where it is, and answers as it would without.
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
    chat_template_kwargs: JsonObject = {}
    chat_template: str = ""
    guided_decoding_backend: str = ""
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
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
    after_link: str = ""
    is_movable: bool = False
    prediction: str = ""


def check_echo(request: ChatRequest) -> None:
    """Raise `RequestError` where there is no prompt to repeat, but messages."""
    if request.sampling.echo and request.messages:
        raise RequestError("echo repeats a prompt, and a chat has messages instead", param="echo")


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in seconds (ours).

    `queue_seconds` in the queue, then `prefill_seconds` to the first token (their sum is `first_token_seconds`, the
    TTFT), then `inter_token_seconds` per token on average. `queued_at` is the arrival at the engine by the monotonic
    clock of the engine's machine.

    `forward_seconds` and `scheduler_seconds` are the request's shares of its steps: of each forward pass the fraction
    of the batch's tokens that were its own, of scheduling an equal part with every other request of the batch.
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
    """Where a prompt first differs from what the prefix cache holds, and why.

    `position` is the first token that had to be computed although an earlier prompt, the session's own or else the
    nearest, is longer; `found` and `expected` are the texts from there on; `source` names what the token was rendered
    from (`messages[2] (user)`, `tools`).
    """

    reason: Literal["changed", "evicted", "cold"]
    position: int
    found: str = ""
    expected: str = ""
    source: str = ""


class CacheReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a prompt found in the prefix cache (ours).

    `log_tokens` of it came from the conversation's token log; `note` says why a conversation with a log was tokenised
    anew; `normalized` names spans of the system prompt that change with each request and were removed or moved.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    log_tokens: int = 0
    note: str = ""
    normalized: list[str] = []
    miss: CacheMiss | None = None


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hint to the prefix cache about a prompt's blocks (ours).

    - `retain`: keep them; the prompt comes again, in `expected_seconds` where that is known;
    - `demote`: evict them first, except those of the prefix that `messages` make;
    - `release`: withdraw the hints given so far.

    It concerns the `tenant`'s conversation called `session`; else all prompts that begin with `messages`, on behalf of
    a `run`; else the whole run. One that is `private` stays on this machine, as the requests it is about do.
    """

    kind: Literal["retain", "demote", "release"]
    tenant: str = ""
    session: str = ""
    run: str = ""
    messages: list[Message] = []
    expected_seconds: float | None = None
    private: bool = False


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens counted for one answer.

    `answer` (ours): computed for this request, cached from an equal one, or shared with an equal one in flight.
    `ignored` (ours): sampling parameters that the backend does not support; it was asked without them.
    `grammar_backend` (ours): what held the answer to a schema, grammar or form of calls.
    `cost_usd` (ours): what the answer cost by the `price` of the links that gave it, failed ones included.
    `reasoning_tokens` are those of `completion_tokens` that the model spent on thinking, where the backend counts them.
    Of the tokens that were proposed for the answer and verified (drafts of speculative decoding, of a `prediction` or
    others), `accepted_prediction_tokens` are in it and `rejected_prediction_tokens` are not.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    timings: Timings | None = None
    cache: CacheReport | None = None
    answer: Literal["computed", "cached", "shared"] = "computed"
    ignored: tuple[str, ...] = ()
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    grammar_backend: str = ""
    cost_usd: float = 0.0


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a link of a chain did not answer. `reason` may quote the request, `kind` never does."""

    backend: str
    reason: str
    kind: str = ""


class Resumption(msgspec.Struct, frozen=True):
    """An answer that `backend` broke off is resumed by another link (ours).

    `continue`: the deltas that follow continue the text so far. `restart`: that text is void, the answer begins anew.
    """

    kind: Literal["continue", "restart"]
    backend: str
    reason: str


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token's log probability, and those of the likeliest tokens at its position; None for a text's first token.

    `text_offset` is where in the answer's text the token begins, where that is known. With `flat_logprobs` neither it
    nor a text is told: `flat` has the token's id and log probability and those of the likeliest, packed. With
    `return_entropy`, `entropy` in nats is that of all tokens at its position; None where the backend does not know it.
    """

    token: str
    logprob: float | None
    top_logprobs: list[tuple[str, float]] = []
    text_offset: int | None = None
    flat: bytes = b""
    entropy: float | None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """How likely a token was at some place of a prompt, and its `rank` there from 1 (vLLM's)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of an answer. The last one of a stream has `finish_reason` and `usage`.

    Of `n` answers, `index` says which one the delta belongs to; each ends with its own `finish_reason`, and the last
    delta of all has the `usage`. `backend` names the backend that answers (on every delta); a chain lists the links
    that did not, with reasons, in `attempts` of the first delta.

    `prompt_logprobs` come with the first delta of each answer: for each token of the prompt by token id its own entry,
    then the likeliest; None for the first token. With `return_token_ids`, `token_ids` are those sampled since the
    answer's last delta, and its first delta has those of the prompt. With `top_activations` or `logit_lens`,
    `activations` are what is behind these tokens (ours).
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
    prompt_logprobs: list[dict[int, PromptLogprob] | None] = []
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    activations: list[TokenActivations] = []
    attempts: list[FailedAttempt] = []
    resumed: Resumption | None = None


ModelTask = Literal["generate", "embed", "rank", "classify", "token_classify"]
"""What a model is for: answers, vectors of texts, relevances of documents to a query, labels of texts or of tokens."""

DrafterKind = Literal["assistant", "head", "medusa"]
"""What drafts from a folder of its own: with the model's keys and values, a layer of its own (EAGLE-3), or neither."""


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model that a backend offers. `reads_images` is None where that is unknown before an image is sent.

    `takes_effort` (ours): whether it can be told how much to reason; None where that is unknown. `task` (ours): what it
    is for, and then for nothing else; None where that is unknown. `aliases` (ours) are other names that requests on
    this machine may use, such as the path of its file.
    """

    id: str
    backend: str = ""
    context_length: int | None = None
    architecture: str | None = None
    quantization: str | None = None
    size_bytes: int | None = None
    is_loaded: bool | None = None
    reads_images: bool | None = None
    takes_effort: bool | None = None
    task: ModelTask | None = None
    aliases: tuple[str, ...] = ()


class Health(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Whether a backend can answer now, and if not, why and what to do."""

    is_ready: bool
    detail: str = ""
    models: list[str] = []


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed; those of different tenants are never sent in one call (`Origin.tenant`).

    With `truncate` a text longer than the model takes is cut, and refused without; servers of others do as they do.
    `task` names one of the model's, where it has tasks, such as `retrieval.query`.
    """

    model: str
    input: list[str]
    task: str = ""
    tenant: str = ""
    private: bool = False
    truncate: bool = False


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One vector per text, in order."""

    vectors: list[list[float]]
    model: str = ""
    usage: Usage = Usage()


class TokenEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of whose tokens vectors are asked for; with `truncate` a text longer than the model takes is cut.

    A model of late interaction reads them as documents, or as queries where `is_query` says so; others read all alike.
    `task` "token_classify" asks for a number for each label of each token instead, or of each step's last one.
    `messages` are one text in place of `input`, as the model's chat template writes them; with `begins_answer` up to
    where an answer would begin.
    """

    model: str
    input: list[str] = []
    messages: list[Message] = []
    begins_answer: bool = False
    task: Literal["token_embed", "token_classify"] = "token_embed"
    is_query: bool = False
    tenant: str = ""
    private: bool = False
    truncate: bool = False

    @property
    def num_texts(self) -> int:
        """Texts that are asked about."""
        return 1 if self.messages else len(self.input)


class TokenEmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """For each text, in order, a vector of length 1 for each of its tokens.

    Where there are `labels`, each vector has a number for each of them instead.
    """

    vectors: list[list[list[float]]]
    labels: list[str] = []
    model: str = ""
    usage: Usage = Usage()


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of a query and a document whose relevance is asked for; with `truncate` a long document is cut."""

    model: str
    pairs: list[tuple[str, str]]
    tenant: str = ""
    private: bool = False
    truncate: bool = False


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """One relevance per pair, in order: greater is better, in the model's own range (most often 0 to 1)."""

    scores: list[float]
    model: str = ""
    usage: Usage = Usage()


class ClassifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts whose labels are asked for; with `truncate` a text longer than the model takes is cut."""

    model: str
    input: list[str]
    tenant: str = ""
    private: bool = False
    truncate: bool = False


class ClassifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """For each text, in order, one number per label: probabilities, as most models are made."""

    labels: list[str]
    scores: list[list[float]]
    model: str = ""
    usage: Usage = Usage()
