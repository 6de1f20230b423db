"""A chain over llama.cpp's own server: an answer broken off elsewhere goes on there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.chains import Played, says
from support.peers import PYTHON, free_port, serving

from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain, LinkSettings
from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.infrastructure.backends.openai import OpenAIBackend

pytestmark = pytest.mark.peers

ASKED = ChatRequest(
    messages=[Message("user", "Write one sentence about the sea.")],
    sampling=SamplingParams(temperature=0, max_tokens=40),
)


def test_llama_cpp_goes_on_with_an_answer(smollm2_path: Path, tmp_path: Path) -> None:
    """From the text told so far, llama.cpp ends a greedy answer as it would have from the beginning."""
    port = free_port()
    words: list[str | Path] = [PYTHON, Path(__file__).parent / "llama_server.py", smollm2_path, str(port)]
    gone = BackendError("connection closed", backend="link:a")

    async def answers(url: str) -> tuple[Answer, Answer]:
        whole = await collect(OpenAIBackend(url).chat(ASKED))
        cut = whole.text.index(" ", 20)  # a word's end is a token's end
        plain = [LinkSettings(use="link:a"), LinkSettings(use="openai", continues=True)]
        chain = Chain([Played("a", says(whole.text[:cut], gone)), OpenAIBackend(url)], settings=plain)
        return whole, await collect(chain.chat(ASKED))

    with serving(f"http://127.0.0.1:{port}/health", words, tmp_path / "log"):
        whole, resumed = asyncio.run(answers(f"http://127.0.0.1:{port}/v1"))
    assert resumed.text == whole.text
    assert resumed.deltas[0].resumed is not None
