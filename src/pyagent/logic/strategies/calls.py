"""The calls of one strategy: bounded in number and tokens, and planned a round at a time.

A round's calls get their places in order before any of them is made, so that which of them are over the bound does not
depend on which is quicker, and a resumed run decides as it did. A call that fails takes no other with it: its place
has a `Lack`, which says why. What ends the run is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from pyagent.core.errors import (
    AgentError,
    BudgetError,
    NeedsAnswerError,
    PyAgentError,
    ReplayError,
    RequestError,
    StalledError,
)
from pyagent.core.fleet.agent import Task, text_of
from pyagent.core.fleet.budget import Budget, Reservation
from pyagent.core.fleet.context import Context
from pyagent.core.messages import JsonObject, Message, SamplingParams, Usage
from pyagent.core.structured_output.wanted import Schema, Wanted
from pyagent.core.token_estimate import estimated_prompt_tokens, estimated_tokens
from pyagent.logic.strategies.chain_of_thought import Thought, thought_of

EndReason = Literal["agreed", "no-faults", "solved", "repeated", "pruned", "rounds", "calls", "budget", "failed"]
_ENDS = (StalledError, NeedsAnswerError, ReplayError)
"""What ends the run. A deadline does where it is this agent's, and not one that it spawned."""


class End(msgspec.Struct, frozen=True):
    """Why a strategy ended, for programs and for people."""

    reason: EndReason
    text: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A call to make: of the model, whose answer may have to follow a `schema`; or of an agent, for `max_tokens`."""

    messages: list[Message]
    sampling: SamplingParams = SamplingParams()
    schema: Schema | None = None
    agent: str = ""
    max_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """The most tokens that it may take, about."""
        return (
            self.max_tokens if self.agent else estimated_prompt_tokens(self.messages) + (self.sampling.max_tokens or 0)
        )


class Said(msgspec.Struct, frozen=True):
    """What came of a call: the text, and what was read from it by the schema."""

    text: str
    output: object = None
    is_cut: bool = False

    @property
    def thought(self) -> Thought:
        """The steps and the answer in the text; of an agent's result with an `answer`, that one."""
        thought = thought_of(self.text, is_cut=self.is_cut)
        output = self.output
        told = cast("JsonObject", output).get("answer") if isinstance(output, dict) else getattr(output, "answer", None)
        answer = told.strip() if isinstance(told, str) else ""
        return msgspec.structs.replace(thought, answer=answer or thought.answer)


class Lack(msgspec.Struct, frozen=True):
    """Why a call has no answer."""

    end: End
    error: PyAgentError


class _Misfit(msgspec.Struct, frozen=True):
    """An answer that does not follow its schema, and why."""

    text: str
    fault: str


