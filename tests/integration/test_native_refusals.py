"""What the embedded engine refuses at the door, and what it says of files, settings and contexts that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.native import (
    NUM_TOKENS,
    assert_idle,
    at_once,
    chat,
    options,
    run,
    running,
)
from support.tiny_model import CONTEXT, write_tiny_model

from pyagent.core.backends import collect
from pyagent.core.errors import (
    BackendError,
    ConfigError,
    ContextOverflowError,
    ModelError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import (
    ChatRequest,
    ImagePart,
    ImageUrl,
    Message,
    SamplingParams,
)


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (ChatRequest(), RequestError, "the prompt is empty"),
        (ChatRequest(prompt=""), RequestError, "the prompt is empty"),
        (chat(""), RequestError, "the prompt is empty"),
        (chat("a" * 600), ContextOverflowError, r"the prompt has \d+ tokens, but the model's context is 512"),
        (chat("a", temperature=-1), RequestError, "temperature must be between 0 and 2, got -1"),
        (chat("a", top_p=0), RequestError, "top_p must be greater than 0"),
        (chat("a", max_tokens=0), RequestError, "max_tokens must be between 1"),
        (chat("a", stop=("",)), RequestError, "stop takes up to 16 texts"),
        (
            chat("a", logit_bias={NUM_TOKENS: 1.0}),
            RequestError,
            "logit_bias takes token ids from 0 to 324 of this model, got 325",
        ),
        (chat("a", logit_bias={1: float("nan")}), RequestError, "bias"),
        (
            ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:,"))])]),
            UnsupportedError,
            "tiny cannot do images",
        ),
    ],
)
def test_bad_request_is_refused_at_the_door(
    tiny_model_path: Path, request_: ChatRequest, error: type[PyAgentError], text: str
) -> None:
    """What cannot be served is refused with the field and the reason, and never reaches the engine."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            with pytest.raises(error, match=text):
                await collect(backend.chat(request_))
            assert (await backend.load()).engine.counts.num_steps == 0

    run(work())


def test_overflow_carries_its_numbers(tiny_model_path: Path) -> None:
    """`ContextOverflowError` says how many tokens were sent and how many fit; a setting can shorten the context."""

    async def work() -> None:
        async with running(tiny_model_path, options(max_model_len=40)) as backend:
            with pytest.raises(ContextOverflowError) as caught:
                await collect(backend.chat(ChatRequest(prompt="z" * 40)))
            assert (caught.value.num_tokens, caught.value.limit) == (40, 40)
            answer = await collect(backend.chat(ChatRequest(prompt="z" * 39, sampling=SamplingParams(ignore_eos=True))))
            assert answer.usage.total_tokens == 40

    run(work())


def test_memory_too_small_for_the_context_shortens_it(tiny_model_path: Path) -> None:
    """With KV memory for 64 tokens an answer ends at 64 tokens by length; a longer prompt is told what to raise."""

    async def work() -> None:
        async with running(tiny_model_path, options(blocks=4)) as backend:
            asked = ChatRequest(prompt="zz", sampling=SamplingParams(ignore_eos=True))
            answers = await at_once(backend, [asked] * 3)
            assert {(answer.usage.total_tokens, answer.last.finish_reason) for answer in answers} == {(64, "length")}
            with pytest.raises(ContextOverflowError, match=r"holds 64; raise engine\.kv_\w+ or engine\.memory"):
                await collect(backend.chat(ChatRequest(prompt="z" * 65)))

    run(work())


def test_answer_can_fill_the_context_to_its_last_position(tiny_model_path: Path) -> None:
    """Without max_tokens an answer goes on to the model's last position and ends by length."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(backend.chat(chat("the", ignore_eos=True, temperature=0)))
            assert (answer.last.finish_reason, answer.usage.total_tokens) == ("length", CONTEXT)

    run(work())


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (lambda path: path.unlink(), ModelError, "absent|No such file|cannot be"),
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), ModelError, "cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), ModelError, r"m\.gguf"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(100)), ModelError, r"m\.gguf"),
        (lambda path: path.write_bytes(b""), ModelError, r"m\.gguf"),
    ],
)
def test_bad_file_is_a_model_error(
    tmp_path: Path, damage: Callable[[Path], object], error: type[PyAgentError], text: str
) -> None:
    """A file that is missing, cut or no model raises `ModelError` naming it, each time it is asked."""
    path = write_tiny_model(tmp_path / "m.gguf")
    damage(path)

    async def work() -> None:
        async with running(path) as backend:
            for _ in range(2):
                with pytest.raises(error, match=text):
                    await collect(backend.chat(chat("a")))

    run(work())


def test_unknown_instruction_set_is_a_config_error(tiny_model_path: Path) -> None:
    """An instruction set this CPU lacks is refused with those it has."""

    async def work() -> None:
        async with running(tiny_model_path, options(isa="sse9")) as backend:
            with pytest.raises(ConfigError, match="instruction set 'sse9' is not one of scalar") as caught:
                await backend.load()
            assert caught.value.key == "engine.isa"

    run(work())


def test_logits_that_are_not_numbers_end_that_request_with_the_reason(tmp_path: Path) -> None:
    """Weights with NaN end a request with a reason that names them; the engine lives and answers the same again."""
    path = write_tiny_model(tmp_path / "nan.gguf", is_damaged=True)

    async def work() -> None:
        async with running(path) as backend:
            for _ in range(3):
                with pytest.raises(BackendError, match=r"(?i)nan|not a number|finite"):
                    await collect(backend.chat(chat("a", max_tokens=3)))
            await assert_idle(backend)

    run(work())
