"""Which functions are compiled, and from how many rows on: where results are right and the machine measures a gain.

A call of a compiled function checks its inputs first, which takes as long as a small step's operation does: few rows
are quicker without. What does not help is not taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import mark_dynamic

from pyagent.infrastructure.engine.runners.torch.compiled.cache import KEY, open_cache
from pyagent.infrastructure.engine.runners.torch.compiled.functions import CompiledFunction, CompileError
from pyagent.infrastructure.engine.runners.torch.compiled.stages import FUNCTIONS, CompiledStages, Inputs

logger = logging.getLogger(__name__)

_SAMPLE_ROWS = 24
_LADDER = (16, 64, 256, 1024, 4096)
_REPEATS = 9
_GAIN = 0.95
"""Of the eager time, at most: what gains less may lose on another day."""
_ROWS, _CACHES = 5, (6, 7)
"""Inputs of `rotate_and_store`: which rows of the caches are written, and the caches, by pages."""


@torch.inference_mode()
def compile_stages(stages: CompiledStages, compute: Callable[[], object], folder: Path, most_rows: int) -> None:
    """Compile what a step asks of its stages, for steps up to `most_rows`. Raises `ConfigError` for the folder."""
    from torch._inductor import config

    open_cache(folder)
    config.compile_threads = 1  # others would be processes that stay, of some hundred megabytes each
    for (name, row), inputs in stages.see(compute).items():
        function = CompiledFunction(f"{name} {'x'.join(map(str, row))}", FUNCTIONS[name])
        stages.take((name, row), function)
        num_rows = inputs[0].shape[0]
        try:
            fault = _fault(stages, name, function, Sample(name, inputs, num_rows))
        except CompileError:
            continue
        if fault is not None:
            function.give_up(fault)
            continue
        sizes = [size for size in _LADDER if size <= most_rows]
        seconds = [_seconds(stages, name, function, Sample(name, inputs, num_rows).of(size)) for size in sizes]
        function.begin_serving(first_gain(sizes, seconds))
    told = ", ".join(_told(one.name, one.from_rows) for one in stages.functions)
    logger.info("%s: %s; %.1f s", KEY, told, sum(one.stats.seconds for one in stages.functions))


def _told(name: str, from_rows: int | None) -> str:
    return f"{name} is eager" if from_rows is None else f"{name} from {from_rows} rows on"


def first_gain(sizes: Sequence[int], seconds: Sequence[tuple[float, float]]) -> int | None:
    """Return the size from which on the compiled function gains at all sizes, of (eager, compiled) seconds."""
    found: int | None = None
    for size, (eager, compiled) in zip(reversed(sizes), reversed(seconds), strict=True):
        if compiled > _GAIN * eager:
            break
        found = size
    return found


class Sample:
    """Inputs as a step had them, for other numbers of rows: random numbers. Strides and what is not of rows stay."""

    def __init__(self, name: str, inputs: Inputs, num_rows: int) -> None:
        self._inputs = inputs
        self._is_rows = [
            isinstance(one, Tensor)
            and one.shape[:1] == (num_rows,)
            and not (name == "rotate_and_store" and at in _CACHES)
            and not (name.endswith("rms_norm") and one.dim() == 1)
            for at, one in enumerate(inputs)
        ]
        self._caches = _CACHES if name == "rotate_and_store" else ()

    def of(self, num_rows: int) -> Inputs:
        """Return such inputs; what goes into the cache goes to its last places, free while a model loads."""
        pairs = zip(self._inputs, self._is_rows, strict=True)
        inputs = [_grown(one, num_rows) if is_rows else one for one, is_rows in pairs]
        if self._caches:
            num_places = inputs[self._caches[0]].shape[:2].numel()
            inputs[_ROWS] = num_places - 1 - torch.arange(num_rows, device=inputs[_ROWS].device) % num_places
        return tuple(inputs)

    def marked(self, num_rows: int) -> Inputs:
        """Return inputs whose numbers of rows, and of pages, torch is told not to take as fixed."""
        inputs = self.of(num_rows)
        for at, one in enumerate(inputs):
            if self._is_rows[at] or at in self._caches:
                mark_dynamic(one, 0)
        return inputs


def _grown(rows: Tensor, num_rows: int) -> Tensor:
    """Return as many rows of the same strides."""
    grown = torch.empty_strided((num_rows, *rows.shape[1:]), rows.stride(), dtype=rows.dtype, device=rows.device)
    return grown.normal_() if rows.is_floating_point() else grown.zero_()


def _fault(stages: CompiledStages, name: str, function: CompiledFunction, sample: Sample) -> str | None:
    """Return how the results differ from the eager function's; None where they do not. Raises `CompileError`."""
    inputs = sample.marked(_SAMPLE_ROWS)
    found = [_written(name, inputs, function(*inputs))]
    inputs_again = sample.of(_SAMPLE_ROWS + 1)  # compiled for any number of rows, so not again
    found.append(_written(name, inputs_again, function(*inputs_again)))
    if function.stats.num_compiles != 1:
        return f"torch compiles it for each number of rows ({function.stats.num_compiles} times for two)"
    for told, given in zip(found, (inputs, inputs_again), strict=True):
        for one, expected in zip(told, _written(name, given, stages.eager(name, given)), strict=True):
            most = 1e-4 if expected.dtype == torch.float32 else 3e-2
            error = float((one.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-20))
            if not error < most:
                return f"its results are wrong by {error:.1e}"
    return None


def _written(name: str, inputs: Inputs, result: Any) -> list[Tensor]:
    """Return a copy of what was computed, and of what was written into the cache."""
    results = list(result) if isinstance(result, tuple) else [result]
    if name == "rotate_and_store":
        results += [inputs[at].flatten(0, 1)[inputs[_ROWS]] for at in _CACHES]
    return [one.clone() for one in results]


def _seconds(stages: CompiledStages, name: str, function: CompiledFunction, inputs: Inputs) -> tuple[float, float]:
    """Return the least seconds of the eager and of the compiled function, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    device = inputs[0].device
    for _ in range(_REPEATS):
        for each, call in zip(times, (lambda: stages.eager(name, inputs), lambda: function(*inputs)), strict=True):
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            each.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])
