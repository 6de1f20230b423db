"""What a queue policy is: the order in which the engine's waiting requests are taken, and who yields to whom.

A policy orders; it neither computes nor holds memory. The scheduler asks it for the next request, tells it what each
was served, and asks it whom to put back when memory runs out. One that also lets waiting requests take the seats of
running ones is a `PreemptingPolicy`. Policies are made by plugins, one for each queue.
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
        """Tokens still to compute before the next draw: the uncomputed prompt at first, 1 while decoding."""
        ...


class QueuePolicy(Protocol):
    """The order of one queue. Called by the engine's thread alone; every call is cheap (O(log n) or better)."""

    def add(self, request: Queued, now: float) -> None:
        """A request waits: new, or put back by a preemption (then it has been added before)."""
        ...

    def remove(self, request: Queued) -> None:
        """A waiting request is taken or gone."""
        ...

    def ordered(self, now: float) -> Iterator[Queued]:
        """All waiting requests, each once, first to be taken first; read only as far as needed."""
        ...

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        """A running request was given so many prompt tokens and draws by a step."""
        ...

    def finished(self, request: Queued, now: float) -> None:
        """A request ended."""
        ...

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        """Of these (never empty), the one that yields first when memory runs out."""
        ...


@runtime_checkable
class PreemptingPolicy(QueuePolicy, Protocol):
    """A policy by which a waiting request may take a running one's seat, where neither memory nor the seats suffice.

    The scheduler bounds how often a request loses its seat; its text does not change by it.
    """

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        """Of the queue's running requests, the one whose seat `waiting` takes; None when it has to wait.

        Asked in the order of `ordered`, until the first None. One that loses its seat must come behind `waiting`.
        """
        ...


QueuePolicyFactory = Callable[[Mapping[str, object]], QueuePolicy]
"""Makes a policy from its options in the settings; raises `ConfigError` naming an option it does not know."""
