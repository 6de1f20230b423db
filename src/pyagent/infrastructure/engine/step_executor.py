"""Execute steps: in the engine's own thread, or in a thread of their own while the engine goes on.

With a thread (asynchronous scheduling), the engine plans the next step and emits the last one's outputs while this one
is computed. The runner executes one step at a time in either case; one that launches ahead (`LaunchingRunner`) is given
the next step before this one's tokens are known, so that its device need not wait for them.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyagent.core.runners.runner import LaunchingRunner

if TYPE_CHECKING:
    from pyagent.core.runners.batch import Batch, StepOutput
    from pyagent.core.runners.runner import PendingStep, Runner
    from pyagent.infrastructure.engine.scheduler.step_plan import Plan

AsyncScheduling = Literal["auto", "on", "off"]


def is_async(mode: AsyncScheduling, num_threads: int, num_cores: int) -> bool:
    """Return whether steps get a thread of their own; on `auto` where a core is left for the engine's."""
    return mode == "on" or (mode == "auto" and num_threads < num_cores)


@dataclass(slots=True)
class InFlightStep:
    """A launched step, the seconds its planning took, the rows that cannot be sampled from, with the reasons.

    `started` is when it was launched, in seconds of `time.perf_counter`. It `has_waited` where it was not launched
    ahead, for the sake of drafts, its own or those before it.
    """

    plan: Plan
    planning: float
    faults: dict[int, str]
    future: Future[PendingStep] | None
    started: float
    num_more: int = 0  # tokens accepted beyond one for each row
    has_waited: bool = False

    def wait(self) -> None:
        """Wait until it was launched, whatever came of it."""
        if self.future is not None:
            self.future.exception()

    @property
    def sequence_ids(self) -> set[int]:
        """The sequences that it computes."""
        return set(self.plan.batch.sequence_ids)


def execute(runner: Runner, batch: Batch) -> StepOutput:
    """Compute a step and time it."""
    start = time.perf_counter()
    output = runner.execute(batch)
    output.seconds = time.perf_counter() - start
    return output


@dataclass(frozen=True, slots=True)
class _Computed:
    """A step that is done."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output


class StepThread:
    """Compute steps beside the engine's thread, one after the other."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.launches_ahead = isinstance(runner, LaunchingRunner) and runner.launches_ahead
        """Whether a step may be started before the last one's tokens are known."""
        self._executor = ThreadPoolExecutor(1, "pyagent-step")

    def start(self, batch: Batch) -> Future[PendingStep]:
        """Start a step."""
        return self._executor.submit(self._launch, batch)

    def _launch(self, batch: Batch) -> PendingStep:
        runner = self._runner
        return runner.launch(batch) if isinstance(runner, LaunchingRunner) else _Computed(execute(runner, batch))

    def close(self) -> None:
        """Wait for the step in flight, and end the thread."""
        self._executor.shutdown()
