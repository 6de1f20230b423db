"""The CPU runner as a plugin: it runs everywhere, so `engine.runner = "auto"` takes it where no other can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyagent import _rust
from pyagent.core.errors import ConfigError, ModelError
from pyagent.core.hooks import hookimpl
from pyagent.core.runners.factory import KvReservation, LargestStep, ModelNeeds, RunnerFactory, RunnerOptions
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.runners.family import Family
from pyagent.infrastructure.models.describe import describe_model


def kv_type(options: RunnerOptions) -> str:
    """Return the data type of keys and values: `auto` is the quickest."""
    return "bf16" if options.kv_dtype == "auto" else options.kv_dtype


class CpuRunnerFactory:
    """Load models into this machine's memory, to be computed on its cores."""

    name = "cpu"

    def unavailable_reason(self) -> str | None:
        """Return None: there is always a CPU."""
        return None

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        """Return what the model will take, from its header. Raises `ModelError` or `ConfigError`."""
        if options.dtype != "auto":
            text = f"engine.dtype is {options.dtype}, but the cpu runner computes with weights as the file has them"
            raise ConfigError(f"{text}; set it to auto, or engine.runner to torch", key="engine.dtype")
        if options.kv_dtype == "fp8":
            text = "engine.kv_dtype is fp8, which the cpu runner lacks; int8 takes as little"
            raise ConfigError(f"{text}, or set engine.runner to torch", key="engine.kv_dtype")
        if not options.attention.is_auto:
            text = "engine.attention is for the torch runner, and the cpu runner has one way of computing attention"
            raise ConfigError(f"{text}; set it to auto, or engine.runner to torch", key="engine.attention")
        if options.num_ranks > 1:
            text = f"the model is to be divided among {options.num_ranks} devices, which the cpu runner cannot"
            key = "engine.tensor_parallel_size" if options.tensor_parallel_size > 1 else "engine.pipeline_parallel_size"
            raise ConfigError(f"{text}; set {key} to 1, or engine.runner to torch", key=key)
        if options.quantization == "none":
            text = "engine.quantization is none, but the cpu runner computes with weights as the file has them"
            raise ConfigError(f"{text}; set it to auto, or engine.runner to torch", key="engine.quantization")
        kinds = options.architectures
        about = describe_model(path, kv_type=kv_type(options), mtp=options.mtp, head=options.head, architectures=kinds)
        family = Family.of(path, kinds)
        context = min(about.context_length, step.num_positions or about.context_length)
        threads = options.threads or _rust.available_cores()
        try:
            step_bytes = _rust.most_step_bytes(
                path,
                threads,
                step.num_tokens,
                step.num_outputs,
                context,
                mtp=options.mtp and options.head is None,
                family=None if family is None else family.inner,
            )
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        return ModelNeeds(
            vocab_size=about.vocab_size,
            context_length=about.context_length,
            weight_bytes=about.weight_bytes,
            workspace_bytes=step_bytes,
            page_bytes=about.page_bytes,
            kv_groups=about.kv_groups,
        )

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        """Load the model. Raises `ModelError` or `ConfigError`."""
        from pyagent.infrastructure.engine.runners.cpu import CpuRunner

        return CpuRunner(path, options, kv, step.num_positions)


CPU = CpuRunnerFactory()


@hookimpl
def pyagent_register_runners() -> Sequence[RunnerFactory]:
    """The CPU runner."""
    return [CPU]
