"""Vectors of tokens and late interaction on the embedded engine: program, HTTP, a chain, an engine process."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.encoders import native, on
from support.server import Model
from support.tiny_encoder import write_classifier, write_encoder, write_late_encoder

from pyagent import Chain, Engine, _rust
from pyagent.core.capabilities import PLAIN
from pyagent.core.chain.chain import Chain as CoreChain
from pyagent.core.errors import BackendError, ContextOverflowError, ModelError, RequestError
from pyagent.core.guarded_backend import GuardedBackend
from pyagent.core.messages import (
    ClassifyRequest,
    EmbedRequest,
    Message,
    RankRequest,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.infrastructure.models.describe import task_of
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

TEXTS = ["ab c", "the cat x", "x y", "q w e r t z"]


def token_vectors(path: Path, texts: list[str], **options: Any) -> list[list[list[float]]]:
    """Vectors of the texts' tokens by an engine of its own."""
    asked = TokenEmbedRequest(model="", input=texts, **options)
    return on(lambda: native(path), lambda made: made.token_embed(asked)).vectors


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model of late interaction."""
    return write_late_encoder(tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random encoder that pools by the mean."""
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def test_tokens_have_the_same_vectors_in_any_company(encoder: Path) -> None:
    """One of length 1 for each token, special ones included; the same bits alone and beside others, on every set."""
    together = token_vectors(encoder, TEXTS)
    assert together == [token_vectors(encoder, [text])[0] for text in TEXTS]
    assert [len(text) for text in together] == [5, 5, 4, 8]
    for text in together:
        assert all(sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5) for vector in text)
    tokens = [[2, 5, 32, 7, 3], [2, 57, 58, 28, 3]]
    found = {
        _rust.EncoderModel.load(encoder, threads=1, isa=isa).compute_tokens(tokens)
        for isa in _rust.cpu_features()["isas"]
    }
    assert len(found) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == f"pyagent-embed-{encoder}"]


def test_queries_and_documents_are_read_apart(late: Path) -> None:
    """A query is filled up to 12 tokens; a document has its mark, and punctuation of it does not count."""
    queries, documents = token_vectors(late, TEXTS, is_query=True), token_vectors(late, TEXTS)
    assert [len(text) for text in queries] == [12, 12, 12, 12]
    assert [len(text) for text in documents] == [6, 5, 3, 9]
    assert {len(vector) for text in queries + documents for vector in text} == {10}
    with pytest.raises(ContextOverflowError, match="the model takes 19"):
        token_vectors(late, ["a " * 30])
    assert len(token_vectors(late, ["a " * 30], truncate=True)[0]) == 20
    assert len(token_vectors(late, ["a " * 30], is_query=True)[0]) == 33  # longer ones are whole
    with pytest.raises(ContextOverflowError, match="a query is never cut: send a shorter one"):
        token_vectors(late, ["a " * 200], is_query=True)


def test_texts_are_as_long_as_the_model_takes_at_most(tmp_path: Path) -> None:
    """Whatever lengths a folder gives, and marks are counted: a longer text is refused as others are, or cut."""
    path = write_late_encoder(tmp_path / "m", query_length=1 << 20, document_length=1 << 20)
    about = _rust.describe_encoder(path)
    assert about is not None
    most = about["max_tokens"]
    fits = "a " * (most - 3)
    assert [len(text) for text in token_vectors(path, ["a", fits], is_query=True)] == [most, most]
    with pytest.raises(ContextOverflowError, match=f"the model takes {most - 1}"):
        token_vectors(path, [f"{fits} a"], is_query=True)
    with pytest.raises(ContextOverflowError, match=f"the model takes {most - 1}"):
        token_vectors(path, [f"{fits} a"])
    assert len(token_vectors(path, [f"{fits} a a"], truncate=True)[0]) == most


