"""A conversation that has grown too long, shortened. Pure.

Between compactions a conversation only grows at its end, so that its beginning is found in the prefix cache. A
compaction rewrites it once, to half of what it may be: results of tools first, the oldest before the others, then
whole rounds of calls, of which a line each is left, then the ends of the last results.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyagent.core.messages import Message, Tool
from pyagent.core.token_estimate import BYTES_A_TOKEN, estimated_prompt_tokens

CLEARED = "[this result was removed to make room; call the tool again if you need it]"
CUT = "\n[the rest of this result was removed to make room]"
_KEPT_RESULTS = 3
_KEPT_ROUNDS = 2
_MAX_LINE_CHARACTERS = 160


def compacted(messages: Sequence[Message], num_head: int, tools: Sequence[Tool], max_tokens: int) -> list[Message]:
    """Return the conversation in at most `max_tokens`, as far as that is possible.

    The first `num_head` messages stay as they are.
    """
    shorter = _without_results(list(messages), num_head, tools, max_tokens)
    if estimated_prompt_tokens(shorter, tools) <= max_tokens:
        return shorter
    shorter = _without_rounds(shorter, num_head)
    excess = estimated_prompt_tokens(shorter, tools) - max_tokens
    return shorter if excess <= 0 else _with_cut_results(shorter, num_head, excess)


def _without_results(messages: list[Message], num_head: int, tools: Sequence[Tool], max_tokens: int) -> list[Message]:
    places = [place for place in range(num_head, len(messages)) if messages[place].role == "tool"]
    for place in places[:-_KEPT_RESULTS]:
        if estimated_prompt_tokens(messages, tools) <= max_tokens:
            break
        if len(messages[place].text) > len(CLEARED):
            messages[place] = msgspec.structs.replace(messages[place], content=CLEARED)
    return messages


def _without_rounds(messages: list[Message], num_head: int) -> list[Message]:
    begins = [place for place in range(num_head, len(messages)) if messages[place].tool_calls]
    if len(begins) <= _KEPT_ROUNDS:
        return messages
    end = begins[-_KEPT_ROUNDS]
    lines = [
        _line(call.function.name, call.function.arguments)
        for each in messages[num_head:end]
        for call in each.tool_calls or ()
    ]
    told = "\n".join(["Calls made earlier, whose results were removed to make room:", *lines])
    return [*messages[:num_head], Message("user", told), *messages[end:]]


def _with_cut_results(messages: list[Message], num_head: int, excess_tokens: int) -> list[Message]:
    """Cut the results that are left, each by its share of what is too much."""
    results = [place for place in range(num_head, len(messages)) if messages[place].role == "tool"]
    num_characters = sum(len(messages[place].text) for place in results)
    share = max(0.0, 1 - excess_tokens * BYTES_A_TOKEN / max(1, num_characters))
    for place in results:
        text = messages[place].text
        num_kept = int(len(text) * share)
        if len(text) - num_kept > len(CUT):
            messages[place] = msgspec.structs.replace(messages[place], content=f"{text[:num_kept]}{CUT}")
    return messages


def _line(name: str, arguments: str) -> str:
    text = f"- {name} {arguments}"
    return text if len(text) <= _MAX_LINE_CHARACTERS else f"{text[:_MAX_LINE_CHARACTERS]}..."
