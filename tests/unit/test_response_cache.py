"""Kept and shared answers: the same answers as without, within their bounds, for whoever asks, joins or leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chains import Played, ask, chain_of, in_turn, request, run, says
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.cluster.peers import answer_for_peer
from pyagent.core.errors import BackendError, DeadlineError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    Origin,
    PromptTokensDetails,
    ResponseFormat,
    SamplingParams,
    ToolCall,
    Usage,
)
from pyagent.core.response_cache.cache import ResponseCache
from pyagent.core.response_cache.store import ResponseStore
from pyagent.core.tool_call_deltas import as_deltas

ON = 'chain = ["link:a"]\n[response_cache]\nkeep = "determined"\n'
TWO = 'chain = ["link:a", "link:b"]\n[rules]\nretries = 0\n[response_cache]\nkeep = "determined"\n'
GREEDY = SamplingParams(temperature=0)
USAGE = Usage(3, 2, 5)
END = ChatDelta(finish_reason="stop", usage=USAGE)


def answering(*steps: Any) -> Any:
    """Plays the steps, then an end with usage."""

    async def play(_request: ChatRequest) -> AsyncIterator[ChatDelta]:
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Exception):
                raise step
            else:
                yield ChatDelta(content=step) if isinstance(step, str) else step
        yield END

    return play


def cache_of(chain: Chain) -> ResponseCache:
    assert chain.response_cache is not None
    return chain.response_cache


async def gathered(chain: Chain, *requests: ChatRequest) -> list[Any]:
    return await asyncio.gather(*(collect(chain.chat(one)) for one in requests), return_exceptions=True)


# -- kept answers -----------------------------------------------------------------------------------------------------


def test_nothing_is_kept_unless_set(tmp_path: Path) -> None:
    """Without the setting each request is asked for, and nothing of the cache is there."""
    a = Played("a", answering("one"))
    chain = chain_of(tmp_path, 'chain = ["link:a"]', a)
    ask(chain, sampling=GREEDY)
    ask(chain, sampling=GREEDY)
    assert (len(a.requests), chain.response_cache) == (2, None)


def test_equal_request_gets_the_same_deltas_at_once(tmp_path: Path) -> None:
    """A second answer has the pieces, tool calls and counts of the first, says that it was kept, and takes no time."""
    call = ChatDelta(tool_calls=as_deltas([ToolCall(id="call_7", function=FunctionCall("f", '{"x": 1}'))]))
    last = ChatDelta(finish_reason="tool_calls", usage=USAGE)

    async def play(_request: ChatRequest) -> AsyncIterator[ChatDelta]:
        for delta in (ChatDelta(content="one "), ChatDelta(content="two"), call, last):
            yield delta

    a = Played("a", play)
    chain = chain_of(tmp_path, ON, a)
    first, second = ask(chain, sampling=GREEDY), ask(chain, sampling=GREEDY)
    told = Usage(3, 2, 5, PromptTokensDetails(3), answer="cached")
    assert second.deltas == [*first.deltas[:-1], msgspec.structs.replace(first.last, usage=told)]
    assert first.usage == USAGE
    assert len(a.requests) == 1
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        run(collect(chain.chat(request(sampling=GREEDY))))
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.02  # less than one on an idle machine, with a new event loop each time


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(temperature=0, max_tokens=9)},
        {"messages": [Message("user", "ho")], "sampling": GREEDY},
        {"sampling": SamplingParams(seed=1)},
        {"sampling": GREEDY, "response_format": ResponseFormat("choice", choice=["one"])},
        {"sampling": GREEDY, "origin": Origin(client="other")},
        {"sampling": GREEDY, "private": True},
        {"sampling": GREEDY, "unsupported": "refuse"},
        {"sampling": GREEDY, "answer_prefix": "on"},
    ],
)
def test_whatever_decides_the_answer_is_told_apart(tmp_path: Path, fields: dict[str, Any]) -> None:
    """A request that differs in what decides its answer, or comes from another client, is asked for."""
    a = Played("a", answering("one"), continues=True)
    chain = chain_of(tmp_path, ON + '[rules]\nprivate = ["link"]\n', a)
    ask(chain, sampling=GREEDY)
    ask(chain, **fields)
    assert len(a.requests) == 2
    ask(chain, **fields)
    assert len(a.requests) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_seconds": 9.0},
        {"priority": 3},
        {"session": "s"},
        {"whole": True},
        {"origin": Origin(agent="math", run="7")},
    ],
)
def test_who_asks_how_urgently_does_not_matter(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Deadlines, queues, sessions and names of runs find the same answer."""
    a = Played("a", answering("one"))
    chain = chain_of(tmp_path, ON, a)
    ask(chain, sampling=GREEDY)
    assert ask(chain, sampling=GREEDY, **fields).usage.answer == "cached"


