"""For how many rows and how far a draft model is asked: what is best by the seconds and rates that are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from support.counting_runner import Client

from pyagent.infrastructure.engine.drafts.acceptance import ANY_PROBABILITY, MODEL, Acceptance
from pyagent.infrastructure.engine.drafts.model_choice import (
    AnswerLengths,
    Candidate,
    Choice,
    Costs,
    Trials,
    choose,
    least_chance,
    pays,
)
from pyagent.infrastructure.engine.drafts.model_drafts import DraftRow, ModelDrafts
from pyagent.infrastructure.engine.drafts.proposals import Proposal
from pyagent.infrastructure.engine.drafts.step_seconds import Overrun, StepSeconds
from pyagent.infrastructure.engine.request import Request

GAIN = 1.03


def machine(draw: random.Random) -> Costs:
    """Steps of more rows take longer, by steps and slopes of any size."""
    seconds: list[list[float]] = []
    for first in (1.0, draw.choice([0.0, 0.02, 0.1, 0.3, 1.2])):
        of_rows = [0.0, first]
        for _ in range(200):
            of_rows.append(of_rows[-1] + first * draw.choice([0.0, 0.05, 0.1, 0.4, 1.0]) * draw.random())
        seconds.append(of_rows)
    return Costs(seconds[0].__getitem__, seconds[1].__getitem__)


def line(first: float, slope: float = 0.0) -> Callable[[int], float]:
    """Seconds of so many rows."""
    return lambda rows: first + slope * rows


def rate_of(candidates: Sequence[Candidate], count: int, depth: int, num_rows: int, costs: Costs) -> tuple[int, float]:
    """The drafts of so many candidates so far, and the tokens a second that they give."""
    lengths = [min(depth, one.most) for one in candidates[:count]]
    given = num_rows + sum(one.rate**k for one, n in zip(candidates, lengths, strict=False) for k in range(1, n + 1))
    return sum(lengths), given / (costs.target(num_rows + sum(lengths)) + depth * costs.draft(count))


def test_the_choice_is_the_best_of_all() -> None:
    """On any machine, for any rows: no other depth for one, two, four or all rows gives more tokens a second."""
    draw, chosen = random.Random(2), 0
    for _ in range(400):
        costs, num_rows = machine(draw), draw.randint(1, 9)
        num_candidates, room = draw.randint(1, num_rows), draw.randint(1, 40)
        rates = sorted((draw.random() for _ in range(num_candidates)), reverse=True)
        candidates = [Candidate(rate, draw.randint(1, 7)) for rate in rates]
        plain = num_rows / costs.target(num_rows)
        other = plain * draw.choice([1.0, 1.0, 1.2, 2.0])
        best, found = max(other, GAIN * plain), None
        for count in sorted({1, 2, 4, 8, num_candidates}):
            for depth in range(1, 8):
                if count <= num_candidates and depth <= max(one.most for one in candidates[:count]):
                    num_drafts, rate = rate_of(candidates, count, depth, num_rows, costs)
                    if num_drafts <= room and rate > best * (1 + 1e-12):
                        best, found = rate, (count, depth)
        choice = choose(candidates, num_rows, room, other, costs)
        assert (choice and choice[:2]) == found
        if choice is not None:
            assert choice.gain == pytest.approx(best / plain)
            chosen += 1
    assert 100 < chosen < 350
    assert choose([], 3, 7, 0.0, machine(draw)) is None


def test_a_batch_is_drafted_for_where_its_rows_are_cheap() -> None:
    """Few rows of a batch that are surely right are drafted for alone, where each row costs its share."""
    sure, unsure = Candidate(0.95, 7), Candidate(0.2, 7)
    reading, bound = Costs(line(1, 0.02), line(0.05)), Costs(line(0, 1), line(0.05))
    assert choose([sure], 1, 64, 0.0, reading) == (1, 7, pytest.approx(rate_of([sure], 1, 7, 1, reading)[1] * 1.02))
    several = choose([sure] * 2 + [unsure] * 6, 8, 64, 0.0, reading)
    assert several is not None
    assert several.num_rows == 2
    assert choose([sure] * 8, 8, 64, 0.0, bound) is None


def test_a_further_draft_is_worth_its_seconds_or_is_not_made() -> None:
    """Just above the least chance a step with one draft more gives more tokens a second, just below it fewer."""
    draw = random.Random(3)
    for _ in range(200):
        costs, num_rows = machine(draw), draw.randint(1, 9)
        least = least_chance(1, num_rows, costs)
        plain = num_rows / costs.target(num_rows)
        seconds = costs.target(num_rows + 1) + costs.draft(1)
        assert (num_rows + least + 1e-6) / seconds >= plain * (1 - 1e-9)
        assert (num_rows + least - 1e-6) / seconds <= plain * (1 + 1e-9)
        in_all = least_chance(num_rows, num_rows, costs)
        assert in_all - least == pytest.approx((costs.draft(num_rows) / num_rows - costs.draft(1)) * plain)


def test_catching_up_pays_within_the_answer() -> None:
    """Where half of each token's time is saved, ten seconds are won back after twenty tokens of a second."""
    costs = Costs(line(0, 1), line(0))
    twice = Choice(1, 2, 2.0)
    assert not pays(10.0, 20, twice, 4, costs)
    assert pays(10.0, 21, twice, 4, costs)
    assert not pays(0.0, 100, Choice(1, 2, 1.0), 4, costs)


