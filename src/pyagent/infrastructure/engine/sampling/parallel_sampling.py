"""`n` answers to one prompt, or the best `n` of more: requests that share the prompt and end together.

Each is sampled with a seed of its own, so that the i-th answer is what seed + i gives alone. The best are those whose
log probability over the number of output tokens is highest; they are emitted when all have ended, likeliest first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyagent.core.errors import RequestError

if TYPE_CHECKING:
    from pyagent.core.messages import ChatRequest, TokenLogprob
    from pyagent.infrastructure.engine.request import Output, Request

MAX_ANSWERS = 16


def num_samples(request: ChatRequest) -> int:
    """Return how many answers are sampled. Raises `RequestError` naming the field out of its range."""
    best_of = request.n if request.best_of is None else request.best_of
    for name, value in (("n", request.n), ("best_of", best_of)):
        if not 1 <= value <= MAX_ANSWERS:
            raise RequestError(f"{name} must be between 1 and {MAX_ANSWERS}, got {value}", param=name)
    if best_of < request.n:
        text = f"best_of must be at least n: the {request.n} likeliest of {best_of} cannot be told"
        raise RequestError(text, param="best_of")
    return best_of


class Samples:
    """The requests that answer one prompt, and the order in which their outputs are told."""

    def __init__(self, members: list[Request], num_told: int, emit: Callable[[Output], None]) -> None:
        """The first member computes the prompt; the others follow it."""
        self.members = members
        self._num_told = num_told
        self._emit = emit
        self._num_running = len(members)
        self._buffered: dict[int, list[Output]] = {}
        members[0].followers = members[1:]
        for member in members:
            member.samples = self
            member.on_output = self._pass_on if num_told == len(members) else self._buffer

    def _pass_on(self, output: Output) -> None:
        """An answer's outputs, told as they come."""
        self._num_running -= output.finish_reason is not None
        self._emit(replace(output, is_last=self._num_running == 0))

    def _buffer(self, output: Output) -> None:
        """An answer's outputs, told when it is known to be among the best."""
        self._buffered.setdefault(output.index, []).append(output)
        if output.finish_reason in {"error", "abort"}:
            self._emit(output)
        elif output.finish_reason is not None:
            self._num_running -= 1
            if self._num_running == 0:
                self._emit_best()

    def _emit_best(self) -> None:
        ranked = sorted(self.members, key=lambda member: (-member.mean_logprob, member.index))
        for index, member in enumerate(ranked[: self._num_told]):
            outputs = self._buffered[member.index]
            logprobs: list[TokenLogprob] = [logprob for output in outputs for logprob in output.logprobs]
            activations = tuple(one for output in outputs for one in output.activations)
            whole = replace(
                outputs[-1],
                text="".join(output.text for output in outputs),
                tokens=tuple(token for output in outputs for token in output.tokens),
                logprobs=tuple(logprobs),
                activations=activations,
                reasoning="".join(output.reasoning for output in outputs),
                tool_calls=tuple(piece for output in outputs for piece in output.tool_calls),
                index=index,
                is_last=index == self._num_told - 1,
            )
            self._emit(whole)
