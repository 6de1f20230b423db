"""An agent's part of a run's tree: how it stands, what it waits for, and its calls in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent_records import AgentRecord, RunRecords, call_key, one_line
from pyagent.core.fleet.scopes import call_of_child
from pyagent.core.fleet.tree_nodes import NodeState, TreeNode, TreeNote


@dataclass(slots=True)
class AgentTree:
    """Makes the nodes of agents; `shown` has the steps of those that were made."""

    records: RunRecords
    is_running: bool
    now: float
    shown: set[str] = field(default_factory=set[str])

    def node(self, step: str, label: str) -> TreeNode:
        """Return a step's agent, the last that got the task, with what it did; those that declined are notes."""
        self.shown.add(step)
        *before, last = self.records.agents[step].values()
        children = self._calls(step, (*before, last))
        out = [note for each in before for note in _end_notes(each)]
        state, waits_for = self._state(last)
        if state == "running" and any(child.state == "waiting" for child in children):
            state = "waiting"
        totals = None if last.end is None else last.end.totals
        is_over = last.end is not None
        tokens = sum(child.tokens for child in children)
        if totals is not None:
            tokens = max(tokens, totals.prompt_tokens + totals.completion_tokens)
        return TreeNode(
            kind="agent" if "/" in step else "step",
            label=label,
            state=state,
            agent=last.agent,
            about=(last.score if is_over else last.progress) or last.task,
            waits_for=waits_for,
            notes=(*out, *last.notes, *_end_notes(last)),
            started_at=last.started_at,
            ended_at=last.last_at if is_over else 0.0,
            seconds=totals.seconds if totals else self.now - last.started_at if self.is_running else None,
            tokens=tokens,
            children=children,
        )

    def _state(self, record: AgentRecord) -> tuple[NodeState, str]:
        question = next(iter(record.questions.values()), None)
        match record.end:
            case ev.AgentFinished():
                return "done", ""
            case ev.AgentFailed(kind="NeedsAnswerError"):
                return "waiting", _asks(question)
            case ev.AgentFailed(kind="CancelledError"):
                return "stopped", ""
            case ev.AgentFailed() | ev.AgentDeclined():
                return "failed", ""
            case _ if not self.is_running:
                return "stopped", _asks(question)
            case _:
                waits_for = _asks(question) or record.turn
                return ("waiting" if waits_for else "running"), waits_for

    def _calls(self, step: str, records: Sequence[AgentRecord]) -> tuple[TreeNode, ...]:
        """Return what agents did at a step in the order of its numbers: what a tool asked for is below the tool."""
        entries: list[tuple[str, TreeNode]] = []
        for record in records:
            entries += ((call, self._under_way(node)) for call, node in record.calls.items())
        for child in self.records.children.get(step, ()):
            agent = next(iter(self.records.agents[child]))
            entries.append((call_of_child(child, step, agent), self.node(child, child[len(step) :])))
        entries.sort(key=lambda entry: call_key(entry[0]))
        return _nested(entries)

    def _under_way(self, node: TreeNode) -> TreeNode:
        """Return a tool's call: one without an end is under way, or its run ended before it told how it went."""
        if node.state != "running" or self.is_running:
            return node
        note = TreeNote("unknown", "begun, and not known whether it happened")
        return msgspec.structs.replace(node, state="stopped", notes=(note,))


def _nested(entries: Sequence[tuple[str, TreeNode]]) -> tuple[TreeNode, ...]:
    """Return calls, those whose numbers are below a tool's in that tool."""
    tools = {call for call, node in entries if node.kind == "tool"}
    below: dict[str, list[tuple[str, TreeNode]]] = {}
    tops: list[tuple[str, TreeNode]] = []
    for call, node in entries:
        around = next((each for each in _around(call) if each in tools), None)
        (tops if around is None else below.setdefault(around, [])).append((call, node))
    return tuple(_with_below(call, node, below) for call, node in tops)


def _with_below(call: str, node: TreeNode, below: dict[str, list[tuple[str, TreeNode]]]) -> TreeNode:
    inner = below.pop(call, None) if node.kind == "tool" else None
    if inner is None:
        return node
    children = tuple(_with_below(each, child, below) for each, child in inner)
    state = "waiting" if node.state == "running" and any(child.state == "waiting" for child in children) else node.state
    tokens = node.tokens + sum(child.tokens for child in children)
    return msgspec.structs.replace(node, state=state, tokens=tokens, children=children)


def _around(call: str) -> Iterable[str]:
    """Yield the calls that a call is in, the nearest first: of `4.2[0].1` `4.2[0]`, `4.2`, `4`."""
    while True:
        before, found, _ = call.rpartition("[" if call.endswith("]") else ".")
        if not found:
            return
        call = before
        yield call


def _end_notes(record: AgentRecord) -> tuple[TreeNote, ...]:
    match record.end:
        case ev.AgentFailed(kind="NeedsAnswerError" | "CancelledError"):
            return ()
        case ev.AgentFailed():
            return (TreeNote(record.end.kind, f"{record.end.kind}: {one_line(record.end.error)}"),)
        case ev.AgentDeclined():
            return (TreeNote("declined", f"{record.agent} declines: {record.end.reason}"),)
        case _:
            return ()


def _asks(question: ev.Question | None) -> str:
    return "" if question is None else f"an answer: {one_line(question.text)}"
