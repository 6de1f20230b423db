"""OpenAI's completions as they go out over HTTP: whole, in chunks, and as errors. Knows no sockets."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate

import msgspec

from pyagent.core.messages import ChatDelta, JsonObject, ModelInfo, TokenLogprob, ToolCall, ToolCallDelta, Usage
from pyagent.core.tool_call_deltas import whole_calls
from pyagent.infrastructure.server.custom_tools import InputReader, input_of
from pyagent.infrastructure.server.errors import HttpError

_DONE = b"data: [DONE]\n\n"
_CAPABILITIES = {"embed": "embeddings", "rank": "rerank", "classify": "classify", "token_classify": "token_classify"}
"""What GET /v1/models says of models that answer nothing."""


@dataclass(slots=True)
class OpenAIEncoder:
    """The envelope of one answer: the same id, time and model on each of its pieces."""

    id: str
    model: str
    is_chat: bool
    has_usage_chunk: bool = False
    custom_tools: frozenset[str] = frozenset()
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    _begun: set[int] = field(default_factory=set[int])
    _num_chars: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _usage: Usage | None = None
    _inputs: dict[tuple[int, int], InputReader] = field(default_factory=dict[tuple[int, int], InputReader])

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """The body of an answer that is not streamed, from all of its deltas."""
        indices = sorted({delta.index for delta in deltas})
        choices = [self._choice([delta for delta in deltas if delta.index == index]) for index in indices]
        usage = next((delta.usage for delta in reversed(deltas) if delta.usage), Usage())
        body = self._envelope("chat.completion" if self.is_chat else "text_completion")
        body |= {"choices": choices, "usage": _full(usage)}
        body |= {**_prompt_logprobs(deltas), **_prompt_ids(deltas)} if self.is_chat else {}
        return msgspec.json.encode(body | _who(deltas[0]))

    def _choice(self, deltas: list[ChatDelta]) -> JsonObject:
        """One of the answers, from all of its deltas."""
        last, text = deltas[-1], "".join(delta.content for delta in deltas)
        reasoning = "".join(delta.reasoning for delta in deltas)
        calls = whole_calls(deltas)
        logprobs = [entry for delta in deltas for entry in delta.logprobs]
        choice: JsonObject = {"index": last.index, "finish_reason": last.finish_reason, **_of_tokens(deltas)}
        if self.is_chat:
            message: JsonObject = {"role": "assistant", "content": text if text or not calls else None}
            message |= {"reasoning_content": reasoning} if reasoning else {}
            message |= {"tool_calls": [*map(self._call, calls)]} if calls else {}
            choice |= {"message": message, "logprobs": _chat_logprobs(logprobs)}
        else:
            choice |= {"text": text, "logprobs": _text_logprobs(logprobs), **_prompt_logprobs(deltas)}
            choice |= _prompt_ids(deltas)
        return choice

    def _call(self, call: ToolCall) -> ToolCall | JsonObject:
        """A whole call: of a custom tool, with its input as text."""
        if call.function.name not in self.custom_tools:
            return call
        custom = {"name": call.function.name, "input": input_of(call.function.arguments)}
        return {"id": call.id, "type": "custom", "custom": custom}

    def _call_piece(self, index: int, piece: ToolCallDelta) -> JsonObject:
        """A piece of a call: the first one says whose, the others go on with its arguments or its input."""
        place = index, piece.index
        if piece.id and piece.name in self.custom_tools:
            self._inputs[place] = InputReader()
        reader = self._inputs.get(place)
        if reader is None:
            return _function_piece(piece)
        text = reader.push(piece.arguments)
        if piece.id:
            custom: JsonObject = {"name": piece.name, "input": text}
            return {"index": piece.index, "id": piece.id, "type": "custom", "custom": custom}
        return {"index": piece.index, "custom": {"input": text}} if text else {}

    def _last_pieces(self, index: int) -> list[JsonObject]:
        """What is left to tell of the calls of an answer that has ended."""
        rests = {at: self._inputs.pop((index, at)).finish() for of, at in [*self._inputs] if of == index}
        return [{"index": at, "custom": {"input": rest}} for at, rest in rests.items() if rest]

    def piece(self, delta: ChatDelta) -> bytes:
        """One event of a streamed answer."""
        is_first = delta.index not in self._begun
        self._begun.add(delta.index)
        self._usage = delta.usage
        choice: JsonObject = {"index": delta.index, "finish_reason": delta.finish_reason, **_of_tokens([delta])}
        if self.is_chat:
            piece: JsonObject = {"role": "assistant", "content": delta.content} if is_first else {}
            piece |= {"content": delta.content} if delta.content else {}
            piece |= {"reasoning_content": delta.reasoning} if delta.reasoning else {}
            pieces = [told for call in delta.tool_calls if (told := self._call_piece(delta.index, call))]
            pieces += self._last_pieces(delta.index) if delta.finish_reason else []
            piece |= {"tool_calls": pieces} if pieces else {}
            choice |= {"delta": piece, "logprobs": _chat_logprobs(delta.logprobs)}
        else:
            choice |= {"text": delta.content, "logprobs": _text_logprobs(delta.logprobs, self._num_chars[delta.index])}
            choice |= _prompt_ids([delta])
            self._num_chars[delta.index] += len(delta.content)
        body = self._envelope("chat.completion.chunk" if self.is_chat else "text_completion")
        body["choices"] = [choice]
        body |= _prompt_ids([delta]) if self.is_chat else {}
        if self.has_usage_chunk:
            body["usage"] = None
        return _event(body | (_who(delta) if (is_first and delta.index == 0) or delta.resumed else {}))

    def end(self) -> bytes:
        """The last event, and before it the count when the client asked for it."""
        return self._usage_chunk(self._usage or Usage()) + _DONE if self.has_usage_chunk else _DONE

    def failed(self, error: HttpError) -> bytes:
        """The error as an event."""
        return _event(error.body) + _DONE

    def _usage_chunk(self, usage: Usage) -> bytes:
        body = self._envelope("chat.completion.chunk" if self.is_chat else "text_completion")
        body |= {"choices": list[object](), "usage": _full(usage)}
        return _event(body)

    def _envelope(self, kind: str) -> JsonObject:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def model_entry(said: Sequence[ModelInfo], created: int) -> JsonObject:
    """One model of GET /v1/models, as its links have it; what OpenAI does not have follows its fields."""
    model, links = said[0], list(dict.fromkeys(one.backend for one in said if one.backend))
    entry: JsonObject = {"id": model.id, "object": "model", "created": created, "owned_by": model.backend or "pyagent"}
    facts = {name: getattr(model, name) for name in ("context_length", "architecture", "quantization", "size_bytes")}
    entry |= {"backends": links} if len(links) > 1 else {}
    entry |= {"capabilities": [_CAPABILITIES[model.task]]} if model.task and model.task in _CAPABILITIES else {}
    return entry | {name: value for name, value in facts.items() if value is not None}


def anthropic_models(models: Sequence[ModelInfo], created: int) -> JsonObject:
    """The list of models in Anthropic's shape."""
    since = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    ids = list(dict.fromkeys(model.id for model in models))
    listed = [{"type": "model", "id": one, "display_name": one, "created_at": since} for one in ids]
    return {"data": listed, "has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}


def _event(body: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _who(first: ChatDelta) -> JsonObject:
    """Which backend answers, and why others did not (ours)."""
    who: JsonObject = {"backend": first.backend} if first.backend else {}
    who |= {"attempts": first.attempts} if first.attempts else {}
    return who | ({"resumed": first.resumed} if first.resumed else {})


def _full(usage: Usage) -> JsonObject:
    """Usage with its zeros, which OpenAI's clients expect."""
    counts: JsonObject = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": usage.prompt_tokens_details,
    }
    names = ("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    if details := {name: count for name in names if (count := getattr(usage, name))}:
        counts["completion_tokens_details"] = details
    counts |= {"timings": usage.timings} if usage.timings else {}
    counts |= {"cache": usage.cache} if usage.cache else {}
    counts |= {"ignored": usage.ignored} if usage.ignored else {}
    counts |= {"grammar_backend": usage.grammar_backend} if usage.grammar_backend else {}
    return counts | ({"answer": usage.answer} if usage.answer != "computed" else {})


def _function_piece(piece: ToolCallDelta) -> JsonObject:
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function: JsonObject = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _chat_logprobs(entries: list[TokenLogprob]) -> JsonObject | None:
    if not entries:
        return None
    return {
        "content": [
            _logprob(entry.token, entry.logprob)
            | {"top_logprobs": [_logprob(token, logprob) for token, logprob in entry.top_logprobs]}
            | ({} if entry.entropy is None else {"entropy": entry.entropy})
            for entry in entries
        ],
        "refusal": None,
    }


def _prompt_logprobs(deltas: list[ChatDelta]) -> JsonObject:
    """What the deltas say of the prompt, in vLLM's field."""
    prompt_logprobs = next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), None)
    return {"prompt_logprobs": prompt_logprobs} if prompt_logprobs else {}


