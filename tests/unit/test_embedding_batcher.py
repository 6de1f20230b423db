"""Embedding calls sent together: everybody gets their own vectors, whoever comes, leaves or asks for nonsense."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chains import Played, chain_of, request, run, says
from support.server import run as served
from support.waiting import until

from pyagent.core.chain.embedding_batcher import EmbeddingBatcher
from pyagent.core.errors import BackendError, ConfigError, RequestError
from pyagent.core.messages import EmbedRequest, EmbedResult, Usage
from pyagent.testing import openai_server

TEXTS = st.text(max_size=6).filter(lambda text: text not in {"bad", "down"})


class Embedder:
    """Embeds a text as its length; refuses batches with a text `bad`, fails on `down`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.sent: list[list[str]] = []
        self.num_cancelled = 0

    async def __call__(self, request: EmbedRequest) -> EmbedResult:
        self.sent.append(request.input)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if "bad" in request.input:
            raise RequestError("bad text", param="input")
        if "down" in request.input:
            raise BackendError("down", backend="e")
        num_tokens = sum(map(len, request.input))
        vectors = [[float(len(text))] for text in request.input]
        return EmbedResult(vectors=vectors, model=request.model, usage=Usage(num_tokens, 0, num_tokens))


async def gathered(gatherer: EmbeddingBatcher, *inputs: list[str], model: str = "m") -> list[Any]:
    calls = (gatherer.embed(EmbedRequest(model=model, input=texts)) for texts in inputs)
    return await asyncio.gather(*calls, return_exceptions=True)


def test_calls_of_a_moment_are_one() -> None:
    """Calls within the moment go out as one; a later one, and one for another model, are their own."""

    async def work() -> None:
        await asyncio.gather(gathered(gatherer, ["a"], ["bb", "ccc"]), gathered(gatherer, ["d"], model="other"))
        await gathered(gatherer, ["late"])

    embedder = Embedder()
    gatherer = EmbeddingBatcher(embedder, 0.01)
    run(work())
    assert sorted(embedder.sent) == [["a", "bb", "ccc"], ["d"], ["late"]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(TEXTS, min_size=0, max_size=40), min_size=1, max_size=30))
def test_everybody_gets_their_own(inputs: list[list[str]]) -> None:
    """Vectors are those of asking alone, no call has over 32 texts of several callers, and no token is lost."""
    embedder = Embedder()
    answers = run(gathered(EmbeddingBatcher(embedder, 0.001), *inputs))
    for texts, answer in zip(inputs, answers, strict=True):
        assert answer.vectors == [[float(len(text))] for text in texts]
    assert sum(answer.usage.prompt_tokens for answer in answers) == sum(len(text) for texts in inputs for text in texts)
    assert all(len(sent) <= 32 or sent in inputs for sent in embedder.sent)


def test_one_callers_fault_is_told_to_that_one() -> None:
    """When a batch is refused each is asked for alone; when the link fails, all are told, and nothing is sent again."""
    embedder = Embedder()
    good, bad, other = run(gathered(EmbeddingBatcher(embedder, 0.001), ["a"], ["bad"], ["ccc"]))
    assert (good.vectors, other.vectors) == ([[1.0]], [[3.0]])
    assert isinstance(bad, RequestError)
    embedder.sent.clear()
    answers = run(gathered(EmbeddingBatcher(embedder, 0.001), ["a"], ["down"], ["ccc"]))
    assert all(isinstance(answer, BackendError) for answer in answers)
    assert len(embedder.sent) == 1


def test_who_leaves_takes_its_texts_along() -> None:
    """Gone before the sending, a text is not sent; gone after, others get theirs; when all are gone it is cancelled."""

    async def work() -> None:
        calls = [
            asyncio.create_task(gatherer.embed(EmbedRequest(model="m", input=[text]))) for text in ("a", "bb", "ccc")
        ]
        await asyncio.sleep(0)
        calls[0].cancel()
        await until(lambda: embedder.sent == [["bb", "ccc"]])
        calls[1].cancel()
        assert (await calls[2]).vectors == [[3.0]]
        assert embedder.num_cancelled == 0
        last = asyncio.create_task(gatherer.embed(EmbedRequest(model="m", input=["d"])))
        await until(lambda: embedder.sent[-1] == ["d"])
        last.cancel()
        await until(lambda: embedder.num_cancelled == 1)
        gone = asyncio.create_task(gatherer.embed(EmbedRequest(model="m", input=["e"])))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert (await gatherer.embed(EmbedRequest(model="m", input=["next"]))).vectors == [[4.0]]
        assert embedder.sent[-1] == ["next"]

    embedder = Embedder(0.2)
    gatherer = EmbeddingBatcher(embedder, 0.01)
    run(work())


def test_link_gathers_where_its_table_says_so(tmp_path: Path) -> None:
    """`batch_ms` holds for one link, is bounded, and each caller counts as a call."""
    a = Played("a", says("one"))
    text = 'chain = [{ use = "link:a", batch_ms = 5 }]'
    sent: list[list[str]] = []

    async def embed(request: EmbedRequest) -> EmbedResult:
        sent.append(request.input)
        return EmbedResult(vectors=[[1.0] for _ in request.input])

    a.embed = embed  # type: ignore[method-assign]
    chain = chain_of(tmp_path, text, a)

    async def work() -> None:
        await asyncio.gather(*(chain.embed(EmbedRequest(model="", input=[str(n)])) for n in range(8)))

    run(work())
    assert len(sent) == 1
    assert chain.link_states()[0].num_answers == 8
    with pytest.raises(ConfigError, match="batch_ms of link 1"):
        chain_of(tmp_path, 'chain = [{ use = "link:a", batch_ms = 5000 }]', a)


def test_remote_server_sees_one_call(tmp_path: Path) -> None:
    """Ten calls of OpenAI's client to ours are one request with ten texts to the server behind it."""
    with openai_server(models=("e",)) as remote:
        chain = chain_of(tmp_path, f'chain = [{{ use = "openai:{remote.url}", batch_ms = 600 }}]')

        async def work(_url: str, client: openai.AsyncOpenAI) -> list[Any]:
            try:
                assert "batched for 600 ms" in (await chain.explain(request()))[0].limits
                texts = ["x" * number for number in range(1, 11)]
                return await asyncio.gather(*(client.embeddings.create(model="e", input=text) for text in texts))
            finally:
                await chain.close()

        answers = served(work, chain)
    assert [answer.data[0].embedding[0] for answer in answers] == [float(number) for number in range(1, 11)]
    assert [len(body["input"]) for body in remote.requests] == [10]  # type: ignore[arg-type]
