"""What the fleet, its runs and their agents may use: tokens, money, time, agents, and calls at once."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.confidence import ConfidencePolicy
from pyagent.core.fleet.stalls import StallPolicy
from pyagent.core.fleet.turns import Rates

MAX_SECONDS = 2**31
"""The longest time that is a limit."""
MAX_PRIORITY = 2**31


class RunBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one run may use by its caller's word, within `budget.run` of the settings. None is no limit of its own."""

    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None


def check_budget(budget: object) -> None:
    """Raise `RequestError` for what is no run's budget; None is none."""
    if budget is None:
        return
    if not isinstance(budget, RunBudget):
        raise RequestError(f"budget is a RunBudget, got {type(budget).__name__}", param="budget")
    check_number("budget.tokens", budget.tokens, 1, 10**15)
    check_number("budget.usd", budget.usd, 0, 10**9)
    check_number("budget.seconds", budget.seconds, 0, 10**7)


def check_number(name: str, number: object, least: int, most: int, *, is_whole: bool = False) -> None:
    """Raise `RequestError` for what is no number within bounds, as NaN is none; None is none that is given.

    NaN is in no order: the least of it and a limit may be NaN, which limits nothing.
    """
    if number is None:
        return
    kinds = int if is_whole else int | float
    if isinstance(number, bool) or not isinstance(number, kinds) or not least <= number <= most:
        what = "whole number" if is_whole else "number"
        text = f"{name} is a {what} from {least:,} to {most:,}, got {number!r:.80}"
        raise RequestError(text, param=name.partition(".")[0])


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent may use, with those that it spawns. None is no limit."""

    tokens: int | None = None
    seconds: float | None = None
    usd: float | None = None


class FleetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may use, each of its agents, and all runs of the fleet together. None is no limit.

    `fleet_seconds` begin with the first run. `max_runs` go on at once, others wait for their turn.
    `plan`: whether tasks are planned that do not say so themselves.
    `route`: who chooses the agent of a task that no agent is sure of, a model or a person.
    `waits_for_answers`: a question to a person waits for `Fleet.answer`; else it ends the run.
    `confidence` says which answers are doubtful, and what is done about them.
    `tool_guard`: what becomes of results of tools that read like instructions to the model.
    `stalls` says when a run has stalled. `rates` say how often agents and tools may begin.
    `top_activations` and `logit_lens` are asked with each call of a model, and journalled with its answer.
    """

    run_tokens: int | None = None
    run_seconds: float | None = None
    run_usd: float | None = None
    run_agents: int = 10_000
    agent: AgentLimits = AgentLimits()
    fleet_tokens: int | None = None
    fleet_seconds: float | None = None
    fleet_usd: float | None = None
    max_concurrency: int = 8
    max_runs: int | None = None
    waits_for_answers: bool = False
    plan: Literal["off", "auto", "ask"] = "off"
    route: Literal["auto", "ask"] = "auto"
    tool_guard: Literal["off", "warn", "block"] = "warn"
    confidence: ConfidencePolicy = ConfidencePolicy()
    stalls: StallPolicy = StallPolicy()
    rates: Rates = Rates()
    top_activations: int | None = None
    logit_lens: int | None = None
