"""One run: what its agents share, and how an agent is run within it.

Holds the slots, the budget, the deadline, the journal and the listener; numbers the records. Knows nothing of how a
task came to its agent (`router`) or of the order of steps (`graph`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType

from pyagent.core.backends import Backend
from pyagent.core.errors import (
    AgentError,
    BudgetError,
    DeadlineError,
    Decline,
    PyAgentError,
    StalledError,
)
from pyagent.core.fleet.agent import Agent, Task, checked_output, checked_task, output_type, unknown_name
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.containment import GRACE_SECONDS, Call
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import (
    AgentDeclined,
    AgentFailed,
    AgentFinished,
    AgentStarted,
    Event,
    RunFailed,
    RunFinished,
    TextDelta,
    Totals,
)
from pyagent.core.fleet.executor import Executor, InProcess
from pyagent.core.fleet.guardrails import Guardrail, check
from pyagent.core.fleet.hints import RunHints
from pyagent.core.fleet.journal import Journal, JournalRecord
from pyagent.core.fleet.learned_options import take_prompt
from pyagent.core.fleet.learner import Learner, Picked
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.memory import RunNotes
from pyagent.core.fleet.past import Past, asked_of, fault_of, is_restorable, restored, restored_error
from pyagent.core.fleet.people import OpenQuestions
from pyagent.core.fleet.run_stats import RunStats
from pyagent.core.fleet.slots import Slots
from pyagent.core.fleet.stalls import Stalls
from pyagent.core.fleet.tally import Tally
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.fleet.tracing import Attributes, NoTracer, OpenSpan, Tracer
from pyagent.core.fleet.turns import StepTurn, Turns
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.trace_context import trace_headers

NO_PARENT: Mapping[str, str] = MappingProxyType({})
MAX_DEPTH = 16
"""How deep agents may spawn agents."""


@dataclass(slots=True)
class Run:
    """A task given to the fleet, under way."""

    id: str
    backend: Backend
    agents: Mapping[str, Agent]
    journal: Journal
    budget: Budget
    deadline: Deadline
    limits: FleetLimits
    listener: Callable[[Event], None]
    hints: RunHints
    turns: Turns
    stats: RunStats = field(default_factory=RunStats)
    learner: Learner | None = None
    agent_to_prompt: dict[str, Picked | None] = field(default_factory=dict[str, "Picked | None"])
    followers: set[Callable[[Event], None]] = field(default_factory=set[Callable[[Event], None]])
    client: str = ""
    tenant: str = ""
    is_private: bool = False
    executor: Executor = field(default_factory=InProcess)
    tracer: Tracer = field(default_factory=NoTracer)
    tools: Mapping[str, FleetTool] = field(default_factory=dict[str, FleetTool])
    guardrails: Sequence[Guardrail] = ()
    questions: OpenQuestions = field(default_factory=OpenQuestions)
    slots: Slots = field(init=False)
    notes: RunNotes = field(init=False)
    stalls: Stalls = field(init=False)
    usage: Tally = field(default_factory=Tally)
    step_to_partial: dict[str, object] = field(default_factory=dict[str, object])
    past: Past = field(default_factory=Past)
    overrides: Mapping[str, Task] = field(default_factory=dict[str, Task])
    fatal: PyAgentError | None = None
    job: asyncio.Task[object] | None = None
    is_cancelled: bool = False
    num_records: int = 0
    num_agents: int = 0
    agent_names: set[str] = field(default_factory=set[str])
    end: RunFinished | RunFailed | None = None
    is_over: bool = False
    started_at: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.slots = Slots(self.limits.max_concurrency)
        self.notes = RunNotes(self.past.notes)
        self.stalls = Stalls(self.limits.stalls)
        self.num_records = self.past.num_records

    def emit(self, event: Event, *, is_forced: bool = False) -> None:
        """Journal an event and show it to the listener; a run that is over is silent.

        Pieces of text, and what was told before the run was resumed, are only shown. A forced event is on the disk when
        this returns.
        """
        if self.is_over:
            return
        if not isinstance(event, TextDelta) and not self.past.is_told(event):
            self.journal.append(self.id, JournalRecord(self.num_records, event), is_forced=is_forced)
            self.num_records += 1
            self.stalls.add(event)
        self.listener(event)
        for follower in self.followers:
            follower(event)

    def finish(self, end: RunFinished | RunFailed) -> None:
        """Tell how the run ends; one that is over already was left, and has no end."""
        if not self.is_over:
            self.end = end
        self.emit(end)

    def check_goes_on(self) -> None:
        """Raise what ends the run; a run that has stalled ends when it goes on, not with its last call."""
        if self.fatal is None and self.stalls.reason:
            self.fatal = StalledError(f"the run has stalled: {self.stalls.reason}")
        if self.fatal is not None:
            raise self.fatal

    def cancel(self) -> None:
        """End the run as cancelled."""
        if self.job is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.job.cancel()

    def leave(self) -> None:
        """End the run as the death of its process would: it is unfinished, and can be resumed."""
        self.is_over = True
        if self.job is not None:
            self.job.cancel()

    def agent_budget(self, step: str, max_tokens: int | None, around: Budget) -> Budget:
        """Return the budget of an agent: what `budget.agent` and its caller give it, within the budget around it."""
        given = [most for most in (max_tokens, self.limits.agent.tokens) if most is not None]
        return Budget(step, min(given, default=None), around, self.limits.agent.usd, "budget.agent")

    def agent_deadline(self, around: Deadline, timeout_seconds: float | None = None) -> Deadline:
        """Return the deadline of an agent that begins now."""
        given = [seconds for seconds in (timeout_seconds, self.limits.agent.seconds) if seconds is not None]
        return around.sooner(min(given)) if given else around

    def agent(self, name: str) -> Agent:
        """Return the agent of that name; raises `RequestError` naming the nearest one there is."""
        if name not in self.agents:
            raise unknown_name("agent", name, list(self.agents))
        return self.agents[name]

    def totals(self) -> Totals:
        """Return what the run used so far."""
        return self.usage.totals(time.perf_counter() - self.started_at)

    def span(
        self, name: str, attributes: Attributes, parent: Mapping[str, str] = NO_PARENT
    ) -> AbstractContextManager[OpenSpan]:
        """Open a span of this run, which is the conversation that OpenTelemetry groups spans by."""
        return self.tracer.span(name, {**attributes, "gen_ai.conversation.id": self.id}, parent)

    async def run_agent(self, context: Context, task: Task, around: Deadline, turn: StepTurn | None = None) -> object:
        """Return the checked result of the context's agent. What it raises that is not ours becomes an `AgentError`.

        Where it has a rate, or its step has (`turn`), it begins when its turn comes, which has to be before the
        deadline `around` it.
        """
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": context.agent}
        attributes["pyagent.step"] = context.step
        parent: Mapping[str, str] = context.parent.trace if context.parent else {}
        with self.span(f"invoke_agent {context.agent}", attributes, parent):
            context.trace = trace_headers()
            return await self._run_agent(context, task, around, turn)

    async def _run_agent(self, context: Context, task: Task, around: Deadline, turn: StepTurn | None) -> object:
        name, parent = context.agent, context.parent
        agent = self.agent(name)
        task = checked_task(agent, task)
        context.task = task.title
        if parent is not None:
            self._count_agent(context)
        asked, parent_step = asked_of("agent", name, task), parent.step if parent else None
        self.past.check(context, "", f"the task {task.title!r:.80}", asked)
        self.emit(
            AgentStarted(run=self.id, step=context.step, agent=name, task=task.title, parent=parent_step, asked=asked)
        )
        try:
            return self._kept(agent, context)
        except LookupError:  # it has to run
            pass
        try:
            await self._wait_for_turn(context, around, turn)
            if parent is None:  # how a step fails is recorded, whatever it is: steps may go on after that
                self._count_agent(context)
            take_prompt(context)
            await check(self.guardrails, "check_task", context, task)
            output = checked_output(agent, await self._call(agent, context, task))
            await check(self.guardrails, "check_output", context, output)
        except Decline as error:
            totals = context.totals()
            self.emit(AgentDeclined(run=self.id, step=context.step, agent=name, reason=str(error), totals=totals))
            raise
        except Exception as error:
            self._fail(context, error)
            if isinstance(error, PyAgentError):
                raise
            raise AgentError(f"{name} failed: {type(error).__name__}: {error}", agent=name) from error
        except asyncio.CancelledError as error:
            self._fail(context, error)
            raise
        finally:
            context.is_over = True
            self.hints.done(context.session)
            if self.learner is not None:
                self.learner.ended(context, context.totals())
            (parent.usage if parent else self.usage).add(context.usage)
        self.step_to_partial.pop(context.step, None)
        self.emit(
            AgentFinished(
                run=self.id,
                step=context.step,
                agent=name,
                output=output,
                totals=context.totals(),
                is_restorable=is_restorable(output, output_type(agent)),
            )
        )
        return output

    def _kept(self, agent: Agent, context: Context) -> object:
        """Return what the agent gave before the run was resumed, or raise it; `LookupError` when it has to run."""
        outcome = self.past.outcome(context)
        if outcome is None:
            raise LookupError(context.step)
        output: object = None
        if isinstance(outcome, AgentFinished):
            try:
                output = restored(outcome.output, output_type(agent))
            except (TypeError, ValueError) as error:  # its type changed
                raise LookupError(context.step) from error
        context.is_over = True
        self.num_agents += context.parent is None
        context.budget.count(outcome.totals, self.budget)
        (context.parent.usage if context.parent else self.usage).add(outcome.totals)
        self.listener(outcome)
        if isinstance(outcome, AgentFailed):
            raise restored_error(outcome.fault, outcome.error, context.agent)
        return output

    async def _wait_for_turn(self, context: Context, around: Deadline, turn: StepTurn | None) -> None:
        started = time.perf_counter()
        await self.turns.of_agent(context, around, turn)
        waited = time.perf_counter() - started
        context.started_at += waited
        context.deadline = context.deadline.later(waited, around)

    def _count_agent(self, context: Context) -> None:
        """Raise when the run starts agents without end: too deep, too many, or past its deadline."""
        name = context.agent
        if context.depth > MAX_DEPTH:
            raise AgentError(f"{name} is spawned {MAX_DEPTH} agents deep; is it spawning itself?", agent=name)
        if self.num_agents >= self.limits.run_agents:
            most = self.limits.run_agents
            text = f"the run has started {most} agents and may not start {name}; is one spawning without end?"
            raise BudgetError(f"{text} budget.run.agents raises the limit", resource="agents")
        if context.deadline.is_past:
            raise DeadlineError(f"the deadline passed before the agent {name} could start")
        self.num_agents += 1
        self.agent_names.add(name)

    async def _call(self, agent: Agent, context: Context, task: Task) -> object:
        """Return what the agent returns. A spawned agent has less time to end than the one that waits for it."""
        name, share = context.agent, 1 - context.depth / (2 * MAX_DEPTH)
        return await Call(
            what=f"the agent {name}",
            start=lambda: self.executor.run(agent, context, task),
            error_of=lambda text: AgentError(text, agent=name),
            deadline=context.deadline,
            grace_seconds=GRACE_SECONDS * share,
        ).result()

    def _fail(self, context: Context, error: BaseException) -> None:
        kind, text = type(error).__name__, str(error) or "cancelled"
        self.emit(
            AgentFailed(
                run=self.id,
                step=context.step,
                agent=context.agent,
                kind=kind,
                error=text,
                totals=context.totals(),
                fault=fault_of(error),
            )
        )
