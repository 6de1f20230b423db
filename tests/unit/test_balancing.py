"""How links share requests: each policy's property, and a chain that keeps it; the agent that shows the choice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from support.chains import HI, Played, ask, chain_of, says

from pyagent.cli.agent_options import task_of
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.chain.balancing import ROUTINGS, Balancer, Routing, Standing, why
from pyagent.core.errors import BackendError, ConfigError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.scaling import ScalingAgent, Spread
from pyagent.testing import ScriptedBackend

DRAW = random.Random(1).random


def backends(chain: Chain, number: int) -> Counter[str]:
    return Counter(ask(chain).deltas[0].backend for _ in range(number))


def firsts(routing: Routing, links: list[Standing], times: int) -> Counter[str]:
    balancer = Balancer(routing)
    return Counter(links[balancer.order(links, DRAW)[0]].name for _ in range(times))


def standing(name: str, **known: float) -> Standing:
    return Standing(name=name, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_each_policy_orders_all_links_once(routing: Routing) -> None:
    """Whatever is known of them: the others are the fallback of the first."""
    links = [standing("a"), standing("a", nth=1), standing("b", first_token_seconds=0.0), standing("c", usd=2.0)]
    for _ in range(20):
        assert sorted(Balancer(routing).order(links, DRAW)) == [0, 1, 2, 3]
    assert why(routing, links[0], links[1:])


def test_turns_are_the_weights_shares_and_a_preview_takes_none() -> None:
    """Smooth weighted round robin: exact over time; to look does not change whose turn it is."""
    links = [standing("a", weight=3), standing("b", weight=1)]
    assert firsts("round_robin", links, 40) == {"a": 30, "b": 10}
    balancer = Balancer("round_robin")
    assert {balancer.preview(links, DRAW)[0] for _ in range(5)} == {0}


def test_fewest_requests_count_by_weight_and_equals_take_turns() -> None:
    """A link of twice the weight has room for twice as many."""
    assert firsts("least_requests", [standing("a", num_in_flight=3, weight=4), standing("b", num_in_flight=1)], 5) == {
        "a": 5
    }
    assert firsts("least_requests", [standing("a"), standing("b"), standing("c", num_in_flight=1)], 10) == {
        "a": 5,
        "b": 5,
    }


def test_power_of_two_never_takes_the_busiest_and_keeps_the_fullest_bin_low() -> None:
    """Of n balls in n bins the fullest has O(log log n) by two choices, O(log n / log log n) by one."""
    assert "c" not in firsts("power_of_two", [standing("a"), standing("b"), standing("c", num_in_flight=9)], 200)
    chooser, loads, alone = random.Random(3), [0] * 1000, [0] * 1000
    for _ in range(1000):
        two = chooser.sample(range(1000), 2)
        at = Balancer("power_of_two").order([standing(str(at), num_in_flight=loads[at]) for at in two], chooser.random)
        loads[two[at[0]]] += 1
        alone[chooser.randrange(1000)] += 1
    assert max(loads) <= 4 <= max(alone)


def test_latency_draws_a_link_as_often_as_it_is_quick() -> None:
    """Shares are weight over time, within four standard deviations; one that is not measured is tried."""
    links = [standing("a", first_token_seconds=0.1), standing("b", first_token_seconds=0.3)]
    assert abs(firsts("latency", links, 4000)["a"] - 3000) < 4 * (4000 * 0.75 * 0.25) ** 0.5
    assert firsts("latency", [*links, standing("c")], 700)["c"] > 200


def test_cost_takes_the_cheapest_then_the_less_busy() -> None:
    """Equal prices are equal: requests under way decide."""
    links = [standing("a", usd=2.0), standing("b", usd=1.0, num_in_flight=1), standing("c", usd=1.0)]
    assert Balancer("cost").order(links, DRAW) == [2, 1, 0]


POOL = """chain = [{{ use = "link:a", weight = 1{a} }}, {{ use = "link:b", weight = 1{b} }}]
rules.routing = "{routing}"
"""


def pooled(tmp_path: Path, routing: str, a: str = "", b: str = "") -> tuple[Chain, Played, Played]:
    links = [Played(name, says(0.05, name)) for name in "ab"]
    return chain_of(tmp_path, POOL.format(routing=routing, a=a, b=b), *links), links[0], links[1]


def test_requests_at_once_go_where_fewest_are(tmp_path: Path) -> None:
    """Eight at once are four for each, also of one run; a conversation stays with one link."""
    chain, a, b = pooled(tmp_path, "least_requests")

    async def work(session: str) -> None:
        async def one() -> None:
            await collect(chain.chat(ChatRequest(messages=HI, session=session)))

        await asyncio.gather(*(one() for _ in range(8)))

    asyncio.run(work(""))
    assert (a.most_running, b.most_running) == (4, 4)
    asyncio.run(work("talk"))
    assert max(a.most_running, b.most_running) == 8


def test_cheapest_link_is_asked_and_a_failing_one_is_passed_by(tmp_path: Path) -> None:
    """Prices are the links' own; the order after the first is the fallback."""
    dear, cheap = ", price = { input = 5, output = 5 }", ", price = { input = 1, output = 1 }"
    chain, _, b = pooled(tmp_path, "cost", dear, cheap)
    assert backends(chain, 3) == {"link:b": 3}
    b.play = says(BackendError("down", backend="link:b"))
    assert backends(chain, 2) == {"link:a": 2}


