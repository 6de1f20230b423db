"""The fallback chain over scripted backends: who answers, who is passed by, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chains import Played, says

from pyagent.core.backends import collect
from pyagent.core.capabilities import PLAIN
from pyagent.core.chain import Chain
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    RequestError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    Message,
    ModelInfo,
    SamplingParams,
)
from pyagent.core.plugin_checks import backend_problem
from pyagent.core.resilience.retry import RetryPolicy

Step = str | float | Exception
NO_RETRY = RetryPolicy(num_retries=0)


class Link:
    """A backend that plays one script per call: texts are tokens, numbers are seconds of silence, errors are raised."""

    def __init__(self, name: str, *scripts: Sequence[Step]) -> None:
        self.name = name
        self.capabilities = PLAIN
        self.scripts = list(scripts) or [["hi"]]
        self.requests: list[ChatRequest] = []
        self.num_closed = 0

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=f"{self.name}-model")]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
        try:
            for step in script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield ChatDelta(content=step)
            if script:
                yield ChatDelta(finish_reason="stop")
        finally:
            self.num_closed += 1

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        step = self.scripts[0][0]
        if isinstance(step, Exception):
            raise step
        return EmbedResult(vectors=[[1.0] for _ in request.input], model=self.name)

    async def health(self) -> Health:
        return Health(is_ready=not isinstance(self.scripts[-1][0], Exception))

    async def close(self) -> None:
        self.num_closed += 100


def down(name: str) -> BackendError:
    return BackendError("connection refused", backend=name)


def request(**fields: object) -> ChatRequest:
    return ChatRequest(messages=[Message("user", "hi")], **fields)  # type: ignore[arg-type]


def ask(chain: Chain, **fields: object):
    async def main():
        return await collect(chain.chat(request(**fields)))

    return asyncio.run(main())


@pytest.mark.parametrize("steps", [(), ("be", "gun")])
def test_chain_goes_on_after_an_answer_that_ends_in_an_error(steps: tuple[str, ...]) -> None:
    """A link's `finish_reason: error` is its failure, before its first word and after: the next one is asked."""
    second = Played("b", says("whole"))
    answer = ask(Chain([Played("a", says(*steps, finish="error")), second]))
    assert (len(second.requests), answer.text.endswith("whole"), answer.last.finish_reason) == (1, True, "stop")


def test_chain_first_link_answers() -> None:
    """The first link that can answers, and every delta says so."""
    first, second = Link("a:1"), Link("b:1")
    answer = ask(Chain([first, second]))
    assert {delta.backend for delta in answer.deltas} == {"a:1"}
    assert answer.deltas[0].attempts == []
    assert second.requests == []


def test_chain_is_a_backend() -> None:
    """A chain satisfies the protocol of its links, so chains nest."""
    assert backend_problem(Chain([]), "chain") is None
    inner = Chain([Link("a", [down("a")]), Link("b", ["from b"])])
    assert ask(Chain([inner])).text == "from b"


def test_chain_fails_over_silently_before_the_first_token() -> None:
    """A link that fails before its first token is passed by, the first delta says why. Empty deltas do not count."""
    links = [Link("a:1", ["", down("a:1")]), Link("b:1", []), Link("c:1", [KeyError("bug")]), Link("d:1", ["hello"])]
    answer = ask(Chain(links))
    assert answer.text == "hello"
    reasons = {attempt.backend: attempt.reason for attempt in answer.deltas[0].attempts}
    assert reasons == {
        "a:1": "connection refused",
        "b:1": "b:1 ended its answer before it began",
        "c:1": "KeyError: 'bug'",
    }
    assert all(not delta.attempts for delta in answer.deltas[1:])


def test_chain_failure_after_the_first_token_names_the_backend() -> None:
    """Once text went out no other link continues it: the stream ends with an error naming who broke off."""
    other = Link("b:1")
    chain = Chain([Link("a:1", ["and the reason is", down("a:1")]), other], after_first_token="error")
    texts: list[str] = []

    async def main() -> None:
        async for delta in chain.chat(request()):
            texts.append(delta.content)  # noqa: PERF401 - a comprehension would lose what came before the error

    with pytest.raises(BackendError, match="a:1 broke off its answer: connection refused") as caught:
        asyncio.run(main())
    assert caught.value.backend == "a:1"
    assert texts == ["and the reason is"]
    assert other.requests == []


