"""What routing by prefix is worth, in simulated time: a hundred agents, three nodes, two cores."""

from __future__ import annotations

import pytest
from support.routing_sim import simulate


@pytest.mark.parametrize("seed", [1, 2])
def test_agents_with_shared_prompts_wait_half_as_long_as_in_turns(seed: int) -> None:
    """Ten system prompts are computed once each, on all nodes, and the mean first token comes twice as soon."""
    by_prefix, in_turns = simulate("prefix", seed=seed), simulate("round_robin", seed=seed)
    assert by_prefix.num_missed == 10
    assert in_turns.num_missed >= 28
    assert min(by_prefix.num_requests) >= 20
    assert in_turns.mean >= 2 * by_prefix.mean


def test_many_clients_at_once_wait_half_as_long_as_in_turns() -> None:
    """With four clients a node, too, each prompt is computed once."""
    by_prefix, in_turns = simulate("prefix", num_clients=12), simulate("round_robin", num_clients=12)
    assert by_prefix.num_missed == 10
    assert in_turns.mean >= 2 * by_prefix.mean


def test_prompt_that_all_share_is_computed_on_a_second_node() -> None:
    """One prompt that a dozen clients share does not keep all on one node while others idle."""
    by_prefix, in_turns = (simulate(policy, num_prefixes=1, num_clients=12) for policy in ("prefix", "round_robin"))
    assert sum(map(bool, by_prefix.num_requests)) >= 2
    assert by_prefix.mean < in_turns.mean
