"""The CPU runner and the documentation's example do what every runner must."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.testing import RunnerConformance

PARROT = Path(__file__).parents[2] / "examples/pyagent-parrot/pyagent_parrot.py"


class TestCpuRunner(RunnerConformance):
    factory = CPU

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path


class TestParrotRunner(RunnerConformance):
    factory = runpy.run_path(str(PARROT))["Parrot"]()

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path
