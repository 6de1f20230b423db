"""Functions of a step's rows, each compiled once for any number of rows; what is compiled again is counted, with why.

Torch compiles a function anew where a call differs from what was taken as fixed (a guard). That takes seconds in which
steps wait, so a function that needs it again and again while serving is given up for the eager one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters, guard_failures

from pyagent.core.runners.runner import CompiledFunctionStats
from pyagent.infrastructure.engine.runners.torch.attention.trial import first_line
from pyagent.infrastructure.engine.runners.torch.compiled.cache import KEY

logger = logging.getLogger(__name__)

MOST_RECOMPILES = 3
"""Of a function while serving."""
_MOST_REASON = 160


class CompileError(Exception):
    """The compiled function is not to be had; the eager one computes the same."""


class CompiledFunction:
    """A function, compiled. `from_rows` is the number of rows from which on it is taken; None: it is not."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Of a plain function, of whose code this has a copy: torch keeps what it compiled by the code."""
        plain = cast("FunctionType", function)
        self._code = plain.__code__.replace()
        copy = FunctionType(self._code, plain.__globals__, plain.__name__, plain.__defaults__)
        copy.__kwdefaults__ = plain.__kwdefaults__
        self._call = torch.compile(copy, backend=self._compile, fullgraph=True)
        self.name = name
        self.from_rows: int | None = None
        self.fault = ""
        self._is_serving = False
        self._lock = threading.Lock()
        self._num_compiles = self._num_cached = 0
        self._seconds = 0.0
        self._recompiles = Counter[str]()

    def __call__(self, *inputs: object) -> Any:
        """Compute. Raises `CompileError` where torch cannot compile it for these inputs; it is given up then."""
        try:
            return self._call(*inputs)
        except TorchDynamoException as error:
            self.give_up(first_line(getattr(error, "inner_exception", error)))
            raise CompileError(self.fault) from error

    def begin_serving(self, from_rows: int | None) -> None:
        """Take it for so many rows on; whatever is compiled from now on is compiled again."""
        self._is_serving, self.from_rows = True, from_rows

    def give_up(self, fault: str) -> None:
        """Take it no more."""
        self.from_rows, self.fault = None, fault
        logger.warning("%s: %s is computed eagerly: %s", KEY, self.name, fault)

    @property
    def stats(self) -> CompiledFunctionStats:
        """What compiling it took."""
        with self._lock:
            return CompiledFunctionStats(
                name=self.name,
                num_compiles=self._num_compiles,
                num_cached=self._num_cached,
                seconds=round(self._seconds, 3),
                from_rows=self.from_rows,
                recompiles=dict(self._recompiles),
                fault=self.fault,
            )

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        """Compile a graph, as torch asks for it."""
        from torch._inductor.compile_fx import compile_fx

        start, hits = time.perf_counter(), _cache_hits()
        compiled = compile_fx(graph, list(inputs))
        with self._lock:
            self._num_compiles += 1
            self._num_cached += _cache_hits() > hits
            self._seconds += time.perf_counter() - start
            reason = self._reason()
            if self._is_serving:
                self._recompiles[reason] += 1
            is_storm = self.from_rows is not None and self._recompiles.total() > MOST_RECOMPILES
        if is_storm:
            text = f"it was compiled {MOST_RECOMPILES + 1} times while serving, the last time because of {reason}"
            self.give_up(f"{text}; steps go on without it. Set {KEY} to off, and report this line")
        return cast("Callable[..., Any]", compiled)

    def _reason(self) -> str:
        """Return the guard that the last call failed."""
        failed = guard_failures.get(self._code, [])
        text = str(failed[-1]).partition("  #")[0].strip() if failed else "a guard that torch does not name"
        return text.partition("\n")[0][:_MOST_REASON]


def _cache_hits() -> int:
    return counters["inductor"]["fxgraph_cache_hit"]
