"""A step that verifies drafts, each in a row of its own: a sequence of one token more, in the same pages.

Such a row is computed and sampled as those of steps that decode, so kernels and captured graphs know nothing of drafts:
a layer stores the keys and values of all rows before any row attends. What is right of them is found at the end.
"""

from __future__ import annotations

from itertools import accumulate

from pyagent.core.runners.batch import Batch, StepOutput


def by_rows(batch: Batch) -> Batch:
    """Return a batch in which each draft is a segment of its own, after those before it; itself where there is none."""
    if not batch.num_drafts:
        return batch
    counts = row_counts(batch)
    of_rows = [(segment, place) for segment, count in enumerate(counts) for place in range(count)]
    sampling = [(segment, place) for segment, place in of_rows if segment < len(batch.samplers)]
    masks: dict[int, bytes] = {}
    for row, (segment, place) in enumerate(sampling):
        if (mask := batch.masks.get(segment)) is not None:
            num_bytes = len(mask) // counts[segment]
            masks[row] = mask[place * num_bytes : (place + 1) * num_bytes]
    return Batch(
        sequence_ids=[batch.sequence_ids[segment] for segment, _ in of_rows],
        lengths=[1 if place else batch.lengths[segment] - counts[segment] + 1 for segment, place in of_rows],
        tokens=batch.tokens,
        samplers=[batch.samplers[segment] for segment, _ in sampling],
        steps=[batch.steps[segment] + place for segment, place in sampling],
        masks=masks,
    )


def row_counts(batch: Batch) -> list[int]:
    """Return how many rows each segment has: its last token, and its drafts."""
    return [1 + batch.num_drafts.get(segment, 0) for segment in range(len(batch.sequence_ids))]


def draft_tokens(batch: Batch) -> list[int | None]:
    """Return the draft that each row that samples computes; None where it is no draft."""
    tokens: list[int | None] = []
    ends = accumulate(batch.lengths)
    for segment, end in zip(range(len(batch.samplers)), ends, strict=False):
        tokens += (None, *batch.tokens[end - batch.num_drafts.get(segment, 0) : end])
    return tokens


def verified(batch: Batch, found: StepOutput) -> StepOutput:
    """Return a step's output from that of its rows: each segment's tokens up to the first that is not the draft.

    A fault after a draft ends them too: the step in which its row comes first says so.
    """
    if not batch.num_drafts:
        return found
    drafts, output, segment = draft_tokens(batch), StepOutput([]), -1
    is_open = False
    for row, draft in enumerate(drafts):
        likelihood = found.likelihoods.get(row)
        if draft is None:
            segment += 1
            output.tokens.append(found.tokens[row])
            is_open = row not in found.errors
            if not is_open:
                output.errors[segment] = found.errors[row]
            if likelihood is not None:
                output.likelihoods[segment] = likelihood
            continue
        is_open = is_open and found.tokens[row - 1] == draft and row not in found.errors
        if is_open:
            output.more.setdefault(segment, []).append(found.tokens[row])
            if likelihood is not None:
                output.more_likelihoods.setdefault(segment, []).append(likelihood)
    return output
