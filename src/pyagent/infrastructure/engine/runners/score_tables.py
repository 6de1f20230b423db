"""What a score function says, evaluated once for every head and distance: the tables that attention reads.

Nothing here depends on what the function is: what it returns is checked, and its size is bounded before it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyagent.core.runners.architecture import ScoreFunction

if TYPE_CHECKING:
    import numpy as np

    ScoreTable = np.ndarray[tuple[int, int], np.dtype[np.float32]]

MOST_NUMBERS = 1 << 26
"""Numbers of all of a model's tables, 256 MB: 32 heads over 131,072 positions are 4 million."""


class WrongTableError(ValueError):
    """What a score function returned cannot be added to scores."""


class LayerTables(NamedTuple):
    """Of each layer, which of the functions it has: one that several layers have is evaluated once."""

    of_layers: list[int | None]
    functions: list[tuple[int, ScoreFunction]]
    """Each with the first layer that has it."""

    @classmethod
    def of(cls, functions: Sequence[ScoreFunction | None]) -> LayerTables:
        """Tell the functions of the layers apart."""
        places: dict[int, int] = {}
        told = cls([], [])
        for layer, function in enumerate(functions):
            if function is not None and id(function) not in places:
                places[id(function)] = len(told.functions)
                told.functions.append((layer, function))
            told.of_layers.append(None if function is None else places[id(function)])
        return told

    def num_numbers(self, num_heads: int, num_distances: int) -> int:
        """Return how many numbers the tables have."""
        return len(self.functions) * num_heads * num_distances

    def evaluated(self, num_heads: int, num_distances: int) -> list[ScoreTable]:
        """Return a table [heads, distances] of each function. Raises `WrongTableError`, and what a function raises."""
        return [_evaluated(function, layer, num_heads, num_distances) for layer, function in self.functions]


def _evaluated(function: ScoreFunction, layer: int, num_heads: int, num_distances: int) -> ScoreTable:
    import numpy as np

    heads, distances = np.arange(num_heads)[:, None], np.arange(num_distances)[None]
    told = np.asarray(function(heads, distances))
    expected = (num_heads, num_distances)
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