def test_links_that_may_answer_are_part_of_the_question(tmp_path: Path) -> None:
    """A request that only another link may see is not answered with what the first one said."""
    a, b = Played("a", answering("from a")), Played("b", answering("from b"))
    text = 'chain = [{ use = "link:a", when = "not agent = math" }, "link:b"]\n[response_cache]\nkeep = "determined"\n'
    chain = chain_of(tmp_path, text, a, b)
    assert ask(chain, sampling=GREEDY).text == "from a"
    assert ask(chain, sampling=GREEDY, origin=Origin(agent="math")).text == "from b"
    with pytest.raises(RequestError, match="private"):
        ask(chain, sampling=GREEDY, private=True)


def test_clients_share_where_that_is_set(tmp_path: Path) -> None:
    """With `between_clients` an answer made for one client is another's too."""
    a = Played("a", answering("one"))
    chain = chain_of(tmp_path, ON + "between_clients = true\n", a)
    for client in ("1", "2"):
        ask(chain, sampling=GREEDY, origin=Origin(client=client))
    assert len(a.requests) == 1


def test_drawn_answers_are_kept_only_where_that_is_set(tmp_path: Path) -> None:
    """`determined` passes a request with temperature and no seed by; `all` keeps its answer."""
    for keep, num_asked in (("determined", 2), ("all", 1)):
        a = Played("a", answering("one"))
        chain = chain_of(tmp_path, ON.replace("determined", keep), a)
        ask(chain)
        ask(chain)
        assert len(a.requests) == num_asked
        assert cache_of(chain).stats().num_bypassed == (2 if num_asked == 2 else 0)


@pytest.mark.parametrize(
    ("play", "wanted"),
    [
        (says("a", finish="content_filter"), None),
        (says("a", finish="abort"), None),
        (says("a", finish="error"), None),
        (says("not json"), ResponseFormat("json_object")),
        (says('{"a": ', finish="length"), ResponseFormat("json_object")),
        (says("half ", BackendError("down", backend="link:a")), None),
    ],
)
def test_unsound_answers_are_not_kept(tmp_path: Path, play: Any, wanted: ResponseFormat | None) -> None:
    """Filtered, aborted, failed and malformed answers are asked for again."""
    a = Played("a", play)
    chain = chain_of(tmp_path, ON.replace("[response_cache]", "[rules]\nretries = 0\n[response_cache]"), a)
    for _ in range(2):
        run(gathered(chain, request(sampling=GREEDY, response_format=wanted)))
    assert len(cache_of(chain).store) == 0
    assert len(a.requests) == 2


def test_stand_ins_answer_is_not_kept(tmp_path: Path) -> None:
    """What the second link said while the first was down is not said once the first is back."""
    down = BackendError("down", backend="link:a")
    a, b = Played("a", in_turn(says(down), answering("from a"))), Played("b", answering("from b"))
    chain = chain_of(tmp_path, TWO, a, b)
    texts = [ask(chain, sampling=GREEDY).text for _ in range(3)]
    assert texts == ["from b", "from a", "from a"]
    assert len(a.requests) == 2


