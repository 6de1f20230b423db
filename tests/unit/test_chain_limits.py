"""What a link's table and the rules limit, seen through a chain made from a pyagent.toml."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.chains import Played, ask, chain_of, in_turn, request, run, says
from support.waiting import Clock

from pyagent import Chain as ProgramChain
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.errors import (
    BackendError,
    BudgetError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    InvalidOutputError,
    RequestError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    Origin,
    ResponseFormat,
    SamplingParams,
    Tool,
    Usage,
)
from pyagent.core.structured_output.wanted import Wanted

TOOL = Tool(FunctionDefinition("f"))
SCHEMA = ResponseFormat(
    "json_schema",
    JsonSchemaFormat(schema={"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}),
)


def backends(chain: Chain, number: int, **fields: object) -> Counter[str]:
    return Counter(ask(chain, **fields).deltas[0].backend for _ in range(number))


def reasons(chain: Chain, **fields: object) -> dict[str, str]:
    rows = run(chain.explain(request(**fields)))
    return {row.backend: row.reason for row in rows}


def test_when_decides_who_is_asked_and_explain_says_why(tmp_path: Path) -> None:
    """A link with conditions gets only requests that meet them, and the explanation names the condition."""
    a, b = Played("a", says("a")), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", when = ["tools", "context > 50"] }, "link:b"]', a, b)
    assert ask(chain, tools=[TOOL]).text == "b"
    assert ask(chain, tools=[TOOL], messages=[Message("user", "word " * 100)]).text == "a"
    assert reasons(chain) == {"link:a": "only when tools", "link:b": "would be tried"}
    alone = chain_of(tmp_path, 'chain = [{ use = "link:a", when = "tools" }]', a)
    with pytest.raises(RequestError, match=r"no link of the chain takes this request: link:a: only when tools"):
        ask(alone)


def test_weights_share_requests_exactly(tmp_path: Path) -> None:
    """Neighbours with weights get requests in their proportion; one whose turn it is not is the fallback."""
    text = 'chain = [{ use = "link:a", weight = 3 }, { use = "link:b", weight = 1 }, "link:c"]'
    a, b, c = Played("a", says("a")), Played("b", says("b")), Played("c", says("c"))
    assert backends(chain_of(tmp_path, text, a, b, c), 40) == {"link:a": 30, "link:b": 10}
    a.play = says(BackendError("down", backend="link:a"))
    assert backends(chain_of(tmp_path, text, a, b, c), 8) == {"link:b": 8}


def test_weights_keep_a_conversation_at_one_link(tmp_path: Path) -> None:
    """Requests of one session go to one link; sessions are spread by weight."""
    text = 'chain = [{ use = "link:a", weight = 3 }, { use = "link:b", weight = 1 }]'
    chain = chain_of(tmp_path, text, Played("a", says("a")), Played("b", says("b")))
    assert all(len(backends(chain, 3, session=f"s{number}")) == 1 for number in range(5))
    spread = sum((backends(chain, 1, session=f"s{number}") for number in range(200)), Counter[str]())
    assert 120 < spread["link:a"] < 180


def test_one_server_may_be_several_links(tmp_path: Path) -> None:
    """Links of one name keep their own conditions, turns and sessions: two keys of one service share its requests."""
    a = Played("a", says("a"))
    text = 'chain = [{ use = "link:a", when = "tools" }, { use = "link:a", when = "not tools" }]'
    for number, tools in enumerate(([TOOL], [])):
        chain = chain_of(tmp_path, text, a)
        assert ask(chain, tools=tools).text == "a"
        assert [state.num_requests for state in chain.link_states()] == [1 - number, number]
    text = 'chain = [{ use = "link:a", weight = 3, timeout_seconds = 9 }, { use = "link:a", weight = 1 }]'
    chain = chain_of(tmp_path, text, a)
    assert backends(chain, 8) == {"link:a": 8}
    assert [state.num_requests for state in chain.link_states()] == [6, 2]
    chain = chain_of(tmp_path, text, a)
    for number in range(60):
        ask(chain, session=f"s{number}")
    assert all(state.num_requests > 5 for state in chain.link_states())


def test_refusal_says_what_keeps_each_link_from_the_request(tmp_path: Path) -> None:
    """Several answers, or privacy, are blamed only where they are why no link takes a request."""
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", when = "tools" }]\n', Played("a", says("a")))
    with pytest.raises(RequestError, match=r"is private, and no link of the chain is in rules\.private") as caught:
        ask(chain, private=True, tools=[TOOL])
    assert caught.value.param == "private"
    with pytest.raises(RequestError, match="no link of the chain gives several answers") as caught:
        ask(chain, private=True, n=2)
    assert caught.value.param == "n"
    here = chain_of(
        tmp_path, 'chain = [{ use = "link:a", when = "tools" }]\nrules.private = ["link"]\n', chain.links[0]
    )  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="takes this request: link:a: only when tools"):
        ask(here, private=True)


def test_link_timeout_bounds_silence_before_and_within_an_answer(tmp_path: Path) -> None:
    """A link that is silent for longer than its own time is passed by, or its answer goes on elsewhere."""
    a = Played("a", in_turn(says(60.0, "late"), says("half ", 60.0)))
    b = Played("b", in_turn(says("b"), says("done")), continues=True)
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", timeout_seconds = 0.3 }, "link:b"]', a, b)
    answer = ask(chain)
    assert answer.text == "b"
    assert "did not come within 0.3 s (timeout_seconds of the link)" in answer.deltas[0].attempts[0].reason
    assert ask(chain).text == "half done"
    assert chain.link_states()[0].failures == {"timeout": 1, "broken_off": 1}


def test_deadline_of_the_rules_covers_the_chain(tmp_path: Path) -> None:
    """A request that gives no time, or more, has what the rules give."""
    text = 'chain = ["link:a"]\n[rules]\ndeadline_seconds = 0.05\n'
    chain = chain_of(tmp_path, text, Played("a", says(60.0)))
    for fields in ({}, {"timeout_seconds": 100.0}):
        with pytest.raises(DeadlineError):
            ask(chain, **fields)


def test_rate_sends_to_the_next_link_and_says_when_to_return(tmp_path: Path) -> None:
    """A link whose rate is used up is passed by; with nobody left the caller is told when to come back."""
    clock = Clock()
    a, b = Played("a", says("a")), Played("b", says("b"))
    text = 'chain = [{ use = "link:a", rate = "2/min" }, { use = "link:b", rate = "1/min window" }]'
    chain = chain_of(tmp_path, text, a, b, clock=clock)
    assert backends(chain, 3) == {"link:a": 2, "link:b": 1}
    with pytest.raises(CapacityError) as caught:
        ask(chain)
    assert caught.value.retry_after_seconds == pytest.approx(30)
    assert chain.link_states()[0].failures == {"rate": 2}
    clock.now += 30
    assert backends(chain, 1) == {"link:a": 1}


def test_rate_per_client_counts_each_client(tmp_path: Path) -> None:
    """One client's requests do not use up another's rate."""
    text = 'chain = [{ use = "link:a", rate = "1/h per client" }, "link:b"]'
    chain = chain_of(tmp_path, text, Played("a", says("a")), Played("b", says("b")))
    for client in ("x", "y"):
        assert backends(chain, 2, origin=Origin(client=client)) == {"link:a": 1, "link:b": 1}


def test_retry_after_leaves_that_link_alone_until_then(tmp_path: Path) -> None:
    """Who said when to come back is not asked before, while others are."""
    clock = Clock()
    busy = CapacityError("slow down", retry_after_seconds=20)
    a, b = Played("a", in_turn(says(busy), says("a"))), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = ["link:a", "link:b"]', a, b, clock=clock)
    assert backends(chain, 3) == {"link:b": 3}
    assert (len(a.requests), chain.link_states()[0].cooldown_seconds) == (1, 20)
    clock.now += 20
    assert backends(chain, 1) == {"link:a": 1}


def test_concurrency_is_a_bulkhead(tmp_path: Path) -> None:
    """No more calls than allowed are under way at a link; the others go to the next, and nothing queues."""
    a, b = Played("a", says("a", 0.05)), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", concurrency = 3 }, "link:b"]', a, b)

    async def main() -> Counter[str]:
        answers = await asyncio.gather(*(collect(chain.chat(request())) for _ in range(10)))
        return Counter(answer.text for answer in answers)

    assert run(main()) == {"a": 3, "b": 7}
    assert a.most_running == 3
    assert chain.link_states()[0].num_in_flight == 0


def test_concurrency_auto_shrinks_when_a_link_is_overloaded(tmp_path: Path) -> None:
    """The limit that a link finds falls with its refusals and rises again with its answers."""
    a = Played("a", says(CapacityError("no room")))
    chain = chain_of(
        tmp_path, 'chain = [{ use = "link:a", concurrency = "auto" }, "link:b"]', a, Played("b", says("b"))
    )
    before = chain.link_states()[0].limit
    backends(chain, 10)
    after = chain.link_states()[0].limit
    assert before is not None
    assert after is not None
    assert after < before / 2
    a.play = says("a", 0.001)

    async def load() -> None:
        for _ in range(30):
            await asyncio.gather(*(collect(chain.chat(request())) for _ in range(after + 1)))

    run(load())
    assert (chain.link_states()[0].limit or 0) > after


def test_retries_and_jitter_of_the_rules(tmp_path: Path) -> None:
    """How often, and after which waits, a chain is tried again is as the rules say."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def tried(rules: str) -> list[float]:
        waits.clear()
        a = Played("a", says(BackendError("down", backend="a")))
        chain = chain_of(tmp_path, f'chain = ["link:a"]\n[rules]\n{rules}', a, sleep=sleep, draw=lambda low, _high: low)
        with pytest.raises(BackendError):
            ask(chain)
        return list(waits)

    assert tried("retries = 0") == []
    assert tried("retries = 2") == [0.0, 0.0]
    assert tried('retries = 2\njitter = "equal"') == pytest.approx([0.1, 0.2])
    assert tried('retries = 2\njitter = "decorrelated"') == pytest.approx([0.2, 0.2])


