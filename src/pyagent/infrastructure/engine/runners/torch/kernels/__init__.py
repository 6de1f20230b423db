"""Triton kernels for the torch runner: attention over pages, and the small stages between matrix products.

Triton is imported in this folder only, and only once `unavailable_reason` found a use for it: a CUDA device, or
Triton's interpreter (`TRITON_INTERPRET=1`), which runs the same kernels on a CPU for the tests. Each kernel has the
plain torch form as its oracle. docs/explanation/gpu-kernels.md tells their ideas and rooflines.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

MOST_GROUP = 32
MOST_HEAD_DIM = 256


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter. Triton itself reads the variable once, when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "y", "yes"}


def unavailable_reason(device: str) -> str | None:
    """Return why the kernels cannot run on a device, `cpu` or `cuda:0`; None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed; it comes with torch's CUDA wheels"
    if device.startswith("cuda") or is_interpreted():
        return None
    return f"Triton's kernels need a CUDA device, and this one is {device}"


def no_tile_reason(group: int, head_dim: int) -> str | None:
    """Return why attention has no tile for so many query heads of a KV head, of so many dimensions."""
    if group <= MOST_GROUP and head_dim <= MOST_HEAD_DIM:
        return None
    return (
        f"Triton's attention takes up to {MOST_GROUP} query heads for a KV head and head dimensions up to "
        f"{MOST_HEAD_DIM}, not {group} and {head_dim}"
    )
