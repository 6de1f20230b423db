"""Responses as they go out over HTTP: whole, or as events of items. Knows no sockets.

A whole answer is what the events of a streamed one add up to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pyagent.core.messages import ChatDelta, JsonObject, Resumption, TokenLogprob, ToolCallDelta, Usage
from pyagent.core.tool_call_deltas import is_cut, split_pieces
from pyagent.infrastructure.server.custom_tools import InputReader, input_of
from pyagent.infrastructure.server.errors import HttpError
from pyagent.infrastructure.server.responses.items import sealed


class _Form(NamedTuple):
    """How an item of text is told: the item, the field and the type of its part, and the events of part and text."""

    item: str
    prefix: str
    parts: str
    type: str
    part: str
    text: str
    place: str


_MESSAGE = _Form("message", "msg", "content", "output_text", "content_part", "output_text", "content_index")
_THOUGHT = _Form("reasoning", "rs", "content", "reasoning_text", "content_part", "reasoning_text", "content_index")
_SUMMARY = _Form(
    "reasoning", "rs", "summary", "summary_text", "reasoning_summary_part", "reasoning_summary_text", "summary_index"
)


@dataclass(slots=True)
class ResponseEncoder:
    """One response. `envelope` are the fields that repeat what was asked; `keep` takes it when it is whole.

    `namespaced` has the namespace and the name of functions that the model knows by another name. With `has_summary`
    reasoning is told as its summary, which is all that some clients show; with `has_sealed` once more as a text that
    clients send back without reading it. `custom_tools` are told with their input as text.
    """

    id: str
    envelope: JsonObject
    keep: Callable[[JsonObject], None] | None = None
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    custom_tools: frozenset[str] = frozenset()
    has_summary: bool = False
    has_sealed: bool = False
    media_type: str = "text/event-stream"
    _created: float = field(default_factory=lambda: float(int(time.time())))
    _output: list[JsonObject] = field(default_factory=list[JsonObject])
    _open: _Form | None = None
    _call: ToolCallDelta | None = None
    _input: InputReader | None = None
    _texts: list[str] = field(default_factory=list[str])
    _logprobs: list[JsonObject] = field(default_factory=list[JsonObject])
    _num_events: int = 0
    _num_void: int = 0
    _last: ChatDelta | None = None

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """Return the body of an answer that is not streamed, from all of its deltas."""
        for delta in deltas:
            self.piece(delta)
        self._closed()
        resumed: JsonObject = {"resumed": deltas[0].resumed} if deltas[0].resumed else {}
        return msgspec.json.encode(self._finished() | resumed)

    def piece(self, delta: ChatDelta) -> bytes:
        """Return the events of one delta of a streamed answer."""
        events = b"" if self._last else self._start()
        self._last = delta
        if delta.resumed:
            events += self._resumed(delta.resumed)
        tail, begun = split_pieces(delta.tool_calls)
        events += b"".join(self._called(piece) for piece in tail)
        if delta.reasoning:
            events += self._opened(_SUMMARY if self.has_summary else _THOUGHT) + self._delta(delta.reasoning)
        if delta.content:
            entries = [_logprob(entry) for entry in delta.logprobs]
            events += self._opened(_MESSAGE) + self._delta(delta.content, logprobs=entries)
            self._logprobs += entries
        return events + b"".join(self._called(piece) for piece in begun)

    def end(self) -> bytes:
        """Return the last events."""
        events = self._closed()
        body = self._finished()
        return events + self._event(f"response.{body['status']}", response=body)

    def failed(self, error: HttpError) -> bytes:
        """Return the error as the last event."""
        body = self._body("failed") | {"error": {"code": error.code, "message": error.message}}
        return self._event("response.failed", response=body)

    def _start(self) -> bytes:
        body = self._body("in_progress")
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

    def _resumed(self, resumed: Resumption) -> bytes:
        """Tell that another link goes on (ours); after a restart the items so far are void, and not in the response."""
        events = b""
        if resumed.kind == "restart":
            events = self._closed()
            self._num_void = len(self._output)
        return events + self._event("response.in_progress", response=self._body("in_progress"), resumed=resumed)

    # -- items of text ------------------------------------------------------------------------------------------------

    def _opened(self, form: _Form) -> bytes:
        """Return the events after which an item of this form is open."""
        if self._open == form:
            return b""
        events = self._closed()
        self._open = form
        item = self._item(form, [], "in_progress")
        events += self._event("response.output_item.added", output_index=len(self._output), item=item)
        return events + self._part_event(form, f"{form.part}.added", part=self._part(form, ""))

    def _delta(self, text: str, **more: object) -> bytes:
        assert self._open is not None
        self._texts.append(text)
        return self._part_event(self._open, f"{self._open.text}.delta", delta=text, **more)

    def _closed(self) -> bytes:
        """Return the events after which no item is open."""
        if self._call is not None:
            return self._call_closed(self._call)
        if (form := self._open) is None:
            return b""
        text = "".join(self._texts)
        part = self._part(form, text)
        more: JsonObject = {"logprobs": self._logprobs} if form is _MESSAGE else {}
        events = self._part_event(form, f"{form.text}.done", text=text, **more)
        events += self._part_event(form, f"{form.part}.done", part=part)
        item = self._item(form, [part], "completed")
        events += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open, self._texts, self._logprobs = None, [], []
        return events

    def _item(self, form: _Form, parts: list[JsonObject], status: str) -> JsonObject:
        item: JsonObject = {"type": form.item, "id": self._item_id(form.prefix), "status": status}
        if form is _MESSAGE:
            return item | {"role": "assistant", "content": parts}
        item |= {"summary": list[JsonObject](), form.parts: parts}
        return item | ({"encrypted_content": sealed("".join(self._texts))} if parts and self.has_sealed else {})

    def _part(self, form: _Form, text: str) -> JsonObject:
        more: JsonObject = {"annotations": [], "logprobs": self._logprobs} if form is _MESSAGE else {}
        return {"type": form.type, "text": text} | more

    def _part_event(self, form: _Form, kind: str, **fields: object) -> bytes:
        place = {"item_id": self._item_id(form.prefix), "output_index": len(self._output), form.place: 0}
        return self._event(f"response.{kind}", **place, **fields)

    def _item_id(self, prefix: str = "fc") -> str:
        return f"{prefix}_{self.id}_{len(self._output)}"

    # -- calls --------------------------------------------------------------------------------------------------------

    def _called(self, piece: ToolCallDelta) -> bytes:
        """Return the events of a piece of a call; its first one opens the call's item."""
        events = b""
        if self._call is None or piece.index != self._call.index:
            events += self._closed()
            self._call = piece
            self._input = InputReader() if piece.name in self.custom_tools else None
            item = self._call_item(piece, "", "in_progress")
            events += self._event("response.output_item.added", output_index=len(self._output), item=item)
        if piece.arguments:
            self._texts.append(piece.arguments)
            if self._input is None:
                events += self._call_event("response.function_call_arguments.delta", delta=piece.arguments)
            elif text := self._input.push(piece.arguments):
                events += self._call_event("response.custom_tool_call_input.delta", delta=text)
        return events

    def _call_closed(self, call: ToolCallDelta) -> bytes:
        """Return the events after which a call is whole, or cut where the answer was."""
        arguments, reason = "".join(self._texts), self._last.finish_reason if self._last else None
        arguments = arguments or ("" if reason == "length" else "{}")
        item = self._call_item(call, arguments, "incomplete" if is_cut(arguments, reason) else "completed")
        events = b""
        if self._input is None:
            done = {"arguments": arguments, "name": item["name"]}
            events += self._call_event("response.function_call_arguments.done", **done)
        else:
            rest = ("" if self._texts else self._input.push(arguments)) + self._input.finish()
            events += self._call_event("response.custom_tool_call_input.delta", delta=rest) if rest else b""
            events += self._call_event("response.custom_tool_call_input.done", input=item["input"])
        events += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._call, self._input, self._texts = None, None, []
        return events

    def _call_item(self, call: ToolCallDelta, arguments: str, status: str) -> JsonObject:
        if call.name in self.custom_tools:
            own: JsonObject = {"type": "custom_tool_call", "id": self._item_id("ctc"), "call_id": call.id}
            return own | {"name": call.name, "input": input_of(arguments), "status": status}
        namespace, name = self.namespaced.get(call.name, ("", call.name))
        item: JsonObject = {"type": "function_call", "id": self._item_id(), "call_id": call.id}
        item |= {"name": name, "arguments": arguments, "status": status}
        return item | ({"namespace": namespace} if namespace else {})

    def _call_event(self, kind: str, **fields: object) -> bytes:
        prefix = "fc" if self._input is None else "ctc"
        return self._event(kind, item_id=self._item_id(prefix), output_index=len(self._output), **fields)

    # -- the response -------------------------------------------------------------------------------------------------

    def _finished(self) -> JsonObject:
        """Return the response when all of it is there, kept if it is to be."""
        reason = self._last.finish_reason if self._last else None
        why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason or "")
        body = self._body("incomplete" if why else "completed")
        body |= {"incomplete_details": {"reason": why} if why else None, "usage": self._usage()}
        if self.keep is not None:
            self.keep(body)
        return body

    def _body(self, status: str) -> JsonObject:
        body: JsonObject = {"id": f"resp_{self.id}", "object": "response", "created_at": self._created}
        body |= {"status": status, "error": None, "incomplete_details": None, "output": self._output[self._num_void :]}
        return body | self.envelope | {"usage": None}

    def _usage(self) -> JsonObject:
        usage = (self._last.usage if self._last else None) or Usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }

    def _event(self, kind: str, **fields: object) -> bytes:
        body: JsonObject = {"type": kind, "sequence_number": self._num_events} | fields
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(body) + b"\n\n"


def _logprob(entry: TokenLogprob) -> JsonObject:
    top = [_token(token, logprob) for token, logprob in entry.top_logprobs]
    return _token(entry.token, entry.logprob) | {"top_logprobs": top}


def _token(token: str, logprob: float | None) -> JsonObject:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "surrogatepass"))}
