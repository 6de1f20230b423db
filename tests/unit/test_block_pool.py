"""The block pool as Python sees it; its rules are tested in rust_core/cache, next to the code."""

from __future__ import annotations

import hashlib
import struct
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
    """What a released prompt computed is found again, and at least one token is left to compute."""
    pool = BlockPool(16)
    prompt = list(range(48))
    assert compute(pool, 1, prompt) == 0
    assert pool.lookup(prompt)[0] == 47
    assert pool.add(2, [*prompt, 1]) == 48
    assert pool.tokens(2) == prompt
    assert (pool.num_tokens(2), len(pool.table(2)), pool.block_tokens) == (48, 3, 16)


def test_take_part_names_pages_to_copy() -> None:
    """The end of a sequence that is no whole block is continued in a copy; without memory nothing is taken."""
    pool = BlockPool(3, block_tokens=4)
    compute(pool, 1, [1, 2, 3, 4, 5, 6, 7])
    assert pool.lookup([1, 2, 3, 4, 5, 6, 8, 9]) == (6, 2)
    assert pool.add(2, [1, 2, 3, 4, 5, 6, 8, 9]) == 4
    assert pool.take_part(2, [5, 6, 8]) == (2, [(1, 2)])
    assert (pool.table(2), pool.tokens(2)) == ([0, 2], [1, 2, 3, 4, 5, 6])
    pool.commit(2, [8])
    pool.add(3, [1, 2, 3, 4, 5, 6, 7, 9])
    pool.reserve(3, 8)
    pool.add(4, [1, 2])
    with pytest.raises(OutOfBlocks):
        pool.take_part(4, [1])
    pool.check()


def test_salt_separates_sequences() -> None:
    """Another adapter, other media or another tenant never shares blocks."""
    pool = BlockPool(16, block_tokens=2)
    prompt = [1, 2, 3]
    compute(pool, 1, prompt)
    assert pool.lookup(prompt)[0] == 2
    assert pool.lookup(prompt, adapter_id=1)[0] == 0
    assert pool.lookup(prompt, media_hash=b"picture")[0] == 0
    assert pool.lookup(prompt, tenant="other")[0] == 0
    assert compute(pool, 2, prompt, tenant="other") == 0


def test_reserve_raises_out_of_blocks_with_counts() -> None:
    """A full pool says how many blocks were needed and free, and changes nothing."""
    pool = BlockPool(2, block_tokens=4)
    pool.add(1, [1])
    with pytest.raises(OutOfBlocks, match="3 more KV pages needed, 2 free") as caught:
        pool.reserve(1, 12)
    assert (caught.value.needed, caught.value.free) == (3, 2)
    assert pool.table(1) == []


def test_fork_names_blocks_to_copy() -> None:
    """A fork shares whole blocks and names the partial one that must be copied."""
    pool = BlockPool(8, block_tokens=2)
    pool.add(1, [1, 2, 3])
    pool.reserve(1, 3)
    pool.commit(1, [1, 2, 3])
    copies = pool.fork(1, 2)
    assert copies == [(pool.table(1)[1], pool.table(2)[1])]
    assert pool.table(1)[0] == pool.table(2)[0]


def test_misuse_raises_value_error() -> None:
    """Unknown or repeated sequences, empty prompts, unreserved commits and empty pools are refused with a reason."""
    pool = BlockPool(2, block_tokens=4)
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
    pool = BlockPool(4, block_tokens=2)
    compute(pool, 1, [1, 2, 3, 4])
    compute(pool, 2, [1, 2, 3, 4])
    compute(pool, 3, [9, 9, 9, 9, 9, 9])
    stats = pool.stats()
    assert (stats.num_pages, stats.free, stats.active) == (4, 4, 0)
    assert (stats.hits_tokens, stats.queried_tokens, stats.evictions) == (2, 14, 1)
    assert stats.cached == 4
    pool.clear_index()
    assert (pool.stats().cached, pool.lookup([9, 9, 9])) == (0, (0, 0))
    pool.check()


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=12), block_tokens=st.integers(1, 5)
)
def test_reuse_equals_naive_search(prompts: list[list[int]], block_tokens: int) -> None:
    """With room for everything, a prompt reuses its longest run of whole blocks with any earlier prompt."""
    pool = BlockPool(400, block_tokens=block_tokens)
    for seq, prompt in enumerate(prompts):
        naive = max((common_blocks(prompt, other, block_tokens) for other in prompts[:seq]), default=0)
        assert compute(pool, seq, prompt) == naive * block_tokens
        pool.check()
    assert pool.stats().free == 400


