"""Checks that the agents' code still does what a run's journal says: it runs again, answered by the journal alone.

No model is asked, no tool is called and no server of tools or agents is: what the code asks for that it did not ask for
then is the first difference. A run that passes can be resumed and forked after a change of the code. What only a server
could say (how it describes its tools now, what an agent elsewhere does) is named as not checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from pyagent.core.capabilities import PLAIN
from pyagent.core.errors import PyAgentError, ReplayError, RequestError
from pyagent.core.fleet.agent import Agent, output_type
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import (
    AgentFailed,
    AgentFinished,
    Event,
    QuestionAsked,
    RunFailed,
    RunFinished,
    RunResumed,
    ToolCalled,
    ToolStarted,
)
from pyagent.core.fleet.journal import Journal, JournalRecord, MemoryJournal
from pyagent.core.fleet.offered_tools import ASK_USER, names_for_models
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.past import Past, restored
from pyagent.core.fleet.people import ALL_TOOLS
from pyagent.core.fleet.tools import Effect, FleetTool
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, JsonObject, ModelInfo

_UNKNOWN_TOOL = {"tool_not_found", "no_such_tools"}
_ENDS = AgentFinished | AgentFailed | RunFinished | RunFailed | RunResumed


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found: the first difference, or none; how many agents ran again, and calls the journal answered.

    `unchecked` says what could not be checked without asking a server.
    """

    run: str
    difference: str = ""
    step: str = ""
    num_agents: int = 0
    num_calls: int = 0
    unchecked: tuple[str, ...] = ()


async def check_replay(fleet: Fleet, run: str) -> ReplayReport:
    """Run a run's code again, with the agents and tools of a fleet, on what the journal has.

    Raises `RequestError` for a run that is unknown, or has not ended by itself.
    """
    row = fleet.journal.summary(run)
    if row is not None and row.state not in {"done", "failed"}:
        text = f"{run} is {row.state}; only a run that is done or failed can be checked"
        raise RequestError(text, param="run", code="not_over")
    records = list(fleet.journal.replay(run))
    known, elsewhere = fleet.known_tools(), _elsewhere(fleet.agents)
    tools = [*(fleet.tools if known is None else known).values()]
    missing = (
        [] if known is not None else _stand_ins(records, {tool.name for tool in tools} | _offered_as(fleet.agents))
    )
    journal, refused = _without_ends(fleet.journal, run, records, elsewhere), list[ReplayError]()
    again = _Again(
        _NoModel(refused),
        fleet.agents.values(),
        [*tools, *missing],
        journal=journal,
        limits=fleet.limits,
        approved_tools=[ALL_TOOLS],
        guardrails=[_NoTool(refused)],
    )
    again.unsure_of_tools = [] if known is None or elsewhere else None  # a card describes its agent
    events, error = await _events_of(again.resume(run))
    error = refused[0] if refused else error  # whatever the agent made of it
    difference, step = _difference([record.event for record in records], events, error, fleet.agents)
    unchecked = _unchecked(missing, again.unsure_of_tools or [], events, elsewhere)
    if known is None and difference and (unknown := _unknown_tool(events)):
        difference, step, unchecked = "", "", (*unchecked, f"all that came after this: {unknown}")
    return ReplayReport(
        run=run,
        difference=difference,
        step=step,
        num_agents=sum(
            isinstance(event, AgentFinished | AgentFailed) and event.agent not in elsewhere for event in events
        ),
        num_calls=sum(event.num_calls for event in events if isinstance(event, RunResumed)),
        unchecked=unchecked,
    )


class _Again(Fleet):
    """A fleet whose resumed run notes where it only cannot know the tools that a model was offered."""

    unsure_of_tools: list[str] | None = None

    def _past(self, run: str) -> Past:
        past = super()._past(run)
        past.unsure_of_tools = self.unsure_of_tools
        return past


def _elsewhere(agents: Mapping[str, Agent]) -> set[str]:
    return {name for name, agent in agents.items() if getattr(agent, "is_elsewhere", False)}


def _offered_as(agents: Mapping[str, Agent]) -> set[str]:
    """Return the names that no tool of a provider may take here: those by which models call agents and people."""
    return {ASK_USER, *(name for agent in agents for name in names_for_models(agent))}


def _stand_ins(records: Sequence[JournalRecord], known: Collection[str]) -> list[FleetTool]:
    """Return tools in place of those that were called and are not here, as their servers are not asked."""
    called = (record.event for record in records if isinstance(record.event, ToolStarted | ToolCalled))
    name_to_effect = dict[str, Effect]()
    for event in called:
        name_to_effect.setdefault(event.tool, "none" if isinstance(event, ToolCalled) else cast("Effect", event.effect))
    return [
        FleetTool(name, "", {"type": "object"}, _never, effect=effect)
        for name, effect in name_to_effect.items()
        if name not in known
    ]


async def _never(_: JsonObject) -> object:
    raise ReplayError("no tool is called while a run is checked", agent="", step="", call="")


