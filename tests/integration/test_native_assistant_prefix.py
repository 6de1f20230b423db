"""The embedded engine goes on from the beginning of an answer that its caller wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calling_model import TAGS, TEMPLATE, write_calling_model
from support.native import chat, run, running

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.assistant_prefix import AssistantPrefix
from pyagent.infrastructure.engine.tokens import ModelTokenizer

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


async def asked(backend: NativeBackend, request: ChatRequest, **fields: object) -> Answer:
    return await collect(backend.chat(msgspec.structs.replace(request, **fields)))


def drawn(answer: Answer) -> list[tuple[str, float]]:
    return [(one.token, one.logprob) for delta in answer.deltas for one in delta.logprobs]


def test_begun_answer_is_that_of_the_plain_prompt(tiny_model_path: Path) -> None:
    """Oracle: the template's text with the beginning after it, as a plain prompt, has the same answer and counts."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            tokenizer = (await backend.load()).tokenizer
            messages = [Message("user", "hello")]
            for begun in ("The user is", "12", "é and", '{"a": '):
                for sampling in (SamplingParams(**GREEDY), SamplingParams(seed=5, max_tokens=9, frequency_penalty=1.0)):
                    request = ChatRequest(messages=messages, assistant_prefix=begun, sampling=sampling)
                    answer = await asked(backend, request)
                    plain = tokenizer.render_chat(messages) + begun
                    expected = await asked(backend, ChatRequest(prompt=plain, sampling=sampling))
                    assert answer.text == expected.text
                    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
                    assert answer.usage.completion_tokens == expected.usage.completion_tokens

    run(work())


def test_beginning_is_no_part_of_what_is_drawn(tiny_model_path: Path) -> None:
    """It does not count against max_tokens, has no text to stop at, and begins each of several answers."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            request = chat("hello", **GREEDY)
            begun = await asked(backend, request, assistant_prefix="STOP the")
            stopping = SamplingParams(stop=("STOP",), **GREEDY)
            assert (await asked(backend, request, assistant_prefix="STOP the", sampling=stopping)).text == begun.text
            assert begun.usage.completion_tokens == 12
            several = await asked(backend, request, assistant_prefix="STOP the", n=3)
            texts = ["".join(d.content for d in several.deltas if d.index == index) for index in range(3)]
            assert texts == [begun.text] * 3
            assert (await asked(backend, request)).text != begun.text

    run(work())


def test_begun_answer_keeps_its_form(tiny_model_path: Path) -> None:
    """Beginning and answer together have the form; a beginning that cannot have it, or is all of it, is refused."""
    form = ResponseFormat("choice", choice=["alpha beta", "alpha gamma"])

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            request = msgspec.structs.replace(chat("pick", **(GREEDY | {"ignore_eos": False})), response_format=form)
            assert (await asked(backend, request, assistant_prefix="alpha ")).text in {"beta", "gamma"}
            for wrong, says in (
                ("omega", "does not match response_format"),
                ("alpha beta", "all that response_format allows"),
            ):
                with pytest.raises(RequestError, match=says):
                    await asked(backend, request, assistant_prefix=wrong)
            with pytest.raises(RequestError, match="into the prompt"):
                await asked(backend, ChatRequest(prompt="x", assistant_prefix="y"))

    run(work())


def test_next_turn_goes_on_from_the_log(tiny_model_path: Path) -> None:
    """A conversation whose last answer was begun by the caller continues its tokens, beginning included."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            request = chat("hello", **GREEDY)
            answer = await asked(backend, request, assistant_prefix="The user")
            messages = [*request.messages, Message("assistant", "The user" + answer.text), Message("user", "and?")]
            following = await asked(backend, msgspec.structs.replace(request, messages=messages))
            assert following.usage.cache is not None
            num_before = answer.usage.prompt_tokens + answer.usage.completion_tokens
            assert following.usage.cache.log_tokens == num_before
            report = (await backend.load()).explain(msgspec.structs.replace(request, assistant_prefix="The user"))
            assert report.prompt_tokens == answer.usage.prompt_tokens

    run(work())


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20))
def test_any_beginning_is_its_own_text(tiny_model_path: Path, text: str) -> None:
    """The tokens of a beginning say that text and nothing else, control tokens written in it included."""
    tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=10**6)
    text = text.encode(errors="ignore").decode()
    assistant_prefix = AssistantPrefix.of(text, tokenizer)
    assert b"".join(tokenizer.spoken_bytes(assistant_prefix.tokens)).decode() == text


@pytest.mark.parametrize(
    ("opened", "tags", "closing"),
    [
        ("<think>\n", TAGS, "\n</think>\n\n"),
        ("<think>", TAGS, "</think>"),
        ("<|start|>assistant", HARMONY, "<|channel|>final<|message|>"),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            HARMONY,
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_beginning_is_no_thought(tmp_path: Path, opened: str, tags: tuple[str, ...], closing: str) -> None:
    """Oracle: where a template opens thoughts, the beginning stands after their end, in the tokens of a template."""
    shown = f"{{# {' '.join(tags)} #}}" if tags == HARMONY else ""
    template = TEMPLATE.rpartition("{% if enable_thinking")[0] + "{{ " + repr(opened) + " }}" + shown
    path = write_calling_model(tmp_path / "open.gguf", tags=tags, is_control=True, tokenizer__chat_template=template)

    async def work() -> None:
        async with running(path) as backend:
            tokenizer = (await backend.load()).tokenizer
            messages = [Message("user", "hello")]
            sampling = SamplingParams(top_logprobs=0, **GREEDY)
            tokens = tokenizer.encode_rendered(tokenizer.render_chat(messages) + closing)
            tokens += tokenizer.encode_continuation("The user is")
            expected = await asked(backend, ChatRequest(prompt_token_ids=tuple(tokens), sampling=sampling))
            for name in ("assistant_prefix", "answer_prefix"):
                request = ChatRequest(messages=messages, sampling=sampling)
                answer = await asked(backend, request, **{name: "The user is"})
                assert not any(delta.reasoning for delta in answer.deltas)
                if name == "assistant_prefix":
                    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
                    assert drawn(answer) == drawn(expected)
                said = Message("assistant", f"The user is{answer.text}")
                more = [*messages, said, Message("user", "so")]
                assert (await asked(backend, ChatRequest(messages=more, sampling=sampling))).last.finish_reason

    run(work())
