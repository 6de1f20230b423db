"""An answer broken off in the middle: goes on elsewhere without a character lost or doubled, begins anew, or ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chains import Play, Played, ask, chain_of, in_turn, quick, request, run, says

from pyagent.core.backends import collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain import Chain
from pyagent.core.chain.delivered_answer import Seam, anchor_of
from pyagent.core.errors import BackendError, DeadlineError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FunctionCall,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingParams,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from pyagent.core.resilience.breaker import BreakerPolicy
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.backends.openai_requests import encode_request

GONE = BackendError("connection closed", backend="link:a")
TEXT = "The quick brown fox jumps over the lazy dog, and the dog, being lazy, does not mind it at all."
CALL = ToolCall(id="1", function=FunctionCall("pay", "{}"))


def exact(text: str, size: int = 3) -> Play:
    """Answers with `text`, going on from an `answer_prefix` as a backend that `continues` does."""

    async def play(asked: ChatRequest) -> AsyncIterator[ChatDelta]:
        assert text.startswith(asked.answer_prefix)
        rest = text[len(asked.answer_prefix) :]
        for at in range(0, len(rest), size):
            yield ChatDelta(content=rest[at : at + size])
        yield ChatDelta(finish_reason="stop", usage=Usage(9, len(text), 9 + len(text)))

    return play


def repeating(text: str, how: str) -> Play:
    """Goes on when it is asked in words to: after the last words as it was told, after all of it, or at once."""

    async def play(asked: ChatRequest) -> AsyncIterator[ChatDelta]:
        told = asked.messages[-2].text
        assert text.startswith(told)
        assert anchor_of(told) in asked.messages[-1].text
        begin = {"words": anchor_of(told), "all": told, "nothing": "", "quoted": '… "' + anchor_of(told)}[how]
        answer = begin + text[len(told) :]
        for at in range(0, len(answer), 5):
            yield ChatDelta(content=answer[at : at + 5])
        yield ChatDelta(finish_reason="stop")

    return play


FILE = 'chain = ["link:a", "link:b"]\n[rules]\nafter_first_token = "{}"\n'


def test_answer_continues_exactly_on_a_link_that_can(tmp_path: Path) -> None:
    """The next link gets the text told so far, and what it says follows without a seam; the delta says so."""
    a, b = Played("a", says("The qui", "ck brown", GONE)), Played("b", exact(TEXT), continues=True)
    chain = chain_of(tmp_path, FILE.format("continue"), a, b)
    answer = ask(chain)
    assert answer.text == TEXT
    assert b.requests[0].answer_prefix == "The quick brown"
    resumed = [delta for delta in answer.deltas if delta.resumed][-1]
    assert resumed.resumed is not None
    assert (resumed.resumed.kind, resumed.resumed.backend) == ("continue", "link:a")
    assert resumed.resumed.reason == "connection closed"
    assert resumed.backend == "link:b"
    assert {attempt.backend for attempt in answer.deltas[0].attempts} == {"link:a"}
    states = {state.backend: state for state in chain.link_states()}
    assert states["link:b"].num_continued == 1
    assert states["link:a"].failures == {"broken_off": 1}


@given(st.integers(1, len(TEXT) - 1), st.sampled_from(["words", "all", "nothing", "quoted"]), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_answer_continues_in_words_without_a_character_lost_or_doubled(cut: int, how: str, size: int) -> None:
    """Wherever it breaks off, and whatever of it the next link repeats, the text is whole."""
    told = [TEXT[at : min(at + size, cut)] for at in range(0, cut, size)]
    links = [Played("a", says(*told, GONE)), Played("b", repeating(TEXT, how))]
    assert ask(Chain(links)).text == TEXT


@settings(deadline=None)
@given(st.text(min_size=1), st.text(), st.integers(1, 7))
def test_seam_of_any_text_is_exact(told: str, rest: str, size: int) -> None:
    """Text that repeats the last words, cut anywhere, gives exactly what follows them."""
    seam, said = Seam(told), anchor_of(told) + rest
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert "".join([*map(seam.push, pieces), seam.push("", is_last=True)]) == rest


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_answer_survives_any_number_of_breaks(cuts: list[int]) -> None:
    """One link that breaks off after every few characters still gives the whole text, each character once."""
    state = {"left": [*cuts]}

    async def play(asked: ChatRequest) -> AsyncIterator[ChatDelta]:
        rest = TEXT[len(asked.answer_prefix) :]
        most = state["left"].pop(0) if state["left"] else len(rest)
        for char in rest[:most]:
            yield ChatDelta(content=char)
        if most < len(rest):
            raise GONE
        yield ChatDelta(finish_reason="stop")

    chain = Chain(
        [Played("a", play, continues=True)],
        retry_policy=RetryPolicy(num_retries=10),
        sleep=quick,
        breaker_policy=BreakerPolicy(num_failures=100),
    )
    assert ask(chain).text == TEXT


def test_answer_begins_anew_behind_a_marker(tmp_path: Path) -> None:
    """With `restart` the next link answers from the beginning, and its first delta says that what was told is void."""
    a, b = Played("a", says("The wrong", GONE)), Played("b", exact(TEXT), continues=True)
    chain = chain_of(tmp_path, FILE.format("restart"), a, b)

    async def main() -> list[ChatDelta]:
        return [delta async for delta in chain.chat(request())]

    deltas = run(main())
    marked = next(index for index, delta in enumerate(deltas) if delta.resumed)
    assert deltas[marked].resumed.kind == "restart"
    assert "".join(delta.content for delta in deltas[:marked]) == "The wrong"
    assert "".join(delta.content for delta in deltas[marked:]) == TEXT
    assert b.requests[0].answer_prefix == ""


def test_answer_that_breaks_off_may_end_with_an_error(tmp_path: Path) -> None:
    """With `error` nobody goes on with it."""
    a, b = Played("a", says("The", GONE)), Played("b", exact(TEXT), continues=True)
    with pytest.raises(BackendError, match="link:a broke off its answer: connection closed"):
        ask(chain_of(tmp_path, FILE.format("error"), a, b))
    assert b.requests == []


def test_tool_call_that_was_told_is_never_asked_for_again(tmp_path: Path) -> None:
    """After a tool call went out nobody goes on with the answer: the call might be executed twice."""
    a = Played("a", says("Let me pay.", ChatDelta(tool_calls=as_deltas([CALL, CALL])), GONE))
    b = Played("b", says(ChatDelta(tool_calls=as_deltas([CALL]))))
    for policy in ("continue", "restart"):
        with pytest.raises(BackendError, match="a tool call was told already"):
            ask(chain_of(tmp_path, FILE.format(policy), a, b))
    assert b.requests == []


def test_call_that_breaks_off_goes_on_elsewhere_where_nothing_was_told(tmp_path: Path) -> None:
    """Of a call that breaks off nothing is told while another attempt may follow; the last one's comes in pieces."""
    begun = ChatDelta(tool_calls=[ToolCallDelta(0, "1", "pay", '{"sum": ')])
    ended = ChatDelta(tool_calls=[ToolCallDelta(0, arguments="5}")])
    a = Played("a", says("Let me pay.", begun, GONE))
    b = Played("b", says(begun, ended, finish="tool_calls"), continues=True)
    once = FILE.format("continue") + "retries = 0\n"
    answer = ask(chain_of(tmp_path, once, a, b))
    assert (answer.text, [call.function.arguments for call in answer.tool_calls]) == ("Let me pay.", ['{"sum": 5}'])
    assert [len(delta.tool_calls) for delta in answer.deltas if delta.tool_calls] == [1, 1]
    whole = ask(chain_of(tmp_path, FILE.format("continue"), Played("a", says(begun, ended)), b))
    assert [piece.arguments for delta in whole.deltas for piece in delta.tool_calls] == ['{"sum": 5}']
    with pytest.raises(BackendError, match="a tool call was told already"):
        ask(chain_of(tmp_path, FILE.format("continue"), Played("a", says(begun, GONE))))


