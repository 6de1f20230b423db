"""The Copilot backend does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyagent_copilot.backend import CopilotBackend

from pyagent.testing import BackendConformance, Subject


class TestCopilot(BackendConformance):
    """Against a program that writes what the real one writes."""

    @pytest.fixture(autouse=True)
    def _program(self, copilot: str) -> None:
        self.program = copilot

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        yield Subject(
            lambda: CopilotBackend(program=self.program),
            scheme="copilot",
            make_down=lambda: CopilotBackend(program="no-such-copilot"),
        )
