"""What a request says of its tokens, over HTTP: which are read, which are told, where they stand, when they go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native import NUM_TOKENS, engine_of, native_server
from support.tiny_model import write_tiny_model

from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.infrastructure.engine.tokens import ModelTokenizer

BEGIN = 1
GREEDY = {"prompt": "the user is", "temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has a token before each text."""
    changes = {"tokenizer__ggml__bos_token_id": BEGIN, "tokenizer__ggml__add_bos_token": True}
    return write_tiny_model(tmp_path_factory.mktemp("begins") / "begins.gguf", **changes)


@pytest.fixture(scope="module")
def url(path: Path) -> Iterator[str]:
    with native_server(path) as url:
        yield url


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> ModelTokenizer:
    return ModelTokenizer.load(path, vocab_size=NUM_TOKENS)


def ask(url: str, api: str = "completions", **body: Any) -> httpx.Response:
    plain = GREEDY if api == "completions" else {key: value for key, value in GREEDY.items() if key != "prompt"}
    return httpx.post(f"{url}/v1/{api}", json={**plain, **body}, timeout=60)


def answered(url: str, api: str = "completions", **body: Any) -> dict[str, Any]:
    answer = ask(url, api, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(url: str, api: str = "completions", **body: Any) -> list[dict[str, Any]]:
    lines = ask(url, api, stream=True, **body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_places_of_echoed_tokens_are_those_in_the_text(url: str, tokenizer: ModelTokenizer) -> None:
    """Each token's `text_offset` is where it begins in the text, though the first one is not in it."""
    choice = answered(url, prompt="the é user", echo=True, logprobs=0)["choices"][0]
    found, text = choice["logprobs"], choice["text"]
    num_prompt = len(tokenizer.encode_text("the é user"))
    assert found["tokens"][0] == tokenizer.token_text(BEGIN)
    assert found["text_offset"][:2] == [0, 0]
    ends = [*found["text_offset"][1:], len(text)]
    for token, start, end in list(zip(found["tokens"], found["text_offset"], ends, strict=True))[1:]:
        assert "\ufffd" in token or text[start:end].lstrip("\ufffd") == token
    assert found["text_offset"][num_prompt] == len("the é user")


def test_places_go_on_from_event_to_event(url: str) -> None:
    """Streamed, a token's place is that of the whole answer."""
    whole = answered(url, logprobs=0)["choices"][0]
    streamed = [event["choices"][0]["logprobs"] for event in events(url, logprobs=0)]
    places = [place for logprobs in streamed if logprobs for place in logprobs["text_offset"]]
    assert places == whole["logprobs"]["text_offset"]


def test_usage_counts_an_echoed_prompt_as_prompt(url: str, tokenizer: ModelTokenizer) -> None:
    """With `echo`, the prompt's tokens are no completion tokens, also where nothing is sampled."""
    num_prompt = len(tokenizer.encode_text("the user is"))
    usage = answered(url, echo=True)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_prompt, 12)
    usage = answered(url, echo=True, max_tokens=0, logprobs=0)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (num_prompt, 0, num_prompt)


@pytest.mark.parametrize("api", ["completions", "chat/completions"])
def test_an_answer_ends_with_its_stop_string_where_asked_to(api: str, url: str) -> None:
    """`include_stop_str_in_output` leaves the stop string in the text, whole and streamed, and nothing after it."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "at"}]} if "chat" in api else {}

    def text_of(choice: dict[str, Any]) -> str:
        return choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content", "")

    plain = text_of(answered(url, api, **body)["choices"][0])
    stop = plain[3:6]
    whole = answered(url, api, **body, stop=[stop], include_stop_str_in_output=True)["choices"][0]
    assert whole["finish_reason"] == "stop"
    assert text_of(whole) == plain[: plain.index(stop) + len(stop)]
    streamed = events(url, api, **body, stop=[stop], include_stop_str_in_output=True)
    assert "".join(text_of(event["choices"][0]) for event in streamed) == text_of(whole)


def test_a_stop_token_is_in_the_text_where_asked_for(url: str) -> None:
    """With `include_stop_str_in_output` a stop token's text is told; a control token's only with the others."""
    bias = {"logit_bias": {"2": 100}, "stop_token_ids": [2], "include_stop_str_in_output": True}
    assert answered(url, **bias)["choices"][0]["text"] == ""
    assert answered(url, **bias, skip_special_tokens=False)["choices"][0]["text"] == "<|im_end|>"


def test_token_ids_are_told_with_an_answer(url: str, tokenizer: ModelTokenizer) -> None:
    """`return_token_ids` gives the prompt's ids and the answer's, whole and streamed, as vLLM does."""
    choice = answered(url, return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == tokenizer.encode_text("the user is")
    assert len(choice["token_ids"]) == 12
    assert tokenizer.decode(choice["token_ids"]) == choice["text"]
    choices = [event["choices"][0] for event in events(url, return_token_ids=True)]
    assert [one["prompt_token_ids"] for one in choices if "prompt_token_ids" in one] == [choice["prompt_token_ids"]]
    assert [token for one in choices for token in one.get("token_ids", ())] == choice["token_ids"]
    messages = [{"role": "user", "content": "at"}]
    chat = answered(url, "chat/completions", messages=messages, return_token_ids=True, n=2)
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert [len(one["token_ids"]) for one in chat["choices"]] == [12, 12]
    assert "token_ids" not in answered(url)["choices"][0]


def test_logprobs_name_tokens_by_id(url: str) -> None:
    """`return_tokens_as_token_ids` puts ids in the place of texts, of the echoed prompt too, and changes no number."""
    asked = {"echo": True, "logprobs": 3, "return_token_ids": True}
    plain = answered(url, **asked)["choices"][0]
    named = answered(url, **asked, return_tokens_as_token_ids=True)["choices"][0]
    ids = [*named["prompt_token_ids"], *named["token_ids"]]
    told, texts = named["logprobs"], plain["logprobs"]
    assert told["tokens"] == [f"token_id:{token}" for token in ids]
    assert all(len(likeliest) == 3 for likeliest in told["top_logprobs"][1:])
    assert [told[name] for name in ("token_logprobs", "text_offset")] == [
        texts[name] for name in ("token_logprobs", "text_offset")
    ]
    chat = {"messages": [{"role": "user", "content": "at"}], "logprobs": True, "top_logprobs": 2}
    entries = answered(url, "chat/completions", **chat, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    for entry in entries["content"]:
        assert all(other["token"].startswith("token_id:") for other in (entry, *entry["top_logprobs"]))


def test_the_end_of_a_long_prompt_is_read(url: str, tokenizer: ModelTokenizer) -> None:
    """`truncate_prompt_tokens` reads the prompt's last tokens, -1 as many as leave room for the answer."""
    ids = tokenizer.encode_text("the user is at ease, and " * 60)
    assert len(ids) > 512
    for most, expected in ((7, ids[-7:]), (-1, ids[-500:])):
        found = answered(url, prompt=ids, truncate_prompt_tokens=most, return_token_ids=True)["choices"][0]
        assert found["prompt_token_ids"] == expected
        assert found["text"] == answered(url, prompt=expected)["choices"][0]["text"]
    echoed = answered(url, prompt="the user is", truncate_prompt_tokens=2, echo=True, logprobs=0)["choices"][0]
    assert echoed["text"].startswith(tokenizer.shown(tokenizer.encode_text("the user is")[-2:]))
    messages = [{"role": "user", "content": "the user is at ease, and " * 60}]
    chat = answered(url, "chat/completions", messages=messages, truncate_prompt_tokens=20)
    assert chat["usage"]["prompt_tokens"] == 20
    for path, told in (("completions", {"prompt": ids}), ("chat/completions", {"messages": messages})):
        (field,) = told
        error = ask(url, path, **told).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


def test_a_text_can_do_without_its_first_token(url: str, tokenizer: ModelTokenizer) -> None:
    """`add_special_tokens: false` puts nothing before a prompt; a chat template does as it does."""
    found = answered(url, add_special_tokens=False, return_token_ids=True)["choices"][0]
    assert found["prompt_token_ids"] == tokenizer.encode_text("the user is")[1:]
    messages = [{"role": "user", "content": "at"}]
    assert ask(url, "chat/completions", messages=messages, add_special_tokens=False).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
        ({"include_stop_str_in_output": True, "use_beam_search": True}, "include_stop_str_in_output"),
        ({"return_token_ids": 1}, "return_token_ids"),
    ],
)
def test_wrong_values_are_refused_by_name(fields: dict[str, Any], param: str, url: str) -> None:
    """A value out of range is a 400 that names its field."""
    answer = ask(url, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_chat_takes_no_further_first_token(url: str) -> None:
    """`add_special_tokens: true` in a chat is refused, since its template writes what it begins with."""
    answer = ask(url, "chat/completions", messages=[{"role": "user", "content": "at"}], add_special_tokens=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "add_special_tokens")


def test_text_is_streamed_by_the_interval(path: Path) -> None:
    """With `engine.stream_interval`, the first text comes at once, then that of so many tokens together."""

    async def sizes(interval: int) -> tuple[list[int], str]:
        sampling = SamplingParams(
            temperature=0, max_tokens=22, ignore_eos=True, return_token_ids=True, top_logprobs=0, stop=("\x00never",)
        )
        request = ChatRequest(prompt="the user is", sampling=sampling)
        async with engine_of(path, process=False, **{"engine.stream_interval": interval}) as backend:
            deltas = [delta async for delta in backend.chat(request)]
        assert all(len(delta.token_ids) == len(delta.logprobs) for delta in deltas)
        return [len(delta.token_ids) for delta in deltas], "".join(delta.content for delta in deltas)

    by_token, text = asyncio.run(sizes(1))
    by_eight, same = asyncio.run(sizes(8))
    assert by_token == [1] * 22
    assert by_eight == [1, 8, 8, 5]
    assert same == text


def test_a_completion_keeps_the_space_it_begins_with(tmp_path: Path) -> None:
    """After a prompt, a SentencePiece model's first word has its space: the text goes on with the prompt's."""
    words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    path = write_tiny_model(
        tmp_path / "spm.gguf",
        tokenizer__ggml__model="llama",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__token_type=[2, 3, 3, *[6] * 256, *[1] * len(words)],
        tokenizer__ggml__scores=[-1000.0] * 259 + [-float(len(words) - place) for place in range(len(words))],
        tokenizer__ggml__merges=None,
        tokenizer__ggml__pre=None,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__add_bos_token=True,
    )
    hello = {"logit_bias": {str(len(tokens) - 1): 100}, "max_tokens": 2}
    with native_server(path) as url:
        assert answered(url, prompt="hello", **hello)["choices"][0]["text"] == " hello hello"
        echoed = answered(url, prompt="hello", **hello, echo=True, logprobs=0)["choices"][0]
        assert echoed["text"] == "hello hello hello"
        assert echoed["logprobs"]["text_offset"] == [0, 0, 5, 11]
        chat = answered(url, "chat/completions", messages=[{"role": "user", "content": "hello"}], **hello)
        assert chat["choices"][0]["message"]["content"] == "hello hello"