# -- money ------------------------------------------------------------------------------------------------------------

PRICED = 'chain = [{ use = "link:a", price = { input = 1000, output = 1000 } }, "link:b"]\n[rules]\n'


def paid(text: str, num_tokens: int) -> ChatDelta:
    return ChatDelta(content=text, usage=Usage(0, num_tokens, num_tokens))


def test_money_of_a_request_is_reserved_before_it(tmp_path: Path) -> None:
    """A link on which a request may cost too much is not asked; the next is."""
    a, b = Played("a", says("a")), Played("b", says("b"))
    chain = chain_of(tmp_path, PRICED + "usd_per_request = 0.05\n", a, b)
    assert ask(chain, sampling=SamplingParams(max_tokens=20)).text == "a"
    answer = ask(chain, sampling=SamplingParams(max_tokens=500))
    assert answer.text == "b"
    assert "rules.usd_per_request is $0.05" in answer.deltas[0].attempts[0].reason
    alone = chain_of(tmp_path, PRICED.replace(', "link:b"', "") + "usd_per_request = 0.05\n", a)
    with pytest.raises(BudgetError, match="usd_per_request"):
        ask(alone, sampling=SamplingParams(max_tokens=500))


def test_money_of_an_hour_is_settled_with_the_usage(tmp_path: Path) -> None:
    """What a request really cost counts for an hour; what was only reserved is given back."""
    clock = Clock()
    a, b = Played("a", says(paid("a", 40))), Played("b", says("b"))
    chain = chain_of(tmp_path, PRICED + "usd_per_hour = 0.1\n", a, b)
    chain = Chain(
        chain.links, settings=chain.settings, spend_limit=type(chain.spend_limit)(None, 0.1, clock), clock=clock
    )
    assert backends(chain, 3, sampling=SamplingParams(max_tokens=50)) == {"link:a": 2, "link:b": 1}
    state = chain.link_states()[0]
    assert (state.usd, state.completion_tokens) == (pytest.approx(0.08), 80)
    assert chain.spend_limit.reserved == 0
    clock.now += 3700
    assert backends(chain, 1, sampling=SamplingParams(max_tokens=50)) == {"link:a": 1}