def test_chain_broken_answers_open_the_breaker() -> None:
    """A link that begins every answer and finishes none is left alone like one that never begins."""
    link = Link("a:1", ["x", down("a:1")])
    chain = Chain([link, Link("b:1", ["fine"])], retry_policy=NO_RETRY, after_first_token="error")
    for _ in range(3):
        with pytest.raises(BackendError, match="broke off"):
            ask(chain)
    assert ask(chain).text == "fine"


def test_chain_request_errors_do_not_fail_over() -> None:
    """What is the caller's fault is told at once, and counts as a sign of life."""
    other = Link("b:1")
    chain = Chain([Link("a:1", [RequestError("temperature is -1", param="temperature")]), other])
    for _ in range(5):
        with pytest.raises(RequestError, match="temperature"):
            ask(chain)
    assert other.requests == []


@pytest.mark.parametrize(
    "error",
    [
        ContextOverflowError("too long", num_tokens=9, limit=4),
        RequestError("no such model", param="model", code="model_not_found"),
        ModelError("file is gone", model="m"),
        CapacityError("queue is full", retry_after_seconds=1),
    ],
)
def test_chain_passes_by_a_link_that_lacks_room_or_model(error: Exception) -> None:
    """Too small a context, a missing model or a full queue at one link is no reason not to ask the next."""
    answer = ask(Chain([Link("a:1", [error]), Link("b:1", ["yes"])]))
    assert answer.text == "yes"
    assert answer.deltas[0].attempts[0].reason == str(error)


def test_chain_all_failed_lists_each_link_and_reason() -> None:
    """When nobody answers the error names every link with its reason."""
    chain = Chain([Link("a:1", [down("a:1")]), Link("b:1", [ModelError("no file", model="m")])], retry_policy=NO_RETRY)
    with pytest.raises(BackendError, match=r"a:1: connection refused; b:1: no file"):
        ask(chain)


def test_chain_of_one_link_raises_that_links_error() -> None:
    """A chain of one adds nothing to what its link says."""
    with pytest.raises(ModelError, match="no file"):
        ask(Chain([Link("a:1", [ModelError("no file", model="m")])]))


def test_chain_all_full_says_when_to_return() -> None:
    """When every link is full the caller is told to come back, after the shortest of their times."""
    full = [Link("a:1", [CapacityError("full", retry_after_seconds=30)]), Link("b:1", [CapacityError("full")])]
    with pytest.raises(CapacityError) as caught:
        ask(Chain(full))
    assert caught.value.retry_after_seconds == 30


def test_chain_retries_within_budget_and_waits_as_asked() -> None:
    """A transient failure of every link is tried again after a jittered wait; the caller sees one answer."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    link = Link("a:1", [CapacityError("busy", retry_after_seconds=2)], [down("a:1")], ["third time"])
    chain = Chain([link], sleep=sleep, clock=lambda: sum(waits), draw=lambda _low, high: high)
    answer = ask(chain)
    assert answer.text == "third time"
    assert [attempt.reason for attempt in answer.deltas[0].attempts] == ["busy", "connection refused"]
    assert waits == pytest.approx([2.2, 0.4])


def test_chain_open_breaker_is_skipped_and_probed_later() -> None:
    """After three failures a link is not asked, the answer says so, and one probe brings it back."""
    now = [0.0]
    flaky = Link("a:1", *[[down("a:1")]] * 3, ["back"])
    chain = Chain([flaky, Link("b:1", ["b"])], clock=lambda: now[0])
    for _ in range(3):
        assert ask(chain).text == "b"
    skipped = ask(chain)
    assert len(flaky.requests) == 3
    assert skipped.deltas[0].attempts[0].reason == "left alone after: backend (next probe in 5 s)"
    now[0] = 5.0
    assert ask(chain).text == "back"
    assert chain.name == "chain"


def test_chain_only_one_probe_goes_out() -> None:
    """Of many requests arriving at a half-open link, one tries it and the others go to the next link."""
    now = [0.0]
    flaky = Link("a:1", *[[down("a:1")]] * 3, [0.02, "back"])
    chain = Chain([flaky, Link("b:1", ["b"])], clock=lambda: now[0])
    for _ in range(3):
        ask(chain)
    now[0] = 5.0

    async def main() -> list[str]:
        answers = await asyncio.gather(*(collect(chain.chat(request())) for _ in range(8)))
        return sorted(answer.text for answer in answers)

    assert asyncio.run(main()) == ["b"] * 7 + ["back"]


def test_chain_keeps_to_the_callers_deadline() -> None:
    """A hanging first link leaves time for the second; when all hang the caller's deadline holds."""
    answer = ask(Chain([Link("a:1", [60.0]), Link("b:1", ["in time"])]), timeout_seconds=0.2)
    assert answer.text == "in time"
    assert "first token" in answer.deltas[0].attempts[0].reason

    async def main() -> float:
        start = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineError):
            await collect(Chain([Link("a:1", [60.0]), Link("b:1", [60.0])]).chat(request(timeout_seconds=0.2)))
        return asyncio.get_running_loop().time() - start

    assert asyncio.run(main()) < 30


