"""Which agent a task is for, and why: the caller's word, else a rule of the agents' own, else a model's choice.

Rules come first because they cost nothing and can be explained; agents declare them (`matches`), and they may
also say that a task is plainly not theirs. Among those left a model chooses by description, constrained to the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from pyagent.core.errors import ConfigError
from pyagent.core.fleet.agent import Agent, Task, rule_verdict, unknown_name
from pyagent.core.fleet.context import Context
from pyagent.core.messages import SamplingParams

_SYSTEM = "You hand tasks to specialists. Answer with the name of the one specialist who should do the task."
_MAX_SHOWN_CHARACTERS = 1500


class Route(msgspec.Struct, frozen=True):
    """The agent chosen, how, and the reason to show."""

    agent: str
    how: Literal["named", "rule", "model", "only"]
    reason: str


def plain_route(task: Task, agents: Mapping[str, Agent], named: str | None = None) -> Route | dict[str, Agent]:
    """The route that needs no model, or the agents a model has to choose from."""
    if named is not None:
        if named not in agents:
            raise unknown_name("agent", named, list(agents))
        return Route(named, "named", "asked for by name")
    if not agents:
        raise ConfigError("the fleet has no agents; install a plugin that brings some, or enable one", key="plugins")
    if len(agents) == 1:
        return Route(next(iter(agents)), "only", "the only agent there is")
    verdicts = {name: rule_verdict(agent, task) for name, agent in agents.items()}
    reasons = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, str)}
    if len(reasons) == 1:
        name, reason = next(iter(reasons.items()))
        return Route(name, "rule", reason)
    left = [name for name, verdict in verdicts.items() if verdict is not False]
    if len(left) == 1:
        return Route(left[0], "rule", "the other agents say it is not for them")
    return {name: agents[name] for name in reasons or left or agents}


async def choose_route(context: Context, task: Task, candidates: Mapping[str, Agent]) -> Route:
    """Let the model choose by the descriptions."""
    described = "\n".join(f"- {name}: {agent.description}" for name, agent in candidates.items())
    text = task.text if len(task.text) <= _MAX_SHOWN_CHARACTERS else task.text[:_MAX_SHOWN_CHARACTERS] + " ..."
    files = f"\nFiles: {', '.join(task.files[:5])}" if task.files else ""
    prompt = f"Specialists:\n{described}\n\nTask: {text}{files}\n\nSpecialist:"
    sampling = SamplingParams(temperature=0.0, max_tokens=32)
    name = await context.generate(prompt, choice=list(candidates), system=_SYSTEM, sampling=sampling)
    return Route(name, "model", f"the model chose it among {', '.join(candidates)}")
