"""How kernels are launched: one table of configurations for each, from which a call takes the first that it can.

Configurations say how the work is cut and staged, never what is computed. Blocks that the order of a softmax's sums
depends on are not in a table: they follow from the model's shape, so that equal requests get equal sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.errors import OutOfResources

from pyagent.infrastructure.engine.runners.torch.kernels import is_interpreted

INTERPRETED = is_interpreted()

PRETENDED_PROCESSORS = 4
"""Multiprocessors without a GPU: few, so that the interpreter shares out small inputs as a GPU does large ones."""

_LEAST_SPLIT_COLUMNS = 1024

Fits = Callable[[dict[str, Any], triton.Config], bool]
"""Whether a call, by its keyword arguments, can well use an entry."""


def configured(
    configs: Sequence[triton.Config], *, key: Sequence[str], fits: Fits | None = None, changes: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Decorate a kernel with its table, best entry first; the last must do for every call.

    A call takes the first entry that `fits` and for which the device has room. With `TRITON_CACHE_AUTOTUNING=1`, which
    is Triton's own, entries are measured for each `key` instead, and the result is kept on disk; `changes` are the
    tensors that the kernel both reads and writes, which measuring puts back. Interpreted, the last entry is taken, the
    smallest, so that small inputs have several blocks.
    """

    def fitting(shape: dict[str, Any]) -> list[triton.Config]:
        return [entry for entry in configs if fits is None or fits(shape, entry)] or [configs[-1]]

    def prune(_: list[triton.Config], __: dict[str, Any], **shape: Any) -> list[triton.Config]:
        return fitting(shape)

    def decorate(kernel: Any) -> Any:
        if INTERPRETED:
            return ConfiguredKernel(kernel, lambda _: [configs[-1]])
        if knobs.autotuning.cache:
            pruning = {"early_config_prune": prune}
            tune = triton.autotune(list(configs), list(key), prune_configs_by=pruning, restore_value=list(changes))
            return tune(kernel)
        return ConfiguredKernel(kernel, fitting)

    return decorate


class ConfiguredKernel:
    """A kernel with its table; launched as Triton's kernels are, `kernel[grid](...)`."""

    def __init__(self, kernel: Any, fitting: Callable[[dict[str, Any]], list[triton.Config]]) -> None:
        self._kernel = kernel
        self._fitting = fitting
        self._entries: dict[tuple[object, ...], list[triton.Config]] = {}
        """By a call's shape, the entries that fit, less those for which the device had no room."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *tensors, **shape: self._launch(grid, tensors, shape)

    def _launch(self, grid: Any, tensors: tuple[Any, ...], shape: dict[str, Any]) -> None:
        key = (tensors[0].dtype, *shape.values())
        entries = self._entries.get(key) or self._entries.setdefault(key, self._fitting(shape))
        while True:
            options: dict[str, Any] = entries[0].all_kwargs()
            try:
                self._kernel[grid](*tensors, **shape, **options)
            except OutOfResources:
                if len(entries) == 1:
                    raise
                del entries[0]
            else:
                return


def widens(*dtypes: torch.dtype) -> bool:
    """Whether products take 32-bit operands: the interpreter multiplies the bits of `bfloat16` as if integers."""
    return INTERPRETED and torch.bfloat16 in dtypes


@lru_cache
def num_processors(device: torch.device) -> int:
    """Return the multiprocessors of a device."""
    if device.type != "cuda":
        return PRETENDED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def divide_up(number: int, size: int) -> int:
    """Return how many blocks of a size a number fills, the last in part."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is no less: the sizes a block may have."""
    return 1 << max(0, number - 1).bit_length()


def columns_of_split(num_columns: int, unit: int, num_programs: int, device: torch.device) -> int:
    """Return the columns of a part of a sum, a multiple of `unit`, so that few programs keep every processor busy."""
    wanted = divide_up(2 * num_processors(device), num_programs)
    num_splits = next_power_of_2(max(1, min(wanted, num_columns // _LEAST_SPLIT_COLUMNS)))
    return divide_up(divide_up(num_columns, num_splits), unit) * unit