def test_call_of_the_last_link_that_breaks_off_goes_on_in_the_next_round(tmp_path: Path) -> None:
    """The call that every link of a round broke off after is told once, by the round that ends it."""
    called = says(ChatDelta(tool_calls=as_deltas([CALL])), GONE)
    ended = says(ChatDelta(tool_calls=as_deltas([CALL])), finish="tool_calls")
    a, b = Played("a", called), Played("b", in_turn(called, ended))
    answer = ask(chain_of(tmp_path, FILE.format("continue") + "retries = 1\n", a, b, sleep=quick))
    assert answer.tool_calls == [CALL]
    assert len(b.requests) == 2


def test_answer_read_whole_begins_anew_in_silence(tmp_path: Path) -> None:
    """A caller who reads the answer when it is over gets the next link's own, tool calls too, whatever the policy."""
    a = Played("a", says("Let me", ChatDelta(tool_calls=as_deltas([CALL])), GONE))
    b = Played("b", says("Let me see.", ChatDelta(tool_calls=as_deltas([CALL])), finish="tool_calls"))
    answer = ask(chain_of(tmp_path, FILE.format("error").replace("error", "continue"), a, b), whole=True)
    assert answer.text == "Let me see."
    assert answer.tool_calls == [CALL]


@pytest.mark.parametrize("sampling", [SamplingParams(echo=True), SamplingParams(prompt_logprobs=0)])
def test_answer_that_tells_of_its_prompt_does_not_go_on_elsewhere(tmp_path: Path, sampling: SamplingParams) -> None:
    """Going on would tell of the prompt twice: a stream ends with the error, a whole answer begins anew."""
    asked: dict[str, Any] = {"messages": [], "prompt": "Once", "sampling": sampling}
    a, b = Played("a", says("Once upon", GONE)), Played("b", says("Once more."))
    with pytest.raises(BackendError, match="does not go on elsewhere"):
        ask(chain_of(tmp_path, FILE.format("continue"), a, b), **asked)
    a, b = Played("a", says("Once upon", GONE)), Played("b", says("Once more."))
    assert ask(chain_of(tmp_path, FILE.format("continue"), a, b), whole=True, **asked).text == "Once more."
    assert b.requests[0].prompt == "Once"


