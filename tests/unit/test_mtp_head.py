"""A model's own head as a drafter: what it asks of its runner, and what it costs on a simulated machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from support.counting_runner import Client

from pyagent.core.runners.batch import Batch, DraftOutput, StepOutput
from pyagent.infrastructure.engine.drafts.acceptance import ANY_PROBABILITY, MODEL, Acceptance
from pyagent.infrastructure.engine.drafts.drafter import ANY_NUMBER
from pyagent.infrastructure.engine.drafts.model_drafts import DraftRow, ModelDrafts
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.drafts.step_seconds import StepSeconds
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.step_plan import Plan

WRONG = 999_999


@dataclass
class SimulatedRunner:
    """Drafts what `texts` have at a place, right as often as `is_right` says, and tells what it was asked."""

    texts: dict[int, list[int]]
    is_right: Callable[[], bool] = lambda: True
    cost: float = 0.02
    context_length: int = 10_000
    known: dict[int, int] = field(default_factory=dict)
    fault: int | None = None
    now: float = 0.0
    asked: list[tuple[list[int], list[int], list[int], list[int | None]]] = field(default_factory=list)

    @property
    def pool(self) -> SimulatedRunner:
        return self

    def num_tokens(self, sequence_id: int) -> int:
        return self.known[sequence_id]

    def draft(
        self, sequence_ids: Sequence[int], tokens: Sequence[int], num_ahead: Sequence[int], before: Sequence[int | None]
    ) -> DraftOutput:
        self.asked.append(([*sequence_ids], [*tokens], [*num_ahead], [*before]))
        self.now += self.cost
        places = [self.known[one] + ahead + 1 for one, ahead in zip(sequence_ids, num_ahead, strict=True)]
        found = [
            self.texts[one][place] if place < len(self.texts[one]) and self.is_right() else WRONG
            for one, place in zip(sequence_ids, places, strict=True)
        ]
        faults = {row: "no room" for row, one in enumerate(sequence_ids) if one == self.fault}
        return DraftOutput([(token, math.log(0.5 if token == WRONG else 0.9)) for token in found], faults)


def fresh(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).sample(range(900_000), k=count)


def requests_of(runner: SimulatedRunner, num_tokens: int) -> list[Request]:
    """Requests that have so many tokens of their texts, all computed but the last."""
    requests = [Client(name, text[:num_tokens], 1).request for name, text in runner.texts.items()]
    runner.texts = {one.id: text for one, text in zip(requests, runner.texts.values(), strict=True)}
    runner.known = {one.id: num_tokens - 1 for one in requests}
    return requests


def head_of(
    runner: SimulatedRunner,
    most_rows: int = 8,
    reserve: Callable[[Request, int], int] | None = None,
    most_drafts: int = ANY_NUMBER,
) -> MtpHead:
    reserve = reserve or (lambda _, count: count)
    return MtpHead(runner, most_rows, reserve, lambda: runner.now, most_drafts=most_drafts)  # type: ignore[arg-type]


def test_each_draft_goes_on_from_the_row_that_gave_it() -> None:
    """Rows that are over leave the batch, and the others say which row of the last pass was theirs."""
    runner = SimulatedRunner({seed: fresh(100, seed) for seed in range(3)})
    first, second, third = requests_of(runner, 10)
    texts = runner.texts
    drafted = head_of(runner).draft([(first, 1), (second, 3), (third, 2)], set(), lambda _, told: True)
    assert [(one, tokens) for one, tokens, _ in drafted] == [
        (first, texts[first.id][10:11]),
        (second, texts[second.id][10:13]),
        (third, texts[third.id][10:12]),
    ]
    assert [before for *_, before in runner.asked] == [[None] * 3, [1, 2], [0]]
    assert [ahead for *_, ahead, _ in runner.asked] == [[0] * 3, [1, 1], [2]]
    assert [tokens for _, tokens, *_ in runner.asked] == [
        [texts[one.id][9] for one in (first, second, third)],
        [texts[second.id][10], texts[third.id][10]],
        [texts[second.id][11]],
    ]


def test_what_ends_drafts() -> None:
    """No more room, rows or heads, the context's end, a token that ends the answer, and what is not worth going on."""
    runner = SimulatedRunner({0: fresh(100), 1: fresh(100, 2)}, context_length=12)
    first, second = requests_of(runner, 10)
    assert len(head_of(runner, most_drafts=1).draft([(first, 9)], set(), lambda _, told: True)[0][1]) == 1
    assert len(head_of(runner).draft([(first, 9)], set(), lambda _, told: True)[0][1]) == 2
    assert len(head_of(runner, reserve=lambda _, count: 1).draft([(first, 9)], set(), lambda _, told: True)[0][1]) == 1
    assert head_of(runner, reserve=lambda _, count: 0).draft([(first, 9)], set(), lambda _, told: True) == []
    assert len(head_of(runner, most_rows=1).draft([(first, 1), (second, 1)], set(), lambda _, told: True)) == 1
    assert len(head_of(runner).draft([(first, 2)], set(), lambda _, told: False)[0][1]) == 1
    first.end_ids = frozenset({runner.texts[first.id][10]})
    assert head_of(runner).draft([(first, 2)], set(), lambda _, told: True) == []
    runner.context_length = 10
    assert not head_of(runner).can_follow(second)


