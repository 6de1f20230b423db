"""What a fleet's runs came to: counted for metrics, and one line of log for each that is over, at level info.

No text of tasks, answers or errors is in either: a run is told by its id, a failure by its kind.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyagent.core.fleet.events import RunFailed
from pyagent.core.fleet.journal import state_of
from pyagent.core.fleet.steps import RunSpec
from pyagent.core.fleet.turns import RateStats
from pyagent.core.histogram import Histogram

if TYPE_CHECKING:
    from pyagent.core.fleet.run import Run

logger = logging.getLogger("pyagent.runs")
_STEP_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_MAX_NAMES = 20
"""Of agents in a line of log."""


@dataclass(slots=True)
class RunStats:
    """The runs of one fleet since it was made. A state is the journal's; `unfinished` is a run that was left."""

    ended: Counter[str] = field(default_factory=Counter[str])
    step_seconds: Histogram = field(default_factory=lambda: Histogram(_STEP_SECONDS))
    rates: RateStats = field(default_factory=RateStats)

    @contextmanager
    def step(self) -> Generator[None]:
        """Count a step with its time, however it ends."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.step_seconds.observe(time.perf_counter() - started)

    def run_ended(self, run: Run, spec: RunSpec) -> None:
        """Count a run that is over, and log it."""
        end = run.end
        state = "unfinished" if end is None else state_of(end)
        self.ended[state] += 1
        if not logger.isEnabledFor(logging.INFO):
            return
        totals = run.totals() if end is None else end.totals
        fields: dict[str, object] = {
            "run": run.id,
            "state": state,
            "agents": sorted(run.agent_names)[:_MAX_NAMES],
            "num_agents": run.num_agents,
            "num_steps": len(spec.steps),
            "model_calls": totals.model_calls,
            "tool_calls": totals.tool_calls,
            "prompt_tokens": totals.prompt_tokens,
            "cached_tokens": totals.cached_tokens,
            "completion_tokens": totals.completion_tokens,
            "usd": round(totals.usd, 6),
            "seconds": round(totals.seconds, 4),
        }
        fields |= {"key": spec.tenant} if spec.tenant else {}
        fields |= {"reason": end.reason, "error": end.kind} if isinstance(end, RunFailed) else {}
        logger.info("run", extra=fields)