def test_answer_with_a_form_goes_on_only_exactly(tmp_path: Path) -> None:
    """JSON begun by one link is not finished by one that must be asked in words."""
    form = ResponseFormat("json_schema", JsonSchemaFormat(schema={"type": "object"}))
    a, b = Played("a", says('{"x": ', GONE)), Played("b", exact('{"x": 1}'))
    file = FILE.format("continue") + "retries = 0\n"
    with pytest.raises(BackendError, match="cannot go on exactly"):
        ask(chain_of(tmp_path, file, a, b), response_format=form)
    assert b.requests == []
    a, b = Played("a", says('{"x": ', GONE)), Played("b", exact('{"x": 1}'), continues=True)
    assert ask(chain_of(tmp_path, FILE.format("continue"), a, b), response_format=form).text == '{"x": 1}'


def test_link_can_be_told_to_go_on_exactly(tmp_path: Path) -> None:
    """`continues = true` in a link's table says so of a server that nobody can ask."""
    a, b = Played("a", says("The ", GONE)), Played("b", exact(TEXT))
    file = 'chain = ["link:a", { use = "link:b", continues = true }]'
    assert ask(chain_of(tmp_path, file, a, b)).text == TEXT


def test_openai_server_that_goes_on_gets_the_beginning_as_a_last_message() -> None:
    """What is asked of vLLM is its own way to go on with the last message; llama.cpp does so unasked."""
    _, body = encode_request(request(answer_prefix="The "), "m")
    sent = json.loads(body)
    assert sent["messages"][-1] == {"role": "assistant", "content": "The "}
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


def test_callers_beginning_and_what_was_told_after_it_go_on_together() -> None:
    """An answer with an `assistant_prefix` that breaks off goes on elsewhere; only links that can are asked."""
    a = Played("a", says("quick ", GONE), continues=True)
    b, c = Played("b", says("no")), Played("c", exact("quick brown fox"), continues=True)
    chain = Chain([b, a, c], retry_policy=RetryPolicy(num_retries=0))
    assert ask(chain, assistant_prefix="The ").text == "quick brown fox"
    assert (c.requests[0].assistant_prefix, c.requests[0].answer_prefix) == ("The ", "quick ")
    assert b.requests == []
    _, body = encode_request(c.requests[0], "m")
    assert json.loads(body)["messages"][-1]["content"] == "The quick "


def test_callers_beginning_is_a_last_message_where_the_link_is_told_to_go_on(tmp_path: Path) -> None:
    """`continues = true` of a link whose backend knows of no beginnings: it gets a last message of the assistant."""
    a, b = Played("a", says("quick ", GONE)), Played("b", says("brown"))
    for link in (a, b):
        link.capabilities = Capabilities()
    use = "".join(f'{{ use = "link:{name}", continues = true }},' for name in "ab")
    assert ask(chain_of(tmp_path, f"chain = [{use}]", a, b), assistant_prefix="The ").text == "quick brown"
    for link, begun in ((a, "The "), (b, "The quick ")):
        assert (link.requests[0].messages[-1].role, link.requests[0].messages[-1].text) == ("assistant", begun)
        assert (link.requests[0].assistant_prefix, link.requests[0].answer_prefix) == ("", "")


