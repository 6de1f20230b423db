"""What is asked of rankers and classifiers, and what they are answered, in the shapes that vLLM serves. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import ClassifyResult, EmbedResult, JsonObject, RankResult, TokenEmbedResult, Usage
from pyagent.infrastructure.server.bounds import check_texts
from pyagent.infrastructure.server.validation import decode
from pyagent.infrastructure.server.vectors import packed


class RerankBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/rerank: Cohere's and Jina's. A document may be `{"text": ...}`."""

    query: str
    documents: list[str | dict[str, object]]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = True
    truncate: bool = True  # not theirs: they cut
    private: bool | None = None  # not theirs
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts. Raises `RequestError` naming one that has none."""
        return [_text_of(document, number) for number, document in enumerate(self.documents)]


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/score: one text with each of several, or as many pairs."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    truncate: bool = False  # not vLLM's
    private: bool | None = None  # not vLLM's
    user: str | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is compared. Raises `RequestError` for lists that do not fit together."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            text = f"text_1 has {len(first)} entries and text_2 {len(second)}; send one text, or as many as text_2 has"
            raise RequestError(text, param="text_1")
        return list(zip(first, second, strict=True))


class ClassifyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/classify."""

    input: str | list[str]
    model: str | None = None
    truncate: bool = False  # not vLLM's
    private: bool | None = None  # not vLLM's
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts to label."""
        return [self.input] if isinstance(self.input, str) else self.input


PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]


class PoolingMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a conversation that is read as one text."""

    role: Literal["system", "user", "assistant"]
    content: str


class PoolingBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /pooling: a vector for each token of each text, or a number for each label of each.

    A model of late interaction reads `input_type` "query" or "document". A process reward model gives numbers for the
    tokens alone that end a step. Without `task` a model that does one thing alone does that, and others embed tokens.
    `messages` are one text in place of `input`, as the model's chat template writes them.
    """

    input: str | list[str] = []
    messages: list[PoolingMessage] = []
    add_generation_prompt: bool = False
    model: str | None = None
    task: PoolingTask | None = None
    input_type: Literal["query", "document"] = "document"  # not vLLM's; Jina's
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool = False  # not vLLM's
    private: bool | None = None  # not vLLM's
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input


def read_pooling(body: bytes) -> PoolingBody:
    """Return the body of a pooling request."""
    parsed = decode(body, PoolingBody, {})
    if parsed.messages and parsed.texts:
        raise RequestError("input and messages exclude each other; send one of them", param="messages")
    if parsed.messages and parsed.task in {"embed", "classify"}:
        text = (
            f"messages are not taken for the task {parsed.task}; send input, or ask for token_embed or token_classify"
        )
        raise RequestError(text, param="messages")
    if parsed.messages:
        _check([message.content for message in parsed.messages], "messages")
    else:
        _check(parsed.texts, "input")
    return parsed


def read_rerank(body: bytes) -> tuple[RerankBody, list[tuple[str, str]]]:
    """Return the body of a rerank request, and its pairs."""
    parsed = decode(body, RerankBody, {})
    if parsed.top_n is not None and parsed.top_n < 1:
        raise RequestError(f"top_n is {parsed.top_n}; expected 1 or more", param="top_n")
    texts = parsed.texts
    _check(texts, "documents")
    _check([parsed.query], "query")
    return parsed, [(parsed.query, text) for text in texts]


def read_score(body: bytes) -> tuple[ScoreBody, list[tuple[str, str]]]:
    """Return the body of a score request, and its pairs."""
    parsed = decode(body, ScoreBody, {})
    pairs = parsed.pairs
    _check([second for _, second in pairs], "text_2")  # first, as one text_1 stands beside each of them
    _check([first for first, _ in pairs], "text_1")
    return parsed, pairs


def read_classify(body: bytes) -> ClassifyBody:
    """Return the body of a classify request."""
    parsed = decode(body, ClassifyBody, {})
    _check(parsed.texts, "input")
    return parsed


def rerank_body(parsed: RerankBody, found: RankResult, request_id: str) -> JsonObject:
    """Return the documents, the most relevant first; of equal ones the first that was sent."""
    texts = parsed.texts
    order = sorted(range(len(texts)), key=lambda index: -found.scores[index])[: parsed.top_n]
    results: list[JsonObject] = []
    for index in order:
        document: JsonObject = {"document": {"text": texts[index]}} if parsed.return_documents else {}
        results.append({"index": index, "relevance_score": found.scores[index], **document})
    model = found.model or parsed.model or "default"
    return {"id": f"rerank-{request_id}", "model": model, "usage": _usage(found.usage), "results": results}


def score_body(parsed: ScoreBody, found: RankResult, request_id: str, created: int) -> JsonObject:
    """Return each pair's score, in order."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(found.scores)]
    return _listed("score", parsed.model, found.model, request_id, created, data, found.usage)


def pooling_body(
    parsed: PoolingBody,
    found: TokenEmbedResult | EmbedResult | ClassifyResult,
    request_id: str,
    created: int,
) -> JsonObject:
    """Return what each text gave: the vectors of its tokens, as JSON already, a token at a time; or a row of numbers.

    Millions of numbers take seconds: call it beside the event loop.
    """
    encode = msgspec.json.Encoder().encode
    is_packed = parsed.encoding_format == "base64"
    shown: list[object]
    if isinstance(found, TokenEmbedResult):
        shown = [
            packed([number for vector in text for number in vector])
            if is_packed
            else [msgspec.Raw(encode(vector)) for vector in text]
            for text in found.vectors
        ]
    else:
        rows = found.vectors if isinstance(found, EmbedResult) else found.scores
        shown = [packed(row) if is_packed else row for row in rows]
    data = [{"index": index, "object": "pooling", "data": one} for index, one in enumerate(shown)]
    return _listed("pool", parsed.model, found.model, request_id, created, data, found.usage)


def classify_body(parsed: ClassifyBody, found: ClassifyResult, request_id: str, created: int) -> JsonObject:
    """Return each text's best label, and a number for each of all."""
    data: list[JsonObject] = []
    for index, scores in enumerate(found.scores):
        best = max(range(len(scores)), key=scores.__getitem__)
        label = found.labels[best]
        data.append({"index": index, "label": label, "probs": scores, "num_classes": len(scores)})
    return _listed("classify", parsed.model, found.model, request_id, created, data, found.usage)


def _listed(  # noqa: PLR0913, PLR0917 - a field of the answer each
    kind: str, asked: str | None, model: str, request_id: str, created: int, data: object, usage: Usage
) -> JsonObject:
    about: JsonObject = {"id": f"{kind}-{request_id}", "object": "list", "created": created}
    return {**about, "model": model or asked or "default", "data": data, "usage": _usage(usage)}


def _usage(usage: Usage) -> JsonObject:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}


def _check(texts: list[str], param: str) -> None:
    """Raise `RequestError` for no texts, too many, and an empty one."""
    check_texts(texts, param)
    if not texts or not all(texts):
        raise RequestError(f"{param}: there is no text; send one, or several, none of them empty", param=param)


def _text_of(document: str | dict[str, object], number: int) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise RequestError(f'documents[{number}] has no text; send a string or {{"text": ...}}', param="documents")
    return text