def _of_tokens(deltas: list[ChatDelta]) -> JsonObject:
    """Return the ids of an answer's tokens, in vLLM's field, and the activations behind them (ours)."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    activations = [one for delta in deltas for one in delta.activations]
    return {**({"token_ids": tokens} if tokens else {}), **({"activations": activations} if activations else {})}


def _prompt_ids(deltas: list[ChatDelta]) -> JsonObject:
    """Likewise those of the prompt."""
    tokens = next((delta.prompt_token_ids for delta in deltas if delta.prompt_token_ids), ())
    return {"prompt_token_ids": tokens} if tokens else {}


def _logprob(token: str, logprob: float | None) -> JsonObject:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "surrogatepass"))}


def _by_text(entry: TokenLogprob) -> dict[str, float] | None:
    """Rivals by their texts: of several with one text, such as parts of characters, the likeliest."""
    rivals: dict[str, float] = {}
    for token, logprob in entry.top_logprobs:
        rivals.setdefault(token, logprob)
    return None if entry.logprob is None else rivals


def _text_logprobs(entries: list[TokenLogprob], num_before: int = 0) -> JsonObject | None:
    """The older form of /v1/completions. Where no place is known, `num_before` and the tokens' lengths tell it."""
    if not entries:
        return None
    ends = accumulate((len(entry.token) for entry in entries), initial=num_before)
    offsets = [
        end if entry.text_offset is None else entry.text_offset for entry, end in zip(entries, ends, strict=False)
    ]
    entropies = [entry.entropy for entry in entries]
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_by_text(entry) for entry in entries],
        "text_offset": offsets,
        **({"token_entropies": entropies} if any(entropy is not None for entropy in entropies) else {}),
    }
