"""Steps that verify drafts by rows: what a batch becomes, and what its segments get of what its rows gave."""

from __future__ import annotations

from pyagent._rust import SamplerState
from pyagent.core.runners.batch import Batch, Likelihood, StepOutput
from pyagent.infrastructure.engine.runners.torch.draft_rows import by_rows, draft_tokens, row_counts, verified


def drafting() -> Batch:
    """Three sequences that decode, of two and no and one draft, and a chunk of a prompt."""
    samplers = [SamplerState(seed=seed) for seed in range(3)]
    masks = {0: b"aabbcc", 2: b"xxyy"}
    tokens = [10, 11, 12, 20, 30, 31, 5, 6, 7]
    return Batch([4, 5, 6, 7], [3, 1, 2, 3], tokens, samplers, [8, 0, 3], masks, num_drafts={0: 2, 2: 1})


def test_each_draft_is_a_row_with_its_own_step_and_mask() -> None:
    """After its sequence's own; prompts stay as they are, and a batch without drafts is itself."""
    batch = drafting()
    rows = by_rows(batch)
    assert row_counts(batch) == [3, 1, 2, 1]
    assert rows.sequence_ids == [4, 4, 4, 5, 6, 6, 7]
    assert rows.lengths == [1, 1, 1, 1, 1, 1, 3]
    assert rows.tokens == batch.tokens
    assert [batch.samplers.index(one) for one in rows.samplers] == [0, 0, 0, 1, 2, 2]
    assert rows.steps == [8, 9, 10, 0, 3, 4]
    assert rows.masks == {0: b"aa", 1: b"bb", 2: b"cc", 4: b"xx", 5: b"yy"}
    assert draft_tokens(batch) == [None, 11, 12, None, None, 31]
    plain = Batch([1], [1], [2])
    assert by_rows(plain) is plain


def test_a_segment_has_the_tokens_up_to_the_first_that_is_no_draft() -> None:
    """With what is told of each; what comes after a wrong draft is nothing, though it is like a later draft."""
    likelihoods = {row: Likelihood(float(-row), []) for row in range(6)}
    output = verified(drafting(), StepOutput([11, 12, 13, 21, 30, 32], likelihoods=likelihoods))
    assert output.tokens == [11, 21, 30]
    assert output.more == {0: [12, 13]}
    assert output.likelihoods == {0: likelihoods[0], 1: likelihoods[3], 2: likelihoods[4]}
    assert output.more_likelihoods == {0: [likelihoods[1], likelihoods[2]]}
    output = verified(drafting(), StepOutput([9, 12, 13, 21, 31, 32]))
    assert (output.tokens, output.more) == ([9, 21, 31], {2: [32]})


def test_a_fault_ends_a_segments_tokens() -> None:
    """That of its own row is its fault; one after a draft is left to the step in which that row comes first."""
    found = StepOutput([11, 12, 13, 21, 31, 32], errors={1: "late", 4: "early"})
    output = verified(drafting(), found)
    assert output.errors == {2: "early"}
    assert output.more == {}
    assert output.tokens[:2] == [11, 21]
