"""What encoders are asked for: vectors of texts, relevances of documents, labels. From texts to numbers and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from pyagent import _rust
from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
    Usage,
)
from pyagent.infrastructure.engine.encoders.tasks import PASSAGE, QUERY, STEP_MARK, of_task
from pyagent.infrastructure.engine.models.answer_grammars import at_once

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.encoders.encoder_pool import EncoderPool, LoadedEncoder
    from pyagent.infrastructure.engine.encoders.encoder_queue import EncoderQueue
    from pyagent.infrastructure.engine.encoders.late_tokens import LateTokens
    from pyagent.infrastructure.engine.encoders.text_tokens import Text, TextTokens

_T = TypeVar("_T")
_Text = TypeVar("_Text", bound="Text")
_NUMBER_BYTES = 4
Encode = Callable[[Sequence[_Text], Sequence[int]], list[list[int]]]
"""Returns the tokens of texts, which errors call by the numbers given."""
_LONG_TEXT = 2_000
"""Characters from which texts are tokenised beside the event loop."""
_TEXTS_AT_ONCE = 64
"""Texts tokenised together, while those before are computed."""
_MOST_SHOWN = 1 << 23
"""Numbers of the vectors that a request is given: as Python's objects 32 bytes each, as JSON about 20."""
_MOST_RANKED = 1 << 26
"""Numbers of the vectors that one request's ranking keeps, of 4 bytes each."""


class _TokenRows(NamedTuple):
    """A text's tokens, and a row of 32-bit floats for each, one after another."""

    tokens: list[int]
    rows: bytes


class InThread(Protocol):
    """Does something beside the event loop."""

    async def __call__(self, work: Callable[..., _T], *args: object) -> _T:
        """Return what it gives."""
        ...


