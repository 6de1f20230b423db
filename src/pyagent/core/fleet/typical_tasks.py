"""Which agent a task is like, by the `typical_tasks` that agents tell: naive Bayes, in exact code. Asks no model.

`UNMET` stands for no agent: errands in the world, and what is no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import cast

from pyagent.core.fleet.agent import Agent
from pyagent.core.fleet.unmet_tasks import UNMET_TASKS
from pyagent.core.naive_bayes import NaiveBayes, features_of, probabilities

UNMET = ""
"""The name of no agent."""
TEMPERATURE = 4.0
"""Fitted on the built-in agents' typical tasks, each left out in turn (benchmarks/routing.py)."""
_MAX_TASKS = 500
_MAX_READ = 1_000


def typical_tasks(agent: Agent) -> tuple[str, ...]:
    """Return the tasks that an agent tells as typical of it; none where it tells no texts."""
    told = cast("object", getattr(agent, "typical_tasks", ()))
    if isinstance(told, str) or not isinstance(told, Iterable):
        return ()
    return tuple(each for each in cast("Iterable[object]", told) if isinstance(each, str) and each.strip())[:_MAX_TASKS]


def likely_agents(text: str, agents: Mapping[str, Agent]) -> dict[str, float]:
    """Return how likely a task is each agent's, or `UNMET`; empty where fewer than two tell typical tasks.

    Of an agent that tells none its description is compared. Only the beginning of a long task is read: what is to be
    done stands there.
    """
    told = {name: typical_tasks(agent) for name, agent in agents.items()}
    if sum(map(bool, told.values())) < 2 or not text.strip():
        return {}
    known = tuple((name, tasks or (agents[name].description,)) for name, tasks in told.items())
    return probabilities(_trained(known).scores(text[:_MAX_READ]), TEMPERATURE)


def nearest_task(text: str, agent: Agent) -> str:
    """Return the agent's typical task that has most in common with a text; its description where it tells none."""
    features = features_of(text[:_MAX_READ])
    told = typical_tasks(agent) or (agent.description,)
    return max(told, key=lambda each: len(features & features_of(each)) / (8 + len(features_of(each))))


@lru_cache(maxsize=16)
def _trained(told: tuple[tuple[str, tuple[str, ...]], ...]) -> NaiveBayes:
    return NaiveBayes([(task, name) for name, tasks in (*told, (UNMET, UNMET_TASKS)) for task in tasks])