def test_chain_deadline_covers_the_whole_answer() -> None:
    """An answer that began is cut at the deadline too, and its link's stream is closed."""
    link = Link("a:1", ["a", 60.0, "b"])
    with pytest.raises(DeadlineError, match="next token of a:1"):
        ask(Chain([link]), timeout_seconds=0.1)
    assert link.num_closed == 1


def test_chain_hurried_caller_does_not_open_the_breaker() -> None:
    """A caller who gives no time cannot shut a link for everybody."""
    chain = Chain([Link("a:1", [1.2, "slow but alive"]), Link("b:1", ["b"])])
    for _ in range(5):  # half of the time is left for the second link, enough for a collection of garbage in between
        assert ask(chain, timeout_seconds=1.0).text == "b"
    assert ask(chain).text == "slow but alive"


def test_chain_closing_the_iterator_aborts_the_link() -> None:
    """A caller that leaves closes the link's stream at once, and that is no failure of the link."""
    link = Link("a:1", ["a", "b", "c"])
    chain = Chain([link])

    async def main() -> None:
        stream = chain.chat(request())
        assert (await anext(stream)).content == "a"
        await stream.aclose()
        assert link.num_closed == 1

    for _ in range(5):
        link.num_closed = 0
        asyncio.run(main())
    assert ask(chain).text == "abc"


def test_chain_private_requests_stay_on_the_machine() -> None:
    """A private request is asked only of the schemes, or whole links, that the rules name."""
    away, home = Link("openai:http://x/v1"), Link("native:m")
    assert ask(Chain([away, home], private=["native"]), private=True).deltas[0].backend == "native:m"
    assert away.requests == []
    assert ask(Chain([away], private=["openai:http://x/v1"]), private=True).text == "hi"
    with pytest.raises(RequestError, match=r"rules\.private"):
        ask(Chain([away], private=["native"]), private=True)


def test_chain_model_that_is_a_links_name_picks_that_link() -> None:
    """Asking for a link by name asks nobody else, and the link gets its own default model."""
    first, second = Link("a:1"), Link("b:1", ["b"])
    assert ask(Chain([first, second]), model="b:1").text == "b"
    assert (first.requests, second.requests[0].model) == ([], "")
    assert ask(Chain([first, second]), model="some-model").text == "hi"
    assert first.requests[0].model == "some-model"


def test_chain_empty_is_one_sentence() -> None:
    """A chain without links says what to set."""
    with pytest.raises(BackendError, match="chain is empty: set `chain`"):
        ask(Chain([]))


def test_chain_models_health_and_close() -> None:
    """Models are merged with their link's name, one ready link makes it ready, and close reaches every link."""
    good, bad = Link("a:1"), Link("b:1", [down("b:1")])

    async def broken() -> Health:
        raise KeyError("plugin bug")

    bad.health = broken  # type: ignore[method-assign]
    chain = Chain([bad, good])
    assert [(model.id, model.backend) for model in asyncio.run(chain.models())] == [
        ("b:1-model", "b:1"),
        ("a:1-model", "a:1"),
    ]
    health = asyncio.run(chain.health())
    assert health.is_ready
    assert "KeyError" in health.detail
    asyncio.run(chain.close())
    assert (good.num_closed, bad.num_closed) == (100, 100)