@pytest.mark.parametrize(("skipped", "num_tokens"), [([], 6), (None, 5), (["x", "y", "."], 3)])
def test_words_that_do_not_count_are_those_the_folder_names(
    skipped: list[str] | None, num_tokens: int, tmp_path: Path
) -> None:
    """None of them is none; where it says nothing, punctuation."""
    path = write_late_encoder(tmp_path / "m", skiplist_words=skipped)
    pieces = (path / "vocab.txt").read_text(encoding="utf-8")
    (path / "vocab.txt").write_text(pieces.replace("\nq\n", "\n.\n"), encoding="utf-8")
    assert len(token_vectors(path, ["x y ."])[0]) == num_tokens


def test_queries_are_filled_up_with_ends_where_there_is_no_mask(tmp_path: Path) -> None:
    """As PyLate does for vocabularies without a mask."""
    path = write_late_encoder(tmp_path / "m")
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "[SEP]"}}))
    assert [len(text) for text in token_vectors(path, ["a", "ab c"], is_query=True)] == [12, 12]


def test_what_fills_a_query_up_is_not_seen(tmp_path: Path) -> None:
    """The vectors of its own tokens are the same bits without; seen where the model says so, they are others."""
    bare = write_late_encoder(tmp_path / "bare", do_query_expansion=False)
    hidden, seen = (
        write_late_encoder(tmp_path / "a"),
        write_late_encoder(tmp_path / "b", attend_to_expansion_tokens=True),
    )
    [own], [filled], [other] = (token_vectors(path, ["ab c"], is_query=True) for path in (bare, hidden, seen))
    assert len(own) == 6
    assert filled[:6] == own
    assert other[:6] != own
    tokens = [[2, 5, 3 | 1 << 30, 3], [5 | 1 << 30]]
    for text in tokens:
        with pytest.raises(ValueError, match="not seen"):
            _rust.EncoderModel.load(hidden, threads=1).compute_tokens([text])


def test_late_interaction_ranks_by_greatest_products(late: Path) -> None:
    """As PyLate's MaxSim over the same vectors; pairs that share texts compute them once, in any order."""
    pairs = [(query, document) for query in TEXTS[:2] for document in TEXTS]
    found = on(lambda: native(late), lambda made: made.rank(RankRequest(model="", pairs=pairs)))
    queries = dict(zip(TEXTS, token_vectors(late, TEXTS, is_query=True), strict=True))
    documents = dict(zip(TEXTS, token_vectors(late, TEXTS), strict=True))
    for score, (query, document) in zip(found.scores, pairs, strict=True):
        products = [
            max(sum(a * b for a, b in zip(one, other, strict=True)) for other in documents[document])
            for one in queries[query]
        ]
        assert score == pytest.approx(sum(products), abs=1e-6)
    assert found.usage.prompt_tokens == 2 * 12 + sum(len(text) for text in documents.values()) + 3  # three do not count
    turned = on(lambda: native(late), lambda made: made.rank(RankRequest(model="", pairs=pairs[::-1])))
    assert turned.scores == found.scores[::-1]
    long = RankRequest(model="", pairs=[("a", "b"), ("a", "b"), ("a", "c " * 30)])
    with pytest.raises(ContextOverflowError, match="input 2 has 32 tokens"):  # by its pair, not by its text
        on(lambda: native(late), lambda made: made.rank(long))


def test_late_model_says_what_it_does(late: Path, encoder: Path, tmp_path: Path) -> None:
    """It ranks; it gives texts no vector and no labels. A model with labels gives tokens none."""
    assert task_of(late) == "rank"
    about = _rust.describe_encoder(late)
    assert about is not None
    assert (about["ranks_by_tokens"], about["num_outputs"], about["labels"]) == (True, 10, None)
    with pytest.raises(RequestError, match="cannot embed"):
        on(lambda: native(late), lambda made: made.embed(EmbedRequest(model="", input=["a"])))
    with pytest.raises(RequestError, match="ranks documents; name a model that classifies"):
        on(lambda: native(late), lambda made: made.classify(ClassifyRequest(model="", input=["a"])))
    classifier = write_classifier(tmp_path / "c", ["no", "yes"])
    with pytest.raises(RequestError, match="cannot embed"):
        token_vectors(classifier, ["a"])
    ranker = write_classifier(tmp_path / "r", ["relevance"])
    with pytest.raises(RequestError, match="ranks documents; name a model that embeds"):
        token_vectors(ranker, ["a"])
    with pytest.raises(_rust.ModelFileError, match="has labels"):
        _rust.EncoderModel.load(ranker, threads=1).compute_tokens([[2, 3]])
    assert [len(text) for text in token_vectors(encoder, ["a"], is_query=True)] == [3]


