"""Which agent a task is for, and why: the caller's word, else the agents' own scores, else a model's choice.

Scores come first because they cost nothing and can be explained (`core.fleet.scores`): the highest wins, ties by the
agents' order. When none is sure, the one whose name the task has gets it (`Write a haiku`), or the one whose
`typical_tasks` it is plainly like, among those that did not score 0; what is plainly of no other goes to the agent that
`takes_rest`. Where there is none a model weighs the likeliest by how well the task goes on after tasks of each; where
an agent tells no tasks, or the backend scores no prompts, it chooses among them by description; or a person does where
the limits say so. An agent that declines after all is out, and the rest are asked in the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from pyagent.core.errors import ConfigError, ContextOverflowError, RequestError
from pyagent.core.fleet.agent import Agent, Task, unknown_name
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.typical_tasks import UNMET, likely_agents, nearest_task, typical_tasks
from pyagent.core.fleet.unmet_tasks import UNMET_TASKS
from pyagent.core.messages import SamplingParams
from pyagent.core.naive_bayes import probabilities, spread

_SYSTEM = "You hand tasks to specialists. Answer with the name of the one specialist who should do the task."
_MAX_SHOWN_CHARACTERS = 1500
_SURE = 0.5
"""From this score on an agent gets the task without a model being asked."""
_SURE_BY_TASKS = 0.45
"""With the temperature, fitted on the typical tasks, each left out in turn (benchmarks/routing.py)."""
_SHORTLIST = 5
_NUM_SHOWN = 6
_LIKELIHOOD_TEMPERATURE = 2.0
_MAX_SCORED_CHARACTERS = 600
How = Literal["named", "score", "examples", "learned", "model", "rest", "person", "only"]


class Route(msgspec.Struct, frozen=True):
    """The agent chosen, how, and the reason to show. `score` is its own, or how likely the agent is the right one."""

    agent: str
    how: How
    reason: str
    score: float | None = None


def fixed_route(agents: Mapping[str, Agent], named: str | None) -> Route | None:
    """Return the route there is no choice about; None when there is. Raises for an unknown name and for no agents."""
    if named is not None:
        if named not in agents:
            raise unknown_name("agent", named, list(agents))
        return Route(named, "named", "asked for by name")
    if not agents:
        raise ConfigError("the fleet has no agents; install a plugin that brings some, or enable one", key="plugins")
    return Route(next(iter(agents)), "only", "the only agent there is") if len(agents) == 1 else None


def route_by_scores(scores: Mapping[str, Score | None], declined: Mapping[str, str]) -> Route | list[str]:
    """The route by score, or the names a model has to choose from; `declined` agents, with their reasons, are out.

    Raises `RequestError` when no agent is left.
    """
    left = [name for name in scores if name not in declined]
    candidates = [name for name in left if scores[name] != 0]
    if not candidates and not declined:
        candidates = left  # all say that it is not theirs: the descriptions decide
    if not candidates:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in declined.items())
        raise RequestError(f"no agent takes the task ({reasons})", param="task", code="declined")
    best = max(candidates, key=lambda name: scores[name] or 0.0)
    score = scores[best]
    if score is not None and score >= _SURE:
        return Route(best, "score", score.reason or f"it scores the task {score:.2g}, the highest", float(score))
    if len(candidates) == 1:
        return Route(best, "score", "the other agents say it is not for them", score)
    return candidates


async def choose_route(context: Context, task: Task, candidates: Mapping[str, Agent]) -> Route:
    """Return the one candidate that the task names, or is like; else let a person or the model choose."""
    named = [name for name in candidates if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", task.text, re.IGNORECASE)]
    if len(named) == 1:
        return Route(named[0], "score", "the task has its name")
    shares = likely_agents(task.text, candidates)
    asks_person = context.run.limits.route == "ask"
    if route := _plain_route(task, candidates, shares, asks_person=asks_person):
        return route
    ranked = sorted(candidates, key=lambda name: -shares.get(name, 1.0))
    if asks_person:
        question = f"Which agent is to do the task {task.title!r}?\n{_described(candidates, ranked)}"
        name = await context.ask(question, options=ranked)
        return Route(name, "person", f"a person chose it among {', '.join(ranked)}")
    likely = ranked[:_SHORTLIST]
    untold = [name for name in candidates if not typical_tasks(candidates[name])]
    if shares and not untold:
        return await _weighed(context, task, {name: candidates[name] for name in likely}, shares)
    kept = {*likely, *untold, _for_the_rest(candidates)} if shares else candidates
    return await _chosen(context, task, {name: agent for name, agent in candidates.items() if name in kept})


def _plain_route(
    task: Task, candidates: Mapping[str, Agent], shares: Mapping[str, float], *, asks_person: bool
) -> Route | None:
    """Return the route that typical tasks leave no doubt of, or that what is like none of them has; else None."""
    rest = "" if asks_person else _for_the_rest(candidates)
    if rest and not task.text.strip():
        return Route(rest, "rest", "nothing is said of what is to be done")
    if not shares:
        return None
    best = max(shares, key=lambda name: shares[name])
    sure = round(shares[best], 3)
    if sure < _SURE_BY_TASKS:
        can_tell = all(map(typical_tasks, candidates.values()))
        return Route(rest, "rest", "it is plainly no other agent's", sure) if rest and can_tell else None
    if best == UNMET:
        return Route(rest, "rest", "no agent is made for it", sure) if rest else None
    return Route(best, "examples", f"it is like {nearest_task(task.text, candidates[best])!r}", sure)


async def _weighed(context: Context, task: Task, candidates: Mapping[str, Agent], shares: Mapping[str, float]) -> Route:
    """Return the candidate that is likeliest by its typical tasks and by the model together."""
    names = [*candidates, UNMET]
    try:
        told = await _likelihoods(context, task, candidates)
    except ContextOverflowError:
        raise
    except RequestError:  # the backend scores no prompts
        return await _chosen(context, task, candidates)
    together = probabilities(
        {name: math.log(shares[name] + 1e-6) + told[name] / _LIKELIHOOD_TEMPERATURE for name in names}
    )
    best = max(names, key=lambda name: together[name])
    sure = round(together[best], 3)
    if best == UNMET:
        if rest := _for_the_rest(candidates):
            return Route(rest, "rest", "no agent is made for it", sure)
        best = max(candidates, key=lambda name: together[name])
    return Route(best, "model", f"the model weighed {', '.join(candidates)}", sure)


async def _likelihoods(context: Context, task: Task, candidates: Mapping[str, Agent]) -> dict[str, float]:
    """Return the log probability of the task's text after some typical tasks of each candidate, less what they cost."""
    tasks = {name: typical_tasks(agent) for name, agent in candidates.items()} | {UNMET: UNMET_TASKS}
    text = " ".join(task.text[:_MAX_SCORED_CHARACTERS].split())

    async def likelihood(name: str) -> float:
        some = spread(tasks[name], _NUM_SHOWN)
        before = "\n".join(f"- {each}" for each in some) + "\n-"
        return await context.likelihood(f"{before} {text}") - await context.likelihood(before)

    found = await context.map(likelihood, tasks)
    return dict(zip(tasks, found, strict=True))


