"""What requests of rankers, classifiers and encoders are told of the text that is wrong, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_encoder import write_classifier, write_encoder

from pyagent.core.errors import ContextOverflowError, RequestError
from pyagent.core.messages import ClassifyRequest, EmbedRequest, RankRequest
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.models.describe import task_of

LONG = "the " * 100


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random encoder that embeds."""
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random cross-encoder."""
    return write_classifier(tmp_path_factory.mktemp("ranker"), ["relevance"])


def asked(path: Path, work: Callable[[NativeBackend], Awaitable[Any]]) -> Any:
    """Ask a backend of one model."""

    async def whole() -> Any:
        pool = ModelPool(Path, EngineOptions(), Ledger(1 << 30))
        backend = NativeBackend(
            [str(path)], LocalEngine(pool), look=lambda _: "", task_of=lambda name: task_of(Path(name))
        )
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(whole())


def test_text_that_is_wrong_is_named_by_its_place(encoder: Path, ranker: Path) -> None:
    """By its number in the request, however many texts there are, and where a text is there several times."""
    texts = [*["a"] * 150, LONG]
    with pytest.raises(ContextOverflowError, match=r"^input 150 has 102 tokens"):
        asked(encoder, lambda made: made.embed(EmbedRequest(model="", input=texts)))
    pairs = [("the cat", text) for text in texts]
    with pytest.raises(ContextOverflowError, match=r"^pair 150 has 105 tokens"):
        asked(ranker, lambda made: made.rank(RankRequest(model="", pairs=pairs)))
    with pytest.raises(ContextOverflowError, match=r"^input 150 has 102 tokens"):
        asked(encoder, lambda made: made.rank(RankRequest(model="", pairs=pairs)))
    with pytest.raises(RequestError, match=r"^input 2 is empty"):
        asked(ranker, lambda made: made.rank(RankRequest(model="", pairs=[("a", "b"), ("a", "b"), ("a", "")])))
    with pytest.raises(RequestError, match=r"^input 1 is no Unicode text"):
        asked(ranker, lambda made: made.classify(ClassifyRequest(model="", input=["a", "\ud800"])))


def test_texts_that_come_again_are_computed_once(encoder: Path) -> None:
    """A query is computed once for all its documents, as is a document that comes again; usage counts these tokens."""
    pairs = [("the cat", "a"), ("the cat", "x"), ("the cat", "a")]
    found = asked(encoder, lambda made: made.rank(RankRequest(model="", pairs=pairs)))
    assert found.usage.prompt_tokens == 4 + 3 + 3
    assert found.scores[0] == found.scores[2] != found.scores[1]
