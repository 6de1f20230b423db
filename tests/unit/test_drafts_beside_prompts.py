"""Drafts in steps that compute prompts too, on simulated machines: answers go on, and prompts lose next to nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from support.counting_runner import Client

from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine.drafts.beside_prompts import BesidePrompts
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.drafts.step_seconds import StepSeconds
from pyagent.infrastructure.engine.scheduler.step_plan import Chunk, Plan

STEP = 512
Machine = Callable[[int, int], float]
"""Seconds by rows and by drafts among them."""


def one_b(rows: int, drafts: int) -> float:
    """A model of 1B parameters: 60 ms to read, 2 ms a row where there are many."""
    return max(0.06 * (1 + 0.1 * (rows - 1)), 0.002 * rows)


def slow(rows: int, drafts: int) -> float:
    """Drafts beside prompts take the whole step again, which decode-only steps do not show."""
    return one_b(rows, drafts) * (2 if drafts and rows > 100 else 1)


def busy() -> Machine:
    """Something else takes the machine half of the time, and steps are up to five times as long."""
    draw = random.Random(3)
    return lambda rows, drafts: one_b(rows, drafts) * draw.choice([1, 1, 1, 2, 3, 5])


def deeper() -> Machine:
    """Steps take longer and longer, as prompts do whose tokens see more and more, and begin anew."""
    turns = iter(range(1_000_000))
    return lambda rows, drafts: one_b(rows, drafts) * (1 + next(turns) % 30 / 30)


class Gained(NamedTuple):
    """Tokens that decode beside prompts, and prompt tokens a second, against going without."""

    decoding: float
    prompts: float


def gained(texts: Sequence[list[int]], machine: Machine, num_steps: int = 400, jitter: float = 0.0) -> Gained:
    """Have these texts written while there is always a prompt to compute, after a few steps without."""
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    prompt = Client(len(texts), list(range(STEP * (num_steps + 1))), 1).request
    running = {Client(at, text[:300], 1).request: text for at, text in enumerate(texts)}
    for request, text in running.items():
        request.tokens.append(text[300])
        request.max_tokens = len(text)
    draw, spent, num_decoded, num_prompt = random.Random(2), 0.0, 0, 0
    for step in range(num_steps):
        rows = list(running)
        batch = Batch([one.id for one in rows], [1] * len(rows), [one.tokens[-1] for one in rows])
        batch.num_decoding = len(rows)
        plan = Plan(batch, rows.copy(), [one.tokens for one in rows], len(rows))
        start, size = 0, 0
        if step >= 4:
            start, size = prompt.num_computed, STEP - len(rows)
            plan.chunks.append(Chunk(prompt, size, start + size))
            prompt.num_computed += size
            plan.add_chunks()
        plan.add_drafts({row: ahead.tokens for row, ahead in speculation.choose(plan).items()})
        assert plan.num_tokens <= STEP
        assert not plan.chunks or (plan.chunks[0].end - 1) // 16 == (start + size - 1) // 16
        output = StepOutput([])
        for row, request in enumerate(rows):
            coming, num_drafts = running[request][len(request.tokens) :], batch.num_drafts.get(row, 0)
            first = sum(batch.lengths[:row]) + 1
            made = batch.tokens[first : first + num_drafts]
            num_right = next((at for at, token in enumerate(made) if token != coming[at]), len(made))
            output.tokens.append(coming[0])
            if num_right:
                output.more[row] = coming[1 : num_right + 1]
            request.tokens += coming[: num_right + 1]
            num_decoded += (num_right + 1) * (step >= 4)
        seconds = machine(plan.num_tokens, sum(batch.num_drafts.values())) * (1 + jitter * draw.random())
        speculation.note(plan, output, seconds)
        spent += seconds / (1 + jitter / 2) * (step >= 4)
        num_prompt += sum(chunk.num_tokens for chunk in plan.chunks)
    plain = sum(machine(STEP, 0) for _ in range(4, num_steps))
    num_plain = (num_steps - 4) * len(texts)
    return Gained(
        num_decoded / spent / (num_plain / plain),
        num_prompt / spent / (num_plain / len(texts) * (STEP - len(texts)) / plain),
    )


def copies(count: int, seed: int = 3) -> list[int]:
    page = random.Random(seed).sample(range(10_000), k=200)
    return (page * (count // 200 + 1))[:count]


def noise(count: int, seed: int = 1) -> list[int]:
    """Tokens of so few kinds that everything was there before, and nothing follows from it."""
    return random.Random(seed).choices(range(8), k=count)


def test_answers_beside_prompts_go_on_several_times_as_fast() -> None:
    """One that repeats its text, and several that share a fiftieth of the rows; the prompt loses that much at most."""
    told = gained([copies(4_000)], one_b)
    assert told.decoding > 5
    assert told.prompts > 0.98
    told = gained([copies(4_000, seed) for seed in range(8)], one_b)
    assert told.decoding > 1.8
    assert told.prompts > 0.975


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_wrong_drafts_cost_a_prompt_next_to_nothing(jitter: float) -> None:
    """Where nothing follows from what was there before, prompts and answers are at 0.99 of their speed."""
    told = gained([noise(1_000, seed) for seed in range(3)], one_b, jitter=jitter)
    assert min(told) > 0.99 - 0.02 * jitter


def test_drafts_that_slow_prompts_down_end() -> None:
    """Whatever decode-only steps say of a row, and however right the drafts are."""
    assert gained([copies(9_000)], slow, num_steps=1_000).prompts > 0.95


def test_a_busy_machine_is_not_laid_to_drafts() -> None:
    """Steps that take twice or five times as long, with drafts or without, leave most of what drafts give."""
    assert gained([copies(4_000)], busy()).decoding > 3


def test_longer_steps_late_in_a_prompt_are_not_laid_to_drafts() -> None:
    """Steps with drafts are compared with those around them."""
    assert gained([copies(4_000)], deeper()).decoding > 4


def test_drafts_are_worth_what_decode_only_steps_take() -> None:
    """Likeliest first, while one saves more than its row takes; none before both kinds of steps were measured."""
    decoding = StepSeconds()
    beside = BesidePrompts(decoding)
    assert beside.most(512) == 0
    beside.note(512, 0.512, has_drafts=False)
    assert beside.most(512) == 10
    assert beside.most(300) == beside.most(40) == 0
    assert beside.num_worth([0.9, 0.8], 1, 512) == 0
    for rows, seconds in ((1, 0.01), (2, 0.01), (8, 0.01)):
        decoding.note(rows, seconds)
    assert beside.num_worth([0.9, 0.5, 0.09], 1, 512) == 2
    assert beside.num_worth([0.9, 0.5, 0.3], 2, 512) == 3
    assert beside.num_worth([0.05, 0.05], 1, 512) == 0
    assert beside.num_worth([0.15], 1, 512) == 1
    assert beside.num_worth([0.102], 1, 512) == 0  # a gain of two hundredths is none
    for rows in (2, 8) * 9:
        decoding.note(rows, rows * 0.01)
    assert beside.num_worth([0.15], 1, 512) == 0  # a row has logits, which take as much again at most
    assert beside.num_worth([0.25], 1, 512) == 1


def test_drafts_cost_their_rows_and_what_most_pairs_of_steps_say() -> None:
    """Pairs of steps that follow each other, of about as many rows, one of them with drafts."""
    beside = BesidePrompts(StepSeconds())
    for _ in range(8):
        beside.note(100, 0.1, has_drafts=False)
        beside.note(512, 2.0, has_drafts=True)
    assert beside.cost(10, 1, 512) == pytest.approx(2.0 * 10 / 512)
    for num_slow, excess in ((2, 0.0), (3, 1 - 0.05)):
        for at in range(4):
            beside.note(512, 1.0, has_drafts=False)
            beside.note(512, 2.0 if at < num_slow else 1.0, has_drafts=True)
        for _ in range(9):
            beside.note(512, 1.0, has_drafts=False)
        assert beside.cost(10, 1, 512) == pytest.approx(10 / 512 + excess)


def test_drafts_beside_prompts_are_booked_once() -> None:
    """What they took of their step, and what decode-only steps save by them."""
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    decoding, prompt = Client(0, [1, 2], 9).request, Client(1, [1] * 512, 9).request
    plain = Plan(Batch([0], [1], [2], num_decoding=1), [decoding], [decoding.tokens], 1)
    for _ in range(3):
        speculation.note(plain, StepOutput([3]), 0.06)
    batch = Batch([0, 1], [5, 507], [2] * 512, num_drafts={0: 4}, num_decoding=1)
    plan = Plan(batch, [decoding], [decoding.tokens], 1, [Chunk(prompt, 507, 507)], unsampled=[prompt])
    before = speculation._balance.seconds
    speculation.note(plan, StepOutput([3], more={0: [4, 5]}), 1.0)
    counts, cost = speculation.counts, speculation._beside_prompts.cost(4, 1, 512)
    assert cost >= 4 / 512
    assert counts.verify_seconds == pytest.approx(cost)
    assert counts.saved_seconds == pytest.approx(2 * 0.06 - cost)
    assert (counts.num_draft_tokens, counts.num_accepted_tokens) == (0, 0)  # of a request without texts
    assert speculation._balance.seconds - before == pytest.approx(2 * 0.06 - cost + 0.01)


def test_drafts_beside_prompts_leave_room_for_all_that_are_sampled() -> None:
    """Steps have logits for so many rows, of which prompts that end have some."""
    speculation = Speculation(DraftOptions(), 4, lambda _, count: count)
    decoding = Client(0, copies(300), 90).request
    prompts = [Client(at, [1] * 255, 9).request for at in (1, 2)]
    sampled = [decoding, prompts[0]]
    plan = Plan(Batch([0, 1, 2], [1, 255, 255], [1] * 511, num_decoding=1), sampled, [], 1, num_free=9)
    plan.chunks, plan.unsampled = [Chunk(one, 255, 255) for one in prompts], prompts[1:]
    speculation._beside_prompts.note(511, 0.0511, has_drafts=False)
    speculation.seconds.note(1, 0.06)
    proposal = speculation._propose(decoding)
    assert proposal is not None
    assert speculation.lengths_beside_prompts([(0, proposal)], plan) == {0: 2}


def test_a_step_without_drafts_comes_now_and_then() -> None:
    """After two with drafts, after four, and at last after sixteen: what they cost is measured against something."""
    beside, runs = BesidePrompts(StepSeconds()), list[int]()
    for _ in range(20):
        beside.note(512, 1.0, has_drafts=False)
        runs.append(0)
        while beside.most(512) > 0:
            beside.note(512, 1.0, has_drafts=True)
            runs[-1] += 1
    assert runs[:2] == [2, 4]
    assert runs[-1] == max(runs) == 16


def test_drafts_take_the_place_of_prompt_tokens() -> None:
    """Those for which a step has no room: of its last chunk's last block, which goes on from there in the next step."""
    decoding, first, last = (Client(at, list(range(100 * at, 100 * at + 50)), 9).request for at in range(3))
    batch = Batch([decoding.id], [1], [49], num_decoding=1)
    plan = Plan(batch, [decoding], [decoding.tokens], 1)
    first.num_computed, last.num_computed = 20, 50
    plan.chunks = [Chunk(first, 20, 20), Chunk(last, 50, 50)]
    plan.num_free = 3
    plan.add_chunks()
    assert plan.draft_room == 3 + 3
    plan.add_drafts({0: [7, 8, 9, 10, 11]})
    assert batch.sequence_ids == [decoding.id, last.id, first.id]
    assert batch.lengths == [6, 50, 18]
    assert batch.tokens == [49, 7, 8, 9, 10, 11, *last.tokens, *first.tokens[:18]]
    assert batch.num_drafts == {0: 5}
    assert plan.chunks == [Chunk(first, 18, 18), Chunk(last, 50, 50)]
    assert (first.num_computed, plan.num_prompt) == (18, 73)


def test_a_chunk_keeps_a_token() -> None:
    """One that begins and ends in the same block is not put off whole."""
    decoding, prompt = Client(0, [1, 2], 9).request, Client(1, [3] * 50, 9).request
    plan = Plan(Batch([0], [1], [2], num_decoding=1), [decoding], [decoding.tokens], 1)
    plan.chunks = [Chunk(prompt, 3, 30)]
    plan.add_chunks()
    assert plan.draft_room == 2


def test_prompts_that_end_in_the_step_give_up_nothing() -> None:
    """There is room for what the step has beside them alone."""
    decoding, prompt = Client(0, [1, 2], 9).request, Client(1, [3, 4, 5], 9).request
    plan = Plan(Batch([0], [1], [2], num_decoding=1), [decoding], [decoding.tokens], 1, num_free=2)
    plan.chunks = [Chunk(prompt, 3, 3)]
    plan.add_chunks()
    assert plan.draft_room == 2
    plan.add_drafts({0: [6, 7]})
    assert plan.batch.lengths == [3, 3]