class Pooling:
    """Asks encoders, which are loaded when they are not."""

    def __init__(self, encoders: EncoderPool, in_thread: InThread) -> None:
        """`in_thread` does what may take long."""
        self._encoders = encoders
        self._in_thread = in_thread

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return a vector of length 1 for each text; without texts the model is only loaded."""
        async with self._encoders.using(request.model) as encoder:
            if request.input:
                _check_task(encoder, "embed")
            encode = partial(encoder.tokens.encode, truncates=request.truncate)
            if request.task:
                encode = of_task(encode, encoder.tasks, request.task, encoder.name)
            rows, usage = await self._encoded(encoder, encode, request.input)
            return EmbedResult(vectors=rows, model=request.model, usage=usage)

    async def rank(self, request: RankRequest) -> RankResult:
        """Return each pair's relevance: a ranking model's number, or the cosine of an embedding model's vectors."""
        async with self._encoders.using(request.model) as encoder:
            _check_task(encoder, "rank")
            if encoder.task == "embed":
                scores, usage = await self._cosines(encoder, request)
            elif encoder.late is not None:
                scores, usage = await self._late_scores(encoder, encoder.late, request)
            else:
                rows, usage = await self._numbers(encoder, request.pairs, truncates=request.truncate)
                scores = [row[0] for row in rows]
            return RankResult(scores=scores, model=request.model, usage=usage)

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Return a number for each label of each text."""
        async with self._encoders.using(request.model) as encoder:
            _check_task(encoder, "classify")
            rows, usage = await self._numbers(encoder, request.input, truncates=request.truncate)
            return ClassifyResult(labels=list(encoder.labels), scores=rows, model=request.model, usage=usage)

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Return a vector of length 1 for each token of each text, special ones included.

        A model of late interaction reads queries or documents, and leaves out those of a document that do not count.
        """
        async with self._encoders.using(request.model) as encoder:
            request, of_texts = await self._written(encoder, request)
            if request.task == "token_classify":
                return await self._token_classify(encoder, of_texts, request)
            late = encoder.late
            if encoder.joins_poolings:
                text = (
                    f"native:{encoder.name} joins several poolings of a text; its tokens have no vectors of their own"
                )
                raise RequestError(text, param="model")
            if late is None:
                _check_task(encoder, "embed")
                encode = partial(of_texts.encode, truncates=request.truncate)
            else:
                encode = late.queries if request.is_query else partial(late.documents, truncates=request.truncate)
            found, usage = await self._tokens(encoder, encode, request.input, most=_MOST_SHOWN)
            if late is not None and not request.is_query:
                found = [_counting(late, one) for one in found]
            vectors = await self._in_thread(lambda: [encoder.rows(one.rows) for one in found])
            return TokenEmbedResult(vectors=vectors, model=request.model, usage=usage)

    async def _written(
        self, encoder: LoadedEncoder, request: TokenEmbedRequest
    ) -> tuple[TokenEmbedRequest, TextTokens]:
        """Return a request with messages as one with a text, and how its text becomes tokens."""
        if not request.messages:
            return request, encoder.tokens
        write = partial(encoder.conversations.text, request.messages, begins_answer=request.begins_answer)
        text = await self._in_thread(write)
        return msgspec.structs.replace(request, input=[text], messages=[]), encoder.tokens.without_special()

    async def _token_classify(
        self, encoder: LoadedEncoder, of_texts: TextTokens, request: TokenEmbedRequest
    ) -> TokenEmbedResult:
        """Return a number for each label of each token, of a process reward model of those alone that end a step."""
        _check_task(encoder, "token_classify")
        encode = partial(of_texts.encode, truncates=request.truncate)
        step = encoder.step_token
        found, usage = await self._tokens(encoder, encode, request.input, most=_MOST_SHOWN)
        rows = await self._in_thread(lambda: [encoder.rows(one.rows) for one in found])
        if step is not None:
            read = zip(found, rows, strict=True)
            rows = [[row for token, row in zip(one.tokens, of, strict=True) if token == step] for one, of in read]
            if not all(rows):
                index = rows.index([])
                is_cut = STEP_MARK in request.input[index]  # the rest was, as `truncate` asks for
                where = f" in the {len(found[index].tokens):,} tokens that are read of it" if is_cut else ""
                text = f"input {index} has no {STEP_MARK}{where}; put one behind each step that is to be scored"
                raise RequestError(text, param="input")
        return TokenEmbedResult(vectors=rows, labels=list(encoder.labels), model=request.model, usage=usage)

    async def _late_scores(
        self, encoder: LoadedEncoder, late: LateTokens, request: RankRequest
    ) -> tuple[list[float], Usage]:
        """Of each query's vector the greatest product with one of the document's, added up."""
        queries = {query: number for number, (query, _) in reversed([*enumerate(request.pairs)])}
        documents = {document: number for number, (_, document) in reversed([*enumerate(request.pairs)])}
        tokens = partial(self._tokens, encoder, most=_MOST_RANKED)
        asked, of_queries = await tokens(late.queries, list(queries), list(queries.values()))
        encode = partial(late.documents, truncates=request.truncate)
        read, of_documents = await tokens(encode, list(documents), list(documents.values()))
        rows = {text: one.rows for text, one in zip(queries, asked, strict=True)}
        others = {text: _counting(late, one).rows for text, one in zip(documents, read, strict=True)}

        has_left = Event()

        def scores() -> list[float]:
            width, found = encoder.width, list[float]()
            for query, document in request.pairs:
                if has_left.is_set():  # the caller does not wait for the rest
                    break
                found.append(_rust.late_score(rows[query], others[document], width))
            return found

        num_tokens = of_queries.prompt_tokens + of_documents.prompt_tokens
        try:
            return await self._in_thread(scores), Usage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        finally:
            has_left.set()

    async def _tokens(
        self,
        encoder: LoadedEncoder,
        encode: Encode[str],
        texts: Sequence[str],
        numbers: Sequence[int] | None = None,
        *,
        most: int,
    ) -> tuple[list[_TokenRows], Usage]:
        """Return each text's tokens with their vectors, one after another, of `most` numbers together."""
        encode = _bounded(encode, encoder.width, most)
        packed, tokens = await self._packed(encoder.token_queue, encode, texts, numbers)
        found, start = list[_TokenRows](), 0
        for ids in tokens:
            end = start + len(ids) * encoder.width * _NUMBER_BYTES
            found.append(_TokenRows(ids, packed[start:end]))
            start = end
        num_tokens = sum(map(len, tokens))
        return found, Usage(prompt_tokens=num_tokens, total_tokens=num_tokens)

    async def _cosines(self, encoder: LoadedEncoder, request: RankRequest) -> tuple[list[float], Usage]:
        """Each text is computed once, of a model with tasks once for each; a query is never cut."""
        queries = {query: number for number, (query, _) in reversed([*enumerate(request.pairs)])}
        documents = {text: number for number, (_, text) in reversed([*enumerate(request.pairs)])}
        encode_query: Encode[str] = encoder.tokens.for_queries().encode
        encode: Encode[str] = partial(encoder.tokens.encode, truncates=request.truncate)
        if {QUERY, PASSAGE} <= {name for name, _ in encoder.tasks}:
            encode_query = of_task(encode_query, encoder.tasks, QUERY, encoder.name)
            encode = of_task(encode, encoder.tasks, PASSAGE, encoder.name)
        else:
            documents = {text: number for text, number in documents.items() if text not in queries}
        asked, of_queries = await self._encoded(encoder, encode_query, list(queries), list(queries.values()))
        read, of_documents = await self._encoded(encoder, encode, list(documents), list(documents.values()))
        query_rows = dict(zip(queries, asked, strict=True))
        rows = query_rows | dict(zip(documents, read, strict=True))
        num_tokens = of_queries.prompt_tokens + of_documents.prompt_tokens
        usage = Usage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return [_dot(query_rows[query], rows[document]) for query, document in request.pairs], usage

    async def _numbers(
        self, encoder: LoadedEncoder, texts: Sequence[Text], *, truncates: bool
    ) -> tuple[list[list[float]], Usage]:
        return await self._encoded(encoder, partial(encoder.tokens.encode, truncates=truncates), texts)

    async def _encoded(
        self,
        encoder: LoadedEncoder,
        encode: Encode[_Text],
        texts: Sequence[_Text],
        numbers: Sequence[int] | None = None,
    ) -> tuple[list[list[float]], Usage]:
        """Return each text's numbers."""
        packed, tokens = await self._packed(encoder.queue, encode, texts, numbers)
        num_tokens = sum(map(len, tokens))
        return encoder.rows(packed), Usage(prompt_tokens=num_tokens, total_tokens=num_tokens)

    async def _packed(
        self, queue: EncoderQueue, encode: Encode[_Text], texts: Sequence[_Text], numbers: Sequence[int] | None
    ) -> tuple[bytes, list[list[int]]]:
        """Tokenise some texts while those before are computed; when one fails or the caller leaves, drop the rest.

        Return what was computed of all, and their tokens.
        """
        numbers = range(len(texts)) if numbers is None else numbers
        whole, coming = list[list[int]](), list[asyncio.Future[bytes]]()
        try:
            for first in range(0, len(texts), _TEXTS_AT_ONCE):
                some = texts[first : first + _TEXTS_AT_ONCE]
                called = numbers[first : first + _TEXTS_AT_ONCE]
                encode_some = partial(encode, some, called)
                length = sum(len(part) for text in some for part in ([text] if isinstance(text, str) else text))
                tokens = await (at_once(encode_some) if length < _LONG_TEXT else self._in_thread(encode_some))
                whole += tokens
                coming.append(asyncio.wrap_future(queue.submit(tokens)))
            return b"".join([await one for one in coming]), whole
        finally:
            for one in coming:
                one.cancel()  # of one that is done it is nothing


