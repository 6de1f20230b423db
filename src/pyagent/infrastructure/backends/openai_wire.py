"""OpenAI's wire format as a client reads it: chunks of answers, and vectors.

Pure translation of JSON to `core.messages`; no socket. Servers differ, so it is read loosely: unknown fields pass,
missing ones have defaults.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import BackendError, UnsupportedError
from pyagent.core.messages import (
    ChatDelta,
    EmbedResult,
    FinishReason,
    PromptLogprob,
    PromptTokensDetails,
    RankResult,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from pyagent.infrastructure.backends.openai_calls import Member, ToolCallPart
from pyagent.infrastructure.backends.openai_errors import Fault, map_event


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallPart] | None = None


class _Rival(msgspec.Struct):
    token: str
    logprob: float


class _Logprob(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Rival] = []


class _Logprobs(msgspec.Struct):
    """Of a chat in `content`; of a completion in the three others, one entry a token."""

    content: list[_Logprob] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    """A part of an answer; in `message` the whole of it, from a server that streams nothing."""

    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    """A part of all answers. vLLM says of the prompt here in a chat, and with each choice of a completion."""

    choices: list[_Choice] | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Fault | str | None = None


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class Embeddings(msgspec.Struct):
    """The answer to POST /embeddings."""

    data: list[_Vector] = []
    model: str = ""
    usage: _Usage | None = None


def decode_embeddings(body: bytes, backend: str, count: int) -> EmbedResult:
    """One vector for each of `count` texts, in their order. Raises `BackendError`."""
    try:
        said = msgspec.json.decode(body, type=Embeddings)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: /embeddings gave no vectors: {error}", backend=backend) from error
    if sorted(vector.index for vector in said.data) != [*range(count)]:
        raise BackendError(f"{backend} gave {len(said.data)} vectors for {count} texts", backend=backend)
    vectors = [vector.embedding for vector in sorted(said.data, key=lambda vector: vector.index)]
    return EmbedResult(vectors=vectors, model=said.model, usage=_usage(said.usage) if said.usage else Usage())


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    """The answer to POST /rerank. llama.cpp's server counts tokens as `prompt_tokens`, vLLM as `total_tokens` alone."""

    results: list[_Ranked] = []
    usage: _Usage | None = None