def test_completion_goes_on_from_its_prompt(tmp_path: Path) -> None:
    """A plain prompt goes on with the text told after it, on any link."""
    a, b = Played("a", says("One, ", "two, ", GONE)), Played("b", says("three."))
    answer = ask(
        chain_of(tmp_path, FILE.format("continue"), a, b),
        messages=[],
        prompt="Count: ",
        sampling=SamplingParams(max_tokens=5),
    )
    assert answer.text == "One, two, three."
    assert (b.requests[0].prompt, b.requests[0].sampling.max_tokens) == ("Count: One, two, ", 3)


def test_answer_that_lacks_only_its_end_is_closed(tmp_path: Path) -> None:
    """All tokens asked for were told: nobody is asked for none more."""
    a, b = Played("a", says("x", "y", GONE)), Played("b", says("z"))
    answer = ask(chain_of(tmp_path, FILE.format("continue"), a, b), sampling=SamplingParams(max_tokens=2))
    assert (answer.text, answer.last.finish_reason) == ("xy", "length")
    assert b.requests == []


def test_one_link_goes_on_with_its_own_answer() -> None:
    """A chain of one asks it again for the rest, under the retry budget."""
    a = Played("a", in_turn(says("The quick", GONE), exact(TEXT)), continues=True)
    assert ask(Chain([a], sleep=quick)).text == TEXT


def test_closing_in_mid_resumption_closes_every_stream() -> None:
    """A caller who leaves after the answer went on elsewhere leaves nothing running."""
    a, b = Played("a", says("The", GONE)), Played("b", says(" quick", 60.0), continues=True)

    async def main() -> None:
        stream = Chain([a, b]).chat(request())
        assert [(await anext(stream)).content for _ in range(2)] == ["The", " quick"]
        await stream.aclose()

    asyncio.run(main())
    assert (a.num_running, b.num_running) == (0, 0)


def test_collect_reads_what_counts() -> None:
    """Whoever collects a stream gets the last beginning's text, and all attempts."""
    chain = Chain([Played("a", says("no", GONE)), Played("b", says("yes"))], after_first_token="restart")
    answer = run(collect(chain.chat(request())))
    assert answer.text == "yes"
    assert answer.deltas[0].attempts[0].backend == "link:a"


def test_callers_own_beginning_goes_only_to_links_that_take_one(tmp_path: Path) -> None:
    """A request with `answer_prefix` is passed by links that would not honour it, and refused where none does."""
    a, b = Played("a", says("no")), Played("b", exact(TEXT), continues=True)
    chain = chain_of(tmp_path, 'chain = ["link:a", "link:b"]', a, b)
    assert ask(chain, answer_prefix="The quick").text == TEXT.removeprefix("The quick")
    assert a.requests == []
    with pytest.raises(RequestError, match="cannot go on from an answer's beginning"):
        ask(chain_of(tmp_path, 'chain = ["link:a"]', a), answer_prefix="The")


def test_filtered_answer_is_not_told_after_text() -> None:
    """Where an answer was begun, a later link that filters its own ends it with the error, not with nothing."""
    links = [Played("a", says("The", GONE)), Played("b", says(finish="content_filter"))]
    for policy in ("restart", "continue"):
        with pytest.raises(BackendError, match="content filter"):
            ask(Chain(links, after_first_token=policy, retry_policy=RetryPolicy(num_retries=0)))


@pytest.mark.parametrize("whole", [True, False])
def test_silence_in_mid_answer_leaves_the_next_link_its_part_of_the_time(whole: bool) -> None:
    """With a deadline, a link that hangs in mid-answer does not use up the time in which the next one can answer."""
    a, b = Played("a", says("The qui", 60.0)), Played("b", exact(TEXT), continues=True)
    answer = ask(Chain([a, b]), whole=whole, timeout_seconds=6.0)
    assert answer.text == TEXT
    assert any(delta.resumed for delta in answer.deltas)
    assert a.num_running == 0


def test_hung_link_without_another_keeps_the_callers_deadline() -> None:
    """Where nobody could take over, silence may take all the time there is, and the deadline is what is told."""
    with pytest.raises(DeadlineError):
        ask(Chain([Played("a", says("The qui", 60.0))]), timeout_seconds=0.2)