def test_unknown_policy_is_refused_by_name(tmp_path: Path) -> None:
    """The setting lists what there is."""
    with pytest.raises(ConfigError, match="least_requests"):
        pooled(tmp_path, "least-busy")


# -- the agent ------------------------------------------------------------------------------------------------------


def spread(chain: object, *words: str) -> Spread:
    fleet = Fleet(chain, [ScalingAgent()])  # type: ignore[arg-type]
    found = asyncio.run(fleet.run_agent("scaling", task_of(ScalingAgent(), list(words), [])))
    assert isinstance(found, Spread)
    return found


def test_agent_shows_how_links_stand_and_what_each_policy_would_choose(tmp_path: Path) -> None:
    """From live counts: what was answered, what failed and is left alone, and the price of so many tokens."""
    dear, cheap = ", price = { input = 4, output = 2 }", ", price = { input = 1, output = 1 }"
    chain, a, b = pooled(tmp_path, "power_of_two", dear, cheap)
    assert backends(chain, 4).total() == 4
    found = spread(chain, "which link is the cheapest?")
    assert found.routing == "power_of_two"
    assert [choice.routing for choice in found.choices] == list(ROUTINGS)
    cost = found.choices[-1]
    assert (cost.link, cost.order, cost.reason) == ("link:b", ["link:b", "link:a"], "$0.001500 at most, the least")
    assert "power_of_two (rules.routing): link:" in str(found)
    assert sum(link.num_answers for link in found.links) == 4
    b.play = says(BackendError("down", backend="link:b"))
    a.play = says("a")
    backends(chain, 12)
    found = spread(chain, "which?", "--routing", "cost")
    assert [choice.order for choice in found.choices] == [["link:a"]]
    assert "link:b: left alone for" in str(found)


def test_agent_says_what_keeps_links_from_sharing(tmp_path: Path) -> None:
    """Without weights the order of the chain holds."""
    links = [Played(name, says(name)) for name in "ab"]
    found = spread(chain_of(tmp_path, 'chain = ["link:a", "link:b"]', *links), "which?")
    assert found.note == "the chain asks its links in their order: give neighbours a `weight` and they share requests"


def test_agent_is_an_administrators_and_wants_a_chain() -> None:
    """Counts of all clients are not a client's; numbers that are none are refused by name."""
    with pytest.raises(RequestError, match="is no chain"):
        spread(ScriptedBackend([]), "which?")
    with pytest.raises(RequestError, match=r"expected prompt_tokens from 0 to 100,000,000, got -1"):
        spread(ScriptedBackend([]), "which?", "--prompt-tokens", "-1")
    fleet = Fleet(ScriptedBackend([]), [ScalingAgent()])

    async def as_client() -> None:
        async for _ in fleet.run("which?", agent="scaling", tenant="ann"):
            pass

    with pytest.raises(RequestError, match="an administrator's to see"):
        asyncio.run(as_client())


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ("Which backend is the least loaded now?", True),
        ("what provider would be cheapest for this?", True),
        ("Which server did Rome pay tribute to?", False),
        ("Write about load balancers", False),
        ("which city is the cheapest?", False),
    ],
)
def test_agent_takes_what_asks_for_a_link(text: str, is_asked: bool) -> None:
    """The rule is narrow: a link and what is wanted of it."""
    assert bool(ScalingAgent().score(Task(text=text))) is is_asked


def test_agent_shows_each_policy_over_one_link(tmp_path: Path) -> None:
    """Where one link is all that takes requests every policy chooses it, the choice among two as well."""
    chain, _, b = pooled(tmp_path, "power_of_two")
    b.play = says(BackendError("down", backend="link:b"))
    backends(chain, 12)
    found = spread(chain, "which?")
    assert [choice.routing for choice in found.choices] == list(ROUTINGS)
    assert {(*choice.order, choice.reason) for choice in found.choices} == {
        ("link:a", "the only link that takes requests now")
    }
