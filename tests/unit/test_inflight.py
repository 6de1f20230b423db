"""Requests over the lives of an engine's processes: who is asked again, who is found guilty, nothing told twice."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.messages import ChatDelta, ChatRequest, TokenLogprob
from pyagent.infrastructure.engine.subprocess.in_flight import MAX_DEATHS, Asked, InFlight
from pyagent.infrastructure.engine.subprocess.protocol import Outputs


def asked(number: int, **more: object) -> Asked:
    return Asked(number, ChatRequest(prompt="a", **more), lambda _: None)  # type: ignore[arg-type]


@given(st.integers(1, 12), st.dictionaries(st.integers(0, 11), st.integers(0, 40), max_size=4), st.integers(0, 1 << 32))
def test_requests_that_kill_are_found_and_the_others_answered(number: int, killers: dict[int, int], seed: int):
    """Exactly the requests that kill their process, after so many news, are given up; all others are answered."""
    draw = random.Random(seed)
    killers = {killer: after for killer, after in killers.items() if killer < number}
    requests = InFlight()
    for index in range(number):
        requests.add(asked(index))
    answered, given_up, running = set[int](), set[int](), dict[int, Asked]()
    num_told = dict.fromkeys(range(number), 0)
    while len(requests):
        running |= {one.id: one for one in requests.next_to_send()}
        one = draw.choice(list(running.values()))
        if num_told[one.id] >= killers.get(one.id, 1 << 60):
            running.clear()
            given_up |= {one.id for one in requests.died()}
        elif draw.random() < 0.02 and one.id not in killers:
            del running[one.id]
            answered.add(one.id)
            assert requests.end(one)
        else:
            num_told[one.id] += 1
            if requests.told(one):
                if draw.random() < 0.5:
                    requests.told(one)
                requests.dropped(one)
                del running[one.id]
    assert given_up == set(killers)
    assert answered == set(range(number)) - set(killers)


def test_nobody_is_blamed_for_deaths_from_outside_but_patience_ends():
    """A process killed while nothing is on trial costs nobody, until it has happened too often."""
    requests = InFlight()
    for index in range(3):
        requests.add(asked(index))
    assert len(requests.next_to_send()) == 3
    for _ in range(MAX_DEATHS - 1):
        assert requests.died() == []
        for _ in range(3):
            pass_trial(requests)
        assert len(requests.next_to_send()) == 3
    assert {one.id for one in requests.died()} == {0, 1, 2}


def pass_trial(requests: InFlight) -> Asked:
    """Let the next suspect tell enough; nothing else is sent meanwhile."""
    (one,) = requests.next_to_send()
    while not requests.told(one):
        assert requests.next_to_send() == []
    assert requests.next_to_send() == []
    requests.dropped(one)
    return one


def test_new_requests_wait_for_the_suspects():
    """After a death suspects go alone, one after the other; then all go on together with those who came later."""
    requests = InFlight()
    first, second, third = asked(1), asked(2), asked(3)
    requests.add(first)
    requests.add(second)
    assert requests.next_to_send() == [first, second]
    old_name = first.wire_id
    requests.died()
    assert requests.sent(old_name) is None
    requests.add(third)
    assert pass_trial(requests) is first
    assert requests.next_to_send() == [second]
    assert requests.end(second)
    assert set(requests.next_to_send()) == {first, third}
    assert requests.sent(first.wire_id) is first
    assert requests.sent(old_name) is None
    assert not requests.end(second)
    assert set(requests.give_up()) == {first, third}
    assert len(requests) == 0


def test_one_answer_goes_on_from_its_log():
    """What is asked again of one answer carries the tokens told so far."""
    one = asked(1)
    assert one.ask().log is None
    one.take(Outputs(1, ChatDelta(content="a"), (5, 6), b"prompt"))
    one.take(Outputs(1, ChatDelta(content="b"), (7,)))
    log = one.ask().log
    assert log is not None
    assert (log.prompt, log.tokens) == (b"prompt", (5, 6, 7))
    assert one.take(Outputs(1, ChatDelta(content="c"), (8,))) == ChatDelta(content="c")


@given(st.data())
def test_several_answers_computed_anew_are_told_once(data: st.DataObject):
    """Of answers computed again from the start, cut into pieces anyhow, only what was not told yet is told."""
    texts = ["hello there", "something else"]
    one = asked(1, n=2)
    told = ["", ""]
    logprobs: list[list[str]] = [[], []]
    reasons: list[list[str]] = [[], []]
    for is_last in (False, False, True):
        one.ask()
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
                finish_reason="stop" if at[index] == len(texts[index]) else None,
            )
            unheard = one.take(Outputs(1, delta))
            if unheard is not None:
                told[index] += unheard.content
                logprobs[index] += [entry.token for entry in unheard.logprobs]
                reasons[index] += [unheard.finish_reason] if unheard.finish_reason else []
    assert told == texts
    assert ["".join(entries) for entries in logprobs] == texts
    assert reasons == [["stop"], ["stop"]]