# -- triggers ---------------------------------------------------------------------------------------------------------


def test_context_overflow_skips_links_known_to_be_as_small(tmp_path: Path) -> None:
    """A prompt too long for one link goes to the next that is not known to be too small for it."""
    long = ContextOverflowError("too long", num_tokens=9000, limit=4096)
    a, b, c = Played("a", says(long)), Played("b", says("b")), Played("c", says("c"))
    chain = chain_of(tmp_path, 'chain = ["link:a", { use = "link:b", context = 8192 }, "link:c"]', a, b, c)
    answer = ask(chain)
    assert answer.text == "c"
    assert b.requests == []
    assert [attempt.backend for attempt in answer.deltas[0].attempts] == ["link:a", "link:b"]


def test_content_filter_before_any_text_asks_the_next_link(tmp_path: Path) -> None:
    """A filtered answer is the next link's to give; when all filter, the caller is told that."""
    a, b = Played("a", says(finish="content_filter")), Played("b", says("fine"))
    answer = ask(chain_of(tmp_path, 'chain = ["link:a", "link:b"]', a, b))
    assert answer.text == "fine"
    assert "content filter" in answer.deltas[0].attempts[0].reason
    alone = ask(chain_of(tmp_path, 'chain = ["link:a"]', a))
    assert (alone.text, alone.last.finish_reason) == ("", "content_filter")