def test_window_group_keeps_what_is_in_sight() -> None:
    """A window's table has no pages for blocks out of sight; they can be used again until memory is needed."""
    pool = BlockPool(40, groups=[("full", 0, 1), ("window", 4, 2)], block_tokens=2)
    prompt = list(range(12))
    pool.add(1, prompt)
    pool.reserve(1, 12)
    pool.commit(1, prompt)
    full, window = pool.tables(1)
    assert (len(full), len(window)) == (6, 12)
    assert [page == 0xFFFFFFFF for page in window] == [True] * 8 + [False] * 4
    assert pool.table(1) == full
    assert pool.stats().active == 6 + 4
    assert pool.lookup(prompt[:7])[0] == 6
    assert pool.pages_in_use(1) == full + window[8:]
    assert pool.most_pages(1000, 2) < 500 + 2 * 10


def test_limit_gives_memory_back() -> None:
    """Lowering the limit evicts what is cached, says what is still in use beyond it, and names pages to give back."""
    pool = BlockPool(8, block_tokens=2)
    compute(pool, 1, [1, 2, 3, 4])
    pool.add(2, [9] * 6)
    pool.reserve(2, 6)
    assert pool.set_limit(2) == 1
    assert (pool.limit, pool.stats().free, pool.stats().cached) == (2, 0, 0)
    assert len(pool.take_freed()) == 2
    assert pool.take_freed() == []
    with pytest.raises(ValueError, match="the pool has 8"):
        pool.set_limit(9)
    pool.check()


def test_restore_says_where_saved_pages_go() -> None:
    """A sequence comes back on what is cached, with pages for the rest, and computes nothing again."""
    pool = BlockPool(8, block_tokens=2)
    tokens = [1, 2, 3, 4, 5]
    compute(pool, 1, tokens)
    assert pool.restore(2, tokens) == (4, [0xFFFFFFFF, 0xFFFFFFFF, pool.table(2)[2]])
    assert pool.num_tokens(2) == 4
    pool.commit(2, [5])
    pool.release(2)
    pool.check()


def test_groups_are_checked() -> None:
    """Groups that make no sense are refused with what was expected."""
    with pytest.raises(ValueError, match="full, recorded, window, chunk or state, got 'sparse'"):
        BlockPool(8, groups=[("sparse", 0, 1)])
    with pytest.raises(ValueError, match="one of which may see everything"):
        BlockPool(8, groups=[("full", 0, 1), ("full", 0, 1)])


