"""Texts that wait for an encoder, computed in batches of tokens, whatever request they are of.

A batch takes one text of each request in turn, so that a request with few texts does not wait for one with thousands. A
text that is longer than a batch is computed in steps, one such text at a time, with a batch of others between two.
A fault is that of the text that has it: when a batch fails, its requests are computed one by one. Knows no tokenizer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyagent.core.errors import BackendError, CapacityError, PyAgentError

Embed = Callable[[list[list[int]]], bytes]
"""Returns the texts' vectors one after another, as 32-bit floats."""
_CLOSED = "the embedding model was unloaded; send the request again"


@dataclass(frozen=True, slots=True)
class LongText:
    """A text on its way: `advance` computes a step, and returns what the text gives after the last one.

    `close` gives back what it holds, and is called once.
    """

    advance: Callable[[], bytes | None]
    close: Callable[[], None]


Begin = Callable[[list[int]], LongText]
"""Takes a long text. Raises `CapacityError` where there is no room for it now."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request's texts: those before `num_taken` are computed, or are being."""

    texts: Sequence[list[int]]
    result: Future[bytes]
    num_taken: int = 0
    parts: list[bytes] = field(default_factory=list[bytes])


class EncoderQueue:
    """One encoder's texts, and the thread that computes them, which begins with the first."""

    def __init__(
        self, name: str, embed: Embed, most_tokens: int, *, begin: Begin | None = None, gives_tokens: bool = False
    ) -> None:
        """Batches have at most so many tokens; `begin` takes a text with more, which is else a batch of its own.

        `embed` gives a row of numbers for each text, or where it `gives_tokens` for each token.
        """
        self.name = name
        self._embed = embed
        self._most_tokens = most_tokens
        self._begin = begin
        self._gives_tokens = gives_tokens
        self._jobs: deque[_Job] = deque()
        self._long_jobs: deque[_Job] = deque()
        """Those whose next text is long; that of the first one may be on its way."""
        self._long: LongText | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, texts: Sequence[list[int]]) -> Future[bytes]:
        """Return the future of the texts' vectors. Cancelling it takes those out that are not computed yet."""
        job = _Job(texts, Future())
        if not texts:
            job.result.set_result(b"")
            return job.result
        with self._changed:
            if self._is_closed:
                raise CapacityError(_CLOSED)
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"pyagent-embed-{self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return job.result

    def close(self) -> None:
        """Fail what waits, and return when the thread has ended. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._compute(batch)
            if self._long_jobs:
                self._advance(self._long_jobs[0])
        self._end_long()
        with self._changed:
            left = [*self._long_jobs, *self._jobs]
            self._jobs.clear()
            self._long_jobs.clear()
        for job in left:
            _fail(job, CapacityError(_CLOSED))

    def _next(self) -> dict[_Job, list[list[int]]] | None:
        """Return the texts of the next batch by their jobs, none where all are long; None when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                self._jobs = deque(job for job in self._jobs if not job.result.done())
                if self._jobs or self._long_jobs:
                    return self._take()
                self._changed.wait()
            return None

    def _take(self) -> dict[_Job, list[list[int]]]:
        batch: dict[_Job, list[list[int]]] = {}
        room = self._most_tokens
        while self._jobs:
            job = self._jobs[0]
            text = job.texts[job.num_taken]
            if self._begin is not None and len(text) > self._most_tokens:
                self._long_jobs.append(self._jobs.popleft())
                continue
            if batch and len(text) > room:
                break
            room -= len(text)
            batch.setdefault(job, []).append(text)
            job.num_taken += 1
            self._jobs.rotate(-1)
            if job.num_taken == len(job.texts):
                self._jobs.remove(job)
        return batch

    def _compute(self, batch: dict[_Job, list[list[int]]]) -> None:
        texts = [text for part in batch.values() for text in part]
        try:
            vectors = self._embed(texts)
        except Exception as error:  # noqa: BLE001 - it is the requests', whatever it is
            if len(batch) > 1:
                for job, part in batch.items():
                    self._compute({job: part})
                return
            for job in batch:
                text = f"native:{self.name}: {error}"
                _fail(job, BackendError(text, backend=f"native:{self.name}", retryable=False))
            return
        row_bytes, first = len(vectors) // self._num_rows(texts), 0
        for job, part in batch.items():
            end = first + self._num_rows(part) * row_bytes
            job.parts.append(vectors[first:end])
            first = end
            _end_whole(job)

    def _advance(self, job: _Job) -> None:
        """Compute a step of a job's long text, begin it first, or drop it where its request is gone."""
        assert self._begin is not None, "only queues that begin long texts set them aside"
        found: bytes | None = None
        try:
            if not job.result.done():
                self._long = self._long or self._begin(job.texts[job.num_taken])
                found = self._long.advance()
                if found is None:
                    return
        except Exception as error:  # noqa: BLE001 - it is the request's, whatever it is
            text = f"native:{self.name}: {error}"
            known = error if isinstance(error, PyAgentError) else None
            _fail(job, known or BackendError(text, backend=f"native:{self.name}", retryable=False))
        self._end_long()
        self._long_jobs.popleft()
        if found is None:
            return
        job.num_taken += 1
        job.parts.append(found)
        if not _end_whole(job):
            with self._changed:
                self._jobs.append(job)

    def _end_long(self) -> None:
        if self._long is not None:
            self._long.close()
            self._long = None

    def _num_rows(self, texts: Sequence[list[int]]) -> int:
        return sum(map(len, texts)) if self._gives_tokens else len(texts)


def _end_whole(job: _Job) -> bool:
    """Give a job's result, if all of its texts are computed. Return whether they are."""
    is_whole = job.num_taken == len(job.texts)
    if is_whole and job.result.set_running_or_notify_cancel():
        job.result.set_result(b"".join(job.parts))
    return is_whole


def _fail(job: _Job, error: Exception) -> None:
    if not job.result.done() and job.result.set_running_or_notify_cancel():
        job.result.set_exception(error)
