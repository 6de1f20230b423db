"""Options of an agent that its fleet's learner chooses: a strategy, a variant of its prompt.

What was chosen stands in the run's journal, so that a resumed run, and one that is checked, has it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyagent.core.fleet.events import OptionChosen
from pyagent.core.fleet.learner import PROMPT, STRATEGY, Picked

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

MAX_SITUATION = 100
"""Characters of what a choice depends on."""


def learned_strategy(context: Context, options: Sequence[str], situation: str) -> str | None:
    """Return the strategy that an agent is to take, of those that it has; None where that is its own choice."""
    learner = context.run.learner
    kept = context.run.past.option(context.step, context.agent, STRATEGY)
    if kept is not None:
        return kept.option if kept.option in options else None
    if learner is None:
        return None
    picked = learner.strategy(context.run, context.step, context.agent, options, situation)
    return None if picked is None else _told(context, STRATEGY, picked)


def take_prompt(context: Context) -> None:
    """Give an agent the variant of its prompt that this run has, if there are variants: one in all of its steps."""
    run, agent = context.run, context.agent
    if agent not in run.agent_to_prompt:
        kept = run.past.prompt(agent)
        if kept is not None:
            picked = Picked(kept.option, kept.how, kept.reason, kept.text)
        else:
            picked = None if run.learner is None else run.learner.prompt(run, agent)
        run.agent_to_prompt[agent] = picked
    if (picked := run.agent_to_prompt[agent]) is not None:
        context.system_text = picked.text
        _told(context, PROMPT, picked)


def _told(context: Context, kind: str, picked: Picked) -> str:
    event = OptionChosen(
        run=context.run.id,
        step=context.step,
        agent=context.agent,
        kind=kind,
        option=picked.option,
        how=picked.how,
        reason=picked.reason,
        text=picked.text,
    )
    context.run.emit(event)
    return picked.option