@pytest.mark.parametrize(("right_for", "num_asked"), [(0, 10), (5, 14)])
def test_trials_are_few_unless_they_are_right(right_for: int, num_asked: int) -> None:
    """One step in 64 where all are wrong; one that was right is followed by another at once, for as long."""
    trials, asked = Trials(), list[int]()
    for step in range(64 * 10):
        trials.begin()
        if trials.choice(lambda: 0 < len(asked) <= right_for):
            trials.note_asked()
            asked.append(step)
    assert asked[0] == 63
    assert asked[1 : 1 + right_for] == list(range(64, 64 + right_for))
    assert len(asked) == num_asked
    assert all(later - one in {1, 64} for one, later in pairwise(asked))


def test_trials_are_not_asked_whether_they_were_right_long_after() -> None:
    """What was right two steps ago says nothing of the next step; and a trial is of two tokens for one row."""
    trials = Trials()
    trials.begin()
    trials.note_asked()
    trials.begin()
    assert trials.choice(lambda: False) is None
    assert trials.choice(lambda: True) == (1, 2, 2.0)
    trials.begin()
    assert trials.choice(lambda: True) is None


def test_answers_are_expected_to_be_as_long_as_others_were() -> None:
    """256 tokens at first and at most; then the median, less what is there; as much again for one that is longer."""
    lengths = AnswerLengths()
    assert lengths.left(0, 10_000) == 256
    assert lengths.left(200, 10_000) == 200
    assert lengths.left(0, 7) == 7
    for length in (5, 5, 1_000):
        lengths.note(length)
    assert lengths.left(0, 10_000) == 5
    assert lengths.left(40, 10_000) == 40
    for _ in range(5):
        lengths.note(900)
    assert lengths.left(0, 10_000) == 256
    assert lengths.left(850, 10_000) == 256


def test_steps_that_are_slow_now_and_then_count_as_long_as_they_take() -> None:
    """One in three takes 30 times the others: 10.7 times on average; after 60 steps as expected it is near 1."""
    overrun = Overrun()
    assert overrun.ratio == 1
    for _ in range(40):
        for times in (1.0, 1.0, 30.0):
            overrun.note(0.1 * times, 0.1)
    assert overrun.ratio == pytest.approx(32 / 3, rel=0.1)
    for _ in range(60):
        overrun.note(0.1, 0.1)
    assert 1 < overrun.ratio < 1.3
    overrun.note(0.0, 0.1)
    for _ in range(300):
        overrun.note(0.01, 0.1)
    assert overrun.ratio == 1


def chosen(acceptances: Sequence[Acceptance], costs: Costs) -> Choice | None:
    rates = sorted((one.rate(MODEL, ANY_PROBABILITY) for one in acceptances), reverse=True)
    return choose([Candidate(rate, 7) for rate in rates], len(rates), 64, 0.0, costs)


