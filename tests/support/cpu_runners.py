"""The CPU's runner with a change of the test's own, brought as a plugin brings a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory
from pyagent.plugin import KvReservation, LargestStep, RunnerFactory, RunnerOptions, hookimpl


@dataclass(frozen=True)
class Brought(CpuRunnerFactory):
    """Loads models into runners of this class; a plugin with the runner `tests`."""

    runner: type[CpuRunner]
    name = "tests"

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> CpuRunner:
        return self.runner(path, options, kv)

    @hookimpl
    def pyagent_register_runners(self) -> Sequence[RunnerFactory]:
        return [self]


def only(runner: type[CpuRunner]) -> RunnerChoice:
    """What `EngineOptions` takes for models to run on this class alone."""
    return RunnerChoice((Brought(runner),))
