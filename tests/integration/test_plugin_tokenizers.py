"""Tokenizers of plugins in the engine: models are asked in their tokens, and a fault of theirs is told by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
from support.native import run
from support.tiny_model import write_tiny_model

from pyagent.assembly import make_chain
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, PyAgentError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.engine import plugin as engine_plugin
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.plugin import TokenizerFactory, hookimpl

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "pyagent-bytes"))
from pyagent_bytes import ByteModels, Bytes

TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}<|assistant|>"
GREEDY = SamplingParams(temperature=0, max_tokens=6, return_token_ids=True, top_logprobs=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    return write_tiny_model(folder / "tiny.bytes.gguf", tokenizer__chat_template=TEMPLATE)


@asynccontextmanager
async def asked(path: Path, tokenizer: object = None, **settings: object) -> AsyncIterator[Chain]:
    """A chain of one model, over a host with the tokenizer's plugin alone."""

    class Factory(ByteModels):
        def load(self, path: Path) -> Any:
            return tokenizer or Bytes()

    class Plugin:
        @hookimpl
        def pyagent_register_tokenizers(self) -> Sequence[TokenizerFactory]:
            return [Factory()]

    host = PluginHost()
    host.register(Plugin(), "mine")
    host.register(engine_plugin, "native")
    overrides = {"engine.models": [str(path)], "engine.threads": 1, **settings}
    chain = make_chain(load_settings(overrides=overrides).settings, host, ["native"])
    try:
        yield chain
    finally:
        await chain.close()


def test_a_model_is_asked_in_a_plugins_tokens(path: Path) -> None:
    """Prompts, chats, streams, log probabilities and forms all go by the plugin's vocabulary."""

    async def main() -> None:
        async with asked(path) as chain:
            plain = await collect(chain.chat(ChatRequest(prompt="é<|end|>z", sampling=GREEDY)))
            assert plain.deltas[0].prompt_token_ids == (*"é".encode(), 256, ord("z"))
            chat = ChatRequest(messages=[Message("user", "a<|end|>b")], sampling=GREEDY)
            answer = await collect(chain.chat(chat))
            assert answer.deltas[0].prompt_token_ids == (257, *b"a<|end|>b", 258)
            ids = [token for delta in answer.deltas for token in delta.token_ids]
            assert answer.text == bytes(token for token in ids if token < 256).decode(errors="replace")
            assert [entry.token for delta in answer.deltas for entry in delta.logprobs][: len(ids)]
            form = ResponseFormat("choice", choice=["yes", "nö"])
            formed = await collect(chain.chat(ChatRequest(messages=chat.messages, response_format=form)))
            assert formed.text in {"yes", "nö"}

    run(main())


def test_a_tokenizer_that_fails_ends_that_request_alone(path: Path) -> None:
    """A text that a plugin fails at is an error of its request, naming the plugin; the next one is answered."""

    class Failing(Bytes):
        def encode(self, text: str) -> list[int]:
            if "bad" in text:
                raise RuntimeError("secret text")
            return [999] if "wrong" in text else super().encode(text)

    async def main() -> None:
        async with asked(path, Failing()) as chain:
            for text in ("bad", "wrong"):
                with pytest.raises(PyAgentError, match="plugin 'mine' brings a tokenizer that") as caught:
                    await collect(chain.chat(ChatRequest(prompt=text, sampling=GREEDY)))
                assert "secret" not in str(caught.value)
            assert (await collect(chain.chat(ChatRequest(prompt="fine", sampling=GREEDY)))).last.finish_reason

    run(main())


def test_long_prompts_are_tokenised_beside_the_event_loop(path: Path) -> None:
    """A text of some thousand characters is given to a thread; a short one is not worth it."""
    threads: dict[int, str] = {}

    class Watched(Bytes):
        def encode(self, text: str) -> list[int]:
            threads[len(text)] = current_thread().name
            return super().encode(text)

    async def main() -> None:
        async with asked(path, Watched()) as chain:
            for length in (100, 3000):
                request = ChatRequest(prompt="a" * length, truncate_prompt_tokens=8, sampling=GREEDY)
                assert (await collect(chain.chat(request))).last.usage.prompt_tokens == 8
            assert threads[100] == current_thread().name
            assert threads[3000].startswith("pyagent-prepare")

    run(main())


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("num_tokens", "many", "has `num_tokens` 'many', expected a number from 1"),
        ("num_tokens", 1 << 23, "has `num_tokens` 8388608"),
        ("end_ids", (259,), "has `end_ids` 259, expected token ids below num_tokens=259"),
        ("begin_id", -1, "has `begin_id` -1"),
        ("special_tokens", {"": 1}, "has `special_tokens`"),
        ("token_bytes", lambda token: "x", "has `token_bytes(0)` 'x', expected bytes"),
    ],
)
def test_a_wrong_tokenizer_is_refused_when_its_model_loads(name: str, value: object, fault: str, path: Path) -> None:
    """What a tokenizer says of itself is checked once, and the error names plugin and member."""
    wrong = Bytes()
    setattr(wrong, name, value)

    async def main() -> None:
        async with asked(path, wrong) as chain:
            with pytest.raises(PyAgentError) as caught:
                await collect(chain.chat(ChatRequest(prompt="a", sampling=GREEDY)))
            assert fault in str(caught.value)

    run(main())


def test_settings_name_a_tokenizer_that_there_is(path: Path) -> None:
    """`engine.tokenizer` takes built-in and plugins' names; another is refused with the nearest."""
    with pytest.raises(ConfigError, match="there is no tokenizer 'tekkn'; did you mean 'tekken'"):
        options_of(load_settings(overrides={"engine.tokenizer": "tekkn"}).settings, PluginHost())
    assert options_of(load_settings(overrides={"engine.tokenizer": "gguf"}).settings, PluginHost()).tokenizer.name

    async def main() -> None:
        async with asked(path, **{"engine.tokenizer": "gguf"}) as chain:
            plain = await collect(chain.chat(ChatRequest(prompt="the", sampling=GREEDY)))
            assert len(plain.deltas[0].prompt_token_ids) == 1

    run(main())


def test_a_hook_that_gives_no_factory_is_refused() -> None:
    """What is no tokenizer factory is the plugin's fault, by the name of its hook."""

    class Plugin:
        @hookimpl
        def pyagent_register_tokenizers(self) -> Sequence[object]:
            return [Bytes()]

    host = PluginHost()
    host.register(Plugin(), "mine")
    assert host.tokenizers() == {}
    (info,) = (info for info in host.plugins() if info.name == "mine")
    assert "pyagent_register_tokenizers" in info.reason