def test_a_change_of_acceptance_is_noticed_within_forty_tokens() -> None:
    """Drafts end within 40 wrong tokens after any number of right ones, and go on within 20 right ones."""
    costs = Costs(line(1, 0.1), line(0.3, 0.01))
    for num_right in (10, 100, 3_000):
        mine = Acceptance(Acceptance())

        def tokens_until(right: int, done: Callable[[], bool], mine: Acceptance = mine) -> int:
            for count in range(10_000):
                if done():
                    return count
                mine.note(MODEL, ANY_PROBABILITY, right, 1)
            return 10_000

        for _ in range(num_right):
            mine.note(MODEL, ANY_PROBABILITY, 1, 1)
        assert chosen([mine], costs)
        assert 3 < tokens_until(0, lambda mine=mine: chosen([mine], costs) is None) < 40
        assert 0 < tokens_until(1, lambda mine=mine: chosen([mine], costs) is not None) < 20


@dataclass
class Asked:
    """Stands for a draft model: notes for whom it is asked, how far, and what it had to read."""

    behind: dict[int, int] = field(default_factory=dict)
    probabilities: list[float] = field(default_factory=lambda: [0.95] * 7)
    refused: set[int] = field(default_factory=set)
    seconds: StepSeconds = field(default_factory=StepSeconds)
    weight_ratio: float = 0.05
    most_drafts: int = 64
    now: float = 0.0
    read: list[int] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def seconds_of(self, num_rows: int) -> float:
        return self.seconds.at(num_rows)

    def num_behind(self, request: Request) -> int:
        return self.behind.get(request.id, 1)

    def can_follow(self, request: Request) -> bool:
        return request.id not in self.refused

    def catch_up(self, requests: Sequence[Request], running: set[int]) -> None:
        self.read += [request.id for request in requests]
        self.now += 3.0
        self.behind.update(dict.fromkeys(self.read, 1))

    def draft(
        self, asked: Sequence[tuple[Request, int]], running: set[int], goes_on: Callable[..., bool]
    ) -> list[tuple[Request, list[int], list[float]]]:
        self.asked = [(request.id, most) for request, most in asked]
        made: list[tuple[Request, list[int], list[float]]] = []
        for request, most in asked:
            told = self.probabilities[:1]
            while len(told) < most and goes_on(request, told):
                told = self.probabilities[: len(told) + 1]
            made.append((request, [7] * len(told), told))
        self.now += 0.5
        return made


def row_of(number: int, right: float | None = None, most: int = 7, text: float | None = None) -> DraftRow:
    """A request whose model drafts were right in so many of a hundred tokens, with a chance of its text's draft."""
    request, acceptance = Client(number, [1, 2, 3], 1_000).request, Acceptance(Acceptance())
    for at in range(0 if right is None else 100):
        acceptance.note(MODEL, ANY_PROBABILITY, int(at % 10 < 10 * (right or 0)), 1)
    return DraftRow(request, acceptance, most, None if text is None else Proposal([4], [text], "own", 2))


def asked_for(rows: Sequence[DraftRow], model: Asked, fund: float = 0.0, rate: float = 0.0) -> ModelDrafts:
    target = StepSeconds()
    for num_rows in range(1, 65):
        target.note(num_rows, 1 + 0.02 * (num_rows - 1))
    drafts = ModelDrafts(model, target)  # type: ignore[arg-type]
    drafts.note_prompts(200 * fund)  # half a hundredth of it is the fund's
    drafts.propose({row.request.id: row for row in rows}, len(rows), 64, rate)
    assert not drafts.is_lost
    return drafts


def test_a_requests_own_record_decides() -> None:
    """Of three requests the one that was right is drafted for, as far as it takes drafts."""
    model = Asked()
    drafts = asked_for([row_of(0, 0.0), row_of(1, 0.9, most=5), row_of(2, 0.0)], model)
    assert model.asked == [(1, 5)]
    assert drafts.draft_seconds == 0.5
    asked_for([row_of(0, 0.9, most=2), row_of(1, 0.9)], model)
    assert model.asked == [(0, 2), (1, 7)]


