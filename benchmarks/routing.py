"""Which agent gets a task: accuracy of the router on the tasks of tests/data/routing, step by step.

    python benchmarks/routing.py [--part validation|held_out] [--without-router] [--wrong] [--model NAME] [--json]

`rules`: the agents' scores alone, as they say themselves. `rules and typical tasks`: else the agent that it is most
like. `the router`: as runs have it, where what is like none plainly goes to the agent that takes the rest; `how` says
whether a model was asked, `wrong` lists by agent what went elsewhere. `with route = "ask"`: how many tasks a person is
asked about, and the accuracy of the others. `left out`: each typical task by the others.
A task for nobody is right when the router says that no agent is made for it. Both parts were written before any typical
task of theirs was looked at; `validation` was run while the router was changed, `held_out` at the end alone.
`--wrong` shows the tasks that go elsewhere. `assistant` has none: a task goes to it only by name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pyagent.cli.startup import read_settings
from pyagent.core.backends import Backend
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import QuestionAsked, RouteChosen
from pyagent.core.fleet.router import route_by_scores
from pyagent.core.fleet.scores import Scores
from pyagent.core.fleet.typical_tasks import likely_agents, typical_tasks
from pyagent.core.fleet.unmet_tasks import UNMET_TASKS
from pyagent.core.naive_bayes import NaiveBayes
from pyagent.fleet import Fleet

DATA = Path(__file__).parent.parent / "tests" / "data" / "routing"
PARTS = ("validation", "held_out")
NOBODY = "nobody"


def rows(part: str) -> list[dict[str, str]]:
    """Return the tasks of a part: `task`, the `agent` it is for, and its `kind`: `plain`, or `words` no rule has."""
    return [json.loads(line) for line in (DATA / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]


async def by_rules(agents: Mapping[str, Agent], text: str) -> str:
    """Return the agent that the scores alone are sure of; who takes the rest gets what they are not."""
    route = route_by_scores(await Scores(agents).of(Task(text=text)), {})
    if not isinstance(route, list):
        return route.agent
    return next(name for name, agent in agents.items() if getattr(agent, "takes_rest", False))


async def by_tasks(agents: Mapping[str, Agent], text: str) -> str:
    """Return the agent by scores, else by the typical tasks alone."""
    route = route_by_scores(await Scores(agents).of(Task(text=text)), {})
    if not isinstance(route, list):
        return route.agent
    shares = likely_agents(text, {name: agents[name] for name in route})
    return max(shares, key=lambda name: shares[name]) or NOBODY


class Silent:
    """Has an agent's name and scores, and does nothing: only who gets the task counts."""

    def __init__(self, agent: Agent) -> None:
        self.name, self.description = agent.name, agent.description
        for name in ("score", "typical_tasks", "takes_rest"):
            if hasattr(agent, name):
                setattr(self, name, getattr(agent, name))

    async def run(self, context: Context, task: Task) -> str:
        return self.name


async def routed(fleet: Fleet, text: str) -> RouteChosen:
    """Return the route of a task as a run has it."""
    return next(event for event in [event async for event in fleet.run(text)] if isinstance(event, RouteChosen))


def left_out(agents: Mapping[str, Agent]) -> float:
    """Return how many of the typical tasks are told rightly by all the others."""
    told = [*((name, typical_tasks(agent)) for name, agent in agents.items()), (NOBODY, UNMET_TASKS)]
    scored = NaiveBayes([(task, name) for name, tasks in told for task in tasks]).leave_one_out()
    return sum(max(scores, key=lambda name: scores[name]) == name for scores, name in scored) / len(scored)


def accuracy(told: list[tuple[dict[str, str], str]]) -> dict[str, float]:
    """Return the part that is right, of all and by kind, and of those for nobody."""
    right = [(row["agent"] == said, row["kind"], row["agent"] == NOBODY) for row, said in told]
    kinds = {
        kind: [each for each, other, is_none in right if other == kind and not is_none] for kind in ("plain", "words")
    }
    kinds["nobody"] = [each for each, _, is_none in right if is_none]
    return {
        "all": round(sum(each for each, _, _ in right) / len(right), 3),
        **{kind: round(sum(each) / len(each), 3) for kind, each in kinds.items()},
    }