async def _chosen(context: Context, task: Task, candidates: Mapping[str, Agent]) -> Route:
    """Return the candidate that the model chooses by the descriptions, constrained to the names."""
    if len(candidates) == 1:
        return Route(next(iter(candidates)), "only", "the only agent left for it")
    text = task.text if len(task.text) <= _MAX_SHOWN_CHARACTERS else task.text[:_MAX_SHOWN_CHARACTERS] + " ..."
    files = f"\nFiles: {', '.join(task.files[:5])}" if task.files else ""
    prompt = f"Specialists:\n{_described(candidates, candidates)}\n\nTask: {text}{files}\n\nSpecialist:"
    sampling = SamplingParams(temperature=0.0, max_tokens=32)
    name = await context.generate(prompt, choice=list(candidates), system=_SYSTEM, sampling=sampling)
    return Route(name, "model", f"the model chose it among {', '.join(candidates)}")


def _described(agents: Mapping[str, Agent], names: Iterable[str]) -> str:
    return "\n".join(f"- {name}: {agents[name].description}" for name in names)


def _for_the_rest(candidates: Mapping[str, Agent]) -> str:
    """Return the agent that takes what no other is made for; empty when there is none."""
    return next((name for name, agent in candidates.items() if getattr(agent, "takes_rest", False) is True), "")
