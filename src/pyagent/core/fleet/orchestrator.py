"""The fleet: takes a task, finds the agents, runs the steps in order and side by side, and gives one result.

A run is a graph of steps; a plain task is a graph of one. Everything a run starts ends with it: closing the iterator of
`run`, cancelling the task that reads it, or leaving the fleet cancels every agent, call and tool of the run. Where
agents, backend and journal come from is `pyagent.fleet`'s business.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, cast

import msgspec

from pyagent.core.backends import Backend, pass_hint
from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Agent, Task, needs, unknown_name
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.containment import close_all, contain_tasks
from pyagent.core.fleet.events import (
    AgentStarted,
    Event,
    Question,
    RouteChosen,
    RunFinished,
    RunResumed,
    RunStarted,
)
from pyagent.core.fleet.executor import Executor, InProcess
from pyagent.core.fleet.file_access import ALL_FILES, FileAccess, grant
from pyagent.core.fleet.graph import Outcome, topological_order
from pyagent.core.fleet.graph_run import GraphRun, Place
from pyagent.core.fleet.guardrails import Guardrail
from pyagent.core.fleet.hints import Durations, RunHints
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.learner import Learner
from pyagent.core.fleet.limits import MAX_PRIORITY, MAX_SECONDS, FleetLimits, RunBudget, check_budget, check_number
from pyagent.core.fleet.past import Past
from pyagent.core.fleet.planner import Planning, planning_of
from pyagent.core.fleet.routed_step import Means
from pyagent.core.fleet.run import Run
from pyagent.core.fleet.run_end import failed, result_of_run
from pyagent.core.fleet.run_stats import RunStats
from pyagent.core.fleet.scores import Scores
from pyagent.core.fleet.slots import Slots
from pyagent.core.fleet.steps import RunSpec, Step, as_steps, check_agents, forked
from pyagent.core.fleet.tool_providers import OpenTools, ToolProvider
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.fleet.tracing import NoTracer, Tracer
from pyagent.core.fleet.turns import Turns
from pyagent.core.fleet.urgency import Urgency
from pyagent.core.fleet.watchdog import Watchdog
from pyagent.core.messages import Hint
from pyagent.core.resilience.deadline import Deadline

logger = logging.getLogger(__name__)
_CANCEL_POLL_SECONDS = 0.25

Named = TypeVar("Named", Agent, FleetTool, ToolProvider)


class Fleet:
    """Agents that share a backend, tools, a journal and limits. Use it with `async with`.

    The first run opens the tool providers, and waits until each has brought its tools, failed, or taken ten seconds.
    """

    def __init__(  # noqa: PLR0913 - each is another thing the agents share
        self,
        backend: Backend,
        agents: Iterable[Agent],
        tools: Iterable[FleetTool] = (),
        *,
        tool_providers: Iterable[ToolProvider] = (),
        journal: Journal | None = None,
        limits: FleetLimits | None = None,
        tracer: Tracer | None = None,
        executor: Executor | None = None,
        approved_tools: Iterable[str] = (),
        guardrails: Iterable[Guardrail] = (),
    ) -> None:
        """`approved_tools` need no approval by a person; `*` is all.

        Raises `RequestError` for two of one name, and for agents that need each other in a circle."""
        self.backend = backend
        self.agents: dict[str, Agent] = _by_name("agents", agents)
        providers = _by_name("tool providers", tool_providers)
        self.tools: dict[str, FleetTool] = _by_name("tools", tools)
        self._tools = OpenTools(self.tools, providers.values())
        self.journal: Journal = journal or MemoryJournal()
        self.limits = limits or FleetLimits()
        self._tracer = tracer or NoTracer()
        self.executor: Executor = executor or InProcess()
        self._approved_tools = frozenset(approved_tools)
        self._guardrails = tuple(guardrails)
        limits = self.limits
        self._budget = Budget("the fleet", limits.fleet_tokens, None, limits.fleet_usd, "budget.fleet")
        self._deadline: Deadline | None = None
        self._durations = Durations()
        self._scores = Scores(self.agents)
        self.learner: Learner | None = None
        self._start_order = start_order(self.agents)
        self._run_slots = Slots(limits.max_runs or sys.maxsize)
        self._jobs: set[asyncio.Task[object]] = set()
        self._runs: dict[str, Run] = {}
        self.stats = RunStats()
        self._turns = Turns(limits.rates, self.journal.rates, self.stats.rates)
        self._watchdog = Watchdog()
        self._canceller: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what still runs, then let the agents release what they hold: those that need others first.

        The tool providers are closed after the agents, which may use their tools to the end.
        What fails to close, or takes too long, is named in a warning; the rest is closed all the same.
        """
        self._is_closed = True
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await close_all({"the executor": self.executor.close})
        closers = {name: getattr(self.agents[name], "close", None) for name in reversed(self._start_order)}
        await close_all({f"the agent {name}": close for name, close in closers.items() if callable(close)})
        await self._tools.close()
        await close_all({"the tracer": self._tracer.close})

    async def run(  # noqa: PLR0913 - each says another thing of the run
        self,
        task: str | Task | Sequence[Step],
        *,
        files: Sequence[str] = (),
        agent: str | None = None,
        timeout_seconds: float | None = None,
        is_private: bool = False,
        client: str = "",
        tenant: str = "",
        file_access: FileAccess = ALL_FILES,
        waits_for_answers: bool | None = None,
        run_id: str | None = None,
        priority: int = 0,
        request_class: str = "",
        plan: bool | Planning | None = None,
        budget: RunBudget | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a task, or a graph of steps, for a client of a tenant (`Origin`); yields what happens.

        With `waits_for_answers` a question to a person (`QuestionAsked`) waits for `answer`; None is as the limits say.
        A `run_id` that was chosen has to be new. Where more runs want to go on than may (`fleet.max_runs`), the lowest
        `priority` is first, then the earliest deadline; its requests to models have both, and the request class. With
        `plan` a model first makes a graph of agents; `ask` shows it to a person before; None is as the limits say.
        A `budget` is the run's own, within the limits.

        The last event is `RunFinished` with the result, or `RunFailed` with what was done, after which its error is
        raised.
        """
        self._check_open()
        check_number("timeout_seconds", timeout_seconds, 0, MAX_SECONDS)
        check_number("priority", priority, -MAX_PRIORITY, MAX_PRIORITY, is_whole=True)
        spec = RunSpec.of(as_steps(task, tuple(files), agent), timeout_seconds, client, tenant, file_access)
        spec = msgspec.structs.replace(spec, priority=priority, request_class=request_class)
        spec = msgspec.structs.replace(spec, plan=planning_of(plan, self.limits.plan, spec.steps))
        check_budget(budget)
        spec = spec if budget is None else msgspec.structs.replace(spec, budget=budget)
        spec = msgspec.structs.replace(spec, offers_questions=self._waits(waits_for_answers))
        check_agents(spec.steps, list(self.agents))
        run_id = self.journal.open_run(spec, is_private=is_private, name=run_id)
        async with aclosing(
            self._watched(run_id, spec, Past(), waits_for_answers=waits_for_answers, is_private=is_private)
        ) as events:
            async for event in events:
                yield event

    async def resume(
        self, run: str, *, answers: Mapping[str, str] | None = None, waits_for_answers: bool | None = None
    ) -> AsyncGenerator[Event, None]:
        """Go on with a run that has not finished: its agents run again, and their finished calls are not made again.

        `answers` are given to its open questions, by their ids. Yields what happens, as `run` does. Raises
        `RequestError` for a run that is unknown, done or still running, and `ReplayError` where an agent asks for
        something else than it did.
        """
        self._check_open()
        spec = self.journal.spec(run)
        row = self.journal.summary(run)
        if row is None or row.state not in {"done", "running"}:  # else it is not resumed, and told why
            self._check_agents(spec)
        self.journal.reopen(run)
        past = self._past(run)
        async with aclosing(
            self._watched(run, spec, past, waits_for_answers=waits_for_answers, answers=answers)
        ) as events:
            async for event in events:
                yield event

    async def fork(
        self,
        run: str,
        step: str,
        task: Task | str | None = None,
        *,
        waits_for_answers: bool | None = None,
        run_id: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a run's beginning no more, and what came from a step on again, with another task for it if one is given.

        The new run has the records of the old one before the step began. A `run_id` that was chosen for it has to be
        new. Raises `RequestError` for a step that the run has not.
        """
        self._check_open()
        spec, before = forked(self.journal.spec(run), run, step, task), _beginning_of(self.journal, run, step)
        self._check_agents(spec)
        fork = self.journal.fork(run, spec, before, run_id)
        past = self._past(fork)
        async with aclosing(self._watched(fork, spec, past, waits_for_answers=waits_for_answers)) as events:
            async for event in events:
                yield event

    def _check_agents(self, spec: RunSpec) -> None:
        """Raise `RequestError` for a run whose agents are not here, before anything of it is changed."""
        try:
            check_agents(spec.steps, list(self.agents))
        except RequestError as error:
            text = f"{error}; a run with agents of a program's own goes on in that program, by Fleet.resume"
            raise RequestError(text, param=error.param, code=error.code) from error

    def _past(self, run: str) -> Past:
        """Return what a run that was opened did before; one that cannot be read is closed again."""
        try:
            return Past.of(self.journal, run)
        except BaseException:
            self.journal.close_run(run)
            raise

    async def _watched(  # noqa: PLR0913 - what a new run, a resumed one and a fork differ in
        self,
        run_id: str,
        spec: RunSpec,
        past: Past,
        *,
        waits_for_answers: bool | None,
        is_private: bool = False,
        answers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Execute a run that the journal has open; yield its events, and raise its error after the last."""
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        run = self._open(run_id, events.put_nowait, spec, past, is_private=is_private)
        run.questions.waits = self._waits(waits_for_answers)
        run.questions.offered = run.questions.waits if spec.offers_questions is None else spec.offers_questions
        run.questions.approved.update(self._approved_tools)
        run.questions.given.update(answers or {})
        self._runs[run.id] = run
        self._watchdog.start()
        if self._canceller is None or self._canceller.done():
            self._canceller = asyncio.create_task(self._cancel_asked())
        contain_tasks()
        job = run.job = asyncio.create_task(self._execute(run, spec))
        self._jobs.add(job)
        job.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await asyncio.wait([job])
            if job.cancelled() and run.is_cancelled:
                raise RequestError(f"{run.id} was cancelled", param="run", code="cancelled")
            await job
        finally:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            self._jobs.discard(job)
            self._watchdog.stop()
            run.is_over = True
            del self._runs[run.id]
            await self._stop_cancelling()
            run.hints.end()
            self.journal.close_run(run.id)
            self.stats.run_ended(run, spec)

    def _waits(self, waits_for_answers: bool | None) -> bool:
        return self.limits.waits_for_answers if waits_for_answers is None else waits_for_answers

    async def _cancel_asked(self) -> None:
        """Cancel the runs that somebody asks the journal to, which may be another process, while there are runs."""
        while self._runs:
            await asyncio.sleep(_CANCEL_POLL_SECONDS)
            for name in self.journal.cancelled():
                run = self._runs.get(name)
                if run is not None:
                    run.cancel()

    async def _stop_cancelling(self) -> None:
        """End `_cancel_asked` with the last run."""
        if not self._runs and self._canceller is not None:
            self._canceller.cancel()
            await asyncio.gather(self._canceller, return_exceptions=True)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("the fleet is closed; make another one", param="task", code="closed")

    def known_tools(self) -> Mapping[str, FleetTool] | None:
        """Return the tools, those of providers too, as far as nothing has to be opened for it; else None."""
        return self._tools.known()

    @property
    def num_running(self) -> int:
        """How many runs are under way."""
        return len(self._runs)

    def under_way(self, run: str) -> Run | None:
        """Return a run of this fleet that is under way; None when it is over, or of another process."""
        return self._runs.get(run)

    def cancel(self, run: str) -> None:
        """End a run; one of another process within a second. Raises `RequestError` for one that is unknown or over."""
        if (here := self._runs.get(run)) is None:
            self.journal.cancel(run)
        else:
            here.cancel()

    def questions(self, run: str) -> list[Question]:
        """Return the questions of a run that wait for an answer; none of a run that is over."""
        return self._runs[run].questions.open if run in self._runs else []

    def answer(self, run: str, question: str, answer: str) -> None:
        """Answer a question of a run under way, by the ids in its `QuestionAsked`.

        Raises `RequestError` for a run or question that is not waiting, and for an answer that is none of its options.
        """
        if run not in self._runs:
            raise unknown_name("run", run, list(self._runs))
        self._runs[run].questions.answer(question, answer)

    async def run_agent(  # noqa: PLR0913 - as of `run`
        self,
        name: str,
        task: str | Task,
        *,
        files: Sequence[str] = (),
        timeout_seconds: float | None = None,
        is_private: bool = False,
        budget: RunBudget | None = None,
    ) -> object:
        """Return one agent's result for one task."""
        if not isinstance(cast("object", task), str | Task):
            raise RequestError(f"{name} takes one task, a text or a Task, got {type(task).__name__}", param="task")
        run = self.run(
            task, files=files, agent=name, timeout_seconds=timeout_seconds, is_private=is_private, budget=budget
        )
        async with aclosing(run) as events:
            async for event in events:
                if isinstance(event, RunFinished):
                    return event.output
        raise AgentError(f"the run of {name} ended without a result", agent=name)

    def _open(
        self,
        run_id: str,
        listener: Callable[[Event], None],
        spec: RunSpec,
        past: Past,
        *,
        is_private: bool,
    ) -> Run:
        limits = self.limits
        given = (spec.timeout_seconds, spec.budget.seconds, limits.run_seconds)
        times = [seconds for seconds in given if seconds is not None]
        if self._deadline is None:
            self._deadline = Deadline.after(limits.fleet_seconds)
        deadline = self._deadline.sooner(min(times)) if times else self._deadline
        return Run(
            id=run_id,
            backend=self.backend,
            agents=self.agents,
            journal=self.journal,
            budget=Budget(f"run {run_id}", limits.run_tokens, self._budget, limits.run_usd),
            deadline=deadline,
            limits=limits,
            guardrails=self._guardrails,
            executor=self.executor,
            tracer=self._tracer,
            listener=listener,
            hints=RunHints(run_id, partial(self._hint, is_private=is_private), self._durations, spec.tenant),
            client=spec.client,
            tenant=spec.tenant,
            is_private=is_private,
            past=past,
            overrides=spec.overrides,
            turns=self._turns,
            stats=self.stats,
            learner=self.learner,
        )

    def _hint(self, hint: Hint, *, is_private: bool) -> None:
        pass_hint(self.backend, msgspec.structs.replace(hint, private=is_private) if is_private else hint)

    async def _execute(self, run: Run, spec: RunSpec) -> object:
        with run.span("invoke_workflow", {"gen_ai.operation.name": "invoke_workflow", "pyagent.run": run.id}):
            return await self._run_steps(run, spec)

    async def _run_steps(self, run: Run, spec: RunSpec) -> object:
        grant(spec.file_access)
        steps = spec.steps
        name_to_step = {step.name: step for step in steps}
        titles = [step.task.title if len(steps) == 1 else f"{step.name}: {step.task.title}" for step in steps]
        files = tuple(dict.fromkeys(file for step in steps for file in step.task.files))
        names = () if len(steps) == 1 else tuple(name_to_step)
        run.emit(RunStarted(run=run.id, task="; ".join(titles), files=files, steps=names))
        if run.past.num_records:
            kept = run.past
            run.emit(RunResumed(run=run.id, num_agents=kept.num_agents, num_calls=kept.num_calls))
        outcomes: dict[str, Outcome[object]] = {}
        run.agents, graph = self.agents, GraphRun(run, self._scores)  # both are replaced at once
        try:
            urgency = Urgency(spec.priority, spec.request_class)
            async with self._run_slots.slot(urgency.rank(run.deadline), run.deadline, spec.tenant) as slot:
                run.questions.slot = slot
                run.tools = await self._tools.get(run.deadline)
                own = Budget(f"run {run.id}", spec.budget.tokens, run.budget, spec.budget.usd, "budget")
                place = Place(Means(own, run.deadline, urgency))
                steps = spec.steps if spec.plan == "off" else await graph.planned(spec, place)
                await graph.steps(steps, place, outcomes)
            result = result_of_run(run, steps, outcomes)
        except (Exception, asyncio.CancelledError) as error:
            run.finish(failed(run, error, outcomes, graph.outputs))
            raise
        run.finish(RunFinished(run=run.id, output=result, totals=run.totals()))
        return result


def _beginning_of(journal: Journal, run: str, step: str) -> int:
    """Return the number of the record with which a step began."""
    steps: dict[str, None] = {}
    for record in journal.replay(run):
        if isinstance(record.event, RouteChosen | AgentStarted):
            steps[record.event.step] = None
            if record.event.step == step:
                return record.number
    raise unknown_name("step", step, list(steps))


def _by_name(what: str, things: Iterable[Named]) -> dict[str, Named]:
    named: dict[str, Named] = {}
    for thing in things:
        if thing.name in named:
            raise RequestError(f"two {what} are called {thing.name!r}; give each a name of its own", param=what)
        named[thing.name] = thing
    return named


def start_order(agents: Mapping[str, Agent]) -> list[str]:
    """Return the agents' names, each after those it needs; raises `RequestError` for a circle."""
    known = {name: [needed for needed in needs(agent) if needed in agents] for name, agent in agents.items()}
    return topological_order(known)
