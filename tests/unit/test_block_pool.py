"""The block pool as Python sees it; its rules are tested in rust_core/cache, next to the code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent._rust import BlockPool, OutOfBlocks


def compute(pool: BlockPool, seq: int, tokens: list[int], *, tenant: str = "") -> int:
    """Runs a sequence from start to end; returns how many tokens came from the cache."""
    num_cached = pool.add(seq, tokens, tenant=tenant)
    pool.reserve(seq, len(tokens))
    pool.commit(seq, tokens[num_cached:])
    pool.release(seq)
    return num_cached


def common_blocks(prompt: list[int], other: list[int], block_tokens: int) -> int:
    same = next(
        (i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(len(prompt), len(other))
    )
    return min(same, len(prompt) - 1) // block_tokens


def test_add_finds_computed_prefix() -> None:
    """A released prompt's whole blocks are found again, and at least one token is left to compute."""
    pool = BlockPool(16)
    prompt = list(range(48))
    assert compute(pool, 1, prompt) == 0
    assert pool.num_cached_tokens(prompt) == 32
    assert pool.add(2, [*prompt, 1]) == 48
    assert pool.tokens(2) == prompt
    assert (pool.num_tokens(2), len(pool.table(2)), pool.block_tokens) == (48, 3, 16)


def test_salt_separates_sequences() -> None:
    """Another adapter, other media or another tenant never shares blocks."""
    pool = BlockPool(16, 2)
    prompt = [1, 2, 3]
    compute(pool, 1, prompt)
    assert pool.num_cached_tokens(prompt) == 2
    assert pool.num_cached_tokens(prompt, adapter_id=1) == 0
    assert pool.num_cached_tokens(prompt, media_hash=b"picture") == 0
    assert pool.num_cached_tokens(prompt, tenant="other") == 0
    assert compute(pool, 2, prompt, tenant="other") == 0


def test_reserve_raises_out_of_blocks_with_counts() -> None:
    """A full pool says how many blocks were needed and free, and changes nothing."""
    pool = BlockPool(2, 4)
    pool.add(1, [1])
    with pytest.raises(OutOfBlocks, match="3 more KV blocks needed, 2 free") as caught:
        pool.reserve(1, 12)
    assert (caught.value.needed, caught.value.free) == (3, 2)
    assert pool.table(1) == []


def test_fork_names_blocks_to_copy() -> None:
    """A fork shares whole blocks and names the partial one that must be copied."""
    pool = BlockPool(8, 2)
    pool.add(1, [1, 2, 3])
    pool.reserve(1, 3)
    pool.commit(1, [1, 2, 3])
    copies = pool.fork(1, 2)
    assert copies == [(pool.table(1)[1], pool.table(2)[1])]
    assert pool.table(1)[0] == pool.table(2)[0]


def test_misuse_raises_value_error() -> None:
    """Unknown or repeated sequences, empty prompts, unreserved commits and empty pools are refused with a reason."""
    pool = BlockPool(2, 4)
    pool.add(1, [1])
    with pytest.raises(ValueError, match="sequence 7 is not in the block pool"):
        pool.table(7)
    with pytest.raises(ValueError, match="sequence 1 is in the block pool already"):
        pool.add(1, [1])
    with pytest.raises(ValueError, match="empty prompt"):
        pool.add(2, [])
    with pytest.raises(ValueError, match="reserve first"):
        pool.commit(1, [1])
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_stats_count_blocks_hits_and_evictions() -> None:
    """Statistics tell free from cached blocks, and count hits, queries and evictions."""
    pool = BlockPool(4, 2)
    compute(pool, 1, [1, 2, 3, 4])
    compute(pool, 2, [1, 2, 3, 4])
    compute(pool, 3, [9, 9, 9, 9, 9, 9])
    stats = pool.stats()
    assert (stats.num_blocks, stats.free, stats.active) == (4, 4, 0)
    assert (stats.hits_tokens, stats.queried_tokens, stats.evictions) == (2, 14, 1)
    assert stats.cached == 4
    pool.clear_index()
    assert (pool.stats().cached, pool.num_cached_tokens([9, 9, 9])) == (0, 0)
    pool.check()


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=12), block_tokens=st.integers(1, 5)
)
def test_reuse_equals_naive_search(prompts: list[list[int]], block_tokens: int) -> None:
    """With room for everything, a prompt reuses its longest run of whole blocks with any earlier prompt."""
    pool = BlockPool(400, block_tokens)
    for seq, prompt in enumerate(prompts):
        naive = max((common_blocks(prompt, other, block_tokens) for other in prompts[:seq]), default=0)
        assert compute(pool, seq, prompt) == naive * block_tokens
        pool.check()
    assert pool.stats().free == 400


def test_threads_share_one_pool() -> None:
    """Sequences of several threads never disturb each other, and leave nothing behind."""
    pool = BlockPool(256, 4)

    def work(thread: int) -> None:
        for turn in range(50):
            compute(pool, thread * 1000 + turn, [thread % 2, *range(30)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    pool.check()
    assert (pool.stats().free, pool.stats().active) == (256, 0)
