"""Requests while an engine's processes die: which are submitted again, which are failed, and no output twice."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pyagent.core.activations import TokenActivations
from pyagent.core.messages import ChatDelta, ChatRequest, FunctionCall, TokenLogprob, ToolCallDelta
from pyagent.core.tool_call_deltas import whole_calls
from pyagent.infrastructure.engine.subprocess.in_flight import MAX_DEATHS, InFlight, InFlightRequest
from pyagent.infrastructure.engine.subprocess.protocol import Outputs


def request(number: int, **more: object) -> InFlightRequest:
    return InFlightRequest(number, ChatRequest(prompt="a", **more), lambda _: None)  # type: ignore[arg-type]


@given(st.integers(1, 12), st.dictionaries(st.integers(0, 11), st.integers(0, 40), max_size=4), st.integers(0, 1 << 32))
def test_requests_that_kill_are_found_and_the_others_answered(number: int, killers: dict[int, int], seed: int):
    """Exactly the requests that kill their process, after some outputs, are given up; all others are answered."""
    draw = random.Random(seed)
    killers = {killer: after for killer, after in killers.items() if killer < number}
    requests = InFlight()
    for index in range(number):
        requests.add(request(index))
    answered, given_up, running = set[int](), set[int](), dict[int, InFlightRequest]()
    num_outputs = dict.fromkeys(range(number), 0)
    while len(requests):
        running |= {one.id: one for one in requests.next_to_send()}
        one = draw.choice(list(running.values()))
        if num_outputs[one.id] >= killers.get(one.id, 1 << 60):
            running.clear()
            given_up |= {one.id for one in requests.process_died()}
        elif draw.random() < 0.02 and one.id not in killers:
            del running[one.id]
            answered.add(one.id)
            assert requests.remove(one)
        else:
            num_outputs[one.id] += 1
            if requests.count_outputs(one):
                if draw.random() < 0.5:
                    requests.count_outputs(one)
                requests.end_trial(one)
                del running[one.id]
    assert given_up == set(killers)
    assert answered == set(range(number)) - set(killers)


def test_nobody_is_blamed_for_deaths_from_outside_but_patience_ends():
    """A process killed while nothing is on trial costs nobody, until it has happened too often."""
    requests = InFlight()
    for index in range(3):
        requests.add(request(index))
    assert len(requests.next_to_send()) == 3
    for _ in range(MAX_DEATHS - 1):
        assert requests.process_died() == []
        for _ in range(3):
            pass_trial(requests)
        assert len(requests.next_to_send()) == 3
    assert {one.id for one in requests.process_died()} == {0, 1, 2}


def pass_trial(requests: InFlight) -> InFlightRequest:
    """Let the next suspect pass its trial; nothing else is sent meanwhile."""
    (one,) = requests.next_to_send()
    while not requests.count_outputs(one):
        assert requests.next_to_send() == []
    assert requests.next_to_send() == []
    requests.end_trial(one)
    return one


def test_new_requests_wait_for_the_suspects():
    """After a death suspects go alone, one after the other; then all go on together with those who came later."""
    requests = InFlight()
    first, second, third = request(1), request(2), request(3)
    requests.add(first)
    requests.add(second)
    assert requests.next_to_send() == [first, second]
    old_name = first.wire_id
    requests.process_died()
    assert requests.sent(old_name) is None
    requests.add(third)
    assert pass_trial(requests) is first
    assert requests.next_to_send() == [second]
    assert requests.remove(second)
    assert set(requests.next_to_send()) == {first, third}
    assert requests.sent(first.wire_id) is first
    assert requests.sent(old_name) is None
    assert not requests.remove(second)
    assert set(requests.remove_all()) == {first, third}
    assert len(requests) == 0


def test_one_answer_goes_on_from_its_log():
    """A single answer is submitted again with the tokens generated so far."""
    one = request(1)
    assert one.submission().log is None
    one.apply(Outputs(1, ChatDelta(content="a"), (5, 6), b"prompt"))
    one.apply(Outputs(1, ChatDelta(content="b"), (7,)))
    log = one.submission().log
    assert log is not None
    assert (log.prompt, log.tokens) == (b"prompt", (5, 6, 7))
    assert one.apply(Outputs(1, ChatDelta(content="c"), (8,))) == ChatDelta(content="c")


@given(st.data())
def test_several_answers_computed_anew_are_delivered_once(data: st.DataObject):
    """Of answers computed again from the start, cut into pieces anyhow, only what is new is delivered."""
    texts = ["hello there", "something else"]
    one = request(1, n=2)
    delivered = ["", ""]
    logprobs: list[list[str]] = [[], []]
    activations: list[list[str]] = [[], []]
    reasons: list[list[str]] = [[], []]
    for is_last in (False, False, True):
        one.submission()
        at = [0, 0]
        for _ in range(100 if is_last else data.draw(st.integers(0, 8))):
            index = data.draw(st.integers(0, 1))
            size = data.draw(st.integers(1, 5))
            piece = texts[index][at[index] : at[index] + size]
            if not piece:
                index = 1 - index
                piece = texts[index][at[index] : at[index] + size]
            if not piece:
                break
            at[index] += len(piece)
            delta = ChatDelta(
                index=index,
                content=piece,
                logprobs=[TokenLogprob(letter, -1.0) for letter in piece],
                activations=[TokenActivations(letter) for letter in piece],
                finish_reason="stop" if at[index] == len(texts[index]) else None,
            )
            new = one.apply(Outputs(1, delta))
            if new is not None:
                delivered[index] += new.content
                logprobs[index] += [entry.token for entry in new.logprobs]
                activations[index] += [entry.token for entry in new.activations]
                reasons[index] += [new.finish_reason] if new.finish_reason else []
    assert delivered == texts
    assert ["".join(entries) for entries in logprobs] == texts
    assert ["".join(entries) for entries in activations] == texts
    assert reasons == [["stop"], ["stop"]]


@given(st.lists(st.integers(0, 5), max_size=4))
def test_thoughts_and_calls_of_several_answers_are_delivered_once(deaths: list[int]):
    """Wherever processes die, each answer has its reasoning and calls once, though the call's id is a new one."""
    script = [
        ChatDelta(reasoning="hm, "),
        ChatDelta(reasoning="yes"),
        ChatDelta(content="I look."),
        ChatDelta(tool_calls=[ToolCallDelta(0, "ID", "weather", '{"ci')]),
        ChatDelta(tool_calls=[ToolCallDelta(0, arguments='ty": 1}'), ToolCallDelta(1, "ID", "time", "{}")]),
        ChatDelta(finish_reason="tool_calls"),
    ]
    one, told = request(1, n=2), list[ChatDelta]()
    for process, num_outputs in enumerate([*deaths, len(script)]):
        one.submission()
        for delta in script[:num_outputs]:
            pieces = [replace(piece, id=piece.id and f"{piece.id}{process}") for piece in delta.tool_calls]
            told += filter(None, [one.apply(Outputs(1, replace(delta, tool_calls=pieces)))])
    assert "".join(delta.reasoning for delta in told) == "hm, yes"
    assert "".join(delta.content for delta in told) == "I look."
    calls = [call.function for call in whole_calls(told)]
    assert calls == [FunctionCall("weather", '{"city": 1}'), FunctionCall("time", "{}")]
    assert len({piece.id for delta in told for piece in delta.tool_calls if piece.id}) <= 2
    assert [delta.finish_reason for delta in told if delta.finish_reason] == ["tool_calls"]