def test_threads_share_one_pool() -> None:
    """Sequences of several threads never disturb each other, and leave nothing behind."""
    pool = BlockPool(256, block_tokens=4)

    def work(thread: int) -> None:
        for turn in range(50):
            compute(pool, thread * 1000 + turn, [thread % 2, *range(30)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    pool.check()
    assert (pool.stats().free, pool.stats().active) == (256, 0)


class Newest:
    """An eviction policy in Python: what was released last goes first."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.inserted: list[tuple[int, int, int]] = []
        self.hits: list[int] = []

    def insert(self, block: int, key: int, priority: int) -> None:
        self.inserted.append((block, key, priority))

    def hit(self, block: int) -> None:
        self.hits.append(block)

    def release(self, block: int) -> None:
        self.released.append(block)

    def hold(self, block: int) -> None:
        self.released.remove(block)

    def evict(self) -> int | None:
        return self.released.pop() if self.released else None

    def forget(self, block: int) -> None:
        if block in self.released:
            self.released.remove(block)


def cached(pool: BlockPool, prompts: list[list[int]]) -> list[int]:
    return [pool.lookup([*prompt, 99])[0] for prompt in prompts]


def test_python_policy_orders_eviction() -> None:
    """A policy written in Python decides what goes, and is told of contents, hits and priorities."""
    policy = Newest()
    pool = BlockPool(3, eviction=policy, block_tokens=2)
    prompts = [[first, 0] for first in range(4)]
    for prompt in prompts:
        compute(pool, 1, prompt)
    assert cached(pool, prompts) == [2, 2, 0, 2]
    pool.add(2, [0, 0, 1], priority=5)
    assert policy.hits == [0]
    assert [(block, priority) for block, _, priority in policy.inserted] == [(0, 0), (1, 0), (2, 0), (2, 0)]
    assert len({key for _, key, _ in policy.inserted}) == 4
    pool.check()


class Failing(Newest):
    """Fails when it is asked."""

    def __init__(self, pool_of: list[BlockPool]) -> None:
        super().__init__()
        self.pool_of = pool_of

    def evict(self) -> int | None:
        if self.pool_of:
            self.pool_of[0].stats()
        raise KeyError("no order")


@pytest.mark.parametrize("calls_pool", [False, True])
def test_failing_python_policy_is_replaced(calls_pool: bool) -> None:
    """An exception in a policy, or a call back into the pool, costs the policy its place and nothing else."""
    pools: list[BlockPool] = []
    pool = BlockPool(3, eviction=Failing(pools), block_tokens=2)
    if calls_pool:
        pools.append(pool)
    prompts = [[first, 0] for first in range(4)]
    for prompt in prompts:
        compute(pool, 1, prompt)
    assert cached(pool, prompts) == [0, 2, 2, 2]
    error = pool.stats().policy_error or ""
    assert ("called the block pool" if calls_pool else "evict() raised KeyError: 'no order'") in error
    pool.check()


def test_threads_share_pool_with_python_policy() -> None:
    """A policy in Python and threads that hold the interpreter's lock never wait for each other in a circle."""
    pool = BlockPool(24, eviction=Newest(), block_tokens=4)

    def work(thread: int) -> None:
        for turn in range(50):
            compute(pool, thread * 1000 + turn, [thread, turn % 7, *range(15)])
            pool.stats()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    pool.check()
    assert (pool.stats().active, pool.stats().policy_error) == (0, None)


@pytest.mark.parametrize("name", ["lru", "lfu", "fifo", "arc", "slru", "tlru", "priority"])
def test_policies_have_names(name: str) -> None:
    """Each built-in policy is made by its name and keeps the pool sound under pressure."""
    pool = BlockPool(5, eviction=name, block_tokens=2)
    for turn in range(40):
        compute(pool, turn, [turn * turn % 7, 1, turn % 3, 2, 3])
        pool.check()
    assert pool.stats().evictions_by_cause["policy"] > 0


def test_unknown_names_are_refused() -> None:
    """An unknown policy or hash is refused with the names there are."""
    with pytest.raises(ValueError, match="no eviction policy is called 'mru'; there are lru, lfu"):
        BlockPool(5, eviction="mru")
    with pytest.raises(ValueError, match="no hash is called 'md5'; there are siphash, sha256, xxh3"):
        BlockPool(5, prefix_hash="md5")


def test_hints_are_followed() -> None:
    """Pinned prefixes stay, retained ones go last, demoted ones first; a bound on pins is told."""
    pool = BlockPool(8, block_tokens=2)
    prompts = [[first, 0, first, 0] for first in range(4)]
    for prompt in prompts:
        compute(pool, 1, prompt)
    assert pool.pin("system", prompts[0]) == 4
    assert pool.retain("waits", prompts[1], expected_seconds=60) == 4
    assert pool.demote(prompts[3]) == 4
    assert [(stats := pool.stats()).pinned, stats.retained, stats.demoted] == [2, 2, 2]
    pool.set_limit(6)
    assert cached(pool, prompts) == [4, 4, 4, 0]
    pool.set_limit(4)
    assert cached(pool, prompts) == [4, 4, 0, 0]
    with pytest.raises(ValueError, match="pinning 'more' makes 4 pages pinned, at most 2 may be"):
        pool.pin("more", prompts[1])
    assert pool.demote("waits") == 4
    pool.set_limit(2)
    assert cached(pool, prompts) == [4, 0, 0, 0]
    assert [pool.unpin("system"), pool.unpin("system"), pool.forget("waits")] == [True, False, False]
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected_seconds"):
            pool.retain("waits", prompts[0], expected_seconds=seconds)
    pool.check()


def test_explain_and_prefixes_report() -> None:
    """What is cached is listed, and a miss is explained."""
    pool = BlockPool(8, block_tokens=2)
    compute(pool, 1, [1, 2, 3, 4], tenant="red")
    assert pool.explain([1, 2, 3, 5, 6], tenant="red") == (3, 3, "changed")
    assert pool.explain([1, 2, 3, 4, 5], tenant="red") == (4, 4, "complete")
    assert pool.explain([1, 2, 3, 4, 5], tenant="blue") == (0, 0, "cold")
    assert not pool.prefixes(tenants=["blue"])
    assert pool.explain([9, 2, 3], tenant="red") == (0, 0, "cold")
    [prefix] = pool.prefixes(tenants=["red"])
    assert (prefix.tokens, prefix.tenant, prefix.num_pages, prefix.state) == ([1, 2, 3, 4], "red", 2, "cached")
    assert (prefix.hits, prefix.adapter_id, len(prefix.key)) == (0, 0, 16)
    assert 0 <= prefix.idle_seconds < 60
    pool.set_limit(0)
    assert pool.explain([1, 2, 3, 4, 5], tenant="red") == (0, 4, "evicted")


def test_sha256_keys_are_the_same_everywhere() -> None:
    """A prefix's key under `sha256` can be computed from its tokens and salt in any language."""
    pool = BlockPool(8, prefix_hash="sha256", block_tokens=2)
    compute(pool, 1, [1, 2, 3, 4], tenant="red")

    def key(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()[:8]

    chain = key(struct.pack("<QQQ", 0, 0, 3) + b"red")
    for block in ((1, 2), (3, 4)):
        chain = key(chain + struct.pack("<II", *block))
    assert pool.prefixes(tenants=["red"])[0].key == chain.hex()
