"""The tables of a shape's score functions, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyagent.core.runners.architecture import ModelShape
from pyagent.infrastructure.engine.runners.score_tables import LayerTables


def num_table_numbers(shape: ModelShape) -> int:
    """Return how many numbers the tables of a shape have."""
    return LayerTables.of(shape.score_functions).num_numbers(shape.num_heads, shape.context_length)


def score_tables(shape: ModelShape, device: torch.device) -> Sequence[Tensor | None]:
    """Return of each layer [heads, distances], or None. Raises `WrongTableError`, and what a function raises."""
    layers = LayerTables.of(shape.score_functions)
    told = layers.evaluated(shape.num_heads, shape.context_length)
    tables = [torch.from_numpy(table).to(device) for table in told]
    return [None if place is None else tables[place] for place in layers.of_layers]
