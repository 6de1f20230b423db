"""Steps of no-op agents: how long they take, what they leave on the disk, and what memory they hold.

Beside LangGraph with its SQLite checkpointer, pydantic-graph and autogen-core, each in the process of another Python
where `PEERS_PYTHON` has them installed: one node that does nothing, again and again, with its state kept after each.

    python benchmarks/fleet_steps.py                      everything
    python benchmarks/fleet_steps.py --long 100000        a run of so many steps in one agent, and its memory
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from quiet import machine

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

PEERS = {
    "langgraph": """
import asyncio, os, sys, time
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
class State(TypedDict):
    n: int
async def node(state): return {"n": state["n"] + 1}
async def run(saver, steps):
    graph = StateGraph(State)
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: "a" if state["n"] < steps else END)
    config = {"recursion_limit": 10**9, "configurable": {"thread_id": "1"}}
    start = time.perf_counter()
    await graph.compile(checkpointer=saver).ainvoke({"n": 0}, config)
    return (time.perf_counter() - start) / steps
async def main(steps, file):
    plain = await run(None, steps)
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        durable = await run(saver, steps)
    print(plain, durable, os.path.getsize(file) / steps)  # closed, so that nothing is left in the log
asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
""",
    "pydantic-graph": """
import asyncio, sys, time
from dataclasses import dataclass
from pydantic_graph import GraphBuilder, StepContext
@dataclass
class State:
    n: int = 0
async def main(steps):
    builder = GraphBuilder(state_type=State, output_type=int)
    @builder.step
    async def add(ctx: StepContext[State, None, object]) -> int:
        ctx.state.n += 1
        return ctx.state.n
    choice = builder.decision()
    choice = choice.branch(builder.match(int, matches=lambda n: n < steps).to(add))
    choice = choice.branch(builder.match(int).to(builder.end_node))
    builder.add(builder.edge_from(builder.start_node).to(add), builder.edge_from(add).to(choice))
    graph = builder.build()
    start = time.perf_counter()
    await graph.run(state=State())
    print((time.perf_counter() - start) / steps)
asyncio.run(main(int(sys.argv[1])))
""",
    "autogen-core": """
import asyncio, sys, time
from dataclasses import dataclass
from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
@dataclass
class Number:
    n: int
class Noop(RoutedAgent):
    @message_handler
    async def add(self, message: Number, ctx: MessageContext) -> Number:
        return Number(message.n + 1)
async def main(steps):
    runtime = SingleThreadedAgentRuntime()
    await Noop.register(runtime, "noop", lambda: Noop("noop"))
    runtime.start()
    start, message = time.perf_counter(), Number(0)
    for _ in range(steps):
        message = await runtime.send_message(message, AgentId("noop", "default"))
    print((time.perf_counter() - start) / steps)
    await runtime.stop()
asyncio.run(main(int(sys.argv[1])))
""",
}


class Noop:
    """Adds one."""

    name = "noop"
    description = "adds one"

    async def run(self, context: Context, task: Task) -> int:
        """Return the number after the task's."""
        return int(task.text) + 1


class Loop:
    """Spawns no-op agents one after the other."""

    name = "loop"
    description = "counts"
    needs = ("noop",)

    async def run(self, context: Context, task: Task) -> int:
        """Count to the task's number."""
        number = 0
        while number < int(task.text):
            spawned = await context.spawn("noop", f"{number}")
            assert isinstance(spawned, int)
            number = spawned
        return number


def fleet_of(journal: Journal) -> Fleet:
    """Return a fleet of the two agents."""
    return Fleet(ScriptedBackend([]), [Noop(), Loop()], journal=journal, limits=FleetLimits(run_agents=10**9))


class Cost(NamedTuple):
    """Seconds a step: on the clock, and of this process's processor time, which others on the machine disturb less."""

    wall: float
    cpu: float


async def seconds_a_step(journal: Journal, num_steps: int, num_agents: int = 1) -> Cost:
    """Run agents at once, each in a run of its own, that spawn so many."""
    async with fleet_of(journal) as fleet:
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(fleet.run_agent("loop", f"{num_steps}") for _ in range(num_agents)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Cost(wall / (num_agents * num_steps), cpu / (num_agents * num_steps))


def peer(name: str, num_steps: int, folder: Path) -> list[float]:
    """Return what a peer's program measures; nothing where it is not installed."""
    python = os.environ.get("PEERS_PYTHON", "")
    if not python:
        return []
    command = [python, "-c", PEERS[name], str(num_steps), str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return [float(word) for word in done.stdout.split()]


def _row(name: str, plain: float | None, durable: float | None, num_bytes: float | None) -> str:
    cells = [f"{1 / each:>10,.0f}" if each else " " * 10 for each in (plain, durable)]
    return f"{name:<16}{''.join(cells)}{f'{num_bytes:>12,.0f}' if num_bytes else ''}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)  # so that what a new file takes is not told as a step's
    parser.add_argument("--long", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.long:
            _measure_memory(SqliteJournal(folder), options.long)
            return
        print(f"{'steps a second':<16}{'plain':>10}{'durable':>10}{'bytes/step':>12}")
        journal = SqliteJournal(folder)
        plain = asyncio.run(seconds_a_step(MemoryJournal(), options.steps))
        durable = asyncio.run(seconds_a_step(journal, options.steps))
        journal.close()
        print(_row("pyagent", plain.wall, durable.wall, (folder / "runs.db").stat().st_size / options.steps))
        for peer_name in PEERS:
            found = [*peer(peer_name, options.steps, folder), 0.0, 0.0, 0.0][:3]
            print(_row(peer_name, *found))
        print(f"processor time of pyagent: {plain.cpu * 1e3:.2f} ms a step plain, {durable.cpu * 1e3:.2f} ms durable")
        beside = asyncio.run(seconds_a_step(SqliteJournal(folder), 5, num_agents=1_000))
        print(f"1,000 runs of 5 steps at once, durable: {_told(beside)}")
        print(f"load {os.getloadavg()[0]:.1f}; {machine()}")


def _told(cost: Cost) -> str:
    return f"{cost.wall * 1e3:.2f} ms a step, {cost.cpu * 1e3:.2f} ms of processor time"


def _measure_memory(journal: SqliteJournal, num_steps: int) -> None:
    for part in (num_steps // 10, num_steps):
        cost = asyncio.run(seconds_a_step(journal, part))
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{part:,} steps: {_told(cost)}, at most {mib:.0f} MiB")
    journal.close()


if __name__ == "__main__":
    main()
