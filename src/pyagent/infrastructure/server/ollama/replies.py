"""Ollama's answers as they go out over HTTP: whole, or as lines of JSON. Knows no sockets.

Durations are nanoseconds. What a backend tells of its own timings is used; else the time between pieces is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatDelta, JsonObject, Message, TokenLogprob, ToolCall, Usage
from pyagent.core.tool_call_deltas import ToolCallJoiner, whole_calls, without_cut
from pyagent.infrastructure.server.errors import HttpError
from pyagent.infrastructure.server.ollama.context import write_context


@dataclass(slots=True)
class OllamaEncoder:
    """One answer; a call that it was cut in is left out, as its arguments are no object.

    `history` is what it answers, for the `context` of /api/generate; None gives no context.
    """

    model: str
    is_chat: bool
    has_thinking: bool = True
    history: Sequence[Message] | None = None
    media_type: str = "application/x-ndjson"
    _asked: float = field(default_factory=time.perf_counter)
    _first: float | None = None
    _texts: list[str] = field(default_factory=list[str])
    _joiner: ToolCallJoiner = field(default_factory=ToolCallJoiner)
    _num_calls: int = 0
    _last: ChatDelta | None = None

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """Return the body of an answer that is not streamed, from all of its deltas."""
        self._first = self._asked  # when they came is not known here: without timings all of the time is the answer's
        for delta in deltas:
            self._saw(delta)
        joined = ChatDelta(
            content="".join(delta.content for delta in deltas),
            reasoning="".join(delta.reasoning for delta in deltas),
            logprobs=[entry for delta in deltas for entry in delta.logprobs],
        )
        calls = without_cut(whole_calls(deltas), deltas[-1].finish_reason)
        return msgspec.json.encode(self._line(joined, calls) | self._end() | _resumed(deltas[0]))

    def piece(self, delta: ChatDelta) -> bytes:
        """Return a line of a streamed answer, or nothing when the delta has no text."""
        self._saw(delta)
        calls = self._joiner.whole(delta)
        has_thinking = bool(delta.reasoning) and self.has_thinking
        if not (delta.content or has_thinking or calls or delta.logprobs or delta.resumed):
            return b""
        return msgspec.json.encode(self._line(delta, calls) | {"done": False} | _resumed(delta)) + b"\n"

    def end(self) -> bytes:
        """Return the last line."""
        return msgspec.json.encode(self._line(ChatDelta()) | self._end()) + b"\n"

    def failed(self, error: HttpError) -> bytes:
        """Return the error as a line; no line with `done` follows it."""
        return msgspec.json.encode({"error": error.message}) + b"\n"

    def _saw(self, delta: ChatDelta) -> None:
        self._first = self._first or time.perf_counter()
        if delta.resumed and delta.resumed.kind == "restart":
            self._texts.clear()
            self._joiner = ToolCallJoiner()
        self._texts.append(delta.content)
        self._last = delta

    def _line(self, delta: ChatDelta, calls: Sequence[ToolCall] = ()) -> JsonObject:
        text: JsonObject = {"content" if self.is_chat else "response": delta.content}
        if delta.reasoning and self.has_thinking:
            text["thinking"] = delta.reasoning
        if calls:
            text["tool_calls"] = [self._call(call, delta.backend) for call in calls]
        body: JsonObject = {"model": self.model, "created_at": now()}
        body |= {"message": {"role": "assistant"} | text} if self.is_chat else text
        return body | ({"logprobs": [_logprob(entry) for entry in delta.logprobs]} if delta.logprobs else {})

    def _call(self, call: ToolCall, backend: str) -> JsonObject:
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}", type=JsonObject)
        except msgspec.DecodeError as error:
            text = f"the model called {call.function.name} with arguments that are no JSON object: {error}"
            raise BackendError(text, backend=backend) from error
        index, self._num_calls = self._num_calls, self._num_calls + 1
        return {"id": call.id, "function": {"index": index, "name": call.function.name, "arguments": arguments}}

    def _end(self) -> JsonObject:
        last = self._last or ChatDelta()
        body: JsonObject = {"done": True, "done_reason": "length" if last.finish_reason == "length" else "stop"}
        if self.history is not None:
            body["context"] = write_context([*self.history, Message("assistant", "".join(self._texts))])
        return body | self._counts(last.usage or Usage())

    def _counts(self, usage: Usage) -> JsonObject:
        total = time.perf_counter() - self._asked
        prompt, load = (self._first or self._asked) - self._asked, 0.0
        answering = total - prompt
        if usage.timings is not None and usage.timings.total_seconds:
            prompt = usage.timings.prefill_seconds
            answering = usage.timings.total_seconds - usage.timings.first_token_seconds
            load = max(0.0, total - usage.timings.total_seconds)
        return {
            "total_duration": nanoseconds(total),
            "load_duration": nanoseconds(load),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": max(1, nanoseconds(prompt)),
            "eval_count": usage.completion_tokens,
            "eval_duration": max(1, nanoseconds(answering)),  # clients divide by it
        }


def _resumed(delta: ChatDelta) -> JsonObject:
    """That another link took the answer over (ours)."""
    return {"resumed": delta.resumed} if delta.resumed else {}


def loaded(model: str, reason: str, *, is_chat: bool) -> JsonObject:
    """Return the answer to a request without a prompt, which only loads or unloads."""
    text: JsonObject = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    return {"model": model, "created_at": now()} | text | {"done": True, "done_reason": reason}


def now() -> str:
    """Return the time as Ollama writes it."""
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return a duration as Ollama writes it."""
    return round(seconds * 1e9)


def _logprob(entry: TokenLogprob) -> JsonObject:
    top = [_token(token, logprob) for token, logprob in entry.top_logprobs]
    return _token(entry.token, entry.logprob) | ({"top_logprobs": top} if top else {})


def _token(token: str, logprob: float | None) -> JsonObject:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "surrogatepass"))}
