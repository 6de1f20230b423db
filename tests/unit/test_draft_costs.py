"""Which drafts a step verifies, on simulated machines: much is won where text repeats, next to nothing ever lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting_runner import Client

from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine.drafts.acceptance import Acceptance
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.drafts.step_seconds import Balance, StepSeconds
from pyagent.infrastructure.engine.drafts.texts import SharedTexts, TextMemory
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.step_plan import Plan
from pyagent.infrastructure.engine.stats import DraftCounts

Machine = Callable[[int], float]


def reading_bound(rows: int) -> float:
    """A step of eight rows takes 1.7 times one of a single row."""
    return 0.01 * (1 + 0.1 * (rows - 1))


def compute_bound(rows: int) -> float:
    """Each row takes its full share: drafts cannot pay."""
    return 0.01 * rows


def odd(rows: int) -> float:
    """Quick up to four rows, and from then on slower than one could think."""
    return 0.01 if rows <= 4 else 0.1


def noise(count: int, num_kinds: int = 8, seed: int = 1) -> list[int]:
    """Tokens of so few kinds that everything was there before, and nothing follows from it."""
    return random.Random(seed).choices(range(num_kinds), k=count)


def copies(count: int) -> list[int]:
    page = random.Random(3).sample(range(10_000), k=200)
    return (page * (count // 200 + 1))[:count]


def gain(
    texts: Sequence[list[int]],
    machine: Machine,
    jitter: float = 0.0,
    num_prompt: int = 50,
    tell: Callable[[DraftCounts, float], None] = lambda counts, saved: None,
) -> float:
    """How much quicker answers that write these texts together are with drafts than without; tells what was counted."""
    requests = [request_for(text[:num_prompt], len(text) - num_prompt, number) for number, text in enumerate(texts)]
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    draw = random.Random(9)
    spent = plain = 0.0
    for request, text in zip(requests, texts, strict=True):
        request.tokens.append(text[num_prompt])
    running = dict(zip(requests, texts, strict=True))
    while running:
        rows = list(running)
        batch = Batch(lengths=[1] * len(rows), tokens=[one.tokens[-1] for one in rows], num_decoding=len(rows))
        plan = Plan(batch, rows, [], len(rows))
        drafts = speculation.choose(plan)
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        output = StepOutput([])
        for row, request in enumerate(rows):
            coming = running[request][len(request.tokens) :]
            tokens = drafts[row].tokens if row in drafts else []
            num_right = next((at for at, token in enumerate(tokens) if token != coming[at]), len(tokens))
            assert num_right < len(coming)
            output.tokens.append(coming[0])
            if num_right:
                output.more[row] = coming[1 : num_right + 1]
            request.tokens += coming[: num_right + 1]
            plain += machine(len(rows)) / len(rows) * (num_right + 1)
        seconds = machine(plan.num_tokens) * (1 + jitter * draw.random())
        spent += seconds / (1 + jitter / 2)
        speculation.note(plan, output, seconds)
        running = {one: text for one, text in running.items() if len(one.tokens) < len(text)}
    tell(speculation.counts, plain - spent)
    return plain / spent


def gain_ahead(text: list[int], gap: float) -> float:
    """How much quicker one answer is on a device that launches steps ahead; one that waits takes `gap` more."""
    request = request_for(text[:50], len(text) - 50)
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    request.tokens.append(text[50])
    spent, launched, waits = 0.0, False, False
    while (place := len(request.tokens)) < len(text):
        plan = Plan(Batch(lengths=[1], tokens=[text[place - 1]], num_decoding=1), [request], [], 1)
        drafts = {} if launched else speculation.choose(plan)
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        tokens = drafts[0].tokens if drafts else []
        after = Plan(Batch(num_decoding=1), [request], [], 1)
        awaits = bool(drafts) or speculation.awaits(after)
        num_right = next((at for at, token in enumerate(tokens) if token != text[place + at]), len(tokens))
        seconds = reading_bound(plan.num_tokens) + (0.0 if launched else gap)
        output = StepOutput(text[place : place + 1], more={0: text[place + 1 : place + 1 + num_right]})
        request.tokens += text[place : place + 1 + num_right]
        speculation.note(plan, output, seconds, has_waited=waits)
        spent += seconds
        launched, waits = not awaits, awaits
    return reading_bound(1) * (len(text) - 51) / spent


def request_for(prompt: list[int], max_tokens: int, number: int = 0) -> Request:
    return Client(number, prompt, max_tokens).request


@pytest.mark.parametrize("machine", [reading_bound, compute_bound, odd])
@pytest.mark.parametrize("jitter", [0.0, 0.5])
@pytest.mark.parametrize("num_texts", [1, 5])
def test_text_that_repeats_nothing_loses_next_to_nothing(machine: Machine, jitter: float, num_texts: int) -> None:
    """Though all of it was there before: at least 0.98 of the speed without drafts."""
    texts = [noise(1_500 // num_texts, seed=seed) for seed in range(num_texts)]
    assert gain(texts, machine, jitter) > (0.98 if jitter == 0 else 0.97)


def test_text_that_repeats_is_quicker() -> None:
    """Three times where a step's rows are cheap, also in a batch; not at all, and no slower, where they are not."""
    assert gain([copies(1_500)], reading_bound) > 3
    assert gain([copies(900), noise(900), copies(700)], reading_bound) > 1.2
    assert gain([copies(1_500)], compute_bound) > 0.98
    assert 2 < gain([copies(1_500)], odd) < 4.1


