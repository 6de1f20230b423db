"""Execute steps: in the engine's own thread, or in a thread of their own while the engine goes on.

With a thread (asynchronous scheduling), the engine plans the next step and emits the last one's outputs while this one
is computed. The runner executes one step at a time in either case.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyagent.core.runners.batch import Batch, StepOutput
    from pyagent.core.runners.runner import Runner
    from pyagent.infrastructure.engine.scheduler.step_plan import Plan

AsyncScheduling = Literal["auto", "on", "off"]


def is_async(mode: AsyncScheduling, num_threads: int, num_cores: int) -> bool:
    """Return whether steps get a thread of their own; on `auto` where a core is left for the engine's."""
    return mode == "on" or (mode == "auto" and num_threads < num_cores)


@dataclass(slots=True)
class InFlightStep:
    """A launched step, the seconds its planning took, the rows that cannot be sampled from, with the reasons.

    `started` is when it was launched, in seconds of `time.perf_counter`.
    """

    plan: Plan
    planning: float
    faults: dict[int, str]
    future: Future[StepOutput] | None
    started: float
    num_more: int = 0  # tokens accepted beyond one for each row


def execute(runner: Runner, batch: Batch) -> StepOutput:
    """Compute a step and time it."""
    start = time.perf_counter()
    output = runner.execute(batch)
    output.seconds = time.perf_counter() - start
    return output


class StepThread:
    """Compute steps beside the engine's thread, one after the other."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._executor = ThreadPoolExecutor(1, "pyagent-step")

    def start(self, batch: Batch) -> Future[StepOutput]:
        """Start a step."""
        return self._executor.submit(execute, self._runner, batch)

    def close(self) -> None:
        """Wait for the step in flight, and end the thread."""
        self._executor.shutdown()
