"""Triton kernels for the torch runner: attention over pages, and the small stages between matrix products.

Triton is imported in this folder only, and only once `unavailable_reason` found a use for it: a CUDA device, or
Triton's interpreter (`TRITON_INTERPRET=1`), which runs the same kernels on a CPU for the tests. Each kernel has the
plain torch form as its oracle. docs/explanation/gpu-kernels.md tells their ideas and rooflines.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter. Triton itself reads the variable once, when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "y", "yes"}


def unavailable_reason(device: torch.device) -> str | None:
    """Return why the kernels cannot run on a device; None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed; it comes with torch's CUDA wheels"
    if device.type == "cuda" or is_interpreted():
        return None
    return f"Triton's kernels need a CUDA device, and this one is {device.type}"