def decode_ranking(body: bytes, backend: str, count: int) -> RankResult:
    """Return the relevance of each of `count` documents, in the order sent. Raises `BackendError`."""
    try:
        said = msgspec.json.decode(body, type=_Ranking)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: /rerank gave no ranking: {error}", backend=backend) from error
    if sorted(one.index for one in said.results) != [*range(count)]:
        raise BackendError(f"{backend} ranked {len(said.results)} of {count} documents", backend=backend)
    scores = [one.relevance_score for one in sorted(said.results, key=lambda one: one.index)]
    num_tokens = max(said.usage.prompt_tokens, said.usage.total_tokens) if said.usage else 0
    return RankResult(scores=scores, usage=Usage(prompt_tokens=num_tokens, total_tokens=num_tokens))


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    # in the words of TGI, of Mistral, and of gateways to Anthropic, Cohere and Gemini
    **dict.fromkeys(("eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("model_length", "max_tokens", "max_output_tokens"), "length"),
    **dict.fromkeys(("refusal", "safety", "recitation"), "content_filter"),
    "tool_use": "tool_calls",
}


def _chunk_of(data: bytes) -> _Chunk:
    """A chunk, also one with half a character, which is no JSON by the letter."""
    try:
        return _decode_chunk(data)
    except msgspec.DecodeError:
        if b"\\u" not in data:
            raise
        return msgspec.convert(json.loads(data), _Chunk)


@dataclass(slots=True)
class ChunkReader:
    """Turns the events of `count` answers into deltas. An answer's calls come one after another, each in its pieces.

    Every answer must begin with the text `echo`, and come with its `prompt_logprobs` where they are asked for.
    """

    backend: str
    model: str
    count: int = 1
    echo: str = ""
    has_prompt_logprobs: bool = False
    is_finished: bool = False
    _usage: Usage | None = None
    _members: dict[int, Member] = field(default_factory=dict[int, Member])

    def read(self, data: bytes) -> list[ChatDelta]:
        """The deltas of one event. Raises `BackendError` for what is not a chunk."""
        if data.strip() == b"[DONE]":
            self.is_finished = True
            return []
        try:
            chunk = _chunk_of(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            text = data[:80].decode(errors="replace")
            raise BackendError(
                f"{self.backend} sent something that is not a chat chunk: {text!r} ({error})", backend=self.backend
            ) from error
        if chunk.error is not None:
            fault = chunk.error if isinstance(chunk.error, Fault) else Fault(message=chunk.error)
            raise map_event(self.backend, fault)
        self.model = chunk.model or self.model
        if chunk.usage:
            self._usage = _usage(chunk.usage)
        if self.has_prompt_logprobs:
            self._check_prompt_logprobs(chunk)
        return [delta for choice in chunk.choices or () if (delta := self._delta(choice)) is not None]

    def _finish(self, said: str) -> FinishReason:
        """Why the answer ended; raises `BackendError` for what is no end that we know, such as `error`."""
        if (finish := _FINISHES.get(said.lower())) is None:
            raise BackendError(f"{self.backend} broke off: finish_reason {said[:80]!r}", backend=self.backend)
        return finish

    def last(self) -> list[ChatDelta]:
        """The closing deltas. Raises `BackendError` when the server stopped before it said why."""
        ended = sorted(index for index, member in self._members.items() if member.finish)
        if not ended or (len(ended) < len(self._members) and not self.is_finished):
            raise BackendError(f"{self.backend} closed the connection in mid-answer", backend=self.backend)
        if len(ended) != self.count:
            text = f"{self.backend} gave {len(ended)} answers, {self.count} were asked for (n)"
            raise BackendError(text, backend=self.backend, retryable=False)
        return [self._end(index, self._usage if index == ended[-1] else None) for index in ended]

    def _end(self, index: int, usage: Usage | None) -> ChatDelta:
        member = self._members[index]
        self._check_echo(member, "", is_whole=True)
        if faulty := member.faulty_call():
            text = f"{self.backend} sent a tool call whose arguments are no JSON object: {faulty[:80]!r}"
            raise BackendError(text, backend=self.backend)
        return ChatDelta(
            index=index,
            tool_calls=member.rest(),
            finish_reason="tool_calls" if member.calls and member.finish == "stop" else member.finish,
            usage=usage,
            model=self.model,
            backend=self.backend,
        )

    def _delta(self, choice: _Choice) -> ChatDelta | None:
        member = self._members.setdefault(choice.index, Member())
        if choice.finish_reason:
            member.finish = self._finish(choice.finish_reason)
        delta = choice.delta or choice.message or _Delta(content=choice.text)
        calls: list[ToolCallDelta] = []
        for number, part in enumerate(delta.tool_calls or ()):
            if choice.message is not None:
                part.index = number
            calls += member.add_call(part)
        content = member.joined(delta.content or "")
        reasoning = delta.reasoning_content or delta.reasoning or ""
        logprobs = _logprobs(choice.logprobs, has_prompt=bool(self.echo)) if choice.logprobs else []
        self._check_echo(member, content)
        if not (content or reasoning or calls or logprobs):
            return None
        return ChatDelta(
            index=choice.index,
            content=content,
            reasoning=reasoning,
            tool_calls=calls,
            logprobs=logprobs,
            prompt_logprobs=choice.prompt_logprobs or [],
            model=self.model,
            backend=self.backend,
        )

    def _check_echo(self, member: Member, content: str, *, is_whole: bool = False) -> None:
        """Raise `UnsupportedError` when an answer does not begin with the prompt: many servers do not know `echo`."""
        left = self.echo[member.num_echoed :]
        if not (left.startswith(content) or content.startswith(left)) or (is_whole and left):
            text = f"{self.backend} does not repeat the prompt (echo)"
            raise UnsupportedError(text, backend=self.backend, fields=["echo"])
        member.num_echoed += min(len(left), len(content))

    def _check_prompt_logprobs(self, chunk: _Chunk) -> None:
        """Put what is said of the prompt with each choice; raise `UnsupportedError` when nothing is."""
        for choice in chunk.choices or ():
            choice.prompt_logprobs = choice.prompt_logprobs or chunk.prompt_logprobs
            if not choice.prompt_logprobs:
                text = f"{self.backend} gives no prompt_logprobs"
                raise UnsupportedError(text, backend=self.backend, fields=["prompt_logprobs"])


def _logprobs(said: _Logprobs, *, has_prompt: bool) -> list[TokenLogprob]:
    """The entries of an answer's tokens; only a prompt's first token has no log probability."""
    if said.content is not None:
        return [
            TokenLogprob(entry.token, entry.logprob, [(rival.token, rival.logprob) for rival in entry.top_logprobs])
            for entry in said.content
        ]
    rivals = said.top_logprobs or [None] * len(said.tokens)
    rows = zip(said.tokens, said.token_logprobs, rivals, strict=False)
    unknown = None if has_prompt else 0.0
    return [
        TokenLogprob(token, unknown if logprob is None else logprob, [*(best or {}).items()])
        for token, logprob, best in rows
    ]


def _usage(counted: _Usage) -> Usage:
    details, generated = counted.prompt_tokens_details, counted.completion_tokens_details
    return Usage(
        prompt_tokens=counted.prompt_tokens,
        completion_tokens=counted.completion_tokens,
        total_tokens=counted.total_tokens or counted.prompt_tokens + counted.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=(details and details.cached_tokens) or 0),
        reasoning_tokens=(generated and generated.reasoning_tokens) or 0,
        accepted_prediction_tokens=(generated and generated.accepted_prediction_tokens) or 0,
        rejected_prediction_tokens=(generated and generated.rejected_prediction_tokens) or 0,
    )
