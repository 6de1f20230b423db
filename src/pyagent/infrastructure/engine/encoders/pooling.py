"""What encoders are asked for: vectors of texts, relevances of documents, labels. From texts to numbers and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyagent.core.errors import RequestError
from pyagent.core.messages import (
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    RankRequest,
    RankResult,
    Usage,
)
from pyagent.infrastructure.engine.models.answer_grammars import at_once

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.encoders.encoder_pool import EncoderPool, LoadedEncoder
    from pyagent.infrastructure.engine.encoders.text_tokens import Text

_T = TypeVar("_T")
_LONG_TEXT = 2_000
"""Characters from which texts are tokenised beside the event loop."""
_TEXTS_AT_ONCE = 64
"""Texts tokenised together, while those before are computed."""


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
            rows, usage = await self._numbers(encoder, request.input, truncates=request.truncate)
            return EmbedResult(vectors=rows, model=request.model, usage=usage)

    async def rank(self, request: RankRequest) -> RankResult:
        """Return each pair's relevance: a ranking model's number, or the cosine of an embedding model's vectors."""
        async with self._encoders.using(request.model) as encoder:
            _check_task(encoder, "rank")
            if encoder.task == "embed":
                scores, usage = await self._cosines(encoder, request)
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

    async def _cosines(self, encoder: LoadedEncoder, request: RankRequest) -> tuple[list[float], Usage]:
        texts: dict[str, int] = {}
        for number, pair in enumerate(request.pairs):
            for text in pair:
                texts.setdefault(text, number)
        numbers = list(texts.values())
        rows, usage = await self._numbers(encoder, list(texts), numbers, truncates=request.truncate)
        text_to_row = dict(zip(texts, rows, strict=True))
        return [_dot(text_to_row[query], text_to_row[document]) for query, document in request.pairs], usage

    async def _numbers(
        self,
        encoder: LoadedEncoder,
        texts: Sequence[Text],
        numbers: Sequence[int] | None = None,
        *,
        truncates: bool,
    ) -> tuple[list[list[float]], Usage]:
        """Tokenise some texts while those before are computed; when one fails or the caller leaves, drop the rest."""
        numbers = range(len(texts)) if numbers is None else numbers
        num_tokens, coming = 0, list[asyncio.Future[bytes]]()
        try:
            for first in range(0, len(texts), _TEXTS_AT_ONCE):
                some = texts[first : first + _TEXTS_AT_ONCE]
                called = numbers[first : first + _TEXTS_AT_ONCE]
                encode = partial(encoder.tokens.encode, some, called, truncates=truncates)
                length = sum(len(part) for text in some for part in ([text] if isinstance(text, str) else text))
                tokens = await (at_once(encode) if length < _LONG_TEXT else self._in_thread(encode))
                num_tokens += sum(map(len, tokens))
                coming.append(asyncio.wrap_future(encoder.queue.submit(tokens)))
            packed = b"".join([await one for one in coming])
        finally:
            for one in coming:
                one.cancel()  # of one that is done it is nothing
        return encoder.rows(packed), Usage(prompt_tokens=num_tokens, total_tokens=num_tokens)


_WHAT_IT_DOES = {"embed": "embeds texts", "rank": "ranks documents", "classify": "classifies texts"}
_WHO_CAN: dict[str, frozenset[str]] = {
    "embed": frozenset({"embed"}),
    "rank": frozenset({"rank", "embed"}),
    "classify": frozenset({"classify", "rank"}),
}


def _check_task(encoder: LoadedEncoder, task: str) -> None:
    """Raise `RequestError` for a model that was made for another task: its numbers would mean something else."""
    if encoder.task not in _WHO_CAN[task]:
        does, not_this = _WHAT_IT_DOES[encoder.task], _WHAT_IT_DOES[task]
        raise RequestError(f"native:{encoder.name} {does}; name a model that {not_this}", param="model")


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
