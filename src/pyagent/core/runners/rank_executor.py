"""How the processes of a model's ranks come to be: on this machine by the engine itself, or by what a plugin brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyagent.core.settings import Settings


class RankProcess(Protocol):
    """A process that runs `run_rank`. Any thread may call."""

    @property
    def process_id(self) -> int:
        """Its number on this machine."""
        ...

    def wait(self, seconds: float | None = None) -> str | None:
        """Block until it has ended, or so long; return how it ended, in words, None while it has not."""
        ...

    def kill(self) -> None:
        """End it at once, whatever it does. It may have ended."""
        ...


class RankExecutor(Protocol):
    """Starts the ranks of models, but for rank 0, which is the engine's own process. Any thread may call."""

    @property
    def gives_devices(self) -> bool:
        """Whether each process sees one GPU alone, its own; where not, all see the same, and each takes its rank's."""
        ...

    def start(self, told: Sequence[bytes]) -> Sequence[RankProcess]:
        """Start a process on this machine for each of these, which calls `run_rank` with it, for one model.

        They end when this process does. Raises `BackendError` where they cannot be started, and leaves none.
        """
        ...


RankExecutorFactory = Callable[["Settings"], RankExecutor]
"""Makes an executor. Cheap: it reserves and connects when ranks are to be started."""
