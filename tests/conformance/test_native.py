"""The embedded engine does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.native import options

from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.testing import BackendConformance, Subject


class TestNative(BackendConformance):
    """A tiny random model in this process."""

    @pytest.fixture(autouse=True)
    def _model(self, tiny_model_path: Path) -> None:
        self.path = tiny_model_path

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        yield Subject(lambda: NativeBackend.of("tiny", lambda: self.path, options()), scheme="native")
