"""A step that was launched on the device, and how its tokens come back while the next one computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyagent.core.runners.batch import Likelihood, StepOutput

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.sampler import Report, Sampled


class HostCopies:
    """Copies tensors to the host beside what the device computes: on a stream of its own, into pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Start copying; the function returned waits for the copies, and for nothing else."""
        if self._stream is None:
            return lambda: list(tensors)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
            for tensor in tensors:
                tensor.record_stream(self._stream)
            is_done = torch.cuda.Event()
            is_done.record(self._stream)

        def wait() -> list[Tensor]:
            is_done.synchronize()
            return copies

        return wait


class LaunchedStep:
    """A step on its way. `result` waits for it, and may be called once."""

    def __init__(self, sampled: Sampled | None, copies: HostCopies, finish: Callable[[StepOutput], StepOutput]) -> None:
        """`finish` is called with the tokens, and returns the step's output."""
        self._sampled = sampled
        self._finish = finish
        tensors: list[Tensor] = []
        if sampled is not None:
            tensors = [sampled.tokens, sampled.faults, *(sampled.report[3:] if sampled.report else ())]
        self._wait = copies.start(tensors)

    def result(self) -> StepOutput:
        """Wait for the step's tokens."""
        if (sampled := self._sampled) is None:
            self._wait()
            return self._finish(StepOutput([]))
        tokens, faults, *report = self._wait()
        vocab_size = sampled.vocab_size
        errors = {row: _told(fault, vocab_size) for row, fault in enumerate(faults.tolist()) if fault >= 0}
        likelihoods = _likelihoods(sampled.report, *report) if sampled.report else {}
        kept = {row: found for row, found in likelihoods.items() if row not in errors}
        output = StepOutput(tokens.tolist(), likelihoods=kept | sampled.likelihoods, errors=errors | sampled.errors)
        return self._finish(output)


def _told(fault: int, vocab_size: int) -> str:
    if fault >= vocab_size:
        return f"no token is allowed: the mask and the logits exclude all {vocab_size}"
    return f"the logit of token {fault} is not finite: the model's output is broken"


def _likelihoods(
    report: Report, logprobs: Tensor, tops: Tensor, top_logprobs: Tensor, entropies: Tensor
) -> dict[int, Likelihood]:
    rows = zip(report.rows, report.counts, logprobs.tolist(), tops.tolist(), top_logprobs.tolist(), strict=True)
    found = {
        row: Likelihood(logprob, [one for one in zip(tokens[:count], values, strict=False) if one[1] > -math.inf])
        for row, count, logprob, tokens, values in rows
    }
    for row, is_asked, entropy in zip(report.rows, report.has_entropy, entropies.tolist(), strict=False):
        found[row] = found[row]._replace(entropy=entropy if is_asked else None)
    return found
