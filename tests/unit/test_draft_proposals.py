"""What is proposed for an answer, and what is learned of it: whose texts count, where they end, what is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.counting_runner import Client

from pyagent._rust import TokenIndex
from pyagent.core.runners.batch import Batch, PrefixKey, StepOutput
from pyagent.infrastructure.engine.drafts.acceptance import Acceptance
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.proposals import RequestDrafts
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.drafts.texts import OwnText, SharedTexts, TextMemory
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.step_plan import Plan

PAGE = list(range(100, 140))


def drafts_of(tokens: list[int], predicted: tuple[int, ...] = (), parent: Acceptance | None = None) -> RequestDrafts:
    text = OwnText.begin(tokens, predicted, 100, 2, TextMemory(1 << 20))
    return RequestDrafts(text, Acceptance(parent), predicted)


def proposed(drafts: RequestDrafts, tokens: list[int], num_prompt: int, shared: TokenIndex | None = None) -> list[int]:
    found = drafts.propose(tokens, num_prompt, 5, shared)
    return [] if found is None else found.tokens


def request_for(prompt: list[int], max_tokens: int = 50) -> Request:
    return Client(0, prompt, max_tokens).request


def knowing(options: DraftOptions | None = None) -> Speculation:
    """One that knows that steps of any number of rows take the same."""
    made = Speculation(options or DraftOptions(), 64, lambda _, count: count)
    for _ in range(3):
        made.seconds.note(1, 0.01)
        made.seconds.note(8, 0.01)
    return made


def plan_of(request: Request) -> Plan:
    return Plan(Batch(lengths=[1], tokens=[request.tokens[-1]], num_decoding=1), [request], [], 1)


def test_what_follows_a_wrong_token_says_nothing() -> None:
    """Of five proposed tokens whose first is wrong one counts: the others were never to be right."""
    of_all = Acceptance()
    drafts = drafts_of(PAGE, parent=of_all)
    tokens = [*PAGE, *PAGE[:2]]
    assert proposed(drafts, tokens, len(PAGE)) == PAGE[2:7]
    before = of_all.rate("own", 0)
    proposed(drafts, [*tokens, 1, *PAGE[3:7]], len(PAGE))
    one_wrong = Acceptance()
    one_wrong.note("own", 0, 0, 1)
    assert of_all.rate("own", 0) == one_wrong.rate("own", 0) < before


def test_a_prediction_that_was_wrong_is_not_gone_on_with() -> None:
    """It is followed from the answer's beginning; from where the answer differs it is a text as any other."""
    prompt, predicted = [1, 2, 3], tuple(PAGE)
    drafts = drafts_of(prompt, predicted)
    assert proposed(drafts, prompt, 3) == PAGE[:5]
    assert proposed(drafts, [*prompt, *PAGE[:2]], 3) == PAGE[2:7]
    assert proposed(drafts, [*prompt, *PAGE[:2], 9], 3) == []
    assert proposed(drafts, [*prompt, *PAGE[:2], 9, PAGE[3]], 3) == []
    assert proposed(drafts, [*prompt, *PAGE[:2], 9, PAGE[20], PAGE[21]], 3) == PAGE[22:27]


def test_a_prediction_is_no_part_of_the_prompt() -> None:
    """Its end and the prompt's beginning are no text: what stands there is not found as one."""
    drafts = drafts_of([7, 8, 9, 5, 6], (1, 5, 6))
    assert proposed(drafts, [7, 8, 9, 5, 6, 2, 5, 6], 5) == [2, 5, 6]


def test_of_equal_matches_the_request_s_own_counts() -> None:
    """Earlier answers are copied where more of the text fits them."""
    shared = TokenIndex(2, 1 << 12)
    shared.extend([1, 2, 50, 51])
    tokens = [1, 2, 60, 61, 9, 1, 2]
    found = drafts_of(tokens).propose(tokens, 5, 2, shared)
    assert found is not None
    assert (found.tokens, found.source) == ([60, 61], "own")
    shared.extend([9, 1, 2, 70, 71])
    found = drafts_of(tokens).propose(tokens, 5, 2, shared)
    assert found is not None
    assert (found.tokens, found.source) == ([70, 71], "shared")


