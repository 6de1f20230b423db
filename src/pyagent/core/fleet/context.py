"""What an agent is given to work with: a model, tools, other agents, a budget, a deadline, and a way to be seen.

Every call is counted against the budget before it is made, ends with the deadline, is journalled, and takes one of the
run's slots while it is under way (only calls do: an agent that waits for its children holds none, and a stream that is
not being read lends its own, so nesting cannot lock up). Agents never see a backend, a socket or the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyagent.core.errors import AgentError, BackendError, Decline, NeedsAnswerError, RequestError
from pyagent.core.fleet.agent import Task, unknown_name
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.chain_view import ChainView, chain_of
from pyagent.core.fleet.confidence import Confidence, DoubtAct
from pyagent.core.fleet.doubts import doubted, marked, reconsidered
from pyagent.core.fleet.embedding import embedded
from pyagent.core.fleet.events import (
    Progress,
    Question,
    QuestionAnswered,
    QuestionAsked,
    QuestionKind,
    ScoreReported,
    StepFinished,
    TextDelta,
    Totals,
)
from pyagent.core.fleet.learned_options import MAX_SITUATION, learned_strategy
from pyagent.core.fleet.limits import MAX_SECONDS, check_number
from pyagent.core.fleet.memory import Memory, read_notes, take_note
from pyagent.core.fleet.model_call import Completion, ModelCall, TextStream
from pyagent.core.fleet.past import asked_of
from pyagent.core.fleet.people import question_id
from pyagent.core.fleet.questions import DEFAULT_SAMPLING, LastPrompt, Prompt, Questions, as_messages, side_by_side
from pyagent.core.fleet.scopes import Scopes
from pyagent.core.fleet.stability import checked_score
from pyagent.core.fleet.tally import Tally
from pyagent.core.fleet.tool_calls import MAX_ROUNDS, ToolLoop
from pyagent.core.fleet.tool_run import ToolRun
from pyagent.core.fleet.urgency import NOT_URGENT, Rank, Urgency
from pyagent.core.messages import JsonObject, Message, ResponseFormat, SamplingParams
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.structured_output.wanted import Schema, Wanted

if TYPE_CHECKING:
    from pyagent.core.fleet.run import Run
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.webhooks.actions import WebhookAction, WebhookReport

T = TypeVar("T")
R = TypeVar("R")
_PAUSE_SECONDS = 0.05
_SCORING = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)


@dataclass(slots=True)
class Context(Questions):
    """One agent's view of its run. `step` is its place in the run's tree, `agent` its name."""

    run: Run
    agent: str
    step: str
    budget: Budget
    deadline: Deadline
    parent: Context | None = None
    started_at: float = field(default_factory=time.perf_counter)
    scopes: Scopes = field(default_factory=Scopes)
    usage: Tally = field(default_factory=Tally)
    last_prompt: LastPrompt | None = None
    is_over: bool = False
    task: str = ""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    urgency: Urgency = NOT_URGENT
    system_text: str = ""
    """The system prompt of its calls instead of its own, where the run has a variant (`core.learning.prompts`)."""

    # -- the model ----------------------------------------------------------------------------------------------------

    async def complete(  # noqa: PLR0913 - ways to say what is wanted
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        sampling: SamplingParams | None = None,
        tools: Sequence[str] = (),
        max_rounds: int = MAX_ROUNDS,
        schema: Schema | None = None,
        must_call: bool = False,
    ) -> Completion:
        """Return the model's answer with how it ended: `is_cut` when that was at `max_tokens`.

        The model may call the `tools` named: their results are given back to it, and so is what went wrong in a call,
        for at most `max_rounds` answers that hold calls; after these it has to answer. `tool_results` has the calls.
        With `must_call` its first answer has to be a call. With a `schema`, as `generate` takes it, the answer follows
        it, and `output` is the answer read.
        """
        messages, sampling = as_messages(prompt, system), sampling or DEFAULT_SAMPLING
        if tools or schema is not None:
            loop = ToolLoop(self, messages, sampling, max_rounds, Wanted(schema), must_call)
            with self.scopes.within(self.scopes.next_call()):
                return await loop.answer(tools)
        return await self.answer(messages, None, sampling)

    def stream(
        self, prompt: Prompt, *, system: str | None = None, sampling: SamplingParams | None = None
    ) -> TextStream:
        """Return the model's answer piece by piece; the pieces are also shown to those who watch the run.

        After the last piece the stream says by `is_cut` whether the answer ended at `max_tokens`.
        """
        call = ModelCall(self, as_messages(prompt, system), None, sampling or DEFAULT_SAMPLING)
        return TextStream(self._pieces(call), call)

    async def _pieces(self, call: ModelCall) -> AsyncGenerator[str, None]:
        async with aclosing(call.deltas()) as deltas:
            async for delta in deltas:
                if delta.resumed and delta.resumed.kind == "restart":
                    text = f"{delta.resumed.backend} broke off its answer, and pieces of it were read already"
                    raise BackendError(text, backend=delta.resumed.backend)
                if delta.content:
                    self.run.emit(TextDelta(run=self.run.id, step=self.step, agent=self.agent, text=delta.content))
                    yield delta.content
        marked(call)

    async def answer(
        self, messages: list[Message], response_format: ResponseFormat | None, sampling: SamplingParams
    ) -> Completion:
        """Return the model's whole answer to a conversation."""
        call = ModelCall(self, messages, response_format, sampling, whole=True)
        await call.finish()
        return (await reconsidered(call)).completion

    async def likelihood(self, prompt: str) -> float:
        """Return the log probability, in nats, that the model gives the tokens of a plain text after the first.

        Raises `RequestError` where the backend tells none, as most but the embedded engine and vLLM.
        """
        call = ModelCall(self, [Message("user", prompt)], None, _SCORING, whole=True, prompt=prompt)
        await call.finish()
        if call.prompt_logprob is None:
            text = f"{call.backend or self.run.backend.name} tells no log probabilities of a prompt's tokens"
            raise RequestError(text, param="prompt_logprobs", code="no_prompt_logprobs")
        return call.prompt_logprob

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text; raises `RequestError` where no backend of the chain embeds."""
        return await embedded(self, texts)

    @property
    def reconsiders(self) -> bool:
        """Return whether doubtful answers are asked again: an agent that can, reads them whole then."""
        return self.run.limits.confidence.act in {"retry", "escalate"}

    async def doubts(self, agreement: float) -> DoubtAct | None:
        """Say how far several answers to one question agree, from 0 to 1; return what is to be done, if anything."""
        if self.run.learner is not None:
            self.run.learner.voted(self, agreement)
        return doubted(self, Confidence(agreement=agreement))

    async def learned_strategy(self, options: Sequence[str], *, situation: str = "") -> str | None:
        """Return which of several ways to go about a task earned most before, by `learning.policy`.

        None where nothing is learned, or `learning.strategies` names fewer than two of them: the agent takes its own.
        `situation` is what the choice depends on, in a few words that are equal for alike tasks.
        """
        return learned_strategy(self, options, situation[:MAX_SITUATION])

    # -- tools and other agents ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the names of the tools there are."""
        return tuple(self.run.tools)

    def tool(self, name: str) -> FleetTool:
        """Return the tool of that name; raises `RequestError` naming the nearest one there is."""
        if name not in self.run.tools:
            raise unknown_name("tool", name, self.tools)
        return self.run.tools[name]

    async def call_tool(self, name: str, arguments: JsonObject | msgspec.Struct) -> object:
        """Return what a tool returns for these arguments; raises `RequestError` when they do not fit it."""
        return await self.run_tool(self.tool(name), arguments)

    async def run_tool(self, tool: FleetTool, arguments: JsonObject | msgspec.Struct) -> object:
        """Return what a tool returns that need not be one of the fleet's. A person allows it first, where needed."""
        return await ToolRun(self, tool, arguments, self.scopes.next_call()).output()

    async def spawn(
        self, agent: str, task: Task | str, *, max_tokens: int | None = None, timeout_seconds: float | None = None
    ) -> object:
        """Return another agent's result. It works within what is left here, or within less (tokens, seconds)."""
        check_number("max_tokens", max_tokens, 0, 10**15, is_whole=True)
        check_number("timeout_seconds", timeout_seconds, 0, MAX_SECONDS)
        call = self.scopes.next_call()
        self.run.past.check(self, call, what := f"agent {agent}", what)
        await self.check_open()
        step = f"{self.step}/{call}.{agent}"
        budget = self.run.agent_budget(step, max_tokens, self.budget)
        deadline = self.run.agent_deadline(self.deadline, timeout_seconds)
        child = Context(self.run, agent, step, budget, deadline, parent=self, urgency=self.urgency)
        with self.run.hints.away(self.session, f"agent {agent}"):
            try:
                task = Task(text=task) if isinstance(task, str) else task
                return await self.run.run_agent(child, self.run.overrides.get(step, task), self.deadline)
            except Decline as error:  # the child's, not this agent's own
                raise RequestError(f"{agent} declines: {error}", param="task", code="declined") from error

    async def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T], *, max_concurrency: int | None = None
    ) -> list[R]:
        """Return `function` of each item, side by side, in their order. The first failure cancels the rest."""
        parts = self.scopes.parts(function)
        return await side_by_side(
            self.agent, parts, enumerate(items), max_concurrency or self.run.limits.max_concurrency
        )

    @property
    def memory(self) -> Memory:
        """Return the notes that the run's agents share, and those that are kept across runs."""
        return Memory(partial(take_note, self), partial(read_notes, self))

    async def chain(self) -> ChainView:
        """Return how the links of the chain stand; raises `RequestError` where that is not this run's to see."""
        return chain_of(self)

    async def webhooks(self, action: WebhookAction) -> WebhookReport:
        """Do something with the webhooks of the run's tenant; raises `RequestError` where there are none."""
        from pyagent.core.webhooks.actions import webhooks_of

        return await webhooks_of(self, action)

    # -- people -------------------------------------------------------------------------------------------------------

    async def ask(self, text: str, *, options: Sequence[str] = (), kind: QuestionKind = "question") -> str:
        """Return what a person answers: one of the `options` if there are any.

        Raises `NeedsAnswerError`, which is to end the run, where no answer can reach it.
        """
        call, asked = self.scopes.next_call(), asked_of("question", text, tuple(options), kind)
        self.run.past.check(self, call, "an answer by a person", asked)
        await self.check_open()
        number = question_id(self.run.id, f"{self.step}:{self.agent}", call)
        question = Question(id=number, kind=kind, text=text, options=tuple(options))
        run, step, agent = self.run.id, self.step, self.agent
        self.run.emit(QuestionAsked(run=run, step=step, agent=agent, question=question, call=call, asked=asked))
        if (answer := self.run.past.answer(self, call)) is not None:
            return answer
        with self.run.hints.away(self.session, "a person"):
            try:
                answer = await self.run.questions.answer_to(question, self.deadline)
            except NeedsAnswerError as error:
                self.run.fatal = error
                raise
        self.run.emit(QuestionAnswered(run=run, step=step, agent=agent, question=number, answer=answer))
        return answer

    # -- saying what it does ------------------------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """Show a line of what is going on."""
        self.run.emit(Progress(run=self.run.id, step=self.step, agent=self.agent, text=text))

    def keep(self, partial: object) -> None:
        """Keep what the agent has so far: a run that fails tells it in `RunFailed.partial`. The last counts."""
        self.run.step_to_partial[self.step] = partial

    def report(self, score: float, *, series: str = "") -> None:
        """Say how good what the agent has is, more being better: a run whose scores stay as they are is ended.

        An agent that does one thing after another names each by a `series`: its scores are compared with no others.
        Raises `StalledError` when it has stalled before, `RequestError` for what is no finite number.
        """
        self.run.check_goes_on()
        checked = checked_score(score)
        event = ScoreReported(run=self.run.id, step=self.step, agent=self.agent, score=checked, series=series)
        self.run.emit(event)

    def phase_ended(self, name: str, seconds: float, error: str | None) -> None:
        """Show that a part of the work is over; an agent elsewhere has timed its own."""
        ended = StepFinished(run=self.run.id, step=self.step, agent=self.agent, name=name, seconds=seconds, error=error)
        self.run.emit(ended)

    async def check_open(self) -> None:
        """Raise `AgentError` when the agent goes on after its end, which its deadline or the run's end was.

        What ends the run is raised again, for agents that go on after it.
        """
        self.run.check_goes_on()
        if self.is_over or self.run.is_over:
            await asyncio.sleep(_PAUSE_SECONDS)  # it may ask again and again, and the event loop is everybody's
            raise AgentError(f"{self.agent} goes on after its end", agent=self.agent)

    @property
    def tenant(self) -> str:
        """Return whose run it is."""
        return self.run.tenant

    @property
    def rank(self) -> Rank:
        """Return its calls' place in the queue for the run's slots."""
        return self.urgency.rank(self.deadline)

    @property
    def session(self) -> str:
        """Return the name of its conversation with the model."""
        return f"{self.run.id}/{self.step}:{self.agent}"

    @property
    def depth(self) -> int:
        """Return how many agents this one was spawned through."""
        return 0 if self.parent is None else self.parent.depth + 1

    def totals(self) -> Totals:
        """Return what this agent and those it spawned used so far."""
        return self.usage.totals(time.perf_counter() - self.started_at)
