"""Ends an answer where a request says, for a backend that cannot: at a text, or after so many estimated tokens.

Closing the backend's stream at that point stops its work. Knows no backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

import msgspec

from pyagent.core.abilities import Abilities
from pyagent.core.messages import ChatDelta, ChatRequest, FinishReason, Usage

BYTES_A_TOKEN = 4
"""An estimate, for backends without a tokenizer: about right for English, too low a count for other scripts."""


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has; never below the truth by much for English, never zero for some text."""
    return -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN)


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
    text, num_shown = "", 0
    async with aclosing(answer(msgspec.structs.replace(request, sampling=plain))) as deltas:
        async for delta in deltas:
            text += delta.content
            end, reason = _end(text, stop, most)
            ready = end if reason or delta.finish_reason else end - _held(text, stop)
            piece, num_shown = text[num_shown:ready], max(num_shown, ready)
            if reason:
                usage = delta.usage or estimated_usage(request, text)
                yield msgspec.structs.replace(delta, content=piece, finish_reason=reason, usage=usage)
                return
            yield msgspec.structs.replace(delta, content=piece)


def _end(text: str, stop: Iterable[str], most: int | None) -> tuple[int, FinishReason | None]:
    """Where the text ends, and why, if it does."""
    end, reason = len(text), None
    if most is not None and estimated_tokens(text) > most:
        end, reason = len(text.encode(errors="replace")[: most * BYTES_A_TOKEN].decode(errors="ignore")), "length"
    places = [place for place in (text.find(one) for one in stop) if 0 <= place <= end]
    return (min(places), "stop") if places else (end, reason)


def _held(text: str, stop: Iterable[str]) -> int:
    """How many characters at the end may be the beginning of a text to stop at."""
    lengths = (size for one in stop for size in range(1, len(one)) if text.endswith(one[:size]))
    return max(lengths, default=0)