def _unchecked(
    missing: Sequence[FleetTool], unsure: Sequence[str], events: Sequence[Event], elsewhere: Collection[str]
) -> tuple[str, ...]:
    """Return what only servers could say."""
    there = {event.agent: None for event in events if isinstance(event, AgentFinished | AgentFailed)}
    return (
        *(f"whether a server has the tool {tool.name} now, and takes these arguments" for tool in missing),
        *dict.fromkeys(unsure),
        *(
            f"what {agent}, an agent elsewhere, would do now: its result is the journal's"
            for agent in there
            if agent in elsewhere
        ),
    )


def _unknown_tool(events: Sequence[Event]) -> str:
    """Return the error of an agent that names a tool of a server that was not asked; empty where none did."""
    failed = (event for event in events if isinstance(event, AgentFailed))
    return next((event.error for event in failed if event.fault.get("code") in _UNKNOWN_TOOL), "")


def _without_ends(
    journal: Journal, run: str, records: list[JournalRecord], elsewhere: Collection[str]
) -> MemoryJournal:
    """Return a journal of the run whose agents have not ended, so that they run again; but for those elsewhere."""
    kept = MemoryJournal()
    kept.open_run(journal.spec(run), name=run)
    left = (record for record in records if not _is_end(record.event, elsewhere))
    for number, record in enumerate(left):
        kept.append(run, msgspec.structs.replace(record, number=number))
    kept.close_run(run)
    return kept


def _is_end(event: Event, elsewhere: Collection[str]) -> bool:
    return isinstance(event, _ENDS) and getattr(event, "agent", None) not in elsewhere


async def _events_of(run: AsyncGenerator[Event, None]) -> tuple[list[Event], Exception | None]:
    events: list[Event] = []
    try:
        async with aclosing(run):
            async for event in run:
                events.append(event)  # noqa: PERF401 - what came before an error counts
    except PyAgentError as error:
        return events, error
    return events, None


def _difference(
    then: list[Event], now: list[Event], error: Exception | None, agents: Mapping[str, Agent]
) -> tuple[str, str]:
    """Return the first difference and its step; empty when there is none."""
    if isinstance(error, ReplayError):
        return str(error), error.step
    asked_then = {event.question.id for event in then if isinstance(event, QuestionAsked)}
    for event in now:
        if isinstance(event, QuestionAsked) and event.question.id not in asked_then:
            return f"{event.agent} asks a person what it did not ask: {event.question.text:.200}", event.step
    outputs = _outputs(then, agents)
    for event in now:
        if isinstance(event, AgentFinished) and event.step in outputs:
            if _plain(event.output) != outputs[event.step]:
                return f"{event.agent} gives another result: {_plain(event.output)!r:.200}", event.step
        elif isinstance(event, AgentFailed) and event.step in outputs:
            return f"{event.agent} fails: {event.error:.400}", event.step
    has_failed = isinstance(then[-1], RunFailed)
    if error is not None and not has_failed:
        return f"the run fails: {error!s:.400}", ""
    return ("the run failed, and would not now", "") if error is None and has_failed else ("", "")


def _outputs(events: list[Event], agents: Mapping[str, Agent]) -> Mapping[str, object]:
    """Return what each step's agent gave, by the step."""
    return {event.step: _given(event, agents) for event in events if isinstance(event, AgentFinished)}


def _given(event: AgentFinished, agents: Mapping[str, Agent]) -> object:
    """Return what an agent gave in its declared type's form: the journal leaves out fields that have their defaults."""
    kind = output_type(agents[event.agent]) if event.agent in agents else object
    try:
        return _plain(restored(event.output, kind))
    except (TypeError, ValueError):  # its type changed
        return _plain(event.output)


def _plain(output: object) -> object:
    return msgspec.to_builtins(output, enc_hook=str)


class _NoTool:
    """A guardrail that is only met by calls that the journal does not answer."""

    name = "replay"

    def __init__(self, refused: list[ReplayError]) -> None:
        self._refused = refused

    async def check_call(self, context: Context, tool: str, arguments: JsonObject | msgspec.Struct) -> str:
        """Refuse: no tool is called."""
        text = f"{context.agent} calls the tool {tool} in {context.step}, which it did not when the run was made"
        self._refused.append(ReplayError(text, agent=context.agent, step=context.step, call=""))
        return "no tool is called while a run is checked"


class _NoModel:
    """A backend that is only asked for what the journal does not answer."""

    name = "replay"
    capabilities = PLAIN

    def __init__(self, refused: list[ReplayError]) -> None:
        self._refused = refused

    async def models(self) -> list[ModelInfo]:
        """None."""
        return []

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Refuse: no model is asked."""
        agent = request.origin.agent
        text = f"{agent} asks a model for an answer that it did not ask for when the run was made"
        self._refused.append(ReplayError(text, agent=agent, step="", call=""))
        for error in self._refused[-1:]:
            raise error
        yield ChatDelta()

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Raise `ReplayError`: no model is asked."""
        raise ReplayError("no model embeds while a run is checked", agent="", step="", call="")

    async def health(self) -> Health:
        """Ready."""
        return Health(is_ready=True)

    async def close(self) -> None:
        """Nothing to close."""
