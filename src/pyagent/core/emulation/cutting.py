"""Ends an answer where a request says, for a backend that cannot: at a text, or after so many estimated tokens.

Closing the backend's stream at that point stops its work. Knows no backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from pyagent.core.abilities import Abilities
from pyagent.core.messages import ChatDelta, ChatRequest, Usage
from pyagent.core.stop_strings import StopStrings
from pyagent.core.token_estimate import BYTES_A_TOKEN, estimated_tokens


def estimated_usage(request: ChatRequest, text: str) -> Usage:
    """About how many tokens a request and its answer have."""
    asked = "".join(message.text for message in request.messages) or request.prompt or ""
    num_prompt, num_answer = estimated_tokens(asked), estimated_tokens(text)
    return Usage(num_prompt, num_answer, num_prompt + num_answer)


async def cut(
    request: ChatRequest, answer: Callable[[ChatRequest], AsyncGenerator[ChatDelta, None]], limits: Abilities
) -> AsyncGenerator[ChatDelta, None]:
    """The answer to the request without its `limits` (`stop`, `max_tokens`), which are kept here."""
    sampling = request.sampling
    stop = sampling.stop if "stop" in limits else ()
    most = sampling.max_tokens if "max_tokens" in limits else None
    without = {"stop": (), "max_tokens": None}
    plain = msgspec.structs.replace(sampling, **{name: without[name] for name in limits})
    stops, length = StopStrings(stop), _LengthLimit(most)
    pieces: list[str] = []
    async with aclosing(answer(msgspec.structs.replace(request, sampling=plain))) as deltas:
        async for delta in deltas:
            pieces.append(delta.content)
            kept, is_full = length.push(delta.content)
            piece, is_stopped = stops.push(kept)
            if is_stopped or is_full:
                reason, rest = ("stop", "") if is_stopped else ("length", stops.flush())
                usage = delta.usage or estimated_usage(request, "".join(pieces))
                yield msgspec.structs.replace(delta, content=piece + rest, finish_reason=reason, usage=usage)
                return
            if delta.finish_reason:
                piece += stops.flush()
            yield msgspec.structs.replace(delta, content=piece)
    if rest := stops.flush():
        yield ChatDelta(content=rest)


class _LengthLimit:
    """Counts one answer's estimated tokens up to a limit; None is without one."""

    def __init__(self, max_tokens: int | None) -> None:
        self._room = None if max_tokens is None else max_tokens * BYTES_A_TOKEN

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what is within the limit, and whether the answer is longer than that."""
        if self._room is None:
            return text, False
        data = text.encode(errors="replace")
        if len(data) > self._room:
            return data[: self._room].decode(errors="ignore"), True
        self._room -= len(data)
        return text, False
