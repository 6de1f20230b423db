"""Membership in simulated time: how soon the dead are found, how seldom the living, and what it costs.

    .venv/bin/python benchmarks/membership.py [--nodes 3 8 30 300 3000] [--deaths 20] [--hours 1]
        [--only deaths|hours] [--conditions idle load lossy] [--node-seconds 360000]

Of many nodes a shorter time is simulated (`--node-seconds`); stderr says every minute how far it is.

Nodes run the code of `pyagent.core.cluster` on a simulated network (0.3 ms, or 50 ms and a tenth of all messages lost)
and simulated machines (idle, or at full load: standing still twice a second for up to 1.5 s, longer than was measured
beside four busy loops). All follows from seeds, so that two runs print the same. Beside the figures stand SWIM's
formulas: e/(e-1) periods until a dead member is first probed, and log_{f+1}(n) + ln(n)/f rounds of gossip to f members
until all know of it.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.cluster_sim import Conditions, SimNode, Simulation, full_load

from pyagent.core.cluster.events import Changed, Effect
from pyagent.core.cluster.timing import Timing

TIMING = Timing()
IDLE = Conditions()
LOADED = Conditions(stall=full_load, skew=0.01)
LOSSY = Conditions(delay=0.05, jitter=0.01, loss=0.1, skew=0.01)
SMALL = 30
"""Up to so many nodes each death has a cluster of its own."""
MANY = 1_000
"""More nodes are run at full load, or with losses, where that is asked for (`--conditions`): what they suspect and
contradict grows with their square."""
KINDS = {"idle": ("idle", IDLE), "load": ("full load", LOADED), "lossy": ("50 ms, 10 % lost", LOSSY)}
_PROGRESS_SECONDS = 60
_STEP_SECONDS = 1.0
"""Simulated, between two looks at the clock."""


@dataclass
class Deaths:
    """Seconds from each death to the first suspicion, to the first verdict, and until all agree."""

    suspected: list[float] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    agreed: list[float] = field(default_factory=list)

    def spread(self) -> list[float]:
        """Seconds from the first verdict until all agree."""
        return [agreed - found for found, agreed in zip(self.found, self.agreed, strict=True)]


def clusters(num_nodes: int, num_deaths: int, conditions: Conditions) -> Iterator[tuple[Simulation, SimNode]]:
    """A running cluster and a node to end, for each death."""
    sim = None
    for seed in range(num_deaths):
        if sim is None or num_nodes <= SMALL:
            sim = cluster(num_nodes, seed, conditions)
        sim.run(2 + sim.rng.random())
        yield sim, sim.rng.choice(sim.running())


def cluster(num_nodes: int, seed: int, conditions: Conditions) -> Simulation:
    sim = Simulation(num_nodes, seed=seed, conditions=conditions)
    if num_nodes <= SMALL:
        sim.join_all()
        sim.until(sim.all_agree, 60)
    else:
        sim.introduce_all()
    return sim


def deaths(num_nodes: int, num_deaths: int, conditions: Conditions, *, power: bool) -> Deaths:
    found = Deaths()
    for sim, victim in clusters(num_nodes, num_deaths, conditions):
        times: dict[str, float] = {}

        def note(
            _: SimNode, effect: Effect, sim: Simulation = sim, victim: SimNode = victim, times: dict[str, float] = times
        ) -> None:
            if isinstance(effect, Changed) and effect.view.member.id == victim.id:
                times.setdefault(effect.view.state, sim.now)

        began = sim.now
        sim.on_effect = note
        sim.kill(victim, power=power)
        found.agreed.append(sim.until(partial(sim.hold, victim.id, "dead"), 120))
        found.suspected.append(times["suspect"] - began)
        found.found.append(times["dead"] - began)
        for node in sim.running():
            node.told.clear()
    return found


def quiet_hours(num_nodes: int, seconds: float, conditions: Conditions) -> tuple[float, int, int, float, float]:
    """Simulated hours, suspicions, false deaths, messages and bytes a second and node."""
    sim = cluster(num_nodes, 0, conditions)
    sim.run(2)
    suspicions = 0

    def note(node: SimNode, effect: Effect) -> None:
        nonlocal suspicions
        suspicions += isinstance(effect, Changed) and effect.view.state == "suspect"
        node.told.clear()

    sim.on_effect = note
    sim.count_bytes = True
    before, num_bytes = sim.num_messages, sim.num_bytes
    for done in run_with_progress(sim, seconds):
        told = f"    {done}: {suspicions} suspicions, {len(sim.false_deaths)} false verdicts"
        print(told, file=sys.stderr, flush=True)
    each = num_nodes * seconds
    sent = (sim.num_messages - before) / each, (sim.num_bytes - num_bytes) / each
    return seconds / 3600, suspicions, len({(t, victim) for t, _, victim in sim.false_deaths}), *sent


def run_with_progress(sim: Simulation, seconds: float) -> Iterator[str]:
    """Run for so long, and yield from time to time how far it is."""
    end, told_at = sim.now + seconds, time.monotonic()
    while sim.now < end:
        sim.run(min(_STEP_SECONDS, end - sim.now))
        if time.monotonic() - told_at > _PROGRESS_SECONDS:
            told_at = time.monotonic()
            yield f"{seconds - (end - sim.now):.0f} of {seconds:.0f} simulated seconds"


def quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} / {ordered[math.ceil(0.99 * len(ordered)) - 1]:.2f}"


def death_row(label: str, num_nodes: int, found: Deaths, formulas: bool) -> str:
    first, rounds = "", ""
    if formulas:
        rest = num_nodes - 1
        periods = 1 / (1 - (1 - 1 / rest) ** rest) if rest > 1 else 1.0
        first = f" ({periods * TIMING.period + TIMING.probe_seconds:.2f})"
        rounds = f" ({TIMING.gossip_seconds * gossip_rounds(num_nodes):.2f})"
    cells = [
        f"{num_nodes}, {label}",
        quantiles(found.suspected) + first,
        quantiles(found.agreed),
        quantiles(found.spread()) + rounds,
    ]
    return "| " + " | ".join(cells) + " |"


def gossip_rounds(num_nodes: int) -> float:
    return math.log(num_nodes, TIMING.fanout + 1) + math.log(num_nodes) / TIMING.fanout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 8, 30, 300, 3000])
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", choices=["deaths", "hours"], help="One of the two tables.")
    parser.add_argument("--conditions", choices=KINDS, nargs="+", help="Of the hours; all, of many nodes idle ones.")
    parser.add_argument("--node-seconds", type=float, default=360_000, help="Most nodes times seconds of a row.")
    options = parser.parse_args()
    gc.disable()
    if options.only != "hours":
        report_deaths(options.nodes, options.deaths)
    if options.only != "deaths":
        report_hours(options)


def report_deaths(sizes: list[int], num_deaths: int) -> None:
    print("Seconds p50 / p99; SWIM's formula in brackets.\n")
    print("| nodes | first suspected | agreed dead by all | from first verdict to all |\n|---|---|---|---|")
    kinds: list[tuple[str, Conditions, bool]] = [
        ("killed, idle", IDLE, False),
        ("killed, full load", LOADED, False),
        ("no power, idle", IDLE, True),
        ("no power, full load", LOADED, True),
    ]
    for num_nodes in sizes:
        for label, conditions, power in kinds[:: 1 if num_nodes <= MANY else 2]:
            timed(partial(deaths, num_nodes, num_deaths, conditions, power=power), partial(death_row, label, num_nodes))


def report_hours(options: argparse.Namespace) -> None:
    print("\n| nodes | simulated hours | suspicions | live nodes held for dead | messages/s a node | bytes/s a node |")
    print("|---|---|---|---|---|---|")
    for num_nodes in options.nodes:
        seconds = min(3600 * options.hours, options.node_seconds / num_nodes)
        for kind in options.conditions or (KINDS if num_nodes <= MANY else ["idle"]):
            label, conditions = KINDS[kind]
            began = time.perf_counter()
            span, suspicions, false, messages, num_bytes = quiet_hours(num_nodes, seconds, conditions)
            row = f"| {num_nodes}, {label} | {span:.3f} | {suspicions} | {false} | {messages:.1f} | {num_bytes:.0f} |"
            print(row, flush=True)
            print(f"    {time.perf_counter() - began:.0f} s", file=sys.stderr)
            gc.collect()


def timed(measure: Callable[[], Deaths], row: Callable[[Deaths, bool], str]) -> None:
    began = time.perf_counter()
    found = measure()
    print(row(found, True), flush=True)
    print(f"    {time.perf_counter() - began:.0f} s", file=sys.stderr)
    gc.collect()


if __name__ == "__main__":
    main()