@pytest.mark.parametrize("gap", [0.0005, 0.002, 0.02])
def test_steps_wait_for_drafts_where_that_pays(gap: float) -> None:
    """A device that goes on by itself has idle time for each step that waits for tokens: next to nothing is lost."""
    assert gain_ahead(noise(1_500), gap) > 0.98
    assert gain_ahead(copies(1_500), gap) > (2 if gap < 0.01 else 1)
    assert gain_ahead(copies(700) + noise(1_500, num_kinds=2_000), gap) > 0.98


def test_waiting_in_vain_is_a_loss() -> None:
    """It is taken from what drafts may lose, and is not what a step without drafts takes."""
    request = request_for(copies(50), 100)
    plan = Plan(Batch(lengths=[1], tokens=[1], num_decoding=1), [request], [], 1)
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    for _ in range(3):
        speculation.note(plan, StepOutput([1]), 0.01)
    before = speculation._balance.seconds
    speculation.note(plan, StepOutput([1]), 0.05, has_waited=True)
    assert speculation.seconds.at(1) == 0.01
    assert speculation._balance.seconds < before - 0.03


def test_steps_that_waited_are_measured_where_they_had_drafts_or_nothing_is_known() -> None:
    """What they take is else never known on a device that goes on by itself."""
    request = request_for(copies(50), 100)
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    plain = Plan(Batch(lengths=[1], tokens=[1], num_decoding=1), [request], [], 1)
    speculation.note(plain, StepOutput([1]), 0.01, has_waited=True)
    assert speculation.seconds.at(1) == 0.01
    drafted = Plan(Batch(lengths=[3], tokens=[1] * 3, num_drafts={0: 2}, num_decoding=1), [request], [], 1)
    speculation.note(plain, StepOutput([1]), 0.01)
    for seconds in (0.03, 0.05, 0.05):
        speculation.note(drafted, StepOutput([1], more={0: [1]}), seconds, has_waited=True)
    assert speculation.seconds.at(3) == 0.05


def test_steps_wait_for_what_follows_the_token_on_its_way() -> None:
    """A proposal of one token says what that token is, and nothing after it."""
    request = request_for(copies(600), 100)
    speculation = Speculation(DraftOptions(), 64, lambda _, count: count)
    plan = Plan(Batch(lengths=[1], tokens=[1], num_decoding=1), [request], [], 1)
    for _ in range(3):
        speculation.note(plan, StepOutput([1]), 0.01)
    assert speculation.awaits(plan)
    request.max_tokens = 2
    assert speculation._propose(request) is not None
    assert not speculation.awaits(plan)


@pytest.mark.parametrize(
    ("text", "machine", "least"),
    [(copies(1_500), reading_bound, 5.0), (noise(1_500), odd, -0.2)],
    ids=["copy", "noise"],
)
def test_what_drafts_save_is_counted(text: list[int], machine: Machine, least: float) -> None:
    """Seconds saved are those that plain steps would have taken more, gained or lost; tokens are counted by source."""

    def tell(counts: DraftCounts, saved: float) -> None:
        assert counts.saved_seconds == pytest.approx(saved, abs=1e-9)
        assert counts.saved_seconds > least
        assert counts.verify_seconds > 0
        assert counts.drafted_from == {"own": counts.num_draft_tokens}
        assert counts.accepted_from == {"own": counts.num_accepted_tokens}

    gain([text], machine, tell=tell)


