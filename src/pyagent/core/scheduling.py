"""Queue policies: in which order the scheduler admits waiting requests, and which running one it preempts.

A policy orders; it neither computes nor holds memory. The scheduler asks it for the next request, reports what each was
served, and asks it which to preempt when KV memory runs out. One that also lets waiting requests preempt running ones
is a `PreemptingPolicy`. Plugins provide policies; each queue has its own instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from pyagent.core.messages import Origin


class Queued(Protocol):
    """What a policy may know of a request. Times are seconds of one monotonic clock (`now` of the same calls)."""

    @property
    def id(self) -> int: ...  # noqa: D102
    @property
    def arrived(self) -> float: ...  # noqa: D102
    @property
    def priority(self) -> int:
        """Lower goes first."""
        ...

    @property
    def deadline(self) -> float | None:
        """When the caller stops waiting."""
        ...

    @property
    def origin(self) -> Origin: ...  # noqa: D102
    @property
    def num_prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def num_output_tokens(self) -> int: ...  # noqa: D102
    @property
    def num_left(self) -> int:
        """Tokens still to compute before the next is sampled: the uncomputed prompt at first, 1 while decoding."""
        ...


class QueuePolicy(Protocol):
    """The order of one queue. Called by the engine's thread alone; every call is cheap (O(log n) or better)."""

    def add(self, request: Queued, now: float) -> None:
        """Enqueue a waiting request: new, or preempted (then it has been added before)."""
        ...

    def remove(self, request: Queued) -> None:
        """Remove a waiting request that was admitted or has ended."""
        ...

    def ordered(self, now: float) -> Iterator[Queued]:
        """Yield all waiting requests, each once, in order of admission; read only as far as needed."""
        ...

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """Record the prompt and output tokens that a step served a running request."""
        ...

    def finished(self, request: Queued, now: float) -> None:
        """Record that a request ended."""
        ...

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Return which of these (never empty) to preempt first when KV memory runs out."""
        ...


@runtime_checkable
class PreemptingPolicy(QueuePolicy, Protocol):
    """A policy by which a waiting request may preempt a running one, where KV memory or places in the batch are short.

    The scheduler bounds how often a request is preempted; its text does not change by it.
    """

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        """Return which of the queue's running requests `waiting` preempts; None when it has to wait.

        Called in the order of `ordered`, until the first None. A preempted request must come behind `waiting`.
        """
        ...


QueuePolicyFactory = Callable[[Mapping[str, object]], QueuePolicy]
"""Makes a policy from its options in the settings; raises `ConfigError` naming an option it does not know."""