@pytest.mark.parametrize(
    ("form", "wrong", "right"),
    [
        (SCHEMA, '{"x": "one"}', '{"x": 1}'),
        (ResponseFormat("json_object"), "Sure! {}", "{}"),
        (ResponseFormat("choice", choice=["yes", "no"]), "maybe", "yes"),
    ],
)
def test_invalid_answer_is_asked_of_the_next_link(tmp_path: Path, form: ResponseFormat, wrong: str, right: str) -> None:
    """Invalid structured output reaches no caller that reads it whole, nor by rule one that streams."""
    a, b = Played("a", says(wrong)), Played("b", says(right))
    rule = '\n[rules]\ncheck_answers = "{}"\nretries = 0\n'
    links = 'chain = ["link:a", "link:b"]'
    chain = chain_of(tmp_path, links, a, b)
    assert ask(chain, response_format=form, whole=True).text == right
    assert chain.link_states()[0].failures == {"invalid": 1}
    assert ask(chain, response_format=form).text == wrong  # streamed: it was read while it came
    assert ask(chain_of(tmp_path, links + rule.format("always"), a, b), response_format=form).text == right
    assert ask(chain_of(tmp_path, links + rule.format("never"), a, b), response_format=form, whole=True).text == wrong
    with pytest.raises(InvalidOutputError, match="does not match response_format"):
        ask(chain_of(tmp_path, 'chain = ["link:a"]' + rule.format("whole"), a), response_format=form, whole=True)


def test_typed_answer_that_a_stop_string_cut_says_so(tmp_path: Path) -> None:
    """A program's type cannot be read of the beginning; the error names the request's texts to stop at."""
    cut, whole = Played("a", says('{"x": ')), Played("a", says('{"x": 1}'))
    sampling = SamplingParams(stop=("1", "\n"))
    wanted = Wanted({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})

    async def typed(played: Played, sampling: SamplingParams) -> object:
        program = ProgramChain(["native"])
        program.backend = chain_of(tmp_path, 'chain = ["link:a"]', played)
        return await program.answer_as(wanted, "hi", sampling)

    assert asyncio.run(typed(whole, sampling)) == {"x": 1}
    with pytest.raises(InvalidOutputError, match=r"stop strings \('1', '\\n'\): leave out those"):
        asyncio.run(typed(cut, sampling))
    with pytest.raises(InvalidOutputError) as caught:
        asyncio.run(typed(cut, SamplingParams()))
    assert "stop" not in str(caught.value)


# -- hedges -----------------------------------------------------------------------------------------------------------