def test_text_that_stops_repeating_keeps_what_was_won() -> None:
    """Proposals that were right and are no more cost a few steps."""
    after = noise(1_500, num_kinds=2_000)
    assert gain([copies(1_000) + after], reading_bound, num_prompt=1_000) > 0.98
    assert gain([copies(600) + after], reading_bound) > 1.1


def test_rare_slow_steps_end_drafts() -> None:
    """What medians do not show, the balance does: one step in three with drafts takes as long as thirty without."""
    num_steps = 0

    def treacherous(rows: int) -> float:
        nonlocal num_steps
        num_steps += rows > 1
        return 0.3 if rows > 1 and num_steps % 3 == 2 else 0.01

    assert gain([copies(1_500)], treacherous) > 0.97


def test_balance_bounds_the_loss() -> None:
    """Whatever was expected: drafts that are always wrong and twice as slow lose a hundredth and a step."""
    balance, spent, plain = Balance(), 0.0, 0.0
    for _ in range(2_000):
        if balance.seconds < 0:
            balance.earn(1.0)
            spent += 1.0
        else:
            balance.note(2.0, 1.0, 1, 0)
            spent += 2.0
        plain += 1.0
    assert spent - plain < 0.011 * spent + 2
    for _ in range(1_000):
        balance.note(1.0, 1.0, 1, 7)
    assert balance.seconds <= 8


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-6, 10), min_size=1))
def test_seconds_lie_between_what_was_measured(measured: dict[int, float]) -> None:
    """Known rows have their median, others a line between their neighbours, and none is negative."""
    seconds = StepSeconds()
    for rows, value in measured.items():
        seconds.note(rows, value)
    for rows in range(1, 65):
        value = seconds.at(rows)
        assert value > 0
        if rows in measured:
            assert value == measured[rows]
        elif min(measured) < rows < max(measured):
            below, above = max(r for r in measured if r < rows), min(r for r in measured if r > rows)
            ends = measured[below], measured[above]
            assert min(ends) * 0.999 <= value <= max(ends) * 1.001


def test_few_measurements_are_forgotten() -> None:
    """One slow step of many rows keeps them out for a while, not for ever."""
    seconds = StepSeconds()
    seconds.note(8, 5.0)
    for _ in range(255):
        seconds.note(1, 0.01)
    assert seconds.at(8) == 5.0
    seconds.note(1, 0.01)
    assert seconds.at(8) == pytest.approx(0.017)
    assert StepSeconds().at(3) == 0


def test_rates_begin_with_those_of_all_and_become_ones_own() -> None:
    """A request whose proposals are wrong learns that of itself; others keep a rate near what they knew."""
    of_all = Acceptance()
    before = of_all.rate("own", 2)
    mine, other = Acceptance(of_all), Acceptance(of_all)
    for _ in range(12):
        mine.note("own", 2, 0, 1)
    assert mine.rate("own", 2) < 0.1
    assert mine.rate("own", 2) < other.rate("own", 2) < before
    assert other.rate("shared", 2) == before


def test_memory_of_texts_is_bounded() -> None:
    """The tenant that was answered longest ago gives way, and where there is no room for one there is none."""
    memory = TextMemory(2 * 12 * (1 << 18))
    shared = SharedTexts(2, memory)
    for tenant in ("a", "b", "a", "c"):
        shared.remember(tenant, [1, 2], [3])
    assert [tenant for tenant in "abc" if shared.of(tenant)] == ["a", "c"]
    assert memory.num_bytes == 2 * 12 * (1 << 18)
    assert not memory.take(1)
    assert shared.forget_oldest()
    assert [tenant for tenant in "abc" if shared.of(tenant)] == ["c"]
    none = SharedTexts(2, TextMemory(100))
    none.remember("a", [1, 2], [3])
    assert none.of("a") is None


def test_own_text_comes_before_earlier_answers() -> None:
    """Where the texts' memory is full, a request that begins has that of the tenant answered longest ago."""
    speculation = Speculation(DraftOptions(most_bytes=12 * (1 << 18) + 12 * 1024), 64, lambda _, count: count)
    for number in range(3):
        request = request_for([1, 2, 3, 4], 100, number)
        request.tokens.append(5)
        plan = Plan(Batch(lengths=[1], tokens=[5], num_decoding=1), [request], [], 1)
        speculation.choose(plan)
        assert request.drafts is not None
        assert request.drafts.text is not None
        request.finish_reason = "stop"
        if number != 1:
            speculation.end(request)
    assert speculation._memory.num_bytes <= 12 * (1 << 18) + 12 * 1024
