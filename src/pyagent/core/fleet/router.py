"""Which agent a task is for, and why: the caller's word, else the agents' own scores, else a model's choice.

Scores come first because they cost nothing and can be explained (`core.fleet.scores`): the highest wins, ties by the
agents' order. When none is sure, the one whose name the task has gets it (`Write a haiku`); else a model chooses by
description, constrained to the names, among those that did not score 0, or a person does where the limits say so. An
agent that declines after all is out, and the rest are asked in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.fleet.agent import Agent, Task, unknown_name
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.messages import SamplingParams

_SYSTEM = "You hand tasks to specialists. Answer with the name of the one specialist who should do the task."
_MAX_SHOWN_CHARACTERS = 1500
_SURE = 0.5
"""From this score on an agent gets the task without a model being asked."""


class Route(msgspec.Struct, frozen=True):
    """The agent chosen, how, and the reason to show."""

    agent: str
    how: Literal["named", "score", "learned", "model", "person", "only"]
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
    """Return the one candidate that the task names; else let a person or the model choose by the descriptions."""
    named = [name for name in candidates if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", task.text, re.IGNORECASE)]
    if len(named) == 1:
        return Route(named[0], "score", "the task has its name")
    described = "\n".join(f"- {name}: {agent.description}" for name, agent in candidates.items())
    if context.run.limits.route == "ask":
        question = f"Which agent is to do the task {task.title!r}?\n{described}"
        name = await context.ask(question, options=list(candidates))
        return Route(name, "person", f"a person chose it among {', '.join(candidates)}")
    text = task.text if len(task.text) <= _MAX_SHOWN_CHARACTERS else task.text[:_MAX_SHOWN_CHARACTERS] + " ..."
    files = f"\nFiles: {', '.join(task.files[:5])}" if task.files else ""
    prompt = f"Specialists:\n{described}\n\nTask: {text}{files}\n\nSpecialist:"
    sampling = SamplingParams(temperature=0.0, max_tokens=32)
    name = await context.generate(prompt, choice=list(candidates), system=_SYSTEM, sampling=sampling)
    return Route(name, "model", f"the model chose it among {', '.join(candidates)}")
