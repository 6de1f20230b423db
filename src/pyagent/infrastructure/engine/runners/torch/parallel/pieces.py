"""A long step in pieces, so that the stages of a pipeline compute different ones at the same time. Pure."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

from pyagent.infrastructure.engine.runners.torch.step import PackedStep

_LEAST_TOKENS = 256
"""Of a piece. With fewer a stage's time is that of reading its weights, which each piece would read again."""
_PIECES_A_STAGE = 2
"""Of `k` pieces and `n` stages a stage computes for k / (k + n - 1) of a step's time."""


def pieces_of(step: PackedStep, num_stages: int, least_tokens: int = _LEAST_TOKENS) -> list[PackedStep]:
    """Cut a step between tokens, where it is long enough, for so many stages.

    The pieces' outputs, one after the other, are the step's. They are to be computed in this order: a sequence that is
    cut sees in its second piece what it wrote in the first.
    """
    num_tokens = sum(step.num_queries)
    num_pieces = min(_PIECES_A_STAGE * num_stages, num_tokens // least_tokens) if num_stages > 1 else 1
    if num_pieces < 2:
        return [step]
    cuts = [num_tokens * piece // num_pieces for piece in range(num_pieces + 1)]
    return [_piece(step, first, end) for first, end in pairwise(cuts)]


def _piece(step: PackedStep, first: int, end: int) -> PackedStep:
    """Return what computes the tokens from `first` to before `end`, of the sequences that have any of them."""
    ends = [*accumulate(step.num_queries)]
    rows = [row for row, last in enumerate(ends) if last > first and last - step.num_queries[row] < end]
    num_queries = [min(end, ends[row]) - max(first, ends[row] - step.num_queries[row]) for row in rows]
    num_tokens = [step.num_tokens[row] - max(0, ends[row] - end) for row in rows]
    start = 2 * (step.num_written + step.num_copied)
    numbers = array("i", bytes(step.numbers[: 4 * start])) if first == 0 else array("i")
    if step.has_tokens:
        numbers.frombytes(step.numbers[4 * (start + first) : 4 * (start + end)])
        numbers.extend(accumulate(num_queries, initial=0))
    num_outputs = sum(row < step.num_outputs and ends[row] <= end for row in rows)
    decoding = [step.num_queries[row] for row, num in zip(rows, num_queries, strict=True) if num == 1]
    shares = len(decoding) > 1 and max(decoding) == 1  # a prompt's single token begins as no other sequence does
    shared = step.shared if shares else [0] * len(step.shared)
    return PackedStep(
        bytearray(numbers),
        step.num_written if first == 0 else 0,
        num_queries,
        num_tokens,
        num_outputs,
        shared,
        step.has_tokens,
        step.first_row + rows[0],
        step.num_copied if first == 0 else 0,
    )
