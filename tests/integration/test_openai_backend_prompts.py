"""The OpenAI-compatible client and prompts that are repeated or scored: passed on, and never taken for given."""

from __future__ import annotations

from typing import Any

import pytest
from support.wire import DONE, Piece, answered, ask, chat, event, head

from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.messages import ChatRequest, PromptLogprob, SamplingParams, TokenLogprob

SCORED = [None, {"42": {"logprob": -1.5, "rank": 3, "decoded_token": " upon"}, "7": {"logprob": -0.5, "rank": 1}}]
EXPECTED = [None, {42: PromptLogprob(-1.5, 3, " upon"), 7: PromptLogprob(-0.5, 1)}]


def prompt(**sampling: Any) -> ChatRequest:
    return ChatRequest(prompt="Once upon", sampling=SamplingParams(max_tokens=4, **sampling))


def text(content: str, finish: str | None = None, **more: Any) -> bytes:
    return event(model="served", choices=[{"index": 0, "text": content, "finish_reason": finish, **more}])


def test_prompt_logprobs_are_read_where_vllm_puts_them() -> None:
    """Beside a chat's choices and in a completion's; asked for without a stream, which vLLM does not give them with."""
    message = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
    body = answered({"model": "served", "choices": [message], "prompt_logprobs": SCORED})
    answer, wire = ask(body, chat(sampling=SamplingParams(prompt_logprobs=1)))
    assert answer.deltas[0].prompt_logprobs == EXPECTED
    sent = wire.requests[0][2]
    assert sent["prompt_logprobs"] == 1
    assert "stream" not in sent
    choice = {"index": 0, "text": " a time", "finish_reason": "length", "prompt_logprobs": SCORED}
    answer, wire = ask(answered({"model": "served", "choices": [choice]}), prompt(prompt_logprobs=0))
    assert (answer.text, answer.deltas[0].prompt_logprobs) == (" a time", EXPECTED)


def test_an_echoed_prompt_is_read_with_its_entries() -> None:
    """The prompt begins the text, in one event or several; its first token has no log probability."""
    entries = {"tokens": ["Once", " upon"], "token_logprobs": [None, -1.5], "top_logprobs": [None, {" upon": -1.5}]}
    whole: tuple[Piece, ...] = (head(), text("Once upon", logprobs=entries), text(" a", "length"), DONE)
    answer, wire = ask(whole, prompt(echo=True, top_logprobs=1))
    assert answer.text == "Once upon a"
    assert answer.deltas[0].logprobs == [
        TokenLogprob("Once", None),
        TokenLogprob(" upon", -1.5, [(" upon", -1.5)]),
    ]
    assert (wire.requests[0][2]["echo"], wire.requests[0][2]["logprobs"]) == (True, 1)
    pieces: tuple[Piece, ...] = (head(), text("Once"), text(" upon a"), text("", "length"), DONE)
    assert ask(pieces, prompt(echo=True))[0].text == "Once upon a"


@pytest.mark.parametrize(
    ("script", "request_", "field"),
    [
        ((head(), text(" a time"), text("", "stop"), DONE), prompt(echo=True), "echo"),
        ((head(), text("Once"), text("", "stop"), DONE), prompt(echo=True), "echo"),
        ((head(), text("Once more"), text("", "stop"), DONE), prompt(echo=True), "echo"),
        ((head(), text(" a time"), text("", "stop"), DONE), prompt(prompt_logprobs=1), "prompt_logprobs"),
        (
            answered({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}),
            chat(sampling=SamplingParams(prompt_logprobs=1)),
            "prompt_logprobs",
        ),
    ],
)
def test_servers_that_ignore_the_wish_are_found_out(
    script: tuple[Piece, ...], request_: ChatRequest, field: str
) -> None:
    """An answer without what was asked for is refused by the field's name, never taken for one with it."""
    with pytest.raises(UnsupportedError) as found:
        ask(script, request_)
    assert found.value.fields == (field,)


def test_a_chat_is_not_repeated() -> None:
    """`echo` with messages is refused before anything is sent: what it means there differs from server to server."""
    with pytest.raises(RequestError, match="echo repeats a prompt"):
        ask((), chat(sampling=SamplingParams(echo=True)))
