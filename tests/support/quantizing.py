"""Quantising in a test: by two threads, over no file that is there; and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.quantize.quantizing import Quantized, quantize_model


def quantized(
    source: Path, target: Path, type_name: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> Quantized:
    return quantize_model(source, target, type_name, overwrites=False, threads=2, progress=progress)


def refusal(source: Path, type_name: str = "Q8_0") -> str:
    """The message; nothing is left beside the source."""
    target = source.parent / "refused.gguf"
    with pytest.raises(ModelError) as caught:
        quantized(source, target, type_name)
    assert not list(source.parent.glob("*refused*"))
    assert not list(source.parent.glob(".*refused*"))
    return str(caught.value)
