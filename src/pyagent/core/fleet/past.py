"""What a run did before it was resumed: each result by the call that asked for it, read when it is asked for again.

An agent that had not finished runs again, and its finished calls are answered from here. What it asks has to be what it
asked then: else its code has changed, and its results belong to other questions. A failure that an agent went on after
is part of what happened; one that it ended with is no result, and is tried again.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pyagent.core import errors
from pyagent.core.errors import AgentError, PyAgentError, ReplayError, RequestError
from pyagent.core.fleet.events import (
    AgentDeclined,
    AgentFailed,
    AgentFinished,
    AgentStarted,
    Event,
    FailureTolerated,
    ModelCalled,
    NotesRead,
    NoteTaken,
    OptionChosen,
    QuestionAnswered,
    QuestionAsked,
    RouteChosen,
    RunFailed,
    RunFinished,
    RunResumed,
    StepRetried,
    ToolCalled,
    ToolStarted,
)
from pyagent.core.fleet.journal import Journal, JournalRecord
from pyagent.core.fleet.scopes import call_of_child, levels
from pyagent.core.messages import Message

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

CANCELLED = "cancelled"
_RESULTS = ModelCalled | ToolCalled | ToolStarted | NotesRead | QuestionAnswered | AgentFinished | AgentFailed
_ENDS = RunFinished | RunFailed | RunResumed
_UNLIKE = ("at", "run", "seconds", "totals")
_ENDS_THE_RUN = ("CancelledError", "NeedsAnswerError", "ReplayError", "StalledError")
"""Kinds of failures that no agent goes on after, so that they are tried again wherever the process died."""
_OF_FAULT = ("kind", "message")
_Key = tuple[str, str, str]


@dataclass(slots=True)
class Past:
    """The records of a run by what they answer. A new run has none."""

    journal: Journal | None = None
    run: str = ""
    num_records: int = 0
    num_agents: int = 0
    num_calls: int = 0
    notes: list[NoteTaken] = field(default_factory=list[NoteTaken])
    _asked: dict[_Key, str] = field(default_factory=dict[_Key, str])
    _results: dict[_Key, int] = field(default_factory=dict[_Key, int])
    _attempts: Counter[_Key] = field(default_factory=Counter[_Key])
    _effect_keys: dict[_Key, str] = field(default_factory=dict[_Key, str])
    _answers: dict[_Key, str] = field(default_factory=dict[_Key, str])
    _key_of_question: dict[str, _Key] = field(default_factory=dict[str, _Key])
    _options: dict[_Key, OptionChosen] = field(default_factory=dict[_Key, OptionChosen])
    _routes: dict[str, RouteChosen] = field(default_factory=dict[str, RouteChosen])
    _declined: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict[str, dict[str, str]](dict))
    _agent_of_step: dict[str, str] = field(default_factory=dict[str, str])
    _parent_of_step: dict[str, str] = field(default_factory=dict[str, str])
    _failures: list[_Key] = field(default_factory=list[_Key])
    _handled: set[str] = field(default_factory=set[str])
    _num_begun: dict[_Key, int] = field(default_factory=dict[_Key, int])
    _told: Counter[bytes] = field(default_factory=Counter[bytes])
    unsure_of_tools: list[str] | None = None
    """Where the tools that models were offered are not all known, the calls of models of which only that differs."""

    @classmethod
    def of(cls, journal: Journal, run: str) -> Past:
        """Read what is kept of a run.

        Raises `RequestError` where a record is damaged: what came after it may have had effects.
        """
        past = cls(journal, run)
        for record in journal.replay(run):
            past._add(record)
        if past.num_records < journal.num_records(run):
            text = f"{run} is damaged from record {past.num_records} on; fork it from a step before that"
            raise RequestError(text, param="run", code="damaged")
        return past

    # -- reading it in ------------------------------------------------------------

    def _add(self, record: JournalRecord) -> None:
        event, self.num_records = record.event, record.number + 1
        match event:
            case RouteChosen() | OptionChosen() | AgentDeclined():
                self._add_choice(event)
            case AgentStarted():
                self._add_agent(event)
            case AgentFinished():
                self._results[event.step, event.agent, ""] = record.number
                self.num_agents += 1
            case AgentFailed() if event.kind not in _ENDS_THE_RUN:
                self._keep_failure((event.step, event.agent, ""), record.number)
            case StepRetried() | FailureTolerated():
                self._handled.update(event.failed)
            case RunFailed():
                self._forget_failures()
            case ModelCalled() | ToolCalled() | ToolStarted() | QuestionAsked():
                self._add_call(event, record)
            case NoteTaken() | NotesRead():
                self._add_note(event, record.number)
            case QuestionAnswered() if event.question in self._key_of_question:
                self._answers[self._key_of_question[event.question]] = event.answer
            case _:
                pass
        if not isinstance(event, _RESULTS | _ENDS) or not _is_usable(record):
            self._told[_said(event)] += 1

    def _add_choice(self, event: RouteChosen | OptionChosen | AgentDeclined) -> None:
        if isinstance(event, RouteChosen):
            self._routes[event.step] = event
        elif isinstance(event, OptionChosen):
            self._options[event.step, event.agent, event.kind] = event
        else:
            self._declined[event.step][event.agent] = event.reason

    def _add_note(self, event: NoteTaken | NotesRead, number: int) -> None:
        self._begin((event.step, event.agent, event.call), event.asked)
        if isinstance(event, NoteTaken):
            self.notes.append(event)
        else:
            self._results[event.step, event.agent, event.call] = number

    def _add_agent(self, event: AgentStarted) -> None:
        self._agent_of_step[event.step] = event.agent
        self._asked[event.step, event.agent, ""] = event.asked
        if event.parent is not None:
            self._parent_of_step[event.step] = event.parent
            call = call_of_child(event.step, event.parent, event.agent)
            self._begin((event.parent, self._agent_of_step.get(event.parent, ""), call), f"agent {event.agent}")

    def _add_call(self, event: ModelCalled | ToolCalled | ToolStarted | QuestionAsked, record: JournalRecord) -> None:
        key = (event.step, event.agent, event.call)
        self._begin(key, event.asked)
        if isinstance(event, ToolStarted):
            self._attempts[key] += 1
            self._effect_keys.setdefault(key, event.key)
        elif isinstance(event, QuestionAsked):
            self._key_of_question[event.question.id] = key
        elif event.error != CANCELLED:
            self.num_calls += 1
            if event.error is None:
                self._results[key] = record.number
            else:
                self._keep_failure(key, record.number)

    def _keep_failure(self, key: _Key, number: int) -> None:
        self._results[key] = number
        self._failures.append(key)

    def _forget_failures(self) -> None:
        """Forget the failures that the run ended with, so that they are tried again: no agent went on after them."""
        for key in self._failures:
            if key[0] not in self._handled and not self._went_on(key):
                self._results.pop(key, None)
        self._failures.clear()

    def _begin(self, key: _Key, asked: str) -> None:
        self._asked[key] = asked
        for scope, place in levels(key[2]):
            begun = (*key[:2], scope)
            self._num_begun[begun] = max(place, self._num_begun.get(begun, 0))

    # -- answering ------------------------------------------------------------

    def is_told(self, event: Event) -> bool:
        """Whether an event was told before the run was resumed, so that telling it again would double it."""
        if not self._told:
            return False
        said = _said(event)
        is_told = self._told[said] > 0
        self._told[said] -= is_told
        return is_told

    def check(
        self, context: Context, call: str, what: str, asked: str, messages: Sequence[Message] | None = None
    ) -> None:
        """Raise `ReplayError` when a call asks for something else than it did; `messages` are what a model is told."""
        before = self._asked.get((context.step, context.agent, call), asked)
        if before != asked and not self._differs_in_tools(context, call, messages):
            changed = "the agent's code changed" + (", or the tools that it offers" if messages is not None else "")
            context.run.fatal = ReplayError(
                f"{changed}: call {call or 'to begin'} of {context.agent} in {context.step} asks for "
                f"{what}, and asked for something else before the run was resumed; fork the run before it",
                agent=context.agent,
                step=context.step,
                call=call,
            )
            raise context.run.fatal

    def _differs_in_tools(self, context: Context, call: str, messages: Sequence[Message] | None) -> bool:
        """Note a call of a model that was told the same, where the tools that it was offered are not known."""
        if self.unsure_of_tools is None or messages is None:
            return False
        kept = self.model_call(context, call)
        if kept is None or kept.messages != list(messages):
            return False
        self.unsure_of_tools.append(f"what {context.agent} offered its model in {context.step}")
        return True

    def model_call(self, context: Context, call: str) -> ModelCalled | None:
        """Return what a model answered to this call."""
        event = self._result(context, call)
        return event if isinstance(event, ModelCalled) else None

    def tool_call(self, context: Context, call: str) -> ToolCalled | None:
        """Return what a tool returned for this call."""
        event = self._result(context, call)
        return event if isinstance(event, ToolCalled) else None

    def notes_read(self, context: Context, call: str) -> NotesRead | None:
        """Return the notes that this call read."""
        event = self._result(context, call)
        return event if isinstance(event, NotesRead) else None

    def num_attempts(self, context: Context, call: str) -> int:
        """Return how often a tool with an effect was begun for this call."""
        return self._attempts[context.step, context.agent, call]

    def effect_key(self, context: Context, call: str) -> str:
        """Return the idempotency key that a tool was begun with for this call, perhaps by the run this is a fork of."""
        return self._effect_keys.get((context.step, context.agent, call), "")

    def outcome(self, context: Context) -> AgentFinished | AgentFailed | None:
        """Return how an agent ended; None when it has to run (again)."""
        number = self._results.get((context.step, context.agent, ""))
        event = None if number is None else self._event(number)
        if isinstance(event, AgentFinished):
            return event if event.is_restorable else None
        return event if isinstance(event, AgentFailed) else None

    def answer(self, context: Context, call: str) -> str | None:
        """Return a person's answer to the question of this call."""
        return self._answers.get((context.step, context.agent, call))

    @property
    def open_questions(self) -> list[str]:
        """The ids of the questions that were asked and not answered, in order; what a fork asked anew has its id."""
        newest = {key: question for question, key in self._key_of_question.items()}
        return [question for key, question in newest.items() if key not in self._answers]

    def option(self, step: str, agent: str, kind: str) -> OptionChosen | None:
        """Return what was chosen for an agent: its strategy, or its prompt."""
        return self._options.get((step, agent, kind))

    def prompt(self, agent: str) -> OptionChosen | None:
        """Return the variant of an agent's prompt that the run has, in whichever step it was told."""
        found = (each for each in self._options.values() if each.agent == agent and each.kind == "prompt")
        return next(found, None)

    def route(self, step: str) -> RouteChosen | None:
        """Return which agent the step went to, unless that one declined."""
        route = self._routes.get(step)
        return None if route is None or route.agent in self._declined[step] else route

    def declined(self, step: str) -> dict[str, str]:
        """Return the agents that declined a step's task, with their reasons."""
        return dict(self._declined.get(step, {}))

    def is_handled(self, failed: Collection[str]) -> bool:
        """Return whether the run went on after the failures of these steps, which then are part of what happened."""
        return not self._handled.isdisjoint(failed)

    def _result(self, context: Context, call: str) -> Event | None:
        number = self._results.get((context.step, context.agent, call))
        return None if number is None else self._event(number)

    def _event(self, number: int) -> Event | None:
        record = None if self.journal is None else self.journal.record(self.run, number)
        if record is None:
            return None
        if isinstance(record.event, ToolCalled | AgentFinished) and not _is_usable(record):
            return msgspec.structs.replace(record.event, is_restorable=False)
        return record.event

    def _went_on(self, key: _Key) -> bool:
        """Whether a call was made after this one in the same part of its agent's work or around it; after an agent's
        end, by the agent that spawned it.
        """
        step, agent, call = key
        if not call:
            if (parent := self._parent_of_step.get(step)) is None:
                return False
            call = call_of_child(step, parent, agent)
            step, agent = parent, self._agent_of_step.get(parent, "")
        begun = ((self._num_begun.get((step, agent, scope), 0), place) for scope, place in levels(call))
        return any(last > place for last, place in begun)


