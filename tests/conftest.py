"""Models that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models import located
from support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of random weights with a byte-level vocabulary and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M Instruct (Q4_1)."""
    return located("smollm2:135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (Q4_K_M), for oracle tests."""
    return located("gemma3:270m")
