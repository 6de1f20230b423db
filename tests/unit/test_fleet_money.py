"""Budgets of money: reserved before each call by the links' prices, at three levels, over a chain of priced links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from support.fleets import Custom, events_of

from pyagent.core.chain.chain import Chain
from pyagent.core.chain.settings import LinkSettings, Price
from pyagent.core.errors import AgentError, BackendError, BudgetError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.limits import AgentLimits, FleetLimits
from pyagent.core.fleet.orchestrator import Fleet, Step
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.messages import ChatRequest, FunctionCall, SamplingParams, ToolCall
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.logic.agents.assistant import AssistantAgent
from pyagent.testing import Reply, ScriptedBackend

_PRICE = Price(input=1_000.0, output=10_000.0)
"""USD for a million tokens: a word in costs $0.001, a word out $0.01."""


def priced(script: Any, price: Price | None = _PRICE, name: str = "scripted") -> tuple[ScriptedBackend, LinkSettings]:
    return ScriptedBackend(script, name=name), LinkSettings(use=name, price=price)


def chain_of(*links: tuple[ScriptedBackend, LinkSettings]) -> Chain:
    return Chain([backend for backend, _ in links], settings=[settings for _, settings in links])


def spent(backend: ScriptedBackend, words_out: int) -> float:
    """What the answered requests really cost."""
    words_in = sum(len(message.text.split()) for request in backend.requests for message in request.messages)
    return (words_in * _PRICE.input + len(backend.requests) * words_out * _PRICE.output) / 1e6


async def for_ever(context: Context, task: Task) -> object:
    while True:
        await context.complete("go on and on", sampling=SamplingParams(max_tokens=4))


@pytest.mark.parametrize("level", ["run", "fleet"])
def test_money_limit_stops_a_runaway_fleet(level: str) -> None:
    """50 agents that ask for ever stop at or under the limit, with little of it left, and the end says why."""
    backend, settings = priced(lambda _: Reply(text="one two three four", delay_seconds=0.001))
    usd = {f"{level}_usd": 1.0}

    async def fan(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("ask", f"{n}"), range(50), max_concurrency=50)

    limits = FleetLimits(max_concurrency=50, **usd)  # type: ignore[arg-type]
    fleet = Fleet(chain_of((backend, settings)), [Custom("fan", fan), Custom("ask", for_ever)], limits=limits)
    seen, error = asyncio.run(events_of(fleet, "go", agent="fan"))
    assert isinstance(error, BudgetError)
    assert error.resource == "usd"
    assert f"raise budget.{level}.usd" in str(error)
    failed = seen[-1]
    assert isinstance(failed, ev.RunFailed)
    assert failed.reason == "budget_exhausted"
    assert 0.5 < spent(backend, 4) <= 1.0
    assert failed.totals.usd <= 1.0


def test_fleet_budget_holds_over_runs() -> None:
    """What one run spent is gone for the next; a run's own budget begins anew."""

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("a b c", sampling=SamplingParams(max_tokens=4))

    async def main() -> None:
        one = chain_of(priced(lambda _: "one two three four"))
        async with Fleet(one, [Custom("ask", ask)], limits=FleetLimits(run_usd=0.06, fleet_usd=0.10)) as fleet:
            await fleet.run_agent("ask", "x")
            await fleet.run_agent("ask", "x")
            with pytest.raises(BudgetError, match="the budget of the fleet is"):
                await fleet.run_agent("ask", "x")

    asyncio.run(main())


def test_agent_budget_bounds_an_agent_and_its_children() -> None:
    """One agent may not spend what the run has left; its siblings may."""
    limits = FleetLimits(run_usd=10.0, agent=AgentLimits(usd=0.2))
    backend, settings = priced(lambda _: "one two three four")
    steps = [Step(name=name, agent="ask", task=Task(text="go")) for name in ("a", "b")]
    fleet = Fleet(chain_of((backend, settings)), [Custom("ask", for_ever)], limits=limits)
    seen, error = asyncio.run(events_of(fleet, steps))
    assert isinstance(error, BudgetError)
    assert "budget.agent.usd" in str(error)
    failures = [event for event in seen if isinstance(event, ev.AgentFailed)]
    assert len(failures) == 2
    assert all(0.1 < event.totals.usd <= 0.2 for event in failures)


