"""Batch small embedding calls for a moment and send them to a link together.

Every caller gets its own vectors, in order. A caller that leaves takes its texts out of a batch that is not sent yet;
when all have left, the call is cancelled. A refusal of a batch may be one caller's fault, so each call is then sent
alone; any other failure is that of all calls. Knows no backend, only how to ask one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import EmbedRequest, EmbedResult, Usage

_MAX_TEXTS = 32
"""What servers take in one call by default: 32 is the least among those in wide use (text-embeddings-inference)."""
_BatchKey = tuple[bytes, int]
_Call = tuple[EmbedRequest, asyncio.Future[EmbedResult]]


@dataclass(slots=True, eq=False)
class _Batch:
    key: _BatchKey
    calls: list[_Call] = field(default_factory=list[_Call])
    num_texts: int = 0
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class EmbeddingBatcher:
    """Waits `seconds` for others after a first call; calls for different models are not mixed."""

    ask: Callable[[EmbedRequest], Awaitable[EmbedResult]]
    seconds: float
    _open: dict[_BatchKey, _Batch] = field(default_factory=dict[_BatchKey, _Batch])

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return the vectors of a request, batched or not."""
        if not 0 < len(request.input) < _MAX_TEXTS:
            return await self.ask(request)
        batch = self._batch_for(request)
        answer = asyncio.get_running_loop().create_future()
        batch.calls.append((request, answer))
        batch.num_texts += len(request.input)
        if batch.num_texts == _MAX_TEXTS:
            batch.is_full.set()
        try:
            return await answer
        finally:
            if batch.task is not None and all(other.done() for _, other in batch.calls):
                self._close(batch)
                batch.task.cancel()  # no caller waits any more; cancelling a finished task does nothing

    def _batch_for(self, request: EmbedRequest) -> _Batch:
        key = msgspec.json.encode(msgspec.structs.replace(request, input=[])), id(asyncio.get_running_loop())
        batch = self._open.get(key)
        if batch is not None and batch.num_texts + len(request.input) <= _MAX_TEXTS:
            return batch
        if batch is not None:
            batch.is_full.set()
        batch = self._open[key] = _Batch(key)
        batch.task = asyncio.create_task(self._send(batch))
        return batch

    async def _send(self, batch: _Batch) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(batch.is_full.wait(), self.seconds)
        self._close(batch)
        calls = [call for call in batch.calls if not call[1].done()]
        try:
            await self._answer(calls)
        finally:
            for _, answer in calls:
                answer.cancel()  # of one that is done it is nothing

    def _close(self, batch: _Batch) -> None:
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]

    async def _answer(self, calls: Sequence[_Call]) -> None:
        texts = [text for request, _ in calls for text in request.input]
        try:
            result = await self.ask(msgspec.structs.replace(calls[0][0], input=texts))
            parts = _parts(result, [request.input for request, _ in calls])
        except Exception as error:  # noqa: BLE001 - it is the callers', whatever it is
            if isinstance(error, RequestError) and len(calls) > 1:
                await asyncio.gather(*(self._answer([call]) for call in calls))
                return
            for _, answer in calls:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), part in zip(calls, parts, strict=True):
            if not answer.done():
                answer.set_result(part)


def _parts(result: EmbedResult, inputs: Sequence[list[str]]) -> list[EmbedResult]:
    """Return each caller's vectors and share of the tokens: by the length of its texts, the sum being the batch's."""
    num_texts = sum(map(len, inputs))
    if len(result.vectors) != num_texts:
        text = f"{len(result.vectors)} vectors came for {num_texts} texts"
        raise BackendError(text, backend=result.model or "embeddings", retryable=False)
    lengths = [sum(map(len, texts)) or 1 for texts in inputs]
    parts: list[EmbedResult] = []
    first = num_chars = num_counted = 0
    for texts, length in zip(inputs, lengths, strict=True):
        num_chars += length
        upto = result.usage.prompt_tokens * num_chars // sum(lengths)
        usage = Usage(prompt_tokens=upto - num_counted, total_tokens=upto - num_counted)
        vectors = result.vectors[first : first + len(texts)]
        parts.append(EmbedResult(vectors=vectors, model=result.model, usage=usage))
        first, num_counted = first + len(texts), upto
    return parts