async def by_router(fleet: Fleet, tasks: list[dict[str, str]], *, shows_wrong: bool) -> dict[str, object]:
    """Return the router's accuracy, how it chose, and by agent what went elsewhere."""
    told, how, wrong, began = [], Counter[str](), Counter[str](), time.perf_counter()
    for row in tasks:
        route = await routed(fleet, row["task"])
        said = NOBODY if route.how == "rest" else route.agent
        if row["agent"] == route.agent:  # who takes the rest is right for its own tasks
            said = route.agent
        told.append((row, said))
        how[f"{route.how}, {'right' if said == row['agent'] else 'wrong'}"] += 1
        if said != row["agent"]:
            wrong[row["agent"]] += 1
            if shows_wrong:
                print(f"{row['agent']:<20}{route.agent:<20}{route.how:<10}{route.score} {row['task']}")
    num = Counter(row["agent"] for row in tasks)
    return {
        "the router": accuracy(told),
        "how": dict(how.most_common()),
        "wrong": {name: f"{count} of {num[name]}" for name, count in wrong.most_common()},
        "ms_a_task": round(1000 * (time.perf_counter() - began) / len(tasks)),
    }


async def by_asking(fleet: Fleet, tasks: list[dict[str, str]]) -> dict[str, object]:
    """Return how many tasks a person is asked about, and how many of the others go to the right agent."""
    asked, right = 0, 0
    for row in tasks:
        first = await anext(
            event async for event in fleet.run(row["task"]) if isinstance(event, RouteChosen | QuestionAsked)
        )
        asked += isinstance(first, QuestionAsked)
        right += isinstance(first, RouteChosen) and first.agent == row["agent"]
    return {"asked": asked, "right of the others": round(right / max(1, len(tasks) - asked), 3)}


async def measured(part: str, model: str | None, *, with_router: bool, shows_wrong: bool) -> dict[str, object]:
    """Return the accuracies on one part."""
    tasks = rows(part)
    settings = read_settings(None, None, model)
    async with Fleet(settings) as whole:
        agents = dict(whole.agents)
        backend: Backend = whole.backend
        result: dict[str, object] = {
            "tasks": len(tasks),
            "rules": accuracy([(row, await by_rules(agents, row["task"])) for row in tasks]),
            "rules and typical tasks": accuracy([(row, await by_tasks(agents, row["task"])) for row in tasks]),
        }
        if not with_router:
            return result
        silent = [Silent(agent) for agent in agents.values()]
        async with Fleet(settings, backend=backend, agents=silent) as fleet:
            result |= await by_router(fleet, tasks, shows_wrong=shows_wrong)
        asks = msgspec.structs.replace(settings, fleet=msgspec.structs.replace(settings.fleet, route="ask"))
        async with Fleet(asks, backend=backend, agents=silent) as fleet:
            result['with route = "ask"'] = await by_asking(fleet, tasks)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy of the router")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--without-router", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result: dict[str, object] = {}
    for part in [given.part] if given.part else PARTS:
        work = measured(part, given.model, with_router=not given.without_router, shows_wrong=given.wrong)
        result[part] = asyncio.run(work)
    from pyagent.assembly import make_agents, make_host

    settings = read_settings(None, None, given.model)
    result["typical tasks, each left out in turn"] = round(left_out(make_agents(settings, make_host(settings))), 3)
    if given.json:
        print(json.dumps(result))
        return
    for name, told in result.items():
        print(name, told if not isinstance(told, dict) else "")
        for key, value in told.items() if isinstance(told, dict) else ():
            print(f"  {key:<26}{value}")


if __name__ == "__main__":
    main()