def test_agent_seconds_and_tokens_are_bounded() -> None:
    """An agent's own time and tokens end it within a run that has more."""

    async def sleep(context: Context, task: Task) -> object:
        await asyncio.sleep(60)
        return ""

    fleet = Fleet(ScriptedBackend(()), [Custom("sleep", sleep)], limits=FleetLimits(agent=AgentLimits(seconds=0.05)))
    seen, _ = asyncio.run(events_of(fleet, "go"))
    assert isinstance(seen[-1], ev.RunFailed)
    assert seen[-1].reason == "timeout"
    tight = FleetLimits(agent=AgentLimits(tokens=3))
    fleet = Fleet(ScriptedBackend(lambda _: "x"), [Custom("ask", for_ever)], limits=tight)
    _, error = asyncio.run(events_of(fleet, "go"))
    assert "raise budget.agent.tokens" in str(error)


def test_dearest_link_is_reserved_and_the_answering_one_paid() -> None:
    """A free fallback costs nothing though the dear link was reserved; what a failed link said is paid too."""

    async def ask(context: Context, task: Task) -> object:
        await context.complete("a b c", sampling=SamplingParams(max_tokens=2))
        return context.totals().usd

    def usd(*links: tuple[ScriptedBackend, LinkSettings], limit: float = 1.0) -> object:
        fleet = Fleet(chain_of(*links), [Custom("ask", ask)], limits=FleetLimits(run_usd=limit))
        return asyncio.run(fleet.run_agent("ask", "x"))

    broken = Reply(text="one two", error=OSError("gone"), fail_at=2)
    dear, free = priced(lambda _: "one two", name="dear"), priced(lambda _: "one two", None, name="free")
    assert usd(dear) == pytest.approx(0.023)
    assert usd(free) == 0.0
    assert usd(free, dear) == 0.0
    with pytest.raises(BudgetError, match="the next call may cost"):
        usd(free, dear, limit=0.001)
    paid = usd(priced(lambda _: broken, name="broken"), free)
    assert isinstance(paid, float)
    assert paid > 0.0


@tool(effect="none")
async def look(key: int) -> str:
    """Look."""
    return f"saw {key}"


def test_spent_budget_leaves_what_there_is_so_far() -> None:
    """A run that ends for want of money tells the last words and results of the loop with tools."""
    numbers = iter(range(1000))

    def script(_: ChatRequest) -> Reply:
        call = FunctionCall("look", f'{{"key": {next(numbers)}}}')
        return Reply(text="still looking", tool_calls=(ToolCall(id="c", function=call),))

    task = Step(name="assistant", agent="assistant", task=Task(text="go", arguments={"max_tokens": 8, "steps": 500}))
    fleet = Fleet(chain_of(priced(script)), [AssistantAgent()], [look], limits=FleetLimits(run_usd=2.0))
    seen, error = asyncio.run(events_of(fleet, [task]))
    assert isinstance(error, BudgetError)
    failed: Any = seen[-1]
    kept = failed.partial["assistant"]
    assert kept["text"] == "still looking"
    assert kept["calls"][0].text == "saw 0"


def test_answer_that_breaks_off_costs_what_was_reserved() -> None:
    """Nothing says what an answer that ends in the middle cost, so it counts whole; a run of them ends."""
    broken = Reply(text="one two", error=OSError("gone"), fail_at=2)

    async def stubborn(context: Context, task: Task) -> object:
        for _ in range(100):
            with suppress(BackendError):
                await context.complete("a b c", sampling=SamplingParams(max_tokens=10))
        return "never"

    policy = RetryPolicy(num_retries=0)
    chain = Chain([ScriptedBackend(lambda _: broken)], settings=[priced(())[1]], retry_policy=policy)
    fleet = Fleet(chain, [Custom("stubborn", stubborn)], limits=FleetLimits(run_usd=0.5))
    with pytest.raises(BudgetError, match="raise budget"):
        asyncio.run(fleet.run_agent("stubborn", "x"))


def test_what_was_spent_before_counts_when_a_run_goes_on() -> None:
    """Neither the calls of agents that had finished nor those of one that had not are free in the resumed run."""
    faults = [ValueError("once")]

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("a b c", sampling=SamplingParams(max_tokens=4))

    async def again(context: Context, task: Task) -> object:
        await ask(context, task)
        for fault in faults:
            faults.clear()
            raise fault
        return await ask(context, task)

    steps = [Step(name="a", agent="ask", task=Task(text="go")), Step(name="b", agent="again", after=("a",))]

    async def main() -> None:
        one = chain_of(priced(lambda _: "one two three four"))
        agents = [Custom("ask", ask), Custom("again", again)]
        async with Fleet(one, agents, limits=FleetLimits(run_usd=0.11), journal=MemoryJournal()) as fleet:
            seen, error = await events_of(fleet, steps)
            assert isinstance(error, AgentError)
            with pytest.raises(BudgetError, match=r"\$0\.024000 of it is left"):
                async for _ in fleet.resume(seen[0].run):
                    pass

    asyncio.run(main())
