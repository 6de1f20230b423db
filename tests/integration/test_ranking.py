"""Ranking and classifying texts on the embedded engine, by all ways: program, HTTP, a chain, an engine process."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.encoders import native, on
from support.server import Model
from support.tiny_encoder import write_classifier, write_encoder

from pyagent import Chain, Engine, _rust
from pyagent.cli.root import run as run_command
from pyagent.core.capabilities import PLAIN
from pyagent.core.chain.chain import Chain as CoreChain
from pyagent.core.errors import BackendError, ContextOverflowError, RequestError
from pyagent.core.guarded_backend import GuardedBackend
from pyagent.core.messages import (
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    RankRequest,
    RankResult,
)
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve
from pyagent.testing.openai import openai_server

QUERY = "the cat"
DOCUMENTS = ["x y z", "the cat", "a", "cat the cat the cat", "q " * 20]
LONG = "the " * 100


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random cross-encoder."""
    return write_classifier(tmp_path_factory.mktemp("ranker"), ["relevance"])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random classifier of three labels."""
    return write_classifier(tmp_path_factory.mktemp("classifier"), ["no", "yes", "perhaps"])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random encoder that embeds."""
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def ranked(path: Path, documents: list[str], **options: Any) -> list[float]:
    """Relevances of documents to the query by an engine of its own."""
    pairs = [(QUERY, document) for document in documents]
    return on(lambda: native(path), lambda made: made.rank(RankRequest(model="", pairs=pairs, **options))).scores