def test_an_answer_s_first_tokens_are_found_by_the_prompt_s_end() -> None:
    """Eight tokens of it are kept with the answer."""
    shared = SharedTexts(2, TextMemory(1 << 22))
    shared.remember("", [*range(40), 90, 91], PAGE)
    index = shared.of("")
    assert index is not None
    assert index.propose([90, 91], 3)[0] == PAGE[:3]
    assert index.propose([30, 31], 3)[0] == []
    shared.remember("", [90], [1])
    assert index.propose(PAGE[-2:], 3)[0] == []


def test_rates_fade() -> None:
    """What was right long ago counts no more: forty tokens later the rate is near what was seen since."""
    rates = Acceptance()
    for _ in range(80):
        rates.note("own", 2, 1, 1)
    for _ in range(80):
        rates.note("own", 2, 0, 1)
    assert rates.rate("own", 2) < 0.25


@pytest.mark.parametrize(("reason", "is_kept"), [("stop", True), ("length", True), ("abort", False), (None, False)])
def test_whole_answers_alone_are_kept(reason: Any, is_kept: bool) -> None:
    """One that was given up is no answer; either way the request's own text gives its memory back."""
    speculation, request = knowing(), request_for([*PAGE, *PAGE[:3]])
    speculation.choose(plan_of(request))
    memory = speculation._memory
    assert memory.num_bytes == 12 * 1024
    request.finish_reason = reason
    speculation.end(request)
    speculation.end(request)
    assert memory.num_bytes == (12 * (1 << 18) if is_kept else 0)


def test_what_one_adapter_answered_is_not_proposed_to_another() -> None:
    """An answer is proposed to requests of the same adapter; the bare model counts as one."""
    speculation = knowing()

    def asked(adapter_id: int) -> Request:
        request = request_for([9, 8, *PAGE[:8]])
        request.key = PrefixKey(adapter_id)
        return request

    answered = asked(7)
    speculation.choose(plan_of(answered))
    answered.tokens += PAGE[8:20]
    answered.finish_reason = "stop"
    speculation.end(answered)
    told = {adapter_id: speculation.choose(plan_of(asked(adapter_id))) for adapter_id in (0, 7, 8)}
    assert [adapter_id for adapter_id, drafts in told.items() if drafts] == [7]


def test_requests_that_may_not_have_drafts_get_none() -> None:
    """Beam search, logits processors, and an answer of which one token is left."""
    speculation = knowing()

    def num_drafts(max_tokens: int = 50, **changes: object) -> int:
        request = request_for([*PAGE, *PAGE[:20]], max_tokens)
        for name, value in changes.items():
            setattr(request, name, value)
        return sum(len(ahead.tokens) for ahead in speculation.choose(plan_of(request)).values())

    assert num_drafts() == 7
    assert num_drafts(max_tokens=4) == 3
    assert num_drafts(max_tokens=1) == 0
    assert num_drafts(processors=(cast("Any", SimpleNamespace()),)) == 0
    assert num_drafts(search=cast("Any", SimpleNamespace())) == 0


def test_a_plain_step_is_measured_again() -> None:
    """After 128 steps with drafts one goes without: what a step takes changes with the machine."""
    speculation, request = knowing(), request_for([*PAGE, *PAGE[:3]])
    plain = 0
    for _ in range(200):
        plan = plan_of(request)
        drafts = speculation.choose(plan)
        plan.add_drafts({row: ahead.tokens for row, ahead in drafts.items()})
        plain += not drafts
        output = StepOutput([0])
        output.more = {0: drafts[0].tokens} if drafts else {}
        speculation.note(plan, output, 0.01)
    assert plain == 1