def test_kept_answer_is_given_while_every_link_is_down(tmp_path: Path) -> None:
    """An answer that is there needs no link."""
    a = Played("a", in_turn(answering("one"), says(BackendError("down", backend="link:a"))))
    chain = chain_of(tmp_path, ON, a)
    assert [ask(chain, sampling=GREEDY).text for _ in range(2)] == ["one", "one"]


def test_answers_grow_too_old(tmp_path: Path) -> None:
    """After `ttl_seconds` an answer is forgotten, used or not."""
    a = Played("a", answering("one"))
    chain = chain_of(tmp_path, ON + "ttl_seconds = 10\n", a)
    now = [0.0]
    cache_of(chain).store.clock = lambda: now[0]
    for now[0] in (0.0, 6.0, 9.9, 10.0, 12.0):
        ask(chain, sampling=GREEDY)
    assert len(a.requests) == 2
    assert cache_of(chain).stats().num_expired == 1


def test_answers_to_pinned_prompts_stay_longest(tmp_path: Path) -> None:
    """When memory is used up, what begins with a pinned system prompt outlives what was used later."""
    a = Played("a", answering("one " * 500))
    chain = chain_of(tmp_path, ON + 'max_bytes = 20000\npinned = ["You translate"]\n', a)
    pinned = request(sampling=GREEDY, messages=[Message("system", "You translate well."), Message("user", "hi")])
    run(gathered(chain, pinned))
    for number in range(40):
        ask(chain, sampling=GREEDY, messages=[Message("user", str(number))])
    stats = cache_of(chain).stats()
    assert stats.num_evicted > 0
    assert stats.num_pinned == 1
    assert run(gathered(chain, pinned))[0].usage.answer == "cached"


def test_image_behind_an_address_is_looked_at_again(tmp_path: Path) -> None:
    """A picture in the request is part of it; one behind an address may be another tomorrow."""
    a = Played("a", answering("a cat"))
    chain = chain_of(tmp_path, ON, a)
    for url, num_asked in (("data:image/png;base64,AAAA", 1), ("https://example.com/cat.png", 3)):
        for _ in range(2):
            ask(chain, sampling=GREEDY, messages=[Message("user", [ImagePart(ImageUrl(url))])])
        assert len(a.requests) == num_asked


def test_text_that_cannot_be_written_down_is_asked_for(tmp_path: Path) -> None:
    """A lone surrogate has no UTF-8; such a request passes."""
    a = Played("a", answering("one"))
    chain = chain_of(tmp_path, ON, a)
    assert ask(chain, sampling=GREEDY, messages=[Message("user", "\ud800")]).text == "one"
    assert cache_of(chain).stats().num_bypassed == 1


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 900), st.booleans(), st.floats(0, 4)), max_size=60),
    st.integers(1, 8000),
)
def test_bounds_hold_whatever_comes(steps: list[tuple[int, int, bool, float]], max_bytes: int) -> None:
    """Bytes and ages stay within their bounds, what is found is what was put last, and the sum is that of the parts."""
    now = 0.0
    kept, put = ResponseStore(max_bytes, 10.0, lambda: now), dict[bytes, tuple[float, list[ChatDelta]]]()
    for number, size, is_pinned, seconds in steps:
        now += seconds
        key, deltas = b"%d" % number, [ChatDelta(content="x" * size), END]
        found = kept.get(key)
        if found is not None:
            assert found == put[key][1]
            assert now < put[key][0] + 10.0
        kept.put(key, deltas, is_pinned=is_pinned)
        put[key] = (now, deltas)
        assert kept.num_bytes <= max_bytes
        assert kept.held().num_pinned <= len(kept)
    kept.clear()
    assert (kept.num_bytes, len(kept)) == (0, 0)


# -- shared answers ---------------------------------------------------------------------------------------------------


