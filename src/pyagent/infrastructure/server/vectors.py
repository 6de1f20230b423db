"""Embedding vectors as clients ask for them. Pure."""

from __future__ import annotations

import base64
import math
import sys
from array import array

from pyagent.core.errors import RequestError


def shortened(vectors: list[list[float]], dimensions: int | None) -> list[list[float]]:
    """Return the vectors cut to their first `dimensions` and scaled to length 1; as they are when that is None.

    Sound for models trained so that a vector's beginning stands for it (https://arxiv.org/abs/2205.13147).
    """
    if dimensions is None:
        return vectors
    longest = min(map(len, vectors), default=dimensions)
    if not 1 <= dimensions <= longest:
        text = f"dimensions is from 1 to the {longest} that the model's vectors have, got {dimensions}"
        raise RequestError(text, param="dimensions")
    return [_unit(vector[:dimensions]) for vector in vectors]


def packed(vector: list[float]) -> str:
    """Return 32-bit floats in base64, the low byte first."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _unit(vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else vector
