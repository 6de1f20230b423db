"""A step's rows through their logits processors: after the grammar's mask, before the temperature.

First what can change the best token, then what cannot; of each the batch processors by name, then the requests' own
functions, as settings and request order them. A processor that takes too long is left behind, and its rows end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from pyagent.infrastructure.engine.logits.bounded_thread import BoundedThread
from pyagent.infrastructure.engine.logits.row_processors import Faults, Row, process_row
from pyagent.infrastructure.engine.logits.scratch import Scratch

if TYPE_CHECKING:
    from pyagent._rust import LogitsRows
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger("pyagent.plugins")


@dataclass(frozen=True, slots=True)
class _Call:
    """What one processor does in a step: a batch processor with all of its rows, another one with one."""

    rows: Sequence[Row]
    logits: LogitsRows
    faults: Faults

    def run(self, scratch: Scratch) -> None:
        rows = [row for row in self.rows if row.segment not in self.faults]
        if not rows:
            return
        if (batch := rows[0].processor.batch) is not None:
            batch.process(rows, self.logits, self.faults)
        else:
            process_row(rows[0], self.logits, scratch, self.faults)


class StepLogits:
    """Has the rows of an engine's steps changed. One step at a time, in whatever thread computes it."""

    def __init__(self, limit_seconds: float) -> None:
        """A processor may take `limit_seconds` for what it does in a step."""
        self._limit = limit_seconds
        self._thread = BoundedThread(limit_seconds)
        self._scratch = Scratch()
        self._stuck: dict[str, Thread] = {}

    def process(self, sampled: Sequence[Request], logits: LogitsRows) -> Faults:
        """Change the logits of a step's segments; return what is wrong with some, by segment."""
        faults: Faults = {}
        calls = [_Call(rows, logits, faults) for rows in _in_order(sampled, logits.segments)]
        overdue = self._thread.run([partial(call.run, self._scratch) for call in calls])
        for index, thread in overdue.items():
            self._give_up(calls[index], thread)
        return dict(faults)  # a call that was given up may still write to its own

    def is_stuck(self, name: str) -> bool:
        """Whether a call of a processor took too long, and goes on all the same."""
        thread = self._stuck.get(name)
        return thread is not None and thread.is_alive()

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _give_up(self, call: _Call, thread: Thread) -> None:
        processor = call.rows[0].processor
        what = processor.brought.fault(f"took longer than {self._limit:g} s (engine.logits_processor_seconds)")
        logger.warning(what)
        self._stuck[processor.brought.name] = thread
        if processor.batch is not None:
            processor.batch.drop()
        for row in call.rows:
            call.faults.setdefault(row.segment, what)


def _in_order(sampled: Sequence[Request], segments: Sequence[int]) -> list[list[Row]]:
    """Return the rows of each call, in the order of the calls."""
    calls: dict[tuple[bool, bool, str, int, int], list[Row]] = {}
    for segment in segments:
        request = sampled[segment]
        for place, processor in enumerate(request.processors):
            is_invariant = processor.brought.is_argmax_invariant
            if processor.batch is not None:
                key = (is_invariant, False, processor.brought.name, 0, 0)
            else:
                key = (is_invariant, True, "", segment, place)
            calls.setdefault(key, []).append(Row(segment, request, processor))
    return [calls[key] for key in sorted(calls)]