def test_programs_get_vectors_of_tokens(late: Path, encoder: Path) -> None:
    """`Engine` in this process and in one of its own, and a chain that passes a link without them by."""
    expected = token_vectors(encoder, TEXTS)
    with Engine(str(encoder)) as here:
        assert here.token_embed(TEXTS) == expected
    with Engine(str(late), process=True) as apart:
        assert apart.token_embed(TEXTS, is_query=True) == token_vectors(late, TEXTS, is_query=True)

    async def chained() -> None:
        async with Chain([f"native:{encoder}"]) as chain:
            assert await chain.token_embed(TEXTS) == expected

    asyncio.run(chained())
    asked = TokenEmbedRequest(model="", input=TEXTS)
    assert on(lambda: CoreChain([Model(), native(encoder)]), lambda made: made.token_embed(asked)).vectors == expected
    with pytest.raises(RequestError, match="gives no vectors of tokens"):
        on(lambda: CoreChain([Model()]), lambda made: made.token_embed(asked))


def test_pooling_over_http(late: Path) -> None:
    """vLLM's /pooling: vectors as numbers or 32-bit floats in base64; rerank and score by the same model."""
    with serve(create_app(native(late))) as url:
        found = httpx.post(f"{url}/pooling", json={"input": TEXTS, "task": "token_embed"}).json()
        assert [one["object"] for one in found["data"]] == ["pooling"] * 4
        assert [one["data"] for one in found["data"]] == token_vectors(late, TEXTS)
        body = {"input": "ab c", "input_type": "query", "encoding_format": "base64"}
        [packed] = httpx.post(f"{url}/pooling", json=body).json()["data"]
        numbers = array("f", base64.b64decode(packed["data"])).tolist()
        assert numbers == [x for vector in token_vectors(late, ["ab c"], is_query=True)[0] for x in vector]
        scored = httpx.post(f"{url}/v1/score", json={"text_1": "ab c", "text_2": TEXTS}).json()["data"]
        ranked = httpx.post(f"{url}/v1/rerank", json={"query": "ab c", "documents": TEXTS}).json()["results"]
        best = sorted(range(len(TEXTS)), key=lambda at: -scored[at]["score"])
        assert [one["index"] for one in ranked] == best
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["capabilities"] == ["rerank"]
        refused: list[tuple[dict[str, object], str]] = [
            ({"input": []}, "there is no text"),
            ({"input": ["a", ""]}, "there is no text"),
            ({"input": "a", "task": "plugin"}, "task"),
            ({"input": "a", "input_type": "passage"}, "input_type"),
            ({"input": "a " * 30}, "the model takes 19"),
            ({"input": "a", "colour": 1}, "colour"),
        ]
        for body, said in refused:
            answer = httpx.post(f"{url}/pooling", json=body)
            assert (answer.status_code, said in answer.text) == (400, True), (body, answer.text)


def test_vectors_of_one_request_are_bounded(tmp_path: Path) -> None:
    """40 tokens of 2,048 texts, of 384 numbers each, were gigabytes; a smaller request after it is answered."""
    wide = write_encoder(tmp_path, hidden_size=384, intermediate_size=8, num_hidden_layers=1)
    with serve(create_app(native(wide))) as url:
        answer = httpx.post(f"{url}/pooling", json={"input": ["a " * 38] * 2048}, timeout=60)
        assert (answer.status_code, "more than 8388608 numbers; send fewer" in answer.text) == (400, True), answer.text
        assert len(httpx.post(f"{url}/pooling", json={"input": ["a " * 38] * 2}).json()["data"]) == 2


