"""What every attention backend of the torch runner must do. Without torch, what can be asked without it.

    class TestMine(AttentionBackendConformance):
        def make(self):
            return MyBackend()

What is computed is compared with the formula, as `engine.attention = "auto"` does before it takes a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from pyagent.core.runners.attention import Attend, AttentionBackend, AttentionShape, InvariantAttentionBackend
from pyagent.testing.suites.checks import check_host_takes

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial

_HEADS = ((4, 4, 16), (8, 2, 32), (6, 1, 64))
_WINDOWS = (frozenset[int | None]({None}), frozenset[int | None]({None, 24}))


class AttentionBackendConformance:
    """Derive from it, and define `make`; `device` is torch's word for where it computes."""

    device: ClassVar[str] = "cpu"
    dtype: ClassVar[str] = "f32"

    def make(self) -> AttentionBackend:
        """Return the backend."""
        raise NotImplementedError

    def shapes(self) -> list[AttentionShape]:
        """Return shapes of models: with heads that share keys, windows and softcaps."""
        return [
            AttentionShape(self.device, self.dtype, self.dtype, *heads, windows, softcap)
            for heads in _HEADS
            for windows in _WINDOWS
            for softcap in (None, 30.0)
        ]

    def test_host_takes_the_backend(self) -> None:
        """It has a name, `unavailable_reason` and `open`."""
        check_host_takes("attention_backends", [self.make()])

    def test_it_says_what_it_cannot_do(self) -> None:
        """It says of any shape, also on a device that is not there, a reason or None, and does not raise."""
        _skip_without_torch()
        odd = AttentionShape("no-such-device", "f8", "f4", 7, 7, 3, frozenset({1}), 0.5)
        for shape in (*self.shapes(), odd):
            try:
                reason = cast("object", self.make().unavailable_reason(shape))
            except Exception as error:
                raise AssertionError(f"asked about {shape}, it fails: {error}") from error
            assert reason is None or (isinstance(reason, str) and reason), f"it gives {reason!r} as the reason"

    def test_it_computes_the_formula(self) -> None:
        """For sequences that decode beside a chunk of a prompt, with what is unwritten NaN, it is the formula's."""
        self._check(lambda trial, attend: trial.fault(attend), self.make().open)

    def test_invariant_form_does_not_vary(self) -> None:
        """`open_invariant`, where there is one, gives a query the same bits whatever is computed beside it."""
        backend = self.make()
        if not isinstance(backend, InvariantAttentionBackend):
            pytest.skip("it has no form for engine.batch_invariant")
        self._check(lambda trial, attend: trial.fault(attend) or trial.variance(attend), backend.open_invariant)

    def _check(
        self,
        find_fault: Callable[[AttentionTrial, Attend], str | None],
        open_backend: Callable[[AttentionShape], Attend],
    ) -> None:
        _skip_without_torch()
        shapes = [shape for shape in self.shapes() if self.make().unavailable_reason(shape) is None]
        if not shapes:
            pytest.skip(f"it cannot compute here: {self.make().unavailable_reason(self.shapes()[0])}")
        from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial

        torch = cast("Any", import_module("torch"))
        inference: AbstractContextManager[object] = torch.inference_mode()
        with inference:
            for shape in shapes:
                trial = AttentionTrial(shape, shape.head_dim**-0.5, torch.device(self.device))
                fault = find_fault(trial, open_backend(shape))
                assert fault is None, f"{shape}: {fault}"


def _skip_without_torch() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: without it the runner asks no backend")