def test_late_link_is_overtaken_and_the_loser_cancelled(tmp_path: Path) -> None:
    """After its time another link is asked too; the first to give a token answers, alone."""
    a, b = Played("a", says(30.0, "late")), Played("b", says("b", "b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.02 }, "link:b"]', a, b)
    answer = ask(chain)
    assert answer.text == "bb"
    assert (a.num_running, b.num_running) == (0, 0)
    state = chain.link_states()[1]
    assert (state.num_hedges, state.num_hedges_won) == (1, 1)
    assert chain.link_states()[0].breaker == "closed"


def test_hedge_that_loses_is_cancelled(tmp_path: Path) -> None:
    """The first link may still win; then the other is stopped, and nothing of it is told."""
    a, b = Played("a", says(0.06, "a", "a")), Played("b", says(30.0, "b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.02 }, "link:b"]', a, b)
    assert ask(chain).text == "aa"
    assert (len(b.requests), b.num_running) == (1, 0)
    assert chain.link_states()[1].num_hedges_won == 0


def test_caller_that_leaves_while_a_loser_closes_leaves_no_call_behind(tmp_path: Path) -> None:
    """Cancelled between a hedge's first token and the end of the slow link's closing, both calls are given back."""

    async def leave() -> None:
        is_closing = asyncio.Event()

        async def slow(_request: ChatRequest) -> AsyncIterator[ChatDelta]:
            try:
                await asyncio.sleep(30)
                yield ChatDelta(content="late")
            finally:
                is_closing.set()
                await asyncio.sleep(30)

        a, b = Played("a", slow), Played("b", says("b", 30.0))
        chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.02 }, "link:b"]', a, b)
        asked = asyncio.create_task(collect(chain.chat(request())))
        await is_closing.wait()
        asked.cancel()
        await asyncio.wait([asked])
        assert [state.num_in_flight for state in chain.link_states()] == [0, 0]
        assert (a.num_running, b.num_running) == (0, 0)

    run(leave())


def test_requests_with_tools_are_not_hedged(tmp_path: Path) -> None:
    """Two links that both run tools would run them twice."""
    a, b = Played("a", says(0.05, "a")), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.01 }, "link:b"]', a, b)
    assert ask(chain, tools=[TOOL]).text == "a"
    assert b.requests == []


def test_hedges_are_a_few_percent_of_requests(tmp_path: Path) -> None:
    """However late a link is, its budget bounds how many requests are sent twice."""
    a, b = Played("a", says(0.004, "a")), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.001 }, "link:b"]', a, b)
    backends(chain, 100)
    assert 1 <= len(b.requests) <= 7


def test_hedge_after_a_percentile_of_the_links_own_times(tmp_path: Path) -> None:
    """What is late is learnt from the link: none is hedged before there are enough times."""
    a, b = Played("a", says("a")), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = "p90" }, "link:b"]', a, b)
    assert backends(chain, 40) == {"link:a": 40}
    a.play = says(5.0, "a")
    assert ask(chain).text == "b"


def test_hedge_fails_over_like_any_call(tmp_path: Path) -> None:
    """When both fail, the third is asked, and all are told."""
    down = BackendError("down", backend="x")
    a, b, c = Played("a", says(0.03, down)), Played("b", says(down)), Played("c", says("c"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", hedge = 0.01 }, "link:b", "link:c"]', a, b, c)
    answer = ask(chain)
    assert answer.text == "c"
    assert {attempt.backend for attempt in answer.deltas[0].attempts} == {"link:a", "link:b"}


# -- the other calls --------------------------------------------------------------------------------------------------


def test_embedding_keeps_to_the_same_limits(tmp_path: Path) -> None:
    """Vectors come from a link within its rate, and from one named by the model."""
    a, b = Played("a", says("a")), Played("b", says("b"))
    chain = chain_of(tmp_path, 'chain = [{ use = "link:a", rate = "1/h" }, "link:b"]', a, b)
    models = [run(chain.embed(EmbedRequest(model="", input=["x"]))).model for _ in range(2)]
    assert models == ["link:a", "link:b"]
    assert run(chain.embed(EmbedRequest(model="link:b", input=["x"]))).model == "link:b"


def test_explain_shows_limits(tmp_path: Path) -> None:
    """A link's limits are said in words."""
    text = (
        'chain = [{ use = "link:a", weight = 2, timeout_seconds = 20, rate = "60/min per client", '
        'concurrency = "auto", price = { input = 1, output = 2 }, hedge = "p95", context = 8192 }]'
    )
    (row,) = run(chain_of(tmp_path, text, Played("a", says("a"))).explain(request()))
    for part in ("weight 2", "20 s of silence", "60 in 60 s for each client", "8 at once now", "95th", "8192 tokens"):
        assert part in row.limits