class Rubbish(Model):
    """A plugin's backend that gives one thing for whatever it is asked."""

    def __init__(self, gives: object) -> None:
        super().__init__()
        self.gives = gives
        self.capabilities = msgspec.structs.replace(PLAIN, token_embed=self.give)

    async def give(self, _: object) -> Any:
        return self.gives


@pytest.mark.parametrize(
    "gives",
    [
        None,
        TokenEmbedResult(vectors=[[[0.5]]]),
        TokenEmbedResult(vectors=[[[0.5]], [[float("nan")]]]),
        TokenEmbedResult(vectors=[[[0.5]], [["a"]]]),  # type: ignore[list-item]
        TokenEmbedResult(vectors=None),  # type: ignore[arg-type]
        TokenEmbedResult(vectors=[[0.5], [0.5]]),  # type: ignore[list-item]
    ],
)
def test_rubbish_of_a_plugin_is_its_failure(gives: object) -> None:
    """Too few vectors, others, or none at all: the plugin's backend is named."""
    asked = TokenEmbedRequest(model="", input=["a", "b"])
    with pytest.raises(BackendError, match="test:m"):
        on(partial(CoreChain, [GuardedBackend(Rubbish(gives))]), lambda made: made.token_embed(asked))


def test_damaged_folders_are_refused_by_name(tmp_path: Path) -> None:
    """A mark that is no token, lengths that are none, a step or a residual that is not implemented."""
    path = write_late_encoder(tmp_path / "m")
    file = path / "config_sentence_transformers.json"
    about = json.loads(file.read_text(encoding="utf-8"))
    for change, said in [
        ({"query_prefix": "[Q] "}, r"no token '\[Q\] '"),
        ({"query_length": -1}, "query_length"),
        ({"document_length": "x"}, "document_length"),
        ({"skiplist_words": [3]}, "skiplist_words"),
        ({"document_prefix": ["cat"]}, "document_prefix"),
    ]:
        file.write_text(json.dumps(about | change), encoding="utf-8")
        with pytest.raises(ModelError, match=said):
            token_vectors(path, ["a"])
    file.write_text(json.dumps(about), encoding="utf-8")
    (path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="names no mask_token"):
        token_vectors(path, ["a"])
    dense = path / "1_Dense" / "config.json"
    fields = json.loads(dense.read_text(encoding="utf-8"))
    for change, said in [({"use_residual": True}, "use_residual"), ({"in_features": 25}, "takes 25 numbers")]:
        dense.write_text(json.dumps(fields | change), encoding="utf-8")
        with pytest.raises(_rust.ModelFileError, match=said):
            _rust.describe_encoder(path)
    modules = path / "modules.json"
    steps = json.loads(modules.read_text(encoding="utf-8"))
    modules.write_text(json.dumps([*steps, {"idx": 2, "path": "1_Pooling", "type": "m.Pooling"}]), encoding="utf-8")
    with pytest.raises(_rust.ModelFileError, match=r"the step 'm\.Pooling' is not implemented here"):
        _rust.describe_encoder(path)
    modules.write_text(json.dumps(steps[:1]), encoding="utf-8")
    with pytest.raises(_rust.ModelFileError, match="no step is Pooling, and none Dense"):
        _rust.describe_encoder(path)


def test_messages_to_a_model_without_a_template_are_refused(encoder: Path, late: Path) -> None:
    """Also where its tokenizer is one that no chat can be read with: the request is at fault, not the model."""
    asked = TokenEmbedRequest(model="", messages=[Message("user", "ab c")])
    for path in (encoder, late):
        with pytest.raises(RequestError, match=r"no chat template .* send input in their place") as caught:
            on(partial(native, path), lambda made: made.token_embed(asked))
        assert caught.value.param == "messages"


def test_a_model_that_joins_poolings_has_no_vectors_of_tokens(tmp_path: Path) -> None:
    """It embeds texts, and is refused by name where vectors of tokens are asked for."""
    path = write_encoder(tmp_path / "m", pooling="cls_token max_tokens")
    with pytest.raises(RequestError, match="joins several poolings of a text; its tokens have no vectors"):
        token_vectors(path, TEXTS)