def test_requests_that_steps_have_not_brought_so_far_are_left_out() -> None:
    """A sequence with more or fewer tokens than the log's but one, and a log of one token."""
    runner = SimulatedRunner({0: fresh(100)})
    (request,) = requests_of(runner, 10)
    head = head_of(runner)
    assert head.can_follow(request)
    assert head.num_behind(request) == 1
    for known in (8, 10):
        runner.known[request.id] = known
        assert not head.can_follow(request)
        assert head.draft([(request, 2)], set(), lambda _, told: True) == []
    runner.known[request.id] = 0
    del request.tokens[1:]
    assert not head.can_follow(request)
    assert not runner.asked


def test_a_row_that_fails_is_not_drafted_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """The others are, once, as rows are counted without it; when the request has ended its number may be another's."""
    runner = SimulatedRunner({0: fresh(100), 1: fresh(100, 2)})
    first, second = requests_of(runner, 10)
    runner.fault = first.id
    head = head_of(runner)
    drafted = head.draft([(first, 2), (second, 2)], set(), lambda _, told: True)
    assert [(one, len(tokens)) for one, tokens, _ in drafted] == [(second, 1)]
    assert len(runner.asked) == 1
    assert "no room" in caplog.text
    assert not head.can_follow(first)
    head.end(first)
    assert head.can_follow(first)


def gain(runner: SimulatedRunner, target: float = 0.06) -> float:
    """How much quicker an answer that writes a fresh text is with the head's drafts than without."""
    (request,) = requests_of(runner, 50)
    request.max_tokens = 10_000
    text = runner.texts[request.id]
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count, model=head_of(runner))
    spent = plain = 0.0
    while len(request.tokens) < len(text) - 20:
        batch, before = Batch(lengths=[1], tokens=[request.tokens[-1]], num_decoding=1), runner.now
        plan = Plan(batch, [request], [], 1)
        drafts = speculation.choose(plan)
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        coming, tokens = text[len(request.tokens) :], drafts[0].tokens if drafts else []
        num_right = next((at for at, token in enumerate(tokens) if token != coming[at]), len(tokens))
        seconds = target * (1 + 0.1 * len(tokens))
        spent += runner.now - before + seconds
        plain += target * (1 + num_right)
        output = StepOutput([coming[0]], more={0: coming[1 : num_right + 1]} if num_right else {})
        request.tokens += coming[: num_right + 1]
        runner.known[request.id] = len(request.tokens) - 1
        speculation.note(plan, output, seconds)
    speculation.end(request)
    return plain / spent


def test_no_more_drafts_are_counted_on_than_there_are_heads() -> None:
    """With one head of Medusa a step wins one token at most: a draft that three are worth is not made for one."""
    row = DraftRow(Client(0, fresh(10), 1).request, Acceptance(), 7, None)
    row.acceptance.note(MODEL, ANY_PROBABILITY, 40, 40)
    target = StepSeconds()
    for num_rows, seconds in ((1, 1.0), (2, 1.9), (3, 1.91), (4, 1.92)):
        target.note(num_rows, seconds)
    drafts = {}
    for most in (1, 3):
        head = head_of(SimulatedRunner({}), most_drafts=most)
        head.seconds.note(1, 0.1)
        chosen = ModelDrafts(head, target)._choice([row], 1, 8, 1.0)
        drafts[most] = None if chosen is None else chosen.num_drafts
    assert drafts == {1: None, 3: 3}


def test_a_head_pays_where_it_is_right_and_costs_next_to_nothing_where_it_is_not() -> None:
    """With a fifth of a step a draft: always right, right four times in five, and always wrong."""
    draw = random.Random(4)
    assert gain(SimulatedRunner({0: fresh(1_500)}, cost=0.012)) > 2.0
    assert gain(SimulatedRunner({0: fresh(1_500)}, lambda: draw.random() < 0.8, cost=0.012)) > 1.3
    assert gain(SimulatedRunner({0: fresh(1_500)}, lambda: False, cost=0.012)) > 0.98
    assert gain(SimulatedRunner({0: fresh(1_500)}, lambda: False, cost=0.06)) > 0.98
