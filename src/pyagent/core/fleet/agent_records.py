"""What each agent of a run did, gathered from the run's events: its calls, how it ended, what it waits for. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from pyagent.core.fleet import events as ev
from pyagent.core.fleet.past import CANCELLED
from pyagent.core.fleet.tree_nodes import TreeNode, TreeNote

_PART = re.compile(r"\d+|\D+")
_Told = (
    ev.Progress
    | ev.AnswerDoubted
    | ev.HistoryCompacted
    | ev.ToolResultFlagged
    | ev.ScoreReported
    | ev.StepFinished
    | ev.RateLimited
    | ev.RouteChosen
    | ev.OptionChosen
)
_Kept = ev.ModelCalled | ev.ToolStarted | ev.ToolCalled | ev.NoteTaken | ev.NotesRead
_Ended = ev.AgentFinished | ev.AgentFailed | ev.AgentDeclined
_WAITS = {"NeedsAnswerError", "CancelledError"}


@dataclass(slots=True)
class AgentRecord:
    """One agent at one step. `calls` are its calls by their numbers; a call that was made again is the later one."""

    step: str
    agent: str
    task: str = ""
    parent: str | None = None
    started_at: float = 0.0
    last_at: float = 0.0
    end: _Ended | None = None
    calls: dict[str, TreeNode] = field(default_factory=dict[str, TreeNode])
    notes: list[TreeNote] = field(default_factory=list[TreeNote])
    questions: dict[str, ev.Question] = field(default_factory=dict[str, ev.Question])
    turn: str = ""
    progress: str = ""
    score: str = ""
    num_answers: int = 0

    def take(self, event: _Kept | _Told | ev.QuestionAsked | ev.QuestionAnswered) -> None:
        """Take in what the agent did."""
        self.turn, self.last_at = "", event.at
        match event:
            case ev.ModelCalled():
                self._add(event.call, _model_node(event))
            case ev.ToolStarted():
                about, tries = one_line(event.arguments), event.attempt
                node = TreeNode(kind="tool", label=event.tool, state="running", about=about, num_tries=tries)
                self.calls[event.call] = msgspec.structs.replace(node, started_at=event.at)
            case ev.ToolCalled():
                self._add(event.call, _tool_node(event))
            case ev.NoteTaken() | ev.NotesRead():
                about = event.text if isinstance(event, ev.NoteTaken) else f"{len(event.notes)} read"
                label = "notes" if isinstance(event, ev.NoteTaken) else "recalls"
                self._add(event.call, _call("part", label, event.at, 0.0, about=about))
            case ev.QuestionAsked():
                self.questions[event.question.id] = event.question
            case ev.QuestionAnswered():
                asked = self.questions.pop(event.question, None)
                text = f"asked: {asked.text if asked else event.question}"
                self.notes.append(TreeNote("answered", f"{one_line(text)[:300]} - told: {event.answer}"))
            case _:
                self._take_note(event)

    def _take_note(self, event: _Told) -> None:
        match event:
            case ev.Progress():
                self.progress = event.text
            case ev.RateLimited():
                self.turn = f"its turn: {event.what} has the rate {event.rate}, about {event.seconds:.1f} s"
            case ev.RouteChosen():
                sure = "" if event.score is None else f" {event.score:.2g}"
                if event.how not in {"named", "only"}:
                    self.notes.append(TreeNote("route", f"chosen by {event.how}{sure}: {event.reason}"))
            case ev.OptionChosen():
                self.notes.append(TreeNote(event.kind, f"{event.kind} {event.option}: {event.reason}"))
            case ev.AnswerDoubted():
                self.notes.append(TreeNote("doubt", f"not sure: {event.reason}"))
            case ev.ScoreReported():
                self.score = f"score {event.score:g}"
            case ev.HistoryCompacted():
                self.notes.append(TreeNote("compacted", event.line))
            case ev.ToolResultFlagged():
                quotes = "; ".join(f'"{one_line(quote)}"' for quote in event.quotes)
                self.notes.append(TreeNote("flagged", f"{event.line}{f': {quotes}' if quotes else ''}"))
            case ev.StepFinished():
                self.num_answers += 1
                node = _call("part", event.name, event.at, event.seconds, error=event.error)
                self.calls[f"~{self.num_answers}"] = node

    def _add(self, call: str, node: TreeNode) -> None:
        """Keep a call; one by that number before it was a try of the same."""
        before = self.calls.get(call)
        if before is not None and call and before.state != "running":
            node = msgspec.structs.replace(
                node,
                num_tries=before.num_tries + 1,
                tokens=node.tokens + before.tokens,
                notes=before.notes + node.notes,
            )
        elif before is not None:
            node = msgspec.structs.replace(node, num_tries=before.num_tries)
        if not call:  # of a journal from elsewhere
            self.num_answers += 1
            call = f"~{self.num_answers}"
        self.calls[call] = node


@dataclass(slots=True)
class RunRecords:
    """A run's events by what they are about: agents by their steps, and what the graph decided."""

    agents: dict[str, dict[str, AgentRecord]] = field(default_factory=dict[str, dict[str, AgentRecord]])
    children: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    skipped: dict[str, ev.StepSkipped] = field(default_factory=dict[str, ev.StepSkipped])
    retried: dict[str, ev.StepRetried] = field(default_factory=dict[str, ev.StepRetried])
    loops: dict[str, ev.LoopEnded] = field(default_factory=dict[str, ev.LoopEnded])
    handled: set[str] = field(default_factory=set[str])
    num_resumed: int = 0
    end: ev.RunFinished | ev.RunFailed | None = None

    @classmethod
    def of(cls, events: Iterable[ev.Event]) -> RunRecords:
        """Return what a run's events tell, in the order they came."""
        records = cls()
        for event in events:
            records.take(event)
        return records

    def take(self, event: ev.Event) -> None:
        """Take in what happened."""
        match event:
            case ev.AgentStarted():
                self._begin(event)
            case ev.AgentFinished() | ev.AgentFailed() | ev.AgentDeclined():
                record = self._record(event.step, event.agent)
                record.end, record.last_at = event, event.at
            case ev.StepSkipped():
                self.skipped[event.step] = event
            case ev.StepRetried():
                self.retried[event.step] = event
                self.handled.update(event.failed)
            case ev.FailureTolerated():
                self.handled.update(event.failed)
            case ev.LoopEnded():
                self.loops[event.step] = event
            case ev.RunResumed():
                self._resume()
            case ev.RunFinished() | ev.RunFailed():
                self.end = event
            case ev.RunStarted() | ev.TextDelta():
                pass
            case _:
                self._record(event.step, event.agent).take(event)

    def _begin(self, event: ev.AgentStarted) -> None:
        record = self._record(event.step, event.agent)
        if event.parent is not None and event.step.startswith(f"{event.parent}/") and not record.started_at:
            self.children[event.parent].append(event.step)
        record.task, record.parent, record.end = event.task, event.parent, None
        record.started_at = record.started_at or event.at

    def _resume(self) -> None:
        """What ended the run before runs again: its agents are told of again only when they end."""
        self.num_resumed, self.end = self.num_resumed + 1, None
        for step, named in self.agents.items():
            for record in named.values():
                is_again = "/" not in step and step not in self.handled
                if isinstance(record.end, ev.AgentFailed) and (is_again or record.end.kind in _WAITS):
                    record.end = None

    def _record(self, step: str, agent: str) -> AgentRecord:
        named = self.agents.setdefault(step, {})
        return named.setdefault(agent, AgentRecord(step, agent))