def _is_usable(record: JournalRecord) -> bool:
    """Whether a result can be given again as it was; else what gave it has to run again."""
    return record.is_exact and getattr(record.event, "is_restorable", True)


def asked_of(*parts: object) -> str:
    """Return what is equal for calls that ask for the same. Raises `RequestError` for numbers that no journal holds."""
    try:
        said = msgspec.msgpack.encode(parts, enc_hook=lambda value: type(value).__qualname__)
    except OverflowError as error:
        text = "a whole number among the arguments is beyond 64 bits (-2^63 to 2^64 - 1)"
        raise RequestError(text, param="arguments") from error
    return b64encode(blake2b(said, digest_size=6).digest()).decode()


def _said(event: Event) -> bytes:
    fields = [getattr(event, name) for name in event.__struct_fields__ if name not in _UNLIKE]
    said = msgspec.msgpack.encode([type(event).__name__, *fields], enc_hook=lambda value: type(value).__qualname__)
    return blake2b(said, digest_size=8).digest()


def fault_of(error: BaseException) -> dict[str, object]:
    """Return an error as it is kept: its class and words, and its facts as far as they are plain."""
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | bool | None)}
    return {**facts, "kind": type(error).__name__, "message": str(error)}


def restored_error(fault: dict[str, object], text: str, agent: str) -> PyAgentError:
    """Return an error as it was raised; one that is not PyAgent's own as an `AgentError`."""
    kind = cast("object", getattr(errors, str(fault.get("kind", "")), None))
    if not (isinstance(kind, type) and issubclass(kind, PyAgentError)):
        return AgentError(text, agent=agent)
    error = cast("Any", kind).__new__(kind, text)
    error.args = (fault.get("message", text),)
    cast("dict[str, object]", vars(error)).update(
        {name: value for name, value in fault.items() if name not in _OF_FAULT}
    )
    return error


def is_restorable(output: object, kind: object) -> bool:
    """Whether an output comes back from the journal as it was: plain values do, and those of a declared type."""
    if kind not in (object, Any, None):
        return True
    try:
        return msgspec.to_builtins(output) == output
    except (TypeError, ValueError, RecursionError):
        return False


def restored(output: object, kind: object) -> object:
    """Return an output from the journal as its declared type; raises `ValueError` or `TypeError` when it is none."""
    return output if kind in (object, Any, None) else msgspec.convert(output, cast("type[object]", kind))