def test_chain_embed_fails_over() -> None:
    """Embedding goes down the chain like chat does."""
    chain = Chain([Link("a:1", [down("a:1")]), Link("b:1")])
    assert asyncio.run(chain.embed(EmbedRequest(model="", input=["x"]))).model == "b:1"
    with pytest.raises(BackendError):
        asyncio.run(Chain([Link("a:1", [down("a:1")])]).embed(EmbedRequest(model="", input=["x"])))


def test_chain_explain_says_what_would_happen() -> None:
    """Explaining sends nothing and names, per link, the decision and its reason."""
    away, home, dead = Link("openai:http://x/v1"), Link("native:m"), Link("native:n", [down("n")])
    chain = Chain([away, home, dead], private=["native"])
    rows = asyncio.run(chain.explain(request(private=True)))
    assert [(row.backend, row.is_eligible, row.reason) for row in rows] == [
        ("openai:http://x/v1", False, "the request is private, this link is not"),
        ("native:m", True, "would be tried"),
        ("native:n", True, "would be tried, and would likely fail"),
    ]
    assert home.requests == []
    named = asyncio.run(chain.explain(request(model="native:m")))
    assert [row.is_eligible for row in named] == [False, True, False]
    none = asyncio.run(Chain([away]).explain(request(private=True)))
    assert not none[0].is_eligible


def test_error_that_is_its_own_cause_is_an_error() -> None:
    """A plugin may raise an error from itself, or two from one another: the next link is asked."""
    one, other = KeyError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    chain = Chain([Played("odd", says(one)), Played("next", says("hi"))])
    assert ask(chain).text == "hi"


outcome = st.sampled_from(["ok", "down", "overflow", "bug", "empty", "break"])


@given(st.lists(outcome, min_size=1, max_size=6))
def test_chain_any_mix_of_outcomes_has_one_meaning(outcomes: list[str]) -> None:
    """The first link that gives a token decides; before it all are listed as attempts; none is asked after it."""
    script: dict[str, Callable[[], list[Step]]] = {
        "ok": lambda: ["text"],
        "down": lambda: [BackendError("down", backend="x")],
        "overflow": lambda: [ContextOverflowError("long", num_tokens=2, limit=1)],
        "bug": lambda: [ZeroDivisionError("bug")],
        "empty": list,
        "break": lambda: ["text", ZeroDivisionError("bug")],
    }
    links = [Link(f"l:{index}", script[kind]()) for index, kind in enumerate(outcomes)]
    chain = Chain(links, retry_policy=NO_RETRY, after_first_token="error")
    decisive = next((index for index, kind in enumerate(outcomes) if kind in {"ok", "break"}), None)
    if decisive is None or outcomes[decisive] == "break":
        with pytest.raises((BackendError, ContextOverflowError, ZeroDivisionError, RequestError)):
            ask(chain)
    else:
        answer = ask(chain)
        assert [attempt.backend for attempt in answer.deltas[0].attempts] == [f"l:{i}" for i in range(decisive)]
    asked = [len(link.requests) for link in links]
    stop = len(links) if decisive is None else decisive + 1
    assert asked == [1] * stop + [0] * (len(links) - stop)
    assert all(link.num_closed == len(link.requests) for link in links)


def test_chain_empty_answer_goes_to_the_next_link() -> None:
    """An answer without a word is none while another link is left; alone it is told as it is, and no breaker opens."""
    empty, good = Played("empty", says()), Played("good", says("hello"))
    chain = Chain([empty, good])
    for _ in range(5):
        assert asyncio.run(collect(chain.chat(request()))).text == "hello"
    first = chain.link_states()[0]
    assert (first.breaker, first.failures) == ("closed", {"empty": 5})
    answer = asyncio.run(collect(Chain([empty]).chat(request())))
    assert (answer.text, answer.last.finish_reason) == ("", "stop")
    stopped = request(sampling=SamplingParams(stop=("x",)))
    assert asyncio.run(collect(chain.chat(stopped))).text == "", "it may have begun with the text to stop at"
