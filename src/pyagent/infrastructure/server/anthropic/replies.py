"""Anthropic's messages as they go out over HTTP: whole, or as events of blocks. Knows no sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatDelta, JsonObject, ToolCall, ToolCallDelta, Usage
from pyagent.core.tool_call_deltas import ToolCallJoiner, split_pieces, without_cut
from pyagent.infrastructure.server.errors import HttpError

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_SIGNATURE = "cHlhZ2VudA=="
"""Of thinking blocks: clients leave out those without one when they send a conversation back. Nothing is signed."""


@dataclass(slots=True)
class MessageEncoder:
    """One message: blocks of thinking, text and tool calls, in the order in which they come.

    A streamed call is told when it is whole, with pings meanwhile: clients run the beginning of one that `max_tokens`
    cut as if it had no input. Calls of `eager_tools` are told in pieces.
    """

    id: str
    model: str
    has_thinking: bool = False
    eager_tools: frozenset[str] = frozenset()
    media_type: str = "text/event-stream"
    _num_blocks: int = 0
    _open: str = ""
    _joiner: ToolCallJoiner = field(default_factory=ToolCallJoiner)
    _shown_call: str = ""
    _has_calls: bool = False
    _last: ChatDelta | None = None

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """Return the body of an answer that is not streamed, from all of its deltas.

        A call that the answer was cut in is left out: a message cannot hold half an input.
        """
        blocks: list[JsonObject] = []
        for delta in deltas:
            self._saw(delta)
            tail, begun = split_pieces(delta.tool_calls)
            blocks += map(self._block, self._joiner.push(tail))
            if delta.reasoning and self.has_thinking:
                blocks += map(self._block, self._joiner.finish())
                blocks.append({"type": "thinking", "thinking": delta.reasoning, "signature": _SIGNATURE})
            if delta.content:
                blocks += map(self._block, self._joiner.finish())
                blocks.append({"type": "text", "text": delta.content})
            blocks += map(self._block, self._joiner.push(begun))
        reason = deltas[-1].finish_reason
        blocks += map(self._block, without_cut(self._joiner.finish(reason), reason))
        resumed: JsonObject = {"resumed": deltas[0].resumed} if deltas[0].resumed else {}  # ours
        return msgspec.json.encode(self._message([*_joined(blocks)], self._usage()) | self._ending() | resumed)

    def piece(self, delta: ChatDelta) -> bytes:
        """Return the events of one delta of a streamed answer."""
        events = b"" if self._last else self._start()
        self._saw(delta)
        if delta.resumed:  # ours; what comes after a restart is a block of its own
            events += self._restarted() if delta.resumed.kind == "restart" else b""
            events += _event("ping", {"resumed": delta.resumed})
        tail, begun = split_pieces(delta.tool_calls)
        events += self._called(tail)
        if delta.reasoning and self.has_thinking:
            events += self._opened("thinking", {"thinking": "", "signature": ""})
            events += self._delta("thinking_delta", "thinking", delta.reasoning)
        if delta.content:
            events += self._opened("text", {"text": ""})
            events += self._delta("text_delta", "text", delta.content)
        events += self._called(begun)
        if delta.finish_reason:
            calls = self._joiner.finish(delta.finish_reason)
            events += self._told(without_cut(calls, delta.finish_reason))
        return events or (_event("ping", {}) if delta.tool_calls else b"")

    def _restarted(self) -> bytes:
        self._joiner = ToolCallJoiner()
        return self._closed()

    def _called(self, pieces: Sequence[ToolCallDelta]) -> bytes:
        """Return the events of calls that are whole after these pieces, and of those that are told in pieces."""
        events = b""
        for piece in pieces:
            events += self._told(self._joiner.push([piece]))
            first = self._joiner.first
            if first is not None and first.name in self.eager_tools and piece.arguments:
                events += self._begun(first.id, first.name)
                events += self._delta("input_json_delta", "partial_json", piece.arguments)
        return events

    def _told(self, calls: Sequence[ToolCall]) -> bytes:
        """Return the events of whole calls that were not told in pieces."""
        events = b""
        for call in calls:
            if call.id != self._shown_call:
                events += self._begun(call.id, call.function.name)
                events += self._delta("input_json_delta", "partial_json", call.function.arguments)
        return events

    def _begun(self, call_id: str, name: str) -> bytes:
        """Return the events after which the block of a call is open."""
        if call_id == self._shown_call:
            return b""
        self._shown_call = call_id
        return self._closed() + self._opened("tool_use", {"id": call_id, "name": name, "input": {}})

    def end(self) -> bytes:
        """Return the last events."""
        told = _event("message_delta", {"delta": self._ending(), "usage": self._usage()})
        return self._closed() + told + _event("message_stop", {})

    def failed(self, error: HttpError) -> bytes:
        """Return the error as an event."""
        return _event("error", error.anthropic_body)

    def _block(self, call: ToolCall) -> JsonObject:
        backend = self._last.backend if self._last else ""
        arguments = _arguments(call, backend)
        return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}

    def _saw(self, delta: ChatDelta) -> None:
        self._has_calls |= bool(delta.tool_calls)
        self._last = delta

    def _start(self) -> bytes:
        message = self._message([], {"input_tokens": 0, "output_tokens": 0})
        message |= {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", {"message": message}) + _event("ping", {})

    def _opened(self, kind: str, block: JsonObject) -> bytes:
        """Return the events after which a block of this kind is open; text or thinking ends the call before it."""
        events = self._told(self._joiner.finish()) if kind != "tool_use" else b""
        if self._open == kind:
            return events
        events += self._closed()
        self._open = kind
        return events + _event(
            "content_block_start", {"index": self._num_blocks, "content_block": {"type": kind} | block}
        )

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        return _event("content_block_delta", {"index": self._num_blocks, "delta": {"type": kind, name: text}})

    def _closed(self) -> bytes:
        """Return the events after which no block is open."""
        if not self._open:
            return b""
        events = self._delta("signature_delta", "signature", _SIGNATURE) if self._open == "thinking" else b""
        events += _event("content_block_stop", {"index": self._num_blocks})
        self._open, self._num_blocks = "", self._num_blocks + 1
        return events

    def _message(self, blocks: list[JsonObject], usage: JsonObject) -> JsonObject:
        body: JsonObject = {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "model": self.model}
        return body | {"content": blocks, "usage": usage}

    def _ending(self) -> JsonObject:
        """Why it ended. Backends do not say which stop text it was, or whether it was one."""
        reason = self._last.finish_reason if self._last else None
        is_called = self._has_calls and reason != "length"
        told = "tool_use" if is_called else _REASONS.get(reason or "stop", "end_turn")
        return {"stop_reason": told, "stop_sequence": None}

    def _usage(self) -> JsonObject:
        usage = (self._last.usage if self._last else None) or Usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion_tokens,
        }


def _joined(blocks: list[JsonObject]) -> Iterator[JsonObject]:
    """Yield the blocks, of neighbours of thinking or of text one."""
    for kind, group in groupby(blocks, key=lambda block: str(block["type"])):
        if kind == "tool_use":
            yield from group
        else:
            first, *others = group
            yield first | {kind: "".join(str(block[kind]) for block in (first, *others))}


def _arguments(call: ToolCall, backend: str) -> JsonObject:
    try:
        return msgspec.json.decode(call.function.arguments or "{}", type=JsonObject)
    except msgspec.DecodeError as error:
        text = f"the model called {call.function.name} with arguments that are no JSON object: {error}"
        raise BackendError(text, backend=backend) from error


def _event(kind: str, body: JsonObject) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind} | body) + b"\n\n"