def test_model_says_what_it_is_for(
    ranker: Path, classifier: Path, encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its task is known from its files, and `models show` says it."""
    assert [_rust.model_task(path) for path in (ranker, classifier, encoder)] == ["rank", "classify", "embed"]
    assert run_command(["models", "show", str(ranker)]) == 0
    assert "it ranks documents and answers nothing" in capsys.readouterr().out
    assert run_command(["models", "show", str(classifier)]) == 0
    shown = capsys.readouterr().out
    assert "classifies    texts of up to 48 tokens" in shown
    assert "labels        3: no, yes, perhaps" in shown
    assert run_command(["models", "show", str(classifier), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["capabilities"], about["labels"]) == (["classify"], ["no", "yes", "perhaps"])


def test_a_pair_gives_the_same_alone_and_beside_others(ranker: Path, classifier: Path) -> None:
    """A document's relevance has the same bits in any company, and the order of a pair is not forgotten."""
    together = ranked(ranker, DOCUMENTS)
    assert together == [ranked(ranker, [document])[0] for document in DOCUMENTS]
    assert together[::-1] == ranked(ranker, DOCUMENTS[::-1])
    assert all(0 < score < 1 for score in together)
    assert len(set(together)) == len(DOCUMENTS)
    turned = RankRequest(model="", pairs=[("x y z", QUERY)])
    assert on(lambda: native(ranker), lambda made: made.rank(turned)).scores != together[:1]
    labelled = on(lambda: native(classifier), lambda made: made.classify(ClassifyRequest(model="", input=DOCUMENTS)))
    assert labelled.labels == ["no", "yes", "perhaps"]
    assert all(sum(row) == pytest.approx(1.0, abs=1e-6) for row in labelled.scores)


def test_an_embedding_model_ranks_by_the_cosine(encoder: Path) -> None:
    """Without a model that ranks, the vectors of query and documents are compared."""
    found = ranked(encoder, DOCUMENTS)
    texts = EmbedRequest(model="", input=[QUERY, *DOCUMENTS])
    query, *rest = on(lambda: native(encoder), lambda made: made.embed(texts)).vectors
    assert found == [pytest.approx(sum(a * b for a, b in zip(query, row, strict=True))) for row in rest]
    assert max(range(len(found)), key=found.__getitem__) == 1  # the same text


def test_an_embedding_model_cuts_documents_and_no_query(encoder: Path) -> None:
    """With `truncate` a long document has the relevance of its beginning; a long query is refused, and told why."""
    assert ranked(encoder, [LONG], truncate=True) == ranked(encoder, ["the " * 38])  # 40 tokens, less two special ones
    with pytest.raises(ContextOverflowError, match=r"input 0 has 102 tokens, the model takes 40; a query is never cut"):
        on(lambda: native(encoder), lambda made: made.rank(RankRequest(model="", pairs=[(LONG, "a")], truncate=True)))
    twice = RankRequest(model="", pairs=[("a", "a"), ("a", "the")])
    assert on(lambda: native(encoder), lambda made: made.rank(twice)).usage.prompt_tokens == 6  # each text once


def test_each_task_goes_to_the_model_for_it(ranker: Path, classifier: Path, encoder: Path) -> None:
    """Of several models of one backend the right one is asked; one that is named for another task says what it does."""

    async def work(backend: NativeBackend) -> None:
        pairs = [(QUERY, "a")]
        assert (await backend.embed(EmbedRequest(model="", input=["a"]))).model == str(encoder)
        assert (await backend.rank(RankRequest(model="", pairs=pairs))).model == str(ranker)
        assert (await backend.classify(ClassifyRequest(model="", input=["a"]))).model == str(classifier)
        with pytest.raises(RequestError, match="cannot embed"):
            await backend.embed(EmbedRequest(model=str(ranker), input=["a"]))
        with pytest.raises(RequestError, match=r"cannot rank documents.*cross-encoder"):
            await backend.rank(RankRequest(model=str(classifier), pairs=pairs))
        with pytest.raises(RequestError, match=r"cannot classify texts.*ForSequenceClassification"):
            await backend.classify(ClassifyRequest(model=str(encoder), input=["a"]))

    on(lambda: native(classifier, encoder, ranker), work)


def test_a_long_document_is_cut_where_that_is_asked(ranker: Path) -> None:
    """Only the document is cut; a query that leaves no room for one is refused, as is a long pair otherwise."""
    cut = ranked(ranker, [LONG, "a"], truncate=True)
    fits = "the " * 42  # 48 tokens, less three special ones and two of the query, less what follows
    assert cut[0] == ranked(ranker, [fits + "the"])[0]
    with pytest.raises(ContextOverflowError, match=r"pair 1 has 105 tokens, the model takes 48; .*set truncate"):
        ranked(ranker, ["a", LONG])
    pairs = [(LONG, "a")]
    with pytest.raises(ContextOverflowError, match="its query alone fills that"):
        on(lambda: native(ranker), lambda made: made.rank(RankRequest(model="", pairs=pairs, truncate=True)))


def test_program_ranks_and_classifies(ranker: Path, classifier: Path) -> None:
    """`Engine` in this process and in one of its own, and a chain: the same numbers, the best document first."""
    expected = sorted(enumerate(ranked(ranker, DOCUMENTS)), key=lambda one: -one[1])
    with Engine(str(ranker)) as here:
        assert here.rerank(QUERY, DOCUMENTS) == expected
    with Engine(str(classifier), process=True) as apart:
        [labels] = apart.classify(["the cat"])
        assert list(labels) == ["no", "yes", "perhaps"]
        with pytest.raises(RequestError, match="cannot rank documents"):
            apart.rerank(QUERY, DOCUMENTS)

    async def chained() -> None:
        async with Chain([f"native:{ranker}"]) as chain:
            assert await chain.rerank(QUERY, DOCUMENTS) == expected

    asyncio.run(chained())


def test_rerank_over_http(ranker: Path) -> None:
    """Cohere's and Jina's shape: sorted, cut to `top_n`, with the documents or without, at both paths."""
    expected = sorted(enumerate(ranked(ranker, DOCUMENTS)), key=lambda one: -one[1])
    with serve(create_app(native(ranker))) as url:
        body = {"query": QUERY, "documents": [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]], "model": str(ranker)}
        found = httpx.post(f"{url}/v1/rerank", json=body).json()
        assert [(one["index"], one["relevance_score"]) for one in found["results"]] == expected
        assert found["results"][0]["document"] == {"text": DOCUMENTS[expected[0][0]]}
        assert found["usage"]["total_tokens"] > len(DOCUMENTS)
        short = httpx.post(f"{url}/v2/rerank", json=body | {"top_n": 2, "return_documents": False}).json()
        assert short["results"] == [{"index": i, "relevance_score": score} for i, score in expected[:2]]
        assert httpx.post(f"{url}/v1/rerank", json=body | {"documents": [LONG]}).status_code == 200
        scored = httpx.post(f"{url}/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
        assert [one["score"] for one in scored["data"]] == ranked(ranker, DOCUMENTS)
        paired = {"text_1": [QUERY, "a"], "text_2": ["a", QUERY]}
        assert len(httpx.post(f"{url}/v1/score", json=paired).json()["data"]) == 2
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["capabilities"] == ["rerank"]


def test_classify_over_http(classifier: Path) -> None:
    """The best label and a probability for each, as vLLM answers."""
    with serve(create_app(native(classifier))) as url:
        found = httpx.post(f"{url}/v1/classify", json={"input": DOCUMENTS}).json()
        assert [one["index"] for one in found["data"]] == [*range(len(DOCUMENTS))]
        for one in found["data"]:
            assert one["num_classes"] == 3
            assert one["label"] == ["no", "yes", "perhaps"][one["probs"].index(max(one["probs"]))]


BAD_BODIES: list[tuple[str, dict[str, object], str]] = [
    ("rerank", {"documents": ["a"]}, "query"),
    ("rerank", {"query": QUERY, "documents": []}, "documents: there is no text"),
    ("rerank", {"query": "", "documents": ["a"]}, "query: there is no text"),
    ("rerank", {"query": QUERY, "documents": ["a", ""]}, "documents: there is no text"),
    ("rerank", {"query": QUERY, "documents": ["a", {"title": "b"}]}, "documents[1] has no text"),
    ("rerank", {"query": QUERY, "documents": ["a", 3]}, "documents[1]"),
    ("rerank", {"query": QUERY, "documents": ["a"] * 2049}, "documents has 2049 entries"),
    ("rerank", {"query": QUERY, "documents": ["a"], "top_n": 0}, "top_n is 0"),
    ("rerank", {"query": QUERY, "documents": ["a"], "model": "nosuch"}, "nosuch"),
    ("rerank", {"query": QUERY, "documents": ["a"], "colour": 1}, "colour"),
    ("rerank", {"query": "\ud800", "documents": ["a"]}, ""),
    ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1 has 2 entries and text_2 3"),
    ("score", {"text_1": [], "text_2": []}, "there is no text"),
    ("score", {"text_1": "a", "text_2": ["a"] * 2049}, "text_2 has 2049 entries; 2048 are taken at most"),
    ("score", {"text_1": QUERY, "text_2": [LONG]}, "the model takes 48"),
    ("classify", {"input": []}, "input: there is no text"),
    ("classify", {"input": ["a", ["b"]]}, "input"),
]


def test_bad_requests_are_refused_by_name(ranker: Path) -> None:
    """A status of 400 or 404 whose sentence names the field; the server goes on."""
    with serve(create_app(native(ranker))) as url:
        for path, body, said in BAD_BODIES:
            answer = httpx.post(
                f"{url}/v1/{path}", content=json.dumps(body), headers={"content-type": "application/json"}
            )
            assert answer.status_code in {400, 404}, (path, body, answer.text)
            assert said in answer.text, (path, body, answer.text)
        assert httpx.post(f"{url}/v1/score", json={"text_1": "a", "text_2": "a"}).status_code == 200


def test_another_server_ranks_as_a_link(ranker: Path) -> None:
    """An `openai:` link asks its server's /rerank, a query at a time; one that has none is passed by."""
    pairs = [(QUERY, "a"), (QUERY, "cat"), ("x", "a")]
    expected = on(lambda: native(ranker), lambda made: made.rank(RankRequest(model="", pairs=pairs))).scores

    async def work(chain: CoreChain) -> None:
        found = await chain.rank(RankRequest(model="", pairs=pairs))
        assert found.scores == expected
        assert found.usage.prompt_tokens > 0

    with serve(create_app(native(ranker))) as url, openai_server() as other:
        on(lambda: CoreChain([OpenAIBackend(other.url), OpenAIBackend(f"{url}/v1")]), work)


class Rubbish(Model):
    """A plugin's backend that gives one thing for whatever it is asked."""

    def __init__(self, gives: object) -> None:
        super().__init__()
        self.gives = gives
        self.capabilities = msgspec.structs.replace(PLAIN, rank=self.give, classify=self.give)

    async def give(self, _: object) -> Any:
        return self.gives

    async def embed(self, request: EmbedRequest) -> Any:
        return await self.give(request)


RUBBISH: list[object] = [
    None,
    RankResult(scores=[0.5]),
    RankResult(scores=[0.5, math.nan]),
    RankResult(scores=[0.5, math.inf]),
    RankResult(scores=[0.5, 0.5, 0.5]),
    RankResult(scores=["a", "b"]),  # type: ignore[list-item]
    RankResult(scores=None),  # type: ignore[arg-type]
    ClassifyResult(labels=[], scores=[[], []]),
    ClassifyResult(labels=["a"], scores=[[0.5]]),
    ClassifyResult(labels=["a"], scores=[[0.5, 0.5], [0.5]]),
    ClassifyResult(labels=["a"], scores=[[0.5], [math.nan]]),
    EmbedResult(vectors=[[0.5]]),
    EmbedResult(vectors=None),  # type: ignore[arg-type]
]


def test_rubbish_of_a_plugin_is_its_failure(ranker: Path) -> None:
    """Too few numbers, others, or none at all: the plugin's backend is named, and the next link is asked."""
    asked: list[tuple[str, Any]] = [
        ("rank", RankRequest(model="", pairs=[(QUERY, "a"), (QUERY, "b")])),
        ("classify", ClassifyRequest(model="", input=["a", "b"])),
        ("embed", EmbedRequest(model="", input=["a", "b"])),
    ]

    async def work(chain: CoreChain) -> None:
        for name, request in asked:
            with pytest.raises(BackendError, match="test:m"):
                await getattr(chain, name)(request)

    for gives in RUBBISH:
        on(partial(CoreChain, [GuardedBackend(Rubbish(gives))]), work)
    chain = partial(CoreChain, [GuardedBackend(Rubbish(RUBBISH[1])), native(ranker)])
    pairs = [(QUERY, document) for document in DOCUMENTS]
    assert on(chain, lambda made: made.rank(RankRequest(model="", pairs=pairs))).scores == ranked(ranker, DOCUMENTS)


def test_damaged_heads_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """A head that is missing, of another shape, or of another task is named."""
    path = write_classifier(tmp_path / "m", ["a", "b"])
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    for change, said in [
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "'classifier.weight' is 2 x 24; expected 3 x 24"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ({"id2label": {"0": "a", "5": "b"}}, "names no label 1"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}}, "torch.nn.ReLU"),
        ({"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"]}, "is missing"),
    ]:
        (path / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
        with pytest.raises(_rust.ModelFileError) as caught:
            _rust.describe_encoder(path)
        assert said in str(caught.value), (change, str(caught.value))
