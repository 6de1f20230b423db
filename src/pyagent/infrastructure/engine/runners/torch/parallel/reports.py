"""What ranks say of themselves, as rank 0 hears it, and which of them hangs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import zmq

from pyagent.core.runners.runner import RankStats
from pyagent.infrastructure.engine.runners.torch.parallel.messages import RankReport, reports
from pyagent.infrastructure.engine.runners.torch.parallel.pulse import PULSE_SECONDS

_SILENCE_SECONDS = 15.0
"""A rank that says nothing for so long hangs as a whole, also where no step is under way."""
_QUIET_SECONDS = 8 * PULSE_SECONDS
"""Of a step that takes too long, a rank that said nothing for so long is the cause."""

Heard = tuple[float, RankReport]
"""For how many seconds a rank has said nothing, and what it said then."""


def hanging_rank(heard: Sequence[Heard], own: RankReport, most_step_seconds: float) -> tuple[int, str] | None:
    """Return which rank hangs, and how that is known; None where none does. Rank 0's `own` says how late a step is."""
    is_late = own.busy_seconds > most_step_seconds
    silent_seconds, rank = max(((seconds, report.rank) for seconds, report in heard), default=(0.0, 0))
    if silent_seconds > (_QUIET_SECONDS if is_late else _SILENCE_SECONDS):
        return rank, f"has said nothing for {silent_seconds:.1f} s"
    if not is_late:
        return None
    at_work = [report for report in (own, *(report for _, report in heard)) if not report.is_waiting]
    slowest = min(at_work or [own], key=_num_steps)
    return slowest.rank, f"is at a step for {own.busy_seconds:.1f} s (engine.hang_seconds)"


def _num_steps(report: RankReport) -> int:
    return report.num_steps


class Reports:
    """Hears the ranks in a thread of its own, until it is closed or one of them hangs."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        own: Callable[[], RankReport],
        most_step_seconds: float,
        when_hanging: Callable[[int, str], None],
    ) -> None:
        """`socket`, which becomes its own, receives what ranks say; `own` is how rank 0 is."""
        self._own = own
        self._most_step_seconds = most_step_seconds
        self._when_hanging = when_hanging
        self._said: dict[int, tuple[float, RankReport]] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, args=(socket,), name="pyagent-ranks", daemon=True)
        self._thread.start()

    def stats(self) -> list[RankStats]:
        """Return how all ranks are, rank 0 first; those that have not said so yet are left out."""
        return [
            RankStats(
                rank=report.rank,
                num_steps=report.num_steps,
                step_seconds=report.step_seconds,
                busy_seconds=report.busy_seconds,
                memory_bytes=report.memory_bytes,
                silent_seconds=max(0.0, seconds - PULSE_SECONDS),
            )
            for seconds, report in [(0.0, self._own()), *self._heard()]
        ]

    def _heard(self) -> list[Heard]:
        said, now = dict(self._said), time.monotonic()
        return [(now - said[rank][0], said[rank][1]) for rank in sorted(said)]

    def _listen(self, socket: zmq.Socket[bytes]) -> None:
        with socket:
            looked = time.monotonic()
            while not self._is_closed:
                if socket.poll(math.ceil(1000 * PULSE_SECONDS)):
                    report = reports.decode(socket.recv())
                    self._said[report.rank] = time.monotonic(), report
                since = time.monotonic() - looked
                if since < PULSE_SECONDS:
                    continue
                looked += since
                # One that slept itself has what was said meanwhile yet to read.
                hanging = hanging_rank(self._heard(), self._own(), self._most_step_seconds)
                if hanging is not None and since < _QUIET_SECONDS:
                    self._when_hanging(*hanging)
                    return

    def close(self) -> None:
        """Hear no more."""
        self._is_closed = True
        if self._thread is not threading.current_thread():
            self._thread.join()
