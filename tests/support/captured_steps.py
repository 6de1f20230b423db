"""A torch runner that captures steps wherever it runs, by the twin of a capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from pyagent.core.runners.factory import KvReservation, LargestStep, RunnerOptions
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.graphs import Capture, Replay
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner


class RunAgain:
    """The twin of a capture for devices without graphs: does the same again, into the same output."""

    def __init__(self) -> None:
        self.places = set[int]()

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Replay:
        """Run it once for where its output lies."""
        place = compute().data_ptr()
        self.places.add(place)

        def replay() -> torch.Tensor:
            output = compute()
            assert output.data_ptr() == place, "a captured step would not find its output"
            return output

        return replay


class Graphing(TorchRunner):
    """A torch runner that captures steps wherever it runs."""

    def choose_capture(self, device: torch.device) -> Capture | None:
        self.twin = RunAgain()
        return self.twin if device.type == "cpu" else super().choose_capture(device)


class GraphingFactory(TorchRunnerFactory):
    """Its factory, as a plugin would bring it."""

    name = "graphing"

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        return Graphing(path, options, step, kv)
