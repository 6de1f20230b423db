"""What a fleet learns from outcomes: it chooses among near agents, strategies, prompt variants and links, and records.

Knows neither files nor marks: outcomes are a store's business (`infrastructure.storage.outcomes`). Nothing of a private
run is recorded. With `is_together` a choice depends on what was chosen for the same agent before: its prompt's variant,
its strategy, the run's link. That is a tree whose branches learn by themselves, as in UCT (Kocsis and Szepesvari,
2006), and the run's reward counts for each choice on the way. Learning ends no run: where outcomes cannot be read or
written, there is a warning, and the run goes on as it would without.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.learning.deciding import Decision, Policy, decide, that_count
from pyagent.core.learning.objectives import QUALITY, Objective
from pyagent.core.learning.outcomes import Choice, Outcome, Source
from pyagent.core.learning.prompts import PromptVariant, assigned
from pyagent.core.learning.sequential import MAX_OUTCOMES, verdict

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context
    from pyagent.core.fleet.events import Totals
    from pyagent.core.fleet.run import Run
    from pyagent.core.messages import ChatRequest

AGENT, BACKEND, STRATEGY, PROMPT = "agent", "backend", "strategy", "prompt"
_WINDOW = 500
_MAX_RUNS = 1_000
"""Runs whose links are remembered in memory; those of others are read again."""
Rewarded = Literal["check", "vote"]
logger = logging.getLogger(__name__)


def window_of(kind: str) -> int:
    """Return how many outcomes of a kind are kept: of a prompt's test all that it looks at."""
    return MAX_OUTCOMES if kind.startswith(f"{PROMPT}/") else _WINDOW


class Outcomes(Protocol):
    """What choices earned, by tenant. On disk it is `infrastructure.storage.outcomes`'s business."""

    def rows(self, tenant: str, kind: str) -> list[Outcome]:
        """Return the outcomes kept of a tenant and kind, the oldest first."""
        ...

    def turn(self, tenant: str, kind: str) -> int:
        """Return the number of the tenant's next choice of this kind, which grows over restarts."""
        ...

    def of_run(self, tenant: str, run: str) -> list[Choice]:
        """Return the choices of a tenant's run, those of a kind in their order."""
        ...

    def chosen(self, choice: Choice) -> None:
        """Record that a step of a run chose an arm; what comes of it is not known yet."""
        ...

    def reward(self, choice: Choice, reward: float, source: Source) -> None:
        """Record what a choice earned, from 0 to 1, unless a reward of a higher rank is there."""
        ...

    def measured(self, tenant: str, run: str, step: str, kinds: Sequence[str], totals: Totals) -> None:
        """Record what a step took: for its open choices, and added for those kinds that are chosen once for a run."""
        ...


@dataclass(frozen=True, slots=True)
class LearningRules:
    """What is learned, and how. Without a policy only prompt variants are tested."""

    policy: Policy | None = None
    margin: float = 0.05
    agents: Collection[str] = ()
    is_together: bool = False
    seed: int = 0
    attempts: int = 1
    rewards: Collection[Rewarded] = frozenset[Rewarded]({"check"})
    objectives: Sequence[Objective] = QUALITY
    strategies: Sequence[str] = ()
    has_backends: bool = False
    prompts: Mapping[str, Sequence[PromptVariant]] = field(default_factory=dict[str, "Sequence[PromptVariant]"])
    prompts_by: Literal["test", "policy"] = "test"


class Picked(msgspec.Struct, frozen=True):
    """An option that was chosen, for how and why; of a prompt its text."""

    option: str
    how: Literal["learned", "test"]
    reason: str
    text: str = ""


