"""Stages of which some are compiled, for steps of as many rows as make that worth it; the others are what they were.

What a model's steps ask of them is seen in one step that is computed for it: shapes beyond the rows, and strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.compiled.functions import CompiledFunction, CompileError
from pyagent.infrastructure.engine.runners.torch.layers import Activation, gated, rms_norm, rotate
from pyagent.infrastructure.engine.runners.torch.stages import Heads, Stages

Inputs = tuple[Any, ...]
_MOST_FUNCTIONS = 12
"""Of a model: its layers are alike but for a few kinds."""


def add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """As `Stages.add_rms_norm`."""
    total = x + branch
    return total, rms_norm(total, weight, epsilon)


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    is_interleaved: bool,
) -> Tensor:
    """As `Stages.rotate_and_store`, of a cache without scales."""
    turned = rotate(k, (cos, sin), is_interleaved=is_interleaved)
    keys.flatten(0, 1).index_copy_(0, rows, turned.to(keys.dtype))
    values.flatten(0, 1).index_copy_(0, rows, v.to(values.dtype))
    return rotate(q, (cos, sin), is_interleaved=is_interleaved)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "gated": gated,
    "rotate_and_store": rotate_and_store,
}


class CompiledStages:
    """Other stages, with compiled functions for what was seen of a model's steps."""

    def __init__(self, stages: Stages) -> None:
        """Compute by `stages` until something is compiled."""
        self._stages = stages
        self._functions: dict[tuple[str, torch.Size], CompiledFunction] = {}
        self._seen: dict[tuple[str, torch.Size], Inputs] | None = None

    @property
    def functions(self) -> list[CompiledFunction]:
        """What is compiled, or was given up."""
        return list(self._functions.values())

    @property
    def from_rows(self) -> float:
        """The fewest rows of a step for which anything is compiled; any while `see` looks."""
        if self._seen is not None:
            return 0
        taken = (function.from_rows for function in self._functions.values() if function.from_rows is not None)
        return min(taken, default=math.inf)

    def see(self, compute: Callable[[], object]) -> dict[tuple[str, torch.Size], Inputs]:
        """Return what a step asks for, by function and shape of a row."""
        self._seen = seen = {}
        try:
            compute()
        finally:
            self._seen = None
        return seen

    def take(self, key: tuple[str, torch.Size], function: CompiledFunction) -> None:
        """Compute so from now on what has a row of this shape."""
        self._functions[key] = function

    def eager(self, name: str, inputs: Inputs) -> Any:
        """Compute a function by the stages behind these."""
        if name == "rotate_and_store":
            q, k, v, cos, sin, rows, keys, values, is_interleaved = inputs
            cache = PagedCache(keys, values, None)
            return self._stages.rotate_and_store((q, k, v), (cos, sin), rows, cache, is_interleaved=is_interleaved)
        return getattr(self._stages, name)(*inputs)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """As `Stages.rms_norm`."""
        return self._computed("rms_norm", x, (x, weight, epsilon))

    def add_rms_norm(self, x: Tensor, branch: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """As `Stages.add_rms_norm`."""
        return self._computed("add_rms_norm", x, (x, branch, weight, epsilon))

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """As `Stages.gated`."""
        return self._computed("gated", gate_up, (gate_up, activation))

    def rotate_and_store(
        self, heads: Heads, cos_sin: tuple[Tensor, Tensor], rows: Tensor, cache: PagedCache, *, is_interleaved: bool
    ) -> Tensor:
        """As `Stages.rotate_and_store`."""
        if cache.exponents is not None:
            return self._stages.rotate_and_store(heads, cos_sin, rows, cache, is_interleaved=is_interleaved)
        inputs = (*heads, *cos_sin, rows, cache.keys, cache.values, is_interleaved)
        return self._computed("rotate_and_store", cos_sin[0], inputs)

    def _computed(self, name: str, rows: Tensor, inputs: Inputs) -> Any:
        """Compute, compiled where there are as many rows; a row's shape says which function it is."""
        key = name, rows.shape[1:]
        if self._seen is not None and len(self._seen) < _MOST_FUNCTIONS:
            self._seen.setdefault(key, inputs)
        function = self._functions.get(key)
        if function is not None and function.from_rows is not None and len(rows) >= function.from_rows:
            try:
                return function(*inputs)
            except CompileError:
                pass  # and what it may have written is written again
        return self.eager(name, inputs)
