"""The queue of texts to embed: batches by tokens, turns among requests, faults, cancelling, closing."""

from __future__ import annotations

import threading
import time
from array import array
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.errors import BackendError, CapacityError
from pyagent.infrastructure.engine.encoders.encoder_queue import EncoderQueue, LongText


class Encoder:
    """Gives each text the vector (first token, number of tokens); waits until it may, and fails for token 666."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.may_go = threading.Event()

    def embed(self, texts: list[list[int]]) -> bytes:
        self.may_go.wait(10)
        self.batches.append(texts)
        if any(666 in text for text in texts):
            raise RuntimeError("no vector")
        return array("f", [number for text in texts for number in (text[0], len(text))]).tobytes()


class LongTexts:
    """Computes a text of n tokens in n steps, each when it may, as `Encoder` would at once; notes what is held."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.begun: list[list[int]] = []
        self.num_held = 0
        self.num_steps = 0

    def begin(self, text: list[int]) -> LongText:
        self.begun.append(text)
        if text[0] == 555:
            raise CapacityError("no room")
        self.num_held += 1
        num_left = len(text)

        def advance() -> bytes | None:
            self.encoder.may_go.wait(10)
            nonlocal num_left
            self.num_steps, num_left = self.num_steps + 1, num_left - 1
            return None if num_left else self.encoder.embed([text])

        return LongText(advance, self.close)

    def close(self) -> None:
        self.num_held -= 1


def long_queue(encoder: Encoder, most: int) -> tuple[EncoderQueue, LongTexts]:
    texts = LongTexts(encoder)
    return EncoderQueue("m", encoder.embed, most, begin=texts.begin), texts


def numbers(found: Future[bytes]) -> list[float]:
    return array("f", found.result(10)).tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 30), max_size=8), min_size=1, max_size=6),
    st.integers(1, 40),
    st.booleans(),
)
def test_each_request_gets_its_own_vectors_in_order(requests: list[list[int]], most: int, has_long: bool) -> None:
    """Whatever the lengths: vectors in order, each text once, no batch over the bound but one of a single text."""
    encoder = Encoder()
    encoder.may_go.set()
    queue, long = long_queue(encoder, most) if has_long else (EncoderQueue("m", encoder.embed, most), None)
    texts = [[[index * 10 + at] * length for at, length in enumerate(each)] for index, each in enumerate(requests)]
    futures = [queue.submit(each) for each in texts]
    for each, future in zip(texts, futures, strict=True):
        assert numbers(future) == [number for text in each for number in (text[0], len(text))]
    queue.close()
    assert sum(map(len, encoder.batches)) == sum(map(len, requests))
    for batch in encoder.batches:
        assert len(batch) == 1 or sum(map(len, batch)) <= most
    if long is not None:
        assert long.num_held == 0
        assert sorted(map(len, long.begun)) == sorted(n for each in requests for n in each if n > most)


def test_short_request_does_not_wait_for_a_long_text() -> None:
    """Between two steps of a text of a thousand tokens a batch of others is computed."""
    encoder = Encoder()
    queue, texts = long_queue(encoder, 4)
    long = queue.submit([[1] * 1000, [3]])
    short = queue.submit([[2]] * 8)
    encoder.may_go.set()
    assert numbers(short) == [2, 1] * 8
    assert numbers(long) == [1, 1000, 3, 1]
    queue.close()
    assert encoder.batches == [[[2]] * 4, [[2]] * 4, [[1] * 1000], [[3]]]
    assert texts.num_steps == 1000


def test_a_long_text_that_nobody_waits_for_is_dropped_and_others_go_on() -> None:
    """Cancelled, without room, at fault, or left when the queue closes: what it held is given back once."""
    encoder = Encoder()
    queue, texts = long_queue(encoder, 4)
    left = queue.submit([[1] * 1000, [8]])
    while texts.num_held == 0:
        time.sleep(0.001)
    no_room, bad = queue.submit([[7], [555] * 9]), queue.submit([[666] * 9])
    good = queue.submit([[2] * 9, [4], [5] * 9])
    assert left.cancel()
    encoder.may_go.set()
    assert numbers(good) == [2, 9, 4, 1, 5, 9]
    with pytest.raises(CapacityError, match="no room"):
        no_room.result(10)
    with pytest.raises(BackendError, match="native:m: no vector"):
        bad.result(10)
    assert texts.num_steps < 100
    waits = queue.submit([[1] * 100_000])
    while texts.num_held == 0:
        time.sleep(0.001)
    queue.close()
    assert isinstance(waits.exception(10), CapacityError)
    assert texts.num_held == 0


def test_short_request_does_not_wait_for_a_long_one() -> None:
    """A request that comes after one with a hundred texts is in the next batch."""
    encoder = Encoder()
    queue = EncoderQueue("m", encoder.embed, 4)
    long = queue.submit([[1]] * 100)
    short = queue.submit([[2]])
    encoder.may_go.set()
    assert numbers(short) == [2, 1]
    assert len(numbers(long)) == 200
    assert [2] in [text for batch in encoder.batches[:2] for text in batch]
    queue.close()


def test_fault_is_that_of_the_request_that_has_it() -> None:
    """Of two requests in one batch the one with the fault fails, by the model's name, and the other does not."""
    encoder = Encoder()
    queue = EncoderQueue("m", encoder.embed, 100)
    first = queue.submit([[0]])  # alone, while the others come
    bad, good = queue.submit([[5], [666]]), queue.submit([[7], [8]])
    encoder.may_go.set()
    with pytest.raises(BackendError, match="native:m: no vector"):
        bad.result(10)
    assert numbers(good) == [7, 1, 8, 1]
    assert numbers(first) == [0, 1]
    queue.close()


def test_cancelled_request_is_computed_no_further() -> None:
    """Texts of a request that was cancelled leave the queue."""
    encoder = Encoder()
    queue = EncoderQueue("m", encoder.embed, 1)
    left = queue.submit([[1]] * 50)
    stays = queue.submit([[2]])
    assert left.cancel()
    encoder.may_go.set()
    assert numbers(stays) == [2, 1]
    queue.close()
    assert sum(batch == [[1]] for batch in encoder.batches) <= 2


def test_closed_queue_fails_what_waits_and_takes_nothing() -> None:
    """What waits fails with a reason; so does what comes later; closing twice is nothing."""
    encoder = Encoder()
    queue = EncoderQueue("m", encoder.embed, 1)
    waiting = [queue.submit([[n], [n]]) for n in range(4)]
    closing = threading.Thread(target=queue.close)
    closing.start()
    while not queue._is_closed:
        time.sleep(0.001)
    encoder.may_go.set()
    closing.join(10)
    assert not closing.is_alive()
    failures = [future.exception(10) for future in waiting]
    assert all(isinstance(failure, CapacityError) for failure in failures)
    with pytest.raises(CapacityError, match="unloaded"):
        queue.submit([[1]])
    queue.close()
    assert queue.submit([]).result() == b""
