"""llama.cpp's own server, and litellm's proxy in front of it, as backends."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.peers import PYTHON, free_port, serving

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import ContextOverflowError
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
)
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output.matching import fault_of_text
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.testing import BackendConformance, Subject

pytestmark = pytest.mark.peers

HERE = Path(__file__).parent
KEY = f"sk-{secrets.token_hex(32)}"
SUM = ChatRequest(
    messages=[Message("user", "What is 2+2? Answer with the number only.")],
    sampling=SamplingParams(temperature=0, max_tokens=16),
)


@pytest.fixture(scope="module")
def llama(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of llama.cpp's server over SmolLM2."""
    port = free_port()
    words: list[str | Path] = [PYTHON, HERE / "llama_server.py", smollm2_path, str(port)]
    log = tmp_path_factory.mktemp("llama") / "log"
    with serving(f"http://127.0.0.1:{port}/health", words, log):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="module")
def litellm(llama: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of litellm's proxy in front of it."""
    port, folder = free_port(), tmp_path_factory.mktemp("litellm")
    target = {"model": "openai/smollm2", "api_base": llama, "api_key": "none"}
    models = [{"model_name": "small", "litellm_params": target}]
    config = {"model_list": models, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    start = "import sys; sys.argv[0] = 'litellm'; from litellm import run_server; run_server()"
    words: list[str | Path] = [PYTHON, "-c", start, "--config", folder / "config.yaml", "--port", str(port)]
    words += ["--host", "127.0.0.1"]
    with serving(f"http://127.0.0.1:{port}/health/liveliness", words, folder / "log"):
        yield f"http://127.0.0.1:{port}/v1"


def ask(url: str, request: ChatRequest, model: str = "") -> Answer:
    async def main() -> Answer:
        backend = OpenAIBackend(url, model=model, api_key=KEY if model else None)
        try:
            return await collect(backend.chat(request))
        finally:
            await backend.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "form",
    [
        ResponseFormat("choice", choice=['a "b"', "c\nd\\", "é"]),
        ResponseFormat("grammar", grammar=GrammarFormat('root ::= "a" [0-9] [0-9] "."', "gbnf")),
    ],
)
def test_llama_cpp_is_held_to_forms_by_its_own_field(llama: str, form: ResponseFormat) -> None:
    """A choice and a GBNF go into `grammar`: the answer has the form, and the prompt says nothing of it."""
    held = ask(llama, msgspec.structs.replace(SUM, response_format=form))
    assert fault_of_text(held.text, form) is None
    assert held.usage.prompt_tokens == ask(llama, SUM).usage.prompt_tokens


class TestLlamaCpp(BackendConformance):
    """llama.cpp does what every backend must."""

    @pytest.fixture(autouse=True)
    def _server(self, llama: str) -> None:
        self.url = llama

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        lacks = frozenset({"images"})
        yield Subject(lambda: OpenAIBackend(self.url), scheme="openai", unknown_model=None, lacks=lacks)


class TestLiteLLM(BackendConformance):
    """So does litellm's proxy."""

    @pytest.fixture(autouse=True)
    def _server(self, litellm: str) -> None:
        self.url = litellm

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        lacks = frozenset({"images", "n"})  # a stream of litellm's ends with the first of several answers
        yield Subject(lambda: OpenAIBackend(self.url, model="small", api_key=KEY), scheme="openai", lacks=lacks)


def test_same_answer_through_the_proxy(llama: str, litellm: str) -> None:
    """A greedy answer is the same from llama.cpp and through litellm."""
    assert ask(llama, SUM).text == ask(litellm, SUM, "small").text != ""


def test_schema_is_followed(llama: str) -> None:
    """llama.cpp's grammar holds the answer to the schema."""
    schema: dict[str, object] = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    wanted = ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))
    answer = ask(
        llama, ChatRequest(messages=SUM.messages, response_format=wanted, sampling=SamplingParams(temperature=0))
    )
    assert isinstance(json.loads(answer.text)["sum"], int)


def test_choice_is_kept(llama: str) -> None:
    """A choice, sent as a schema, comes back as one of the texts."""
    wanted = ResponseFormat("choice", choice=["yes", "no"])
    assert ask(llama, ChatRequest(messages=SUM.messages, response_format=wanted)).text in {"yes", "no"}


def test_prompt_that_is_too_long_is_an_overflow(llama: str) -> None:
    """llama.cpp's refusal of a prompt is a `ContextOverflowError` with its numbers."""
    with pytest.raises(ContextOverflowError) as caught:
        ask(llama, ChatRequest(messages=[Message("user", "word " * 9000)]))
    assert caught.value.num_tokens > caught.value.limit > 0


def test_logprobs_come_for_chats(llama: str) -> None:
    """Log probabilities with their rivals come from a real server."""
    request = ChatRequest(messages=SUM.messages, sampling=SamplingParams(temperature=0, max_tokens=3, top_logprobs=2))
    entries = [entry for delta in ask(llama, request).deltas for entry in delta.logprobs]
    assert entries
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_embeddings_come(smollm2_path: Path, tmp_path: Path) -> None:
    """llama.cpp embeds when started for it: one vector a text."""
    port = free_port()
    words: list[str | Path] = [PYTHON, HERE / "llama_server.py", smollm2_path, str(port), "embedding"]

    async def main() -> EmbedResult:
        backend = OpenAIBackend(f"http://127.0.0.1:{port}/v1")
        try:
            return await backend.embed(EmbedRequest(model="", input=["one", "two words", "three"]))
        finally:
            await backend.close()

    with serving(f"http://127.0.0.1:{port}/health", words, tmp_path / "log"):
        result = asyncio.run(main())
    assert len(result.vectors) == 3
    assert {len(vector) for vector in result.vectors} == {576}
