"""What a score function says, evaluated once for every head and distance: the tables that attention reads.

Nothing here depends on what the function is: what it returns is checked, and its size is bounded before it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyagent.core.runners.architecture import ModelShape, ScoreFunction

MOST_NUMBERS = 1 << 26
"""Numbers of all of a model's tables, 256 MB: 32 heads over 131,072 positions are 4 million."""


class WrongTableError(ValueError):
    """What a score function returned cannot be added to scores."""


def num_table_numbers(shape: ModelShape) -> int:
    """Return how many numbers the tables of a shape have: a function that several layers have is evaluated once."""
    functions = {id(function) for function in shape.score_functions if function is not None}
    return len(functions) * shape.num_heads * shape.context_length


def score_tables(shape: ModelShape, device: torch.device) -> Sequence[Tensor | None]:
    """Return of each layer [heads, distances], or None. Raises `WrongTableError`, and what a function raises."""
    tables: dict[int, Tensor] = {}
    for layer, function in enumerate(shape.score_functions):
        if function is not None and id(function) not in tables:
            table = _evaluated(function, layer, shape)
            tables[id(function)] = torch.from_numpy(table).to(device)
    return [None if function is None else tables[id(function)] for function in shape.score_functions]


def _evaluated(
    function: ScoreFunction, layer: int, shape: ModelShape
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    heads, distances = np.arange(shape.num_heads)[:, None], np.arange(shape.context_length)[None]
    told = np.asarray(function(heads, distances))
    expected = (shape.num_heads, shape.context_length)
    where = f"the score function of layer {layer}"
    if told.dtype.kind not in "fiu":
        raise WrongTableError(
            f"{where} returned {told.dtype} numbers; expected floats: 0 where nothing is added, -inf to mask"
        )
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is an infinity, which is looked for below
            numbers = np.array(np.broadcast_to(told, expected), dtype=np.float32, order="C")  # not the plugin's own
    except ValueError:
        raise WrongTableError(
            f"{where} returned the shape {told.shape}; expected {expected} or what broadcasts to it"
        ) from None
    if (wrong := np.argwhere(np.isnan(numbers) | (numbers == np.inf))).size:
        head, distance = wrong[0]
        text = f"{where} gives {numbers[head, distance]} to head {head} at distance {distance}"
        raise WrongTableError(f"{text}; expected a finite number, or -inf to mask")
    if (masked := np.argwhere(numbers[:, 0] == -np.inf)).size:
        text = f"{where} masks distance 0 of head {masked[0, 0]}"
        raise WrongTableError(f"{text}; a text's first token sees itself alone: give a finite number")
    return numbers
