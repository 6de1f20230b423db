"""A person's or a program's mark of a run: what its choices earned, for later choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import AgentFinished, RouteChosen
from pyagent.core.fleet.journal import Journal, JournalRecord
from pyagent.core.fleet.learner import AGENT, PROMPT, Outcomes, last_attempts
from pyagent.core.learning.outcomes import Choice

_WORDS = {"good": 1.0, "bad": 0.0}
_LONGEST = 40


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """A mark that was recorded: for each step whose agent was chosen, the agent; what else was chosen; the reward.

    `choices` has the option of each kind of choice but agents: a strategy, a prompt's variant, a link.
    """

    run: str
    reward: float
    step_to_agent: dict[str, str]
    choices: dict[str, str] = {}


def read_mark(mark: str | float) -> float:
    """Return the reward of `good`, `bad` or a number from 0 to 1; raise `RequestError` for anything else."""
    text = str(mark)[:_LONGEST].strip().lower()
    try:
        reward = _WORDS[text] if text in _WORDS else float(text)
    except ValueError:
        reward = math.nan
    if isinstance(mark, bool) or not 0 <= reward <= 1:
        raise RequestError(f"a mark is good, bad or a number from 0 to 1, got {str(mark)[:_LONGEST]!r}", param="mark")
    return reward


def mark_run(journal: Journal, outcomes: Outcomes, run: str, mark: str | float) -> Marked:
    """Record what the run's choices earned, for its tenant alone; a second mark replaces the first.

    Raises `RequestError` for an unknown run, one that is under way, and one whose agents were all asked for by name.
    """
    reward = read_mark(mark)
    summary = journal.summary(run)
    if summary is None:
        raise RequestError(f"there is no run {run[:80]!r}; `pyagent runs list` shows those kept", param="run")
    if summary.state == "running":
        raise RequestError(f"{run} is under way; mark it when it is over", param="run")
    records = [*journal.replay(run)]
    agents = chosen_agents(records)
    recorded = last_attempts(outcomes.of_run(summary.tenant, run))
    others = _of_result([choice for choice in recorded if choice.kind != AGENT], records)
    if not agents and not others:
        raise RequestError(f"{run} has nothing that was chosen: its mark would teach nothing", param="run")
    for choice in [*_agent_choices(summary.tenant, run, agents, recorded), *others]:
        outcomes.reward(choice, reward, "mark")
    choices = {choice.kind: choice.arm.partition("#")[0] for choice in others}
    return Marked(run=run, reward=reward, step_to_agent=agents, choices=choices)


def _of_result(choices: Sequence[Choice], records: Sequence[JournalRecord]) -> list[Choice]:
    """Return the choices that the result is of: not those of an agent that failed or declined before another took over.

    A strategy was taken in a step, a prompt for all of a run: it counts where its agent finished anything.
    """
    routes = [each.event for each in records if isinstance(each.event, RouteChosen)]
    last = {route.step: route.agent for route in routes}
    over = {(route.step, route.agent) for route in routes if last[route.step] != route.agent}
    finished = {each.event.agent for each in records if isinstance(each.event, AgentFinished)}
    idle = {agent for _, agent in over} - finished - {*last.values()}

    def is_of_result(choice: Choice) -> bool:
        kind, _, agent = choice.kind.partition("/")
        return agent not in idle if kind == PROMPT else (choice.step, agent) not in over

    return [choice for choice in choices if is_of_result(choice)]


def _agent_choices(tenant: str, run: str, agents: Mapping[str, str], recorded: Iterable[Choice]) -> list[Choice]:
    """Return the agents of a run as choices: as they were recorded, or new where they went by their scores alone."""
    known = {(choice.step, choice.arm): choice for choice in recorded if choice.kind == AGENT}
    attempts = {choice.step: choice.attempt for choice in known.values()}
    return [
        known.get((step, agent))
        or Choice(tenant=tenant, kind=AGENT, run=run, step=step, arm=agent, attempt=attempts.get(step, 0) + 1)
        for step, agent in agents.items()
    ]


def chosen_agents(records: Iterable[JournalRecord]) -> dict[str, str]:
    """Return the last agent of each step that the router chose; one named, or the only one, is no choice."""
    routes = {each.event.step: each.event for each in records if isinstance(each.event, RouteChosen)}
    return {step: route.agent for step, route in routes.items() if route.how not in {"named", "only"}}