@dataclass(slots=True)
class Calls:
    """What a strategy may use: `max_calls` of models and agents, and `max_tokens` of prompts and answers together.

    What the agent has left when the strategy begins bounds it too, so that it ends with what it has.
    """

    context: Context
    strategy: str
    max_calls: int
    max_tokens: int | None = None
    num_calls: int = field(default=0, init=False)
    num_held: int = field(default=0, init=False)
    budget: Budget = field(init=False)
    _series: str = field(init=False)

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is a number from 1 on, got {self.max_tokens}", param="max_tokens")
        left = self.context.budget.left_tokens
        if left is not None:
            self.max_tokens = left if self.max_tokens is None else min(left, self.max_tokens)
        self.budget = Budget(f"the strategy {self.strategy}", self.max_tokens)
        self._series = f"{self.strategy} {self.context.scopes.next_call()}"

    @property
    def num_tokens(self) -> int:
        """Tokens used so far."""
        return self.budget.used_tokens

    def report(self, score: float) -> None:
        """Tell the run how good what there is is; each use of a strategy is compared with itself alone."""
        self.context.report(score, series=self._series)

    def affords(self, ask: Ask) -> bool:
        """Return whether the tokens for a call are left."""
        left = self.budget.left_tokens
        return left is None or ask.num_tokens <= left

    def hold(self, ask: Ask, more_tokens: int) -> Reservation:
        """Keep a call for the end, with so many tokens more if there are; `release` gives them back.

        Raises `BudgetError` where there is not even the call.
        """
        left = self.budget.left_tokens
        room = more_tokens if left is None else max(0, min(more_tokens, left - ask.num_tokens))
        try:
            held = self.budget.reserve(ask.num_tokens + room)
        except BudgetError as error:
            raise self._over(ask, error).error from error
        self.num_held += 1
        return held

    def release(self, held: Reservation) -> None:
        """Give back what was kept, to be used now."""
        held.settle(Usage())
        self.num_held -= 1

    async def ask(self, ask: Ask) -> Said | Lack:
        """Return what comes of one call."""
        (said,) = await self.ask_all([ask])
        return said

    async def ask_all(self, asks: Sequence[Ask]) -> list[Said | Lack]:
        """Return what comes of each call, made side by side; answers that do not follow their schema are asked again.

        The first ones are made where not all can be.
        """
        found = await self._round(asks)
        places = [place for place, each in enumerate(found) if isinstance(each, _Misfit)]
        if places:
            again = await self._round([_again(asks[place], found[place]) for place in places])
            found = [*found]
            for place, each in zip(places, again, strict=True):
                found[place] = each
        return [self._misfit(each) if isinstance(each, _Misfit) else each for each in found]

    async def _round(self, asks: Sequence[Ask]) -> list[Said | Lack | _Misfit]:
        return await self.context.map(self._made, [(ask, self._reserved(ask)) for ask in asks])

    def _reserved(self, ask: Ask) -> Reservation | Lack:
        if self.num_calls + self.num_held >= self.max_calls:
            text = f"{self.strategy} makes at most {self.max_calls} calls"
            return Lack(End("calls", text), AgentError(text, agent=self.context.agent))
        try:
            reservation = self.budget.reserve(ask.num_tokens)
        except BudgetError as error:
            return self._over(ask, error)
        self.num_calls += 1
        return reservation

    def _over(self, ask: Ask, error: BudgetError) -> Lack:
        left = self.budget.left_tokens or 0
        text = (
            f"{self.strategy} may use {self.max_tokens:,} tokens here, {left:,} of them are left, and its next call "
            f"may need {ask.num_tokens:,}"
        )
        told = BudgetError(f"{text}; give it more, or ask for less", resource="tokens")
        told.__cause__ = error
        return Lack(End("budget", text), told)

    async def _made(self, granted: tuple[Ask, Reservation | Lack]) -> Said | Lack | _Misfit:
        ask, reservation = granted
        if isinstance(reservation, Lack):
            return reservation
        try:
            said = await (self._agent(ask) if ask.agent else self._model(ask, reservation))
        except PyAgentError as error:
            if isinstance(error, _ENDS) or self.context.deadline.is_past:
                raise
            reservation.settle(Usage() if isinstance(error, BudgetError) else None)
            await self.context.check_open()
            return Lack(End("budget" if isinstance(error, BudgetError) else "failed", str(error)), error)
        reservation.settle(None)
        return said

    async def _agent(self, ask: Ask) -> Said:
        task = Task(text=ask.messages[-1].text)
        output = await self.context.spawn(ask.agent, task, max_tokens=ask.max_tokens or None)
        text = text_of(output)
        if not text.strip():
            raise AgentError(f"{ask.agent} gave an empty answer", agent=ask.agent)
        return Said(text, output)

    async def _model(self, ask: Ask, reservation: Reservation) -> Said | _Misfit:
        wanted, sampling = Wanted(ask.schema), ask.sampling
        if sampling.seed is None:  # one of several answers: marked where it is doubtful, not asked again uncounted
            sampling = msgspec.structs.replace(sampling, seed=0)
        completion = await self.context.answer(ask.messages, wanted.response_format, sampling)
        usage, text = completion.usage, completion.text
        if not usage.total_tokens:  # a backend that does not count
            num_prompt, num_answer = estimated_prompt_tokens(ask.messages), estimated_tokens(text)
            usage = Usage(num_prompt, num_answer, num_prompt + num_answer)
        reservation.settle(usage)
        if ask.schema is None and not text.strip():
            raise AgentError("the model's answer is empty", agent=self.context.agent)
        if ask.schema is None:
            return Said(text, is_cut=completion.is_cut)
        try:
            output = await wanted.read_aside(text, self.context.deadline, self.context.tenant, stop=sampling.stop)
        except ValueError as error:
            return _Misfit(text, str(error))
        return Said(text, output, completion.is_cut)

    def _misfit(self, misfit: _Misfit) -> Lack:
        error = AgentError(
            f"the model's answer to {self.context.agent} does not fit, asked twice: {misfit.fault}",
            agent=self.context.agent,
        )
        return Lack(End("failed", str(error)), error)


def _again(ask: Ask, misfit: Said | Lack | _Misfit) -> Ask:
    """Return the call with its answer and what is wrong with it."""
    if not isinstance(misfit, _Misfit):
        return ask
    hint = f"That does not fit: {misfit.fault}. Answer again, exactly in the form asked for."
    messages = [*ask.messages, Message("assistant", misfit.text), Message("user", hint)]
    return msgspec.structs.replace(ask, messages=messages)