def test_a_model_is_asked_where_it_is_likelier_than_the_text() -> None:
    """Not for a row that its text serves as well, or one that it cannot follow."""
    model = Asked(refused={3})
    rows = [row_of(0, 0.8, text=0.97), row_of(1, 0.8, text=0.3), row_of(3, 0.8)]
    asked_for(rows, model)
    assert [number for number, _ in model.asked] == [1]
    asked_for(rows, none := Asked(refused={1, 3}))
    assert not none.asked
    asked_for([row_of(0, 0.8)], better := Asked(), rate=50.0)
    assert not better.asked


def test_a_row_goes_on_while_its_drafts_are_likely() -> None:
    """By what the model says of each and how often that was right; an unlikely token is the last."""
    model = Asked(probabilities=[0.95, 0.95, 0.1, 0.95, 0.95, 0.95, 0.95])
    row = row_of(0, 0.9)
    for _ in range(60):
        row.acceptance.note(MODEL, 0, 0, 1)
    drafts = asked_for([row], model)
    made = drafts.propose({0: row}, 1, 64, 0.0)[0]
    assert len(made.tokens) == 3
    assert made.buckets == [5, 5, 0]
    assert made.chances[1] == pytest.approx(made.chances[0] ** 2)
    assert made.chances[2] < 0.1
    assert made.bucket == ANY_PROBABILITY


@pytest.mark.parametrize(("fund", "read", "again"), [(0.0, [], []), (1.5, [0], [0]), (9.0, [0, 1], [0, 1, 0, 1])])
def test_logs_are_read_as_far_as_the_fund_goes(fund: float, read: list[int], again: list[int]) -> None:
    """Each costs 1.3 seconds here: none that is not paid for whole, and what they took, 3 s, is taken from the fund."""
    model, rows = Asked(behind={0: 256, 1: 256}), [row_of(0, 0.9), row_of(1, 0.9)]
    drafts = asked_for(rows, model, fund)
    assert model.read == read
    assert [number for number, _ in model.asked] == read
    model.behind = {0: 256, 1: 256}
    drafts.propose({row.request.id: row for row in rows}, 2, 64, 0.0)
    assert model.read == again


def test_logs_are_not_read_for_answers_that_are_nearly_over() -> None:
    """Neither where few tokens may come, nor where answers were short so far; 16 tokens are read as they are."""
    row, nearly_over = row_of(0, 0.9), row_of(0, 0.9)
    nearly_over.request.max_tokens = 1
    asked_for([nearly_over], model := Asked(behind={0: 256}), 9.0)
    assert (model.read, model.asked) == ([], [])
    drafts = asked_for([], model)
    ended = Client(5, [1], 100).request
    ended.tokens.append(4)
    model.end = lambda request: None  # type: ignore[attr-defined]
    drafts.end(ended)
    drafts.note_prompts(1_800)
    drafts.propose({0: row}, 1, 64, 0.0)
    assert (model.read, model.asked) == ([], [])
    model.read.clear()
    cut = asked_for([], model, 9.0)
    whole = Client(5, [1], 1).request
    whole.tokens.append(4)  # as long as it may be: it says nothing of others
    cut.end(whole)
    cut.propose({0: row}, 1, 64, 0.0)
    assert model.read == [0]
    model.behind = {0: 16}
    drafts.propose({0: row}, 1, 64, 0.0)
    assert [number for number, _ in model.asked] == [0]
    asked_for([row_of(0, 0.9)], near := Asked(behind={0: 16}), 9.0)
    assert (near.read, near.asked) == ([], [(0, 7)])


def test_a_trial_goes_on_while_it_is_right() -> None:
    """A request whose drafts were wrong has two in one step of 64; in the next step too where the first was sampled."""
    row, model, asked = row_of(0, 0.0), Asked(), list[int]()
    drafts = asked_for([row], model)
    for step in range(2, 131):
        model.asked = []
        drafts.propose({0: row}, 1, 64, 0.0)
        if model.asked:
            asked.append(step)
        if step in {128, 129}:
            row.request.tokens.append(7 if step == 128 else 8)
    assert asked == [64, 128, 129]