def call_key(call: str) -> list[tuple[int, int, str]]:
    """Return what puts calls in the order of their numbers: 2 before 10, `4[0].1` before `4[1].1`."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in _PART.findall(call)]


def one_line(value: object) -> str:
    """Return a value on one line: a text as it is, all else as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return " ".join(text.split())


def _call(  # noqa: PLR0913 - what there is to tell of a call
    kind: str,
    label: str,
    ended_at: float,
    seconds: float,
    *,
    about: str = "",
    error: str | None = None,
    tokens: int = 0,
) -> TreeNode:
    return TreeNode(
        kind="model" if kind == "model" else "tool" if kind == "tool" else "part",
        label=label,
        state="done" if error is None else "stopped" if error == CANCELLED else "failed",
        about=about,
        started_at=ended_at - seconds,
        ended_at=ended_at,
        seconds=seconds,
        tokens=tokens,
        notes=() if error in {None, CANCELLED} else (TreeNote("failed", one_line(error or "")),),
    )


def _model_node(event: ev.ModelCalled) -> TreeNode:
    usage = event.usage
    about = event.backend if event.model in event.backend else f"{event.backend} {event.model}"
    tokens = usage.prompt_tokens + usage.completion_tokens
    node = _call("model", "model", event.at, event.seconds, about=about, error=event.error, tokens=tokens)
    away = [TreeNote("away", f"{each.backend} did not answer: {one_line(each.reason)}") for each in event.attempts]
    cut = [TreeNote("cut", "the answer was cut at its max_tokens")] if event.finish_reason == "length" else []
    return msgspec.structs.replace(node, notes=(*away, *node.notes, *cut))


def _tool_node(event: ev.ToolCalled) -> TreeNode:
    about = one_line(event.arguments)
    return _call("tool", event.tool, event.at, event.seconds, about=about, error=event.error)
