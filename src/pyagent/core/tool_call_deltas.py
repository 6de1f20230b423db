"""Tool calls in pieces, as answers stream them, and whole, as messages hold them.

The calls of an answer come one after another: a piece belongs to the newest call or begins the next one. The first
piece of a call has its id and its name; the arguments of all of them, joined, are the call's. An answer that ends with
`length` may end within its last call, whose arguments are then what there is of them, and may be none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pyagent.core.messages import ChatDelta, FinishReason, FunctionCall, JsonObject, ToolCall, ToolCallDelta


def as_deltas(calls: Iterable[ToolCall], start: int = 0) -> list[ToolCallDelta]:
    """Return whole calls as one piece each; the first has the index `start`."""
    return [
        ToolCallDelta(index=index, id=call.id, name=call.function.name, arguments=call.function.arguments)
        for index, call in enumerate(calls, start)
    ]


class ToolCallJoiner:
    """Joins the pieces of one answer's calls, for those that can use a call only when it is whole."""

    def __init__(self) -> None:
        self._first: ToolCallDelta | None = None
        self._arguments: list[str] = []

    @property
    def first(self) -> ToolCallDelta | None:
        """The first piece of the call that has begun and that `push` has not returned."""
        return self._first

    def push(self, pieces: Iterable[ToolCallDelta]) -> list[ToolCall]:
        """Take pieces; return the calls that another has begun after, so that they are whole."""
        whole: list[ToolCall] = []
        for piece in pieces:
            if self._first is None or piece.index != self._first.index:
                whole += self.finish()
                self._first = piece
            self._arguments.append(piece.arguments)
        return whole

    def whole(self, delta: ChatDelta) -> list[ToolCall]:
        """Take a delta's pieces; return the calls that are whole then, of an answer's end none that it was cut in."""
        calls = self.push(delta.tool_calls)
        if delta.finish_reason:
            calls += self.finish(delta.finish_reason)
        return without_cut(calls, delta.finish_reason)

    def finish(self, reason: FinishReason | None = None) -> list[ToolCall]:
        """Return the call that is left when the answer ends for `reason`, if any; one cut off as it is."""
        if (first := self._first) is None:
            return []
        arguments = "".join(self._arguments) or ("" if reason == "length" else "{}")
        self._first, self._arguments = None, []
        return [ToolCall(id=first.id, function=FunctionCall(first.name, arguments))]


class WholeToolCalls:
    """Holds back the pieces of one answer's call until the call is whole, and passes it on as one piece."""

    def __init__(self) -> None:
        self._joiner = ToolCallJoiner()
        self._num_told = 0

    def held(self, delta: ChatDelta) -> ChatDelta:
        """Return the delta with the calls that are whole by now; the answer's last one has what is left."""
        if not (delta.tool_calls or self._joiner.first):
            return delta
        calls = self._joiner.push(delta.tool_calls)
        if delta.finish_reason:
            calls += self._joiner.finish(delta.finish_reason)
        pieces = as_deltas(calls, self._num_told)
        self._num_told += len(pieces)
        return msgspec.structs.replace(delta, tool_calls=pieces)


def whole_calls(deltas: Sequence[ChatDelta]) -> list[ToolCall]:
    """Return the calls of an answer, or of several one after another, from all of its deltas."""
    calls: list[ToolCall] = []
    for index in sorted({delta.index for delta in deltas if delta.tool_calls}):
        joiner, mine = ToolCallJoiner(), [delta for delta in deltas if delta.index == index]
        calls += joiner.push(piece for delta in mine for piece in delta.tool_calls)
        calls += joiner.finish(mine[-1].finish_reason)
    return calls


def split_pieces(pieces: Sequence[ToolCallDelta]) -> tuple[Sequence[ToolCallDelta], Sequence[ToolCallDelta]]:
    """Return the pieces of a delta before its first new call, which go on with the open one, and the others.

    A delta's text stands between them: a call that goes on ended before it, one that begins came after it.
    """
    num_tail = next((number for number, piece in enumerate(pieces) if piece.id), len(pieces))
    return pieces[:num_tail], pieces[num_tail:]


def without_cut(calls: list[ToolCall], reason: FinishReason | None) -> list[ToolCall]:
    """Return the calls of an answer that ended for `reason`, without the last one where the answer was cut in it."""
    return calls[:-1] if calls and is_cut(calls[-1].function.arguments, reason) else calls


def is_cut(arguments: str, reason: FinishReason | None) -> bool:
    """Return whether an answer that ended for `reason` was cut within its last call, which has these arguments."""
    if reason != "length":
        return False
    try:
        msgspec.json.decode(arguments, type=JsonObject)
    except (ValueError, RecursionError):
        return True
    return False