def test_equal_requests_at_once_are_computed_once(tmp_path: Path) -> None:
    """Twenty requests at the same time are one to the link; all read all of it, also who came in the middle."""
    a = Played("a", answering("one ", 0.02, "two ", 0.02, "three"))
    chain = chain_of(tmp_path, ON, a)

    async def work() -> list[Any]:
        async def late(seconds: float) -> Any:
            await asyncio.sleep(seconds)
            return await collect(chain.chat(request(sampling=GREEDY)))

        return await asyncio.gather(*(late(number * 0.0015) for number in range(20)))

    answers = run(work())
    assert {answer.text for answer in answers} == {"one two three"}
    assert len(a.requests) == 1
    assert [answer.usage.answer for answer in answers].count("computed") == 1
    stats = cache_of(chain).stats()
    assert (stats.num_shared + stats.num_hits, stats.num_misses, stats.hit_ratio) == (19, 1, 0.95)
    assert stats.num_shared > 0


def test_who_leaves_disturbs_nobody_and_the_last_one_aborts(tmp_path: Path) -> None:
    """The first asker leaving lets the others go on; when all have left, the link's stream is closed at once."""
    a = Played("a", answering("one ", 0.05, "two"))
    chain = chain_of(tmp_path, ON, a)

    async def work() -> None:
        streams = [chain.chat(request(sampling=GREEDY)) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        await streams[0].aclose()
        assert a.num_running == 1
        assert "".join([delta.content async for delta in streams[1]]) == "two"
        await streams[2].aclose()
        cache_of(chain).store.clear()

        streams = [chain.chat(request(sampling=GREEDY)) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        for stream in streams:
            await stream.aclose()
        assert a.num_running == 0
        assert (await collect(chain.chat(request(sampling=GREEDY)))).text == "one two"

    run(work())
    assert len(a.requests) == 3


def test_who_is_in_a_hurry_does_not_wait_in_anothers_queue(tmp_path: Path) -> None:
    """Requests of another priority or class are computed beside an equal one under way, and found once it is kept."""
    a = Played("a", answering(0.02, "one"))
    chain = chain_of(tmp_path, ON, a)
    urgent = {"priority": -1}, {"request_class": "chat"}
    run(gathered(chain, request(sampling=GREEDY), *(request(sampling=GREEDY, **fields) for fields in urgent)))
    assert len(a.requests) == 3
    assert ask(chain, sampling=GREEDY, priority=-5).usage.answer == "cached"


def test_peer_does_not_wait_for_what_may_wait_for_it(tmp_path: Path) -> None:
    """A peer's request is computed beside an equal one of this node, which may have been sent to that peer."""
    chain = chain_of(tmp_path, ON, a := Played("a", in_turn(answering(60.0, "mine"), answering("its"))))

    async def of_peer() -> str:
        answer_for_peer()
        return (await collect(chain.chat(request(sampling=GREEDY)))).text

    async def work() -> None:
        own = asyncio.create_task(collect(chain.chat(request(sampling=GREEDY))))
        await until(lambda: a.num_running == 1)
        assert await asyncio.wait_for(asyncio.create_task(of_peer()), 20) == "its"
        own.cancel()
        await asyncio.gather(own, return_exceptions=True)
        assert (await collect(chain.chat(request(sampling=GREEDY)))).usage.answer == "cached"

    run(work())
    assert len(a.requests) == 2


def test_equal_requests_of_peers_are_computed_once(tmp_path: Path) -> None:
    """Those wait for nobody but this node's own links, and may be shared."""
    chain = chain_of(tmp_path, ON, a := Played("a", answering(0.05, "one")))

    async def work() -> list[str]:
        answer_for_peer()
        return [answer.text for answer in await gathered(chain, *[request(sampling=GREEDY)] * 5)]

    assert run(work()) == ["one"] * 5
    assert len(a.requests) == 1


def test_answers_under_way_are_forgotten_too(tmp_path: Path) -> None:
    """An answer begun before all is forgotten is told to its end and not kept; nobody joins it any more."""
    a = Played("a", answering("one ", 0.02, "two"))
    chain = chain_of(tmp_path, ON, a)

    async def work() -> None:
        stream = chain.chat(request(sampling=GREEDY))
        await anext(stream)
        assert cache_of(chain).clear() == 0
        assert "".join([delta.content async for delta in stream]) == "two"
        assert len(cache_of(chain).store) == 0
        stream = chain.chat(request(sampling=GREEDY))
        await anext(stream)
        cache_of(chain).clear()
        answer = await collect(chain.chat(request(sampling=GREEDY)))
        assert answer.usage.answer == "computed"
        await stream.aclose()
        assert len(cache_of(chain).store) == 1

    run(work())
    assert len(a.requests) == 3


def test_cancelled_caller_aborts_its_request(tmp_path: Path) -> None:
    """A caller whose task is cancelled leaves nothing running."""
    a = Played("a", answering("one ", 5.0))
    chain = chain_of(tmp_path, ON, a)

    async def work() -> None:
        task = asyncio.create_task(collect(chain.chat(request(sampling=GREEDY))))
        await until(lambda: a.num_running == 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert a.num_running == 0

    run(work())


def test_error_is_everybodys(tmp_path: Path) -> None:
    """A failure is told to all who wait, and the next request is asked for anew."""
    down = BackendError("down", backend="link:a", retryable=False)
    a = Played("a", in_turn(says(0.01, down), answering("one")))
    chain = chain_of(tmp_path, ON, a)
    answers = run(gathered(chain, *[request(sampling=GREEDY)] * 3))
    assert all(isinstance(answer, BackendError) for answer in answers)
    assert len(a.requests) == 1
    assert ask(chain, sampling=GREEDY).text == "one"


def test_each_caller_has_its_own_deadline(tmp_path: Path) -> None:
    """Who has less time leaves in time; who has more is not cut off by another's deadline, streamed or whole."""
    a = Played("a", answering(0.15, "one"))
    chain = chain_of(tmp_path, ON.replace("[response_cache]", "[rules]\nretries = 0\n[response_cache]"), a)

    async def work() -> list[Any]:
        hurried = [request(sampling=GREEDY, timeout_seconds=0.05, whole=whole) for whole in (False, True)]
        patient = [request(sampling=GREEDY, timeout_seconds=5.0, whole=whole) for whole in (False, True)]
        begun = [asyncio.create_task(collect(chain.chat(one))) for one in hurried]
        await asyncio.sleep(0.01)
        answers = await gathered(chain, *patient, *hurried)
        return [*await asyncio.gather(*begun, return_exceptions=True), *answers]

    answers = run(work())
    assert [isinstance(answer, DeadlineError) for answer in answers] == [True, True, False, False, True, True], answers
    assert {answer.text for answer in answers[2:4]} == {"one"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 5), st.integers(0, 4)),
        min_size=1,
        max_size=25,
    )
)
def test_answers_are_those_of_a_chain_without_it(tmp_path: Path, steps: list[tuple[int, bool, bool, int, int]]) -> None:
    """Whoever asks when, drawn or greedy, streamed or whole, leaving early or not: each reads what the link says."""

    async def play(asked: ChatRequest) -> AsyncIterator[ChatDelta]:
        for number in range(3):
            await asyncio.sleep(0)
            yield ChatDelta(content=f"{asked.messages[0].text}.{number} ")
        yield END

    a = Played("a", play)
    chain = chain_of(tmp_path, ON + "max_bytes = 3000\n", a)

    async def one(number: int, is_greedy: bool, whole: bool, ticks: int, leaves_after: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)
        sampling = GREEDY if is_greedy else SamplingParams()
        asked = request(messages=[Message("user", str(number))], sampling=sampling, whole=whole)
        expected = [f"{number}.{at} " for at in range(3)]
        told: list[str] = []
        async with aclosing(chain.chat(asked)) as stream:
            async for delta in stream:
                told += [delta.content] if delta.content else []
                if len(told) == leaves_after:
                    break
        assert told == (expected[:leaves_after] if leaves_after else expected)[: len(told)]
        assert len(told) == (min(leaves_after, 3) or 3)

    async def work() -> None:
        await asyncio.gather(*(one(*step) for step in steps))

    run(work())
    assert a.num_running == 0
    assert cache_of(chain).store.num_bytes <= 3000
