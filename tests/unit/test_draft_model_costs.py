"""What a draft model costs and wins on simulated machines: much where it is right, next to nothing where it is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from support.counting_runner import Client

from pyagent import _rust
from pyagent.core.runners.batch import PLAIN_KEY, Batch, Likelihood, PrefixKey, StepOutput
from pyagent.infrastructure.engine.drafts.draft_model import DraftModel
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.drafts.step_seconds import Fund
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.step_plan import Chunk, Plan
from pyagent.infrastructure.engine.stats import DraftCounts

Machine = Callable[[int], float]
TARGET = 0.06
"""Seconds of the target's plain step."""


def machine(rows: int) -> float:
    """Eight rows take 1.7 times one."""
    return TARGET * (1 + 0.1 * (rows - 1))


@dataclass
class SimulatedDrafter:
    """Writes the recorded texts, right as often as `is_right` says, and sets the clock forward by `cost` of a step."""

    is_right: Callable[[], bool]
    cost: float
    fails_at: int = -1
    slow_every: int = 0
    texts: dict[int, list[int]] = field(default_factory=dict)
    now: float = 0.0
    num_steps: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    context_length: int = 100_000
    vocab_size: int = 1 << 20

    def __post_init__(self) -> None:
        self.pool = _rust.BlockPool(4_000)

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY, *, is_resumed: bool = False) -> int:
        return self.pool.add(sequence_id, tokens, tenant=key.tenant, count=not is_resumed)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        self.pool.reserve(sequence_id, num_tokens)
        return True

    def release(self, sequence_id: int) -> None:
        self.pool.release(sequence_id)

    def execute(self, batch: Batch) -> StepOutput:
        self.num_steps += 1
        if self.num_steps == self.fails_at:
            raise RuntimeError("out of luck")
        is_slow = self.slow_every > 0 and self.num_steps % self.slow_every == 0
        self.now += self.cost * machine(len(batch.tokens)) * (30 if is_slow else 1)
        output, start = StepOutput([]), 0
        for segment, (sequence_id, length) in enumerate(zip(batch.sequence_ids, batch.lengths, strict=True)):
            tokens, start = batch.tokens[start : start + length], start + length
            ahead = batch.num_ahead.get(segment)
            end = self.pool.num_tokens(sequence_id) + (ahead or 0) + length
            if ahead is None:
                self.pool.commit(sequence_id, tokens)
            if segment < len(batch.samplers):
                text, right = self.texts[sequence_id], self.is_right()
                output.tokens.append(text[end] if right and end < len(text) else 999_999)
                output.likelihoods[segment] = Likelihood(math.log(0.85 if right else 0.5), [])
        return output


def gain(
    texts: Sequence[list[int]], drafter: SimulatedDrafter, num_prompt: int = 50, wave: int = 64, most: int = 10_000
) -> float:
    """How much quicker answers that write these texts, so many together, are with the model's drafts than without.

    They may have `most` tokens each.
    """
    requests = [Client(at, text[:num_prompt], 1).request for at, text in enumerate(texts)]
    for request in requests:
        request.max_tokens = most
    drafter.texts = {request.id: text for request, text in zip(requests, texts, strict=True)}
    options = DraftOptions(method="draft_model", models={"": "draft"})
    model = DraftModel(drafter, 1 << 20, 64, drafter.cost, lambda: drafter.now)  # type: ignore[arg-type]
    speculation = Speculation(options, 64, lambda _, count: count, model=model)
    drafter.counts = speculation.counts
    spent = plain = 0.0
    for request, text in zip(requests, texts, strict=True):
        request.tokens.append(text[num_prompt])
    waiting, running = list(zip(requests, texts, strict=True)), dict[Request, list[int]]()
    while running or waiting:
        if not running:
            running, waiting = dict(waiting[:wave]), waiting[wave:]
        rows = list(running)
        batch = Batch(lengths=[1] * len(rows), tokens=[one.tokens[-1] for one in rows], num_decoding=len(rows))
        plan, before = Plan(batch, rows, [], len(rows)), drafter.now
        drafts = speculation.choose(plan)
        spent += drafter.now - before
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        output = StepOutput([])
        for row, request in enumerate(rows):
            coming = running[request][len(request.tokens) :]
            tokens = drafts[row].tokens if row in drafts else []
            pairs = enumerate(zip(tokens, coming, strict=False))
            num_right = next((at for at, (token, right) in pairs if token != right), min(len(tokens), len(coming)))
            num_right = min(num_right, len(coming) - 1)
            output.tokens.append(coming[0])
            if num_right:
                output.more[row] = coming[1 : num_right + 1]
            request.tokens += coming[: num_right + 1]
            plain += machine(len(rows)) / len(rows) * (num_right + 1)
        spent += machine(plan.num_tokens)
        speculation.note(plan, output, machine(plan.num_tokens))
        for request in rows:
            if len(request.tokens) >= len(running[request]):
                speculation.end(request)
                del running[request]
    drafter.pool.check()
    assert drafter.fails_at > 0 or drafter.pool.stats().active == 0
    return plain / spent