@dataclass(slots=True)
class Learner:
    """Chooses by the outcomes of a fleet, and records them."""

    outcomes: Outcomes
    rules: LearningRules
    _links: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict[tuple[str, str], str])
    _warned: set[str] = field(default_factory=set[str])

    # -- choosing -----------------------------------------------------------------------------------------------------

    def decision(self, choice: Choice, names: Sequence[str], agent: str = "") -> Decision | None:
        """Return and record which of the names the policy takes for a choice, whose arm is open; None without one.

        `agent` is whose choice it is, where it is not that of an agent.
        """
        policy, is_together = self.rules.policy, self.rules.is_together
        if policy is None or len(names) < 2:
            return None
        with self._going_on("a choice is not learned"):
            choice = self._placed(choice, agent)
            turn = self.outcomes.turn(choice.tenant, choice.kind)
            rows = self.outcomes.rows(choice.tenant, choice.kind)
            if is_together and any(each.bound is not None for each in self.rules.objectives):
                after = [self.outcomes.rows(choice.tenant, kind) for kind in kinds_after(choice.kind, names)]
                rows = that_count(rows, after, self.rules.objectives)
            random = Random(f"{self.rules.seed}/{choice.tenant}/{choice.kind}/{turn}")  # noqa: S311 - no secret
            objectives = self.rules.objectives
            decision = decide(policy, rows, names, objectives, random, choice.state, is_by_state=is_together)
            self.outcomes.chosen(msgspec.structs.replace(choice, arm=decision.arm.name))
            return decision
        return None

    def took(self, choice: Choice) -> None:
        """Record what was taken without a choice, as it is part of an episode: the one agent that was left."""
        if self.rules.policy is not None:
            with self._going_on("an attempt is not learned"):
                self.outcomes.chosen(self._placed(choice))

    def _placed(self, choice: Choice, agent: str = "") -> Choice:
        """Return a choice whose state has what was chosen before it, where choices are learned together."""
        if not self.rules.is_together:
            return choice
        state = agent if choice.kind == BACKEND else choice.state
        before = chosen_before(self.outcomes.of_run(choice.tenant, choice.run), choice, agent)
        return msgspec.structs.replace(choice, state=f"{state} with {', '.join(before)}" if before else state)

    def strategy(self, run: Run, step: str, agent: str, options: Sequence[str], situation: str) -> Picked | None:
        """Return which of an agent's strategies it takes, of those that the settings name; None for its own choice."""
        names = [name for name in options if name in self.rules.strategies]
        if run.is_private or not self.rules.strategies:
            return None
        if len(names) < 2:
            self._warn_of(agent, options)
            return None
        choice = _choice(run, f"{STRATEGY}/{agent}", step, state=situation)
        decision = self.decision(choice, names, agent)
        return None if decision is None else Picked(decision.arm.name, "learned", decision.reason)

    def _warn_of(self, agent: str, options: Sequence[str]) -> None:
        """Warn once of settings that leave an agent no choice among its strategies."""
        if agent not in self._warned:
            self._warned.add(agent)
            has = ", ".join(options)
            logger.warning("learning.strategies names fewer than two strategies of %s, which has %s", agent, has)

    def prompt(self, run: Run, agent: str) -> Picked | None:
        """Return the variant of an agent's prompt that a run has, in all of its steps; None where there are none."""
        variants = self.rules.prompts.get(agent, ())
        if not variants or run.is_private:
            return None
        by_arm = {each.arm: each for each in variants}
        choice = _choice(run, f"{PROMPT}/{agent}", "")
        if self.rules.prompts_by == "policy" and (decision := self.decision(choice, [*by_arm], agent)) is not None:
            variant = by_arm[decision.arm.name]
            return Picked(variant.name, "learned", decision.reason, variant.text)
        with self._going_on("a test of prompts stands still"):
            return self._tested(choice, by_arm, assigned(variants, str(self.rules.seed), run.id, agent))
        return None

    def _tested(self, choice: Choice, by_arm: Mapping[str, PromptVariant], own: PromptVariant) -> Picked:
        """Return the better variant where the test found one, else the one by weight, which is recorded then."""
        found = verdict(self.outcomes.rows(choice.tenant, choice.kind), [*by_arm])
        if found.better:
            better = by_arm[found.better]
            return Picked(better.name, "test", f"it is better, by {found.num_outcomes} runs", better.text)
        if not found.is_over:
            self.outcomes.chosen(msgspec.structs.replace(choice, arm=own.arm))
        names = ", ".join(each.name for each in by_arm.values())
        state = "none of them is better" if found.is_over else "tested"
        return Picked(own.name, "test", f"by weight among {names}: {state}", own.text)

    def first_link(self, request: ChatRequest, names: Sequence[str]) -> str:
        """Return which of links that share requests a run's requests go to first; empty where nothing is learned."""
        tenant, run = request.origin.tenant, request.origin.run
        if not run or request.private or not self.rules.has_backends or self.rules.policy is None:
            return ""
        if (kept := self._links.get((tenant, run))) is None:
            kept = self._chosen_link(tenant, run, [*dict.fromkeys(names)], request.origin.agent)
            self._links[tenant, run] = kept
            if len(self._links) > _MAX_RUNS:
                self._links.popitem(last=False)
        return kept if kept in names else ""

    def _chosen_link(self, tenant: str, run: str, names: Sequence[str], agent: str) -> str:
        with self._going_on("a link is not learned"):
            for choice in self.outcomes.of_run(tenant, run):
                if choice.kind == BACKEND:
                    return choice.arm
            choice = Choice(tenant=tenant, kind=BACKEND, run=run, step="", arm="")
            decision = self.decision(choice, names, agent)
            return "" if decision is None else decision.arm.name
        return ""

    # -- what came of it ----------------------------------------------------------------------------------------------

    def failed(self, run: Run, step: str, agent: str) -> None:
        """Record that an agent failed by itself: what was chosen for it earned nothing."""
        self._reward(run, step, agent, 0.0, "failure")

    def voted(self, context: Context, agreement: float) -> None:
        """Record how far several answers of an agent agreed, where votes count."""
        if "vote" in self.rules.rewards:
            self._reward(context.run, context.step, context.agent, agreement, "vote")

    def checked(self, run: Run, step: str, agent: str, *, is_passed: bool) -> None:
        """Record whether a step's result passed the check that it was made for, where checks count.

        Without an `agent` it is the one that was chosen for the step.
        """
        if "check" not in self.rules.rewards or run.is_private:
            return
        with self._going_on("a check is not learned"):
            choices = last_attempts(self.outcomes.of_run(run.tenant, run.id))
            here = [each for each in choices if each.step == step or each.step.startswith(f"{step}~")]
            path_to_agent = {each.step: each.kind.partition("/")[2] for each in here if each.kind != AGENT}
            path_to_agent |= {each.step: each.arm for each in here if each.kind == AGENT}
            for path, chosen in (path_to_agent or {step: ""}).items():
                self._reward(run, path, agent or chosen, float(is_passed), "check")

    def ended(self, context: Context, totals: Totals) -> None:
        """Record what an agent took, for what was chosen for it."""
        run, kinds = context.run, [f"{PROMPT}/{context.agent}"]
        if run.is_private:
            return
        with self._going_on("what a step took is not learned"):
            kinds += [] if context.parent else [BACKEND]
            self.outcomes.measured(run.tenant, run.id, context.step, kinds, totals)

    def _reward(self, run: Run, step: str, agent: str, reward: float, source: Source) -> None:
        if run.is_private:
            return
        of_run = {f"{PROMPT}/{agent}", *([] if source == "failure" else [BACKEND])}
        with self._going_on("an outcome is not learned"):
            for choice in last_attempts(self.outcomes.of_run(run.tenant, run.id)):
                is_own = choice.kind == f"{STRATEGY}/{agent}" or (choice.kind == AGENT and choice.arm == agent)
                if choice.kind in of_run or (choice.step == step and is_own):
                    self.outcomes.reward(choice, reward, source)

    @contextmanager
    def _going_on(self, what: str) -> Generator[None]:
        try:
            yield
        except RequestError as error:
            logger.warning("%s: %s", what, error)


