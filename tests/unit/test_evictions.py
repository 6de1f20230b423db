"""The eviction setting: built-in policies, those of plugins, and what is said when one cannot be had."""

from __future__ import annotations

import pytest

from pyagent._rust import BlockPool
from pyagent.core.errors import ConfigError
from pyagent.core.eviction import EvictionPolicy
from pyagent.infrastructure.engine.memory.evictions import BUILT_IN, make_pool, pick_eviction

GROUPS = [("full", 0, 1)]


def compute(pool: BlockPool, tokens: list[int]) -> None:
    pool.add(1, [*tokens, 0])
    pool.reserve(1, len(tokens))
    pool.commit(1, tokens[pool.num_tokens(1) :])
    pool.release(1)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_are_picked_by_name(name: str) -> None:
    """Every built-in name makes a pool that evicts."""
    pool = make_pool(4, GROUPS, pick_eviction(name))
    for first in range(8):
        compute(pool, [first] * 16)
    assert pool.stats().evictions_by_cause["policy"] == 4


def test_unknown_policy_names_the_nearest() -> None:
    """A misspelt name is refused with the nearest; one unlike any with all there are."""
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        pick_eviction("priorty")
    with pytest.raises(ConfigError, match="there are arc, fifo, lfu, lru"):
        pick_eviction("zzz")


def test_default_needs_no_plugin() -> None:
    """Without any plugin the default policy is there."""
    assert pick_eviction("lru", {})(4) == "lru"


def test_policy_that_cannot_be_made_is_refused() -> None:
    """What goes wrong in a plugin's factory, or a name it makes up, is an error of the setting."""

    def broken(num_pages: int) -> EvictionPolicy:
        raise ValueError(f"{num_pages} is not enough")

    with pytest.raises(ConfigError, match="cannot be made: 4 is not enough"):
        make_pool(4, GROUPS, broken)
    with pytest.raises(ConfigError, match="no eviction policy is called 'mru'"):
        make_pool(4, GROUPS, lambda _: "mru")