def test_what_a_draft_model_took_is_booked_once() -> None:
    """It was asked for a step in which none of its tokens was verified; the next one is launched ahead, unasked."""
    model = DraftModel(SimulatedDrafter(lambda: True, 0.1), 1 << 20, 64, 0.1, lambda: 0.0)  # type: ignore[arg-type]
    options = DraftOptions(method="draft_model", models={"": "draft"})
    speculation = Speculation(options, 64, lambda _, count: count, model=model)
    plan = Plan(Batch(lengths=[1], tokens=[1], num_decoding=1), [Client(0, [1, 2], 9).request], [], 1)
    speculation.note(plan, StepOutput([1]), TARGET)
    assert speculation.model is not None
    balance = speculation.model._balance
    speculation.model.draft_seconds = 0.1 * TARGET
    before = balance.seconds
    speculation.note(plan, StepOutput([1]), TARGET)
    assert balance.seconds < before
    assert speculation.draft_seconds == 0
    before = balance.seconds
    speculation.note(plan, StepOutput([1]), TARGET)
    assert balance.seconds > before


def test_a_draft_model_is_asked_in_steps_without_prompts_and_awaited_while_copies_may_lose() -> None:
    """Steps beside prompts have copies of texts alone; waiting in vain is at the copies' expense."""
    drafter = SimulatedDrafter(lambda: True, 0.02)
    text = fresh(100)
    request = Client(0, text[:50], 1).request
    request.max_tokens, drafter.texts = 1_000, {0: text}
    model = DraftModel(drafter, 1 << 20, 64, 0.02, lambda: drafter.now)  # type: ignore[arg-type]
    options = DraftOptions(method="draft_model", models={"": "draft"})
    speculation = Speculation(options, 64, lambda _, count: count, model=model)
    request.tokens.append(text[50])
    plan = Plan(Batch([0], [1], [text[50]], num_decoding=1), [request], [request.tokens], 1)
    for _ in range(3):
        speculation.note(plan, StepOutput([1]), TARGET)
    prompt = Client(1, [1] * 100, 9).request
    beside = Plan(Batch([0, 1], [1, 90], [1] * 91, num_decoding=1), [request], [], 1, [Chunk(prompt, 90, 90)])
    beside.unsampled = [prompt]
    assert speculation.choose(beside) == {}
    assert drafter.num_steps == 0
    assert speculation.awaits(plan)
    speculation._balance.seconds = -1.0
    assert not speculation.awaits(plan)
    speculation.choose(plan)
    assert drafter.num_steps > 0


def fresh(count: int, seed: int = 1) -> list[int]:
    """Tokens that repeat nothing, so that texts propose nothing."""
    return random.Random(seed).sample(range(900_000), k=count)


def sometimes(chance: float) -> Callable[[], bool]:
    draw = random.Random(4)
    return lambda: draw.random() < chance


