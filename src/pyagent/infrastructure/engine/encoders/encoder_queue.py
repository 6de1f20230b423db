"""Texts that wait for an encoder, computed in batches of tokens, whatever request they are of.

A batch takes one text of each request in turn, so that a request with few texts does not wait for one with thousands.
A fault is that of the text that has it: when a batch fails, its requests are computed one by one. Knows no tokenizer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyagent.core.errors import BackendError, CapacityError

Embed = Callable[[list[list[int]]], bytes]
"""Returns the texts' vectors one after another, as 32-bit floats."""
_CLOSED = "the embedding model was unloaded; send the request again"


@dataclass(slots=True, eq=False)
class _Job:
    """A request's texts: those before `num_taken` are computed, or are being."""

    texts: Sequence[list[int]]
    result: Future[bytes]
    num_taken: int = 0
    parts: list[bytes] = field(default_factory=list[bytes])


class EncoderQueue:
    """One encoder's texts, and the thread that computes them, which begins with the first."""

    def __init__(self, name: str, embed: Embed, most_tokens: int, *, gives_tokens: bool = False) -> None:
        """Batches have at most so many tokens, or one text that has more.

        `embed` gives a row of numbers for each text, or where it `gives_tokens` for each token.
        """
        self.name = name
        self._embed = embed
        self._most_tokens = most_tokens
        self._gives_tokens = gives_tokens
        self._jobs: deque[_Job] = deque()
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
            self._compute(batch)
        with self._changed:
            left, self._jobs = list(self._jobs), deque()
        for job in left:
            _fail(job, CapacityError(_CLOSED))

    def _next(self) -> dict[_Job, list[list[int]]] | None:
        """Return the texts of the next batch by their jobs; None when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                self._jobs = deque(job for job in self._jobs if not job.result.done())
                if self._jobs:
                    return self._take()
                self._changed.wait()
            return None

    def _take(self) -> dict[_Job, list[list[int]]]:
        batch: dict[_Job, list[list[int]]] = {}
        room = self._most_tokens
        while self._jobs:
            job = self._jobs[0]
            text = job.texts[job.num_taken]
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
            is_whole = job.num_taken == len(job.texts)
            if is_whole and job.result.set_running_or_notify_cancel():
                job.result.set_result(b"".join(job.parts))

    def _num_rows(self, texts: Sequence[list[int]]) -> int:
        return sum(map(len, texts)) if self._gives_tokens else len(texts)


def _fail(job: _Job, error: Exception) -> None:
    if not job.result.done() and job.result.set_running_or_notify_cancel():
        job.result.set_exception(error)