def _choice(run: Run, kind: str, step: str, state: str = "") -> Choice:
    return Choice(tenant=run.tenant, kind=kind, run=run.id, step=step, arm="", state=state)


def chosen_before(choices: Sequence[Choice], choice: Choice, agent: str) -> list[str]:
    """Return what a run chose for the same agent before a choice, as `strategy debate`: one option of each kind.

    A kind of which the run has several options is left out: which of them a link is asked for is not known.
    """
    kinds = {f"{PROMPT}/{agent}", BACKEND, *([f"{STRATEGY}/{agent}"] if choice.kind == BACKEND else [])}
    options: dict[str, set[str]] = {}
    for each in choices:
        if each.kind in kinds - {choice.kind}:
            options.setdefault(each.kind.partition("/")[0], set()).add(each.arm)
    return [f"{kind} {arm}" for kind, (arm, *more) in sorted(options.items()) if not more]


def kinds_after(kind: str, names: Sequence[str]) -> list[str]:
    """Return the kinds of choice that may depend on a kind's, whose options have these names; the first ones first."""
    of, _, agent = kind.partition("/")
    agents = names if of == AGENT else [agent] if agent else []
    prompts = [f"{PROMPT}/{name}" for name in agents if of == AGENT]
    strategies = [f"{STRATEGY}/{name}" for name in agents if of != STRATEGY]
    return [*prompts, *strategies, *([] if of == BACKEND else [BACKEND])]


def last_attempts(choices: Sequence[Choice]) -> list[Choice]:
    """Return the last choice of each kind and step: a result is that one's."""
    return [*{(choice.kind, choice.step): choice for choice in choices}.values()]