@pytest.mark.parametrize("cost", [0.02, 0.15, 0.9])
@pytest.mark.parametrize("num_texts", [1, 5])
def test_a_model_that_is_always_wrong_costs_next_to_nothing(cost: float, num_texts: int) -> None:
    """Whatever its steps take beside the target's: at least 0.98 of the speed without it."""
    texts = [fresh(1_500 // num_texts + 200, seed) for seed in range(num_texts)]
    assert gain(texts, SimulatedDrafter(lambda: False, cost)) > 0.98


def test_a_model_that_is_often_right_pays() -> None:
    """By as much as its cost leaves of it; one that takes as long as its target does not, and does not cost."""
    assert gain([fresh(1_500)], SimulatedDrafter(sometimes(0.8), 0.1)) > 1.6
    assert gain([fresh(500, seed) for seed in range(5)], SimulatedDrafter(sometimes(0.8), 0.1)) > 1.2
    assert gain([fresh(1_500)], SimulatedDrafter(sometimes(0.6), 0.15)) > 1.15
    assert gain([fresh(1_500)], SimulatedDrafter(sometimes(0.8), 1.0)) > 0.98


def test_copies_and_drafts_of_a_model_serve_one_request_in_turns() -> None:
    """Where its text repeats the copies', elsewhere the model's; together they are quicker than the model alone."""
    parts = [fresh(300, seed) for seed in range(4)]
    text = [token for part in parts for token in [*part, *parts[0][50:250]]]
    drafter = SimulatedDrafter(sometimes(0.8), 0.1)
    both = gain([text], drafter)
    right = drafter.counts.accepted_from
    assert right["own"] > 400
    assert right["model"] > 400
    assert both > 1.1 * gain([fresh(len(text))], SimulatedDrafter(sometimes(0.8), 0.1))


def test_a_model_that_was_wrong_is_tried_again() -> None:
    """It is right after 7 wrong drafts, and soon pays."""
    steps = iter(range(100_000))
    turned = SimulatedDrafter(lambda: next(steps) > 6, 0.1)
    assert gain([fresh(3_000)], turned) > 1.1


def test_long_prompts_are_caught_up_with_where_that_pays() -> None:
    """Not for an answer of a few tokens; for a long one in pieces, as far as drafts have paid for it."""
    short = SimulatedDrafter(lambda: True, 0.1)
    assert gain([fresh(2_020)], short, num_prompt=2_000, most=20) > 0.98
    assert short.num_steps == 0
    long = SimulatedDrafter(lambda: True, 0.02)
    assert gain([fresh(2_600)], long, num_prompt=2_000) > 1.2


def test_a_model_that_fails_is_not_asked_again() -> None:
    """The answer goes on without it."""
    failing = SimulatedDrafter(lambda: True, 0.1, fails_at=20)
    assert gain([fresh(500)], failing) > 0.98
    assert failing.num_steps == 20


def test_rare_slow_steps_of_the_model_end_its_drafts() -> None:
    """What medians do not show, their overrun does: one draft step in three takes thirty times as long."""
    assert gain([fresh(1_500)], SimulatedDrafter(lambda: True, 0.1, slow_every=3)) > 0.98


def test_steps_of_which_nothing_was_expected_are_not_slow() -> None:
    """The first steps of a model that always takes as long count as long as they take."""
    drafter, request = SimulatedDrafter(lambda: True, 0.1), Client(0, fresh(10), 1).request
    drafter.texts = {0: fresh(200)}
    model = DraftModel(drafter, 1 << 20, 64, 0.1, lambda: drafter.now)  # type: ignore[arg-type]
    model.draft([(request, 3)], {0}, lambda _, probabilities: True)
    assert model.seconds_of(1) == pytest.approx(model.seconds.at(1)) == pytest.approx(0.1 * TARGET)


def test_a_models_seconds_have_its_slow_steps() -> None:
    """One step in three takes 30 times as long: a step is expected to take ten times the median and more."""
    drafter, request = SimulatedDrafter(lambda: True, 0.1, slow_every=3), Client(0, fresh(10), 1).request
    drafter.texts = {0: fresh(200)}
    model = DraftModel(drafter, 1 << 20, 64, 0.1, lambda: drafter.now)  # type: ignore[arg-type]
    for _ in range(6):
        model.draft([(request, 7)], {0}, lambda _, probabilities: True)
        request.tokens.append(drafter.texts[0][len(request.tokens)])
    assert model.seconds.at(1) == pytest.approx(0.1 * TARGET)
    assert 7 < model.seconds_of(1) / model.seconds.at(1) < 14


def test_answers_that_end_early_cost_the_fund_at_most() -> None:
    """The first prompts are read for answers of which more was expected than five tokens, later ones are not."""
    texts = [fresh(405, seed) for seed in range(60)]
    assert gain(texts, SimulatedDrafter(lambda: True, 0.1), num_prompt=400, wave=1) > 0.98


def test_the_fund_is_kept_for_long_answers() -> None:
    """One answer in four has 600 tokens, the others five: only those are read for, and they win."""
    texts = [fresh(1_000 if seed % 4 == 3 else 405, seed) for seed in range(16)]
    assert gain(texts, SimulatedDrafter(lambda: True, 0.1), num_prompt=400, wave=1) > 1.3


def test_fund_holds_what_was_won_and_no_more_than_it_may() -> None:
    """It begins with eight plain steps, grows by half a hundredth of the time, and ends at 256 plain steps."""
    fund = Fund()
    fund.note(10.0, 0.0, 0.0)
    assert fund.seconds == pytest.approx(0.05)
    fund.note(1.0, 1.0, 0.0)
    assert fund.seconds == pytest.approx(0.05 + 8 + 0.005)
    fund.note(1.0, 1.0, -9.0)
    assert fund.seconds < 0
    for _ in range(400):
        fund.note(1.0, 1.0, 1.0)
    assert fund.seconds == 256
