"""What the host tells the device of a batch is what the pool knows: lengths, pages and shared tokens, step after step.

Sequences verify drafts, or run ahead of the pool as a draft model's do, while slots are freed and taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import pytest
import torch

from pyagent import _rust
from pyagent.core.runners.batch import BLOCK_TOKENS, Batch
from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape, DeviceBatch
from pyagent.infrastructure.engine.runners.torch.input_batch import InputBatch, read_once
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.step import Step

pytestmark = pytest.mark.oracle


class Segment(NamedTuple):
    """The next tokens of a sequence: the last `num_drafts` are drafts; one ahead lies `num_ahead` behind the pool's."""

    sequence: int
    tokens: list[int]
    num_drafts: int = 0
    num_ahead: int | None = None


class Watched:
    """A pool, and a batch on torch's CPU device that is told of it; each step is held against the pool."""

    def __init__(self, num_slots: int) -> None:
        self.pool = _rust.BlockPool(400, groups=[("full", 0, 1)])
        shape = BatchShape(num_slots, 40, 1)
        self.inputs = InputBatch(shape, KvLayers.of([None]))
        self.device = DeviceBatch(shape, 400, torch.device("cpu"))

    def step(self, *segments: Segment, accepted: Sequence[int] = ()) -> Step:
        """Compute a step, of whose drafts so many are `accepted` by segment; the others' tokens are the pool's."""
        batch = Batch(
            [one.sequence for one in segments],
            [len(one.tokens) for one in segments],
            [token for one in segments for token in one.tokens],
            [_rust.SamplerState() for _ in segments],
            [0] * len(segments),
            num_drafts={place: one.num_drafts for place, one in enumerate(segments) if one.num_drafts},
            num_ahead={place: one.num_ahead for place, one in enumerate(segments) if one.num_ahead is not None},
        )
        firsts = [self.pool.num_tokens(one.sequence) + (one.num_ahead or 0) for one in segments]
        for one, first in zip(segments, firsts, strict=True):
            self.pool.reserve(one.sequence, first + len(one.tokens))
        step = self.device.step(self.inputs.pack(batch, self.pool))
        self.expect(step, batch, firsts)
        self.device.note(step)
        for place, one in enumerate(segments):
            if one.num_ahead is None:
                num_kept = len(one.tokens) - one.num_drafts + (accepted[place] if accepted else 0)
                self.pool.commit(one.sequence, one.tokens[:num_kept])
        return step

    def launch(self, *sequences: int, num_launched: int) -> Step:
        """Launch a step ahead, of tokens that the host does not know; so many before it are not the pool's yet."""
        firsts = [self.pool.num_tokens(one) + num_launched for one in sequences]
        for one, first in zip(sequences, firsts, strict=True):
            self.pool.reserve(one, first + 1)
        batch = Batch(list(sequences), [1] * len(sequences), [], [_rust.SamplerState() for _ in sequences])
        step = self.device.step(self.inputs.pack(batch, self.pool))
        self.expect(step, batch, firsts)
        self.device.note(step)
        return step

    def expect(self, step: Step, batch: Batch, firsts: Sequence[int]) -> None:
        """Each token's position and page, each row's tokens and pages, and what all that decode have in common."""
        positions, lengths, places, tables = list[int](), list[int](), list[int](), list[list[int]]()
        beginnings = list[list[int]]()
        for segment, sequence in enumerate(batch.sequence_ids):
            pages, first = self.pool.tables(sequence)[0], firsts[segment]
            end = first + batch.lengths[segment]
            positions += range(first, end)
            places += [pages[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS for at in range(first, end)]
            own_end = end - batch.num_drafts.get(segment, 0)
            if own_end - first == 1:
                beginnings.append(pages[: first // BLOCK_TOKENS])
            for length in range(own_end, end + 1):
                lengths.append(length)
                tables.append(pages[: -(-length // BLOCK_TOKENS)])
        attention = step.attention[0]
        assert step.positions.tolist() == positions
        assert step.lengths.tolist() == list(attention.num_tokens) == lengths
        assert step.rows[0].tolist() == places
        alike = list(takewhile(lambda pages: len(set(pages)) == 1, zip(*beginnings, strict=False)))
        assert attention.num_shared == (read_once(BLOCK_TOKENS * len(alike)) if len(beginnings) > 1 else 0)
        found = attention.tables.tolist()
        assert [row[: len(table)] for row, table in zip(found, tables, strict=True)] == tables


def test_steps_ahead_of_the_pool_are_where_the_sequence_goes_on() -> None:
    """Over blocks' borders, in a slot that others had meanwhile, and back at the pool's length after it."""
    watched = Watched(num_slots=2)
    for sequence in range(4):
        watched.pool.add(sequence, [sequence + 1] * 29)
        watched.step(Segment(sequence, [sequence + 1] * 29))
    watched.step(Segment(0, [7]), Segment(1, [8]))
    for num_ahead in range(4):
        watched.step(Segment(0, [9], num_ahead=num_ahead), Segment(1, [9], num_ahead=num_ahead))
    watched.step(Segment(2, [5]), Segment(3, [5]))  # which take the slots
    watched.step(Segment(0, [9], num_ahead=4), Segment(1, [9], num_ahead=4))
    watched.step(Segment(0, [9], num_ahead=5), Segment(2, [5]))
    watched.pool.commit(0, [9, 9])  # what the target took of it
    watched.step(Segment(0, [8]), Segment(1, [3]))
    watched.step(Segment(0, [4], num_ahead=0), Segment(1, [3]))
    watched.step(Segment(0, [4]), Segment(1, [4]))


def test_pages_that_change_under_steps_ahead_are_told_again() -> None:
    """A block that was computed ahead becomes whole, and is one that another sequence has."""
    watched = Watched(num_slots=4)
    for sequence in range(2):
        watched.pool.add(sequence, [3] * 12, most_cached=0)
        watched.step(Segment(sequence, [3] * 12))
    watched.step(Segment(0, [3] * 10))
    for num_ahead in range(8):
        watched.step(Segment(1, [3], num_ahead=num_ahead))
    watched.pool.commit(1, [3] * 8)
    for _ in range(3):
        watched.step(Segment(1, [3, 3, 3]))
    assert watched.pool.tables(0)[0][0] == watched.pool.tables(1)[0][0]


def test_rows_that_verify_drafts_share_what_their_sequences_do() -> None:
    """Sequences that begin alike, with drafts or none: whole blocks before the first token of any row."""
    watched = Watched(num_slots=12)
    beginning = [place % 90 for place in range(288)]
    for sequence in range(3):
        watched.pool.add(sequence, [*beginning, sequence], most_cached=0)
        watched.step(Segment(sequence, [*beginning, sequence]))
    assert len({tuple(watched.pool.tables(sequence)[0][:18]) for sequence in range(3)}) == 1
    shared = [
        watched.step(Segment(0, [5, 6, 7], 2), Segment(1, [5]), Segment(2, [5, 6], 1)),
        watched.step(Segment(0, [5, 6], 1), Segment(1, [6, 7], 1)),
        watched.step(Segment(0, [8]), Segment(1, [8]), Segment(2, [8])),
        watched.step(Segment(0, [8, 9], 1), Segment(1, [8] * 20)),  # one decodes, beside a chunk
    ]
    assert [step.attention[0].num_shared for step in shared] == [256, 256, 256, 0]


def test_what_is_shared_follows_the_pages() -> None:
    """It grows as a block becomes whole that both have, ends where texts part, and is found again after a chunk."""
    watched = Watched(num_slots=4)
    for sequence, rest in enumerate(([4] * 45, [4] * 45, [5] * 60)):
        watched.pool.add(sequence, [4] * 272 + rest, most_cached=0)
        watched.step(Segment(sequence, [4] * 272 + rest))
    found = [watched.step(Segment(0, [4]), Segment(1, [4])).attention[0].num_shared for _ in range(6)]
    assert (found[0], found[-1]) == (256, 320)
    assert watched.step(Segment(0, [4]), Segment(2, [4])).attention[0].num_shared == 256
    watched.step(Segment(0, [4]), Segment(2, [4, 4]))
    assert watched.step(Segment(0, [4]), Segment(2, [4])).attention[0].num_shared == 256


def test_a_length_is_read_from_the_pool_once_after_drafts() -> None:
    """Steps that are launched after it go on by themselves: the pool has not their tokens yet."""
    watched = Watched(num_slots=8)
    for sequence in range(2):
        watched.pool.add(sequence, [sequence + 1] * 20)
        watched.step(Segment(sequence, [sequence + 1] * 20))
    watched.step(Segment(0, [5, 6, 7], 2), Segment(1, [5]), accepted=(1, 0))
    watched.step(Segment(0, [6]), Segment(1, [6]))
    for num_launched in range(14):  # into another block
        watched.launch(0, 1, num_launched=num_launched)


def test_sequences_that_end_after_drafts_leave_nothing() -> None:
    """Nor does a number that is a new sequence's find anything of the old one's."""
    watched = Watched(num_slots=8)
    for _ in range(3):
        for sequence in range(2):
            watched.pool.add(sequence, [sequence + 1] * 20, most_cached=0)
            watched.step(Segment(sequence, [sequence + 1] * 20))
        watched.step(Segment(0, [5, 6, 7], 2), Segment(1, [5, 6], 1))
        for sequence in range(2):
            watched.pool.release(sequence)
            watched.inputs.forget(sequence)
    watched.pool.add(9, [1, 2, 3])
    watched.step(Segment(9, [1, 2, 3]))
    assert not watched.inputs._drafted


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events_keeps_the_device_right(seed: int) -> None:
    """Random prompts, some of which begin alike, drafts, steps ahead, pauses and ends, with few slots."""
    draw, watched = random.Random(seed), Watched(num_slots=9)
    ahead, beginning = dict[int, int](), [place % 90 for place in range(330)]
    for _ in range(80):
        for sequence in [one for one in ahead if draw.random() < 0.05]:
            watched.pool.release(sequence)
            watched.inputs.forget(sequence)
            del ahead[sequence]
        segments, accepted = list[Segment](), list[int]()
        for sequence in draw.sample(range(6), draw.randint(1, 3)):
            if sequence not in ahead:
                prompt = beginning[: draw.choice((0, 272, 330))] + [
                    draw.randrange(3) for _ in range(draw.randint(1, 40))
                ]
                num_cached = watched.pool.add(sequence, prompt)
                ahead[sequence] = 0
                segments.append(Segment(sequence, prompt[num_cached:]))
                accepted.append(0)
                continue
            tokens = [draw.randrange(3) for _ in range(draw.randint(1, 3))]
            if draw.random() < 0.3:
                segments.append(Segment(sequence, tokens[:1], num_ahead=ahead[sequence]))
                ahead[sequence] += 1
                accepted.append(0)
                continue
            if ahead[sequence]:
                watched.pool.commit(sequence, [0] * draw.randint(0, ahead[sequence]))
            ahead[sequence] = 0
            segments.append(Segment(sequence, tokens, len(tokens) - 1))
            accepted.append(draw.randint(0, len(tokens) - 1))
        watched.step(*segments, accepted=accepted)
    watched.pool.check()
