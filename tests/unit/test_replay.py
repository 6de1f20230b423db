"""Turns kept for the engine's next process: found by what follows them, within their bound."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.messages import ChatRequest, Message
from pyagent.infrastructure.engine.request import PastTurn
from pyagent.infrastructure.engine.sessions.replay import ReplayStore

OLD, NEW = 1, 2


def asked(*texts: str, model: str = "m") -> ChatRequest:
    roles = ("user", "assistant")
    return ChatRequest(messages=[Message(roles[place % 2], text) for place, text in enumerate(texts)], model=model)


def test_a_request_takes_the_longest_turn_of_another_process_along() -> None:
    """What follows a turn finds it, the answer's outer spaces aside; nothing else does, nor does its own process."""
    past = ReplayStore()
    past.put(asked("a"), b"....", (7,), " b ", OLD)
    past.put(asked("a", "b", "c"), b"....9999", (8, 9), "d", OLD)
    assert past.before(asked("a", "b", "x"), NEW) == PastTurn(2, b"....", (7,), " b ")
    assert past.before(asked("a", "b", "c", "d", "e"), NEW) == PastTurn(4, b"....9999", (8, 9), "d")
    assert past.before(asked("a", "b", "c", "d", "e"), OLD) is None
    assert past.before(asked("a"), NEW) is None
    assert past.before(asked("a", "other", "c"), NEW) is None
    assert past.before(asked("a", "b", "x", model="n"), NEW) is None
    for field, value in (("reasoning_effort", "high"), ("tool_choice", "none"), ("parallel_tool_calls", False)):
        assert past.before(msgspec.structs.replace(asked("a", "b", "x"), **{field: value}), NEW) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_turns_used_longest_ago_go_when_there_are_too_many(turns: list[tuple[int, int]]) -> None:
    """Whatever is kept, the bytes stay within the bound, and the last one is there if it fits."""
    past = ReplayStore(max_bytes=400)
    for talk, length in turns:
        past.put(asked(f"{talk}"), bytes(4 * length), (1,), "x", OLD)
        assert past.num_bytes <= 400
        assert (past.before(asked(f"{talk}", "x", "more"), NEW) is not None) == (4 * length + 12 <= 400)
