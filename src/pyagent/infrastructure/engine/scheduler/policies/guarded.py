"""A plugin's queue policy, asked in a thread of its own, so that one that hangs does not take the engine along.

What the policy is told (`add`, `remove`, `served`, `finished`) is kept until the policy is asked something, and handed
over with the question: one change of threads a question, not one a request. A question without an answer in
`ANSWER_SECONDS` raises, the thread is left behind, and the queue uses another policy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

from pyagent.core.scheduling import PreemptingPolicy, Queued, QueuePolicy

T = TypeVar("T")

ANSWER_SECONDS = 5.0
_CHUNK = 64
_MAX_UNTOLD = 1024


def answer_in_time(what: str, call: Callable[[], T]) -> T:
    """What `call` returns, called in another thread. Raises `TimeoutError` naming `what`, and what the call raises."""
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised where the answer is read
            answers.put((None, error))

    threading.Thread(target=work, name=what, daemon=True).start()
    try:
        answer, error = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        raise TimeoutError(f"{what} gave no answer in {ANSWER_SECONDS:g} s") from None
    if error is not None:
        raise error if isinstance(error, Exception) else RuntimeError(f"{what} raised {type(error).__name__}: {error}")
    return cast("T", answer)


class Guarded:
    """Passes a policy's calls to it as the engine's thread makes them, in order."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._what = f"the queue policy {type(policy).__module__}.{type(policy).__qualname__}"
        self._untold: list[Callable[[], None]] = []

    def add(self, request: Queued, now: float) -> None:
        """Enqueue a waiting request."""
        self._tell(lambda: self._policy.add(request, now))

    def remove(self, request: Queued) -> None:
        """Remove a waiting request that starts, or is aborted."""
        self._tell(lambda: self._policy.remove(request))

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """Charge a running request for what was computed."""
        self._tell(lambda: self._policy.served(request, num_prompt, num_output_tokens, now))

    def finished(self, request: Queued, now: float) -> None:
        """Forget a request that ended."""
        self._tell(lambda: self._policy.finished(request, now))

    def ordered(self, now: float) -> Iterator[Queued]:
        """Waiting requests in the policy's order, a chunk at a time."""
        source: list[Iterator[Queued]] = []

        def take() -> list[Queued]:
            if not source:
                source.append(iter(self._policy.ordered(now)))
            return list(islice(source[0], _CHUNK))

        while chunk := self._ask(take):
            yield from chunk

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Return the running request to preempt first."""
        return self._ask(lambda: self._policy.victim(running, now))

    def _tell(self, call: Callable[[], None]) -> None:
        self._untold.append(call)
        if len(self._untold) >= _MAX_UNTOLD:
            self._ask(lambda: None)

    def _ask(self, question: Callable[[], T]) -> T:
        told, self._untold = self._untold, []

        def work() -> T:
            for call in told:
                call()
            return question()

        return answer_in_time(self._what, work)


class GuardedPreempting(Guarded):
    """Guard a policy by which waiting requests preempt running ones."""

    def __init__(self, policy: PreemptingPolicy) -> None:
        super().__init__(policy)
        self._preempting = policy

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        """Return which running request `waiting` preempts."""
        return self._ask(lambda: self._preempting.victim_for(waiting, running, now))


def guarded(policy: QueuePolicy) -> QueuePolicy:
    """Return the policy with a time limit on its answers."""
    return GuardedPreempting(policy) if isinstance(policy, PreemptingPolicy) else Guarded(policy)
