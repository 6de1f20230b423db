"""Which runner a model gets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyagent.core.errors import CapacityError, ConfigError, ModelError
from pyagent.core.runners.factory import KvReservation, LargestStep, ModelNeeds, RunnerOptions
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.runners.choice import RunnerChoice, pick_attention, pick_runners
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.engine.runners.torch.attention_backends import BACKENDS

NEEDS = ModelNeeds(100, 512, 0, 0, 0)
ASKED = (Path("model.gguf"), RunnerOptions(), LargestStep(8, 1))


@dataclass
class Device:
    """A factory for a device that is absent, or that runs some models only."""

    name: str
    absent: str | None = None
    refuses: bool = False
    is_full: bool = False

    def unavailable_reason(self) -> str | None:
        return self.absent

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        if self.is_full:
            raise CapacityError(f"other programs have the memory of {self.name}")
        if self.refuses:
            raise ModelError(f"{self.name} cannot run {path}", model=str(path))
        return NEEDS

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        raise AssertionError("nothing is loaded here")


def test_auto_tries_runners_in_their_order_and_the_cpu_last() -> None:
    """The plugins' order decides; the CPU's runner is the last wherever its plugin stands."""
    gpu, npu = Device("gpu"), Device("npu")
    choice = pick_runners("auto", {"cpu": CPU, "gpu": gpu, "npu": npu})
    assert [factory.name for factory in choice.factories] == ["gpu", "npu", "cpu"]
    assert choice.runner_for(*ASKED) == (gpu, NEEDS)


def test_cpu_is_there_when_its_plugin_is_disabled() -> None:
    """Disabling the built-in plugin leaves the default; one that brings a `cpu` of its own replaces it."""
    assert pick_runners("auto", {}).factories == (CPU,)
    assert pick_runners("cpu", {}).factories == (CPU,)
    own = Device("cpu")
    assert pick_runners("auto", {"cpu": own}).factories == (own,)


def test_runners_that_cannot_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A runner that is absent is not asked; one that refuses the model, or is full, is named in a warning."""
    absent, refusing, full = Device("tpu", absent="none"), Device("npu", refuses=True), Device("xpu", is_full=True)
    choice = RunnerChoice((absent, refusing, full, Device("gpu")))
    with caplog.at_level(logging.WARNING):
        factory, _ = choice.runner_for(*ASKED)
    assert factory.name == "gpu"
    assert "npu" in caplog.text
    assert "other programs have the memory of xpu" in caplog.text
    assert "tpu" not in caplog.text
    assert list(choice.unavailable()) == [("tpu", "none")]


@dataclass
class ChoosyDevice(Device):
    """A factory for a device that `auto` need not take."""

    passed_over: str | None = None

    def passed_over_reason(self) -> str | None:
        return self.passed_over


def test_auto_passes_over_a_runner_that_is_not_at_its_best() -> None:
    """A runner that says so is left to those who name it; one that does not is taken, if it is there."""
    slow = ChoosyDevice("torch", passed_over="there is no GPU")
    auto = pick_runners("auto", {"torch": slow, "cpu": Device("cpu")})
    assert [factory.name for factory in auto.available()] == ["cpu"]
    assert list(auto.unavailable()) == [("torch", "there is no GPU")]
    named = pick_runners("torch", {"torch": slow})
    assert (named.available(), list(named.unavailable())) == ([slow], [])
    quick = ChoosyDevice("torch")
    assert pick_runners("auto", {"torch": quick, "cpu": Device("cpu")}).runner_for(*ASKED) == (quick, NEEDS)
    absent = ChoosyDevice("torch", absent="it is not installed")
    assert list(pick_runners("auto", {"torch": absent}).unavailable()) == [("torch", "it is not installed")]


def test_last_runner_says_why_it_cannot() -> None:
    """When none can run the model, the last one's reason is raised; when none is available, all reasons are."""
    with pytest.raises(ModelError, match=r"gpu cannot run model\.gguf"):
        RunnerChoice((Device("npu", refuses=True), Device("gpu", refuses=True))).runner_for(*ASKED)
    with pytest.raises(ConfigError, match="no runner can run here; tpu: there is none; gpu: no driver"):
        RunnerChoice((Device("tpu", "there is none"), Device("gpu", "no driver"))).runner_for(*ASKED)


def test_unknown_name_is_refused_with_the_names_there_are() -> None:
    """A name that no plugin brings is a `ConfigError` that names the setting, and the nearest or all runners."""
    with pytest.raises(ConfigError, match="did you mean 'gpu'") as caught:
        pick_runners("gpus", {"gpu": Device("gpu")})
    assert caught.value.key == "engine.runner"
    with pytest.raises(ConfigError, match="there are auto, cpu, gpu"):
        pick_runners("quantum", {"gpu": Device("gpu")})


def test_attention_backend_that_is_not_there_is_named(tiny_model_path: Path) -> None:
    """A name that no plugin brings is an error with the nearest one; the CPU runner refuses to be told any."""
    backends = {backend.name: backend for backend in BACKENDS}
    with pytest.raises(ConfigError, match="did you mean 'triton'") as caught:
        pick_attention("trition", backends)
    assert caught.value.key == "engine.attention"
    options = RunnerOptions(attention=pick_attention("sdpa", backends))
    with pytest.raises(ConfigError, match="attention is for the torch runner"):
        CPU.estimate(tiny_model_path, options, LargestStep(8, 8))


def test_cpu_runner_refuses_fp8_kv(tiny_model_path: Path) -> None:
    """FP8 is the torch runner's: the error names the setting, and what takes as little here."""
    with pytest.raises(ConfigError, match="int8 takes as little") as caught:
        CPU.estimate(tiny_model_path, RunnerOptions(kv_dtype="fp8"), LargestStep(8, 8))
    assert caught.value.key == "engine.kv_dtype"
