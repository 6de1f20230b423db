"""The torch runner as a plugin. Imported with all plugins: torch itself is imported when a model is to be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pyagent.core.hooks import hookimpl
from pyagent.core.runners.factory import KvReservation, LargestStep, ModelNeeds, RunnerFactory, RunnerOptions
from pyagent.core.runners.runner import ModelRunner

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""What a driver shows of GPUs: NVIDIA's, Windows' below Linux, AMD's. Where there is none, torch need not be asked."""


class TorchRunnerFactory:
    """Load models onto the GPU, or where there is none into this machine's memory."""

    name = "torch"

    def unavailable_reason(self) -> str | None:
        """Return why torch cannot be used."""
        if any(find_spec(name) is None for name in ("torch", "numpy")):
            return "torch is not installed: `pip install torch numpy` in PyAgent's environment"
        try:
            import torch
        except (ImportError, OSError) as error:
            return f"torch cannot be imported: {error}"
        del torch
        return None

    def passed_over_reason(self) -> str | None:
        """Return why `auto` takes another runner: torch's CPU device is slower than the CPU runner."""
        if not any(Path(driver).exists() for driver in _DRIVERS):
            return "there is no GPU here (engine.runner = torch takes torch's CPU device)"
        if (reason := self.unavailable_reason()) is not None:
            return reason
        from pyagent.infrastructure.engine.runners.torch.device import no_gpu_reason

        return no_gpu_reason()

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        """Return what the model will take. Raises `ModelError` where it does not fit the GPU, or `ConfigError`."""
        from pyagent.infrastructure.engine.runners.torch.runner import needs_of

        return needs_of(path, options, step)

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        """Load the model. Raises `ModelError` or `ConfigError`."""
        from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner

        return TorchRunner(path, options, step, kv)


@hookimpl
def pyagent_register_runners() -> Sequence[RunnerFactory]:
    """The torch runner."""
    return [TorchRunnerFactory()]
