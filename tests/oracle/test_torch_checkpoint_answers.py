"""Quantised checkpoints through the engine: their text is that of the weights that they stand for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.native import NUM_TOKENS, chat, engine_of
from support.quantised_folder import write_quantised
from support.tiny_model import CHAT_TEMPLATE, write_tiny_model

from pyagent.core.backends import collect
from pyagent.infrastructure.engine.tokens import ModelTokenizer

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer.json of the tiny model's vocabulary."""
    path = write_tiny_model(tmp_path_factory.mktemp("tokenizer") / "m.gguf")
    return ModelTokenizer.load(path, vocab_size=NUM_TOKENS).tokenizer.inner.to_str()  # type: ignore[attr-defined]


def said(path: Path, tokenizer: str, quantization: str) -> str:
    """What the engine says over a folder, greedily."""
    (path / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    settings = {"engine.runner": "torch", "engine.quantization": quantization, "engine.kv_dtype": "f32"}

    async def answer() -> str:
        async with engine_of(path, process=False, **settings) as backend:
            request = chat("the user asks", max_tokens=16, temperature=0.0, ignore_eos=True)
            return (await collect(backend.chat(request))).text

    return asyncio.run(answer())


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("gptq", ("auto", "keep", "none")),
        ("awq", ("keep",)),
        ("fp8-weights", ("auto", "keep")),
        ("fp8-block", ("auto",)),  # kept, its inputs are quantised too
    ],
)
def test_text_is_that_of_the_dequantised_checkpoint(
    name: str, ways: tuple[str, ...], tokenizer: str, tmp_path: Path
) -> None:
    """A folder with its tokenizer, from chat to text: kept or dequantised, it says what its plain weights say."""
    model = write_quantised(tmp_path, name, vocab_size=NUM_TOKENS)
    expected = said(model.plain_path, tokenizer, "auto")
    assert len(set(expected)) > 4
    assert [said(model.path, tokenizer, way) for way in ways] == [expected] * len(ways)