def _bounded(encode: Encode[str], width: int, most: int) -> Encode[str]:
    """Return an `encode` that raises `RequestError` where the tokens of all its calls have more than `most` numbers."""
    num_tokens = 0

    def encode_some(texts: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        nonlocal num_tokens
        found = encode(texts, numbers)
        num_tokens += sum(map(len, found))
        if num_tokens * width > most:
            text = f"the vectors of these texts' tokens have more than {most} numbers; send fewer texts at once"
            raise RequestError(text, param="input")
        return found

    return encode_some


def _counting(late: LateTokens, found: _TokenRows) -> _TokenRows:
    """Return a document without the tokens that do not count."""
    size = len(found.rows) // len(found.tokens)
    kept = [index for index, token in enumerate(found.tokens) if late.counts(token)]
    rows = b"".join(found.rows[index * size : (index + 1) * size] for index in kept)
    return _TokenRows([found.tokens[index] for index in kept], rows)


_WHAT_IT_DOES = {
    "embed": "embeds texts",
    "rank": "ranks documents",
    "classify": "classifies texts",
    "token_classify": "labels tokens",
}
_WHO_CAN: dict[str, frozenset[str]] = {
    "embed": frozenset({"embed"}),
    "rank": frozenset({"rank", "embed"}),
    "classify": frozenset({"classify", "rank"}),
    "token_classify": frozenset({"token_classify"}),
}


def _check_task(encoder: LoadedEncoder, task: str) -> None:
    """Raise `RequestError` for a model that was made for another task: its numbers would mean something else."""
    if encoder.task not in _WHO_CAN[task] or (task == "classify" and encoder.late is not None):
        does, not_this = _WHAT_IT_DOES[encoder.task], _WHAT_IT_DOES[task]
        raise RequestError(f"native:{encoder.name} {does}; name a model that {not_this}", param="model")


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
