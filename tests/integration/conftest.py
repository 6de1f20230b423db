"""What many files of these tests ask, where they make nothing of their own under these names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.calling_model import write_calling_model
from support.native import native_server


@pytest.fixture(scope="module")
def url(tiny_model_path: Path) -> Iterator[str]:
    """A server over the embedded engine with the tiny model."""
    with native_server(tiny_model_path) as served:
        yield served


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template has tools and thoughts, in Hermes' dialect."""
    return write_calling_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
