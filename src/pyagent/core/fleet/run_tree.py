"""A run as a tree: the graph's steps with their items, rounds and tries, and in them their agents (`agent_tree`). Pure.

Made of the graph as it was asked for, or as the planner made it, and of the run's events: what has begun is where its
path says, what has not is there and waits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent_records import RunRecords
from pyagent.core.fleet.agent_tree import AgentTree
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.graph_text import in_order, loop_words
from pyagent.core.fleet.planner import NAME as PLANNER
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.core.fleet.tree_nodes import NodeState, TreeNode

_MARK = re.compile(r"\[\d+\]|[#~]\d+")
_PATH = re.compile(r"(.*?)((?:\[\d+\]|[#~]\d+)*)", re.DOTALL)

_DECISIVE: tuple[NodeState, ...] = ("running", "waiting", "failed", "stopped")
"""States of parts that are the whole's, the first that there is."""


class RunTree(msgspec.Struct, frozen=True, kw_only=True):
    """A run's steps, how often it was resumed, and how it ended."""

    nodes: tuple[TreeNode, ...]
    num_resumed: int = 0
    end: ev.RunFinished | ev.RunFailed | None = None


def run_tree(spec: RunSpec, events: Iterable[ev.Event], *, is_running: bool, now: float) -> RunTree:
    """Return the tree of a run; `now` is in seconds since 1970."""
    records = RunRecords.of(events)
    builder = _Builder(records, is_running, now, AgentTree(records, is_running, now))
    return RunTree(nodes=builder.nodes(spec), num_resumed=builder.records.num_resumed, end=builder.records.end)


@dataclass(slots=True)
class _Builder:
    records: RunRecords
    is_running: bool
    now: float
    agents: AgentTree
    marks: dict[tuple[str, str], dict[int, None]] = field(default_factory=dict[tuple[str, str], dict[int, None]])

    def nodes(self, spec: RunSpec) -> tuple[TreeNode, ...]:
        """Return the steps: those of the plan, where one was made; and what ran without being in either."""
        steps, planner = spec.steps, list[TreeNode]()
        made = None if spec.plan == "off" else self.records.agents.get(PLANNER, {}).get(PLANNER)
        if made is not None:
            planner = [self.agents.node(PLANNER, PLANNER)]
            if not isinstance(made.end, ev.AgentFinished):
                return tuple(planner)  # which steps there will be is not known
            steps = _planned(spec.steps, made.end.output)
        self._index(steps)
        nodes = [*planner, *self._graph(steps, "")]
        tops = [step for step in self.records.agents if "/" not in step and step not in self.agents.shown]
        return (*nodes, *(self.agents.node(step, step) for step in tops))

    def _index(self, steps: Sequence[Step], around: tuple[str, ...] = ()) -> None:
        """Note for each step which items, rounds and tries of it there are, also by the steps in it."""
        names = {step.name: (*around, step.name) for step in steps}
        paths = [*self.records.agents, *self.records.skipped, *self.records.retried, *self.records.loops]
        for step in steps:
            self._index_names(step, names)
        for path in paths:
            name, marks = _split(path)
            for each in names.get(name, ()):
                for place, mark in enumerate(marks):
                    self.marks.setdefault((each + "".join(marks[:place]), mark[0]), {})[int(mark.strip("[]#~"))] = None

    def _index_names(self, step: Step, names: dict[str, tuple[str, ...]]) -> None:
        for inner in step.steps:
            names[inner.name] = (*names[step.name], inner.name)
            self._index_names(inner, names)

    def _numbers(self, path: str, mark: str) -> list[int]:
        return sorted(self.marks.get((path, mark), ()))

    # -- the graph ----------------------------------------------------------------------------------------------------

    def _graph(self, steps: Sequence[Step], marks: str) -> list[TreeNode]:
        """Return the steps of a graph or a group; one that has not begun says which steps it waits for."""
        found: dict[str, TreeNode] = {}
        for step in in_order(steps):
            node = self._step(step, marks)
            if node.state == "pending":
                left = [name for name in step.after if found[name].state in {"pending", "running", "waiting"}]
                names = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
                node = msgspec.structs.replace(node, waits_for=(names or "its turn") if self.is_running else "")
            found[step.name] = node
        return list(found.values())

    def _step(self, step: Step, marks: str) -> TreeNode:
        path = step.name + marks
        if (skipped := self.records.skipped.get(path)) is not None:
            why = f"not so: {skipped.condition}" if skipped.condition else f"{skipped.cause} failed or did not run"
            return TreeNode(kind="step", label=path, state="skipped", agent=step.agent or "", about=why)
        about = " · ".join(loop_words(step))
        if step.for_each is not None and (numbers := self._numbers(path, "[")):
            children = [self._rounds(step, f"{marks}[{number}]") for number in numbers]
            about = f"{len(children)} items" if isinstance(step.for_each, tuple) else f"{len(children)} items · {about}"
            return self._loop(path, about, children, children)
        node = self._rounds(step, marks)
        return node if node.about else msgspec.structs.replace(node, about=about)

    def _rounds(self, step: Step, marks: str) -> TreeNode:
        path = step.name + marks
        if step.repeat is None or not (numbers := self._numbers(path, "#")):
            return self._tries(step, marks)
        children = [self._tries(step, f"{marks}#{number}") for number in numbers]
        ended, about = self.records.loops.get(path), f"{len(children)} of {step.repeat.max} rounds"
        if ended is not None and step.repeat.until:
            about = f"{about}, {'met' if ended.is_met else 'not met'}: {step.repeat.until}"
        return self._loop(path, about, children, children[-1:])

    def _tries(self, step: Step, marks: str) -> TreeNode:
        path = step.name + marks
        if step.retries is None or not (numbers := self._numbers(path, "~")):
            return self._waits_to_retry(path, self._once(step, marks))
        firsts = [] if 1 in numbers else [self._once(step, marks)]
        children = [*firsts, *(self._once(step, f"{marks}~{number}") for number in numbers)]
        children[-1] = self._waits_to_retry(f"{path}~{numbers[-1]}", children[-1])
        if len(children) == 1:
            return children[0]
        node = self._loop(path, f"tried {len(children)} times", children, children[-1:])
        return msgspec.structs.replace(node, num_tries=len(children))

    def _waits_to_retry(self, path: str, node: TreeNode) -> TreeNode:
        """Return a try that failed, and is followed by another after a while, as one that waits."""
        retried = self.records.retried.get(path)
        if retried is None or not self.is_running:
            return node
        return msgspec.structs.replace(node, state="waiting", waits_for=f"its next try, {retried.seconds:.1f} s after")

    def _once(self, step: Step, marks: str) -> TreeNode:
        path = step.name + marks
        if step.steps:
            children = self._graph(step.steps, marks)
            if all(child.state == "pending" for child in children):
                children = [msgspec.structs.replace(child, waits_for="") for child in children]  # the group's is told
            judged = [child for child in children if child.state != "skipped" and not self._is_tolerated(child)]
            return self._loop(path, "", children, judged)
        if path in self.records.agents:
            return self.agents.node(path, path)
        return TreeNode(kind="step", label=path, state=self._left("pending"), agent=step.agent or "")

    def _loop(self, label: str, about: str, children: Sequence[TreeNode], judged: Sequence[TreeNode]) -> TreeNode:
        """Return a node of several parts, in the state of those that decide."""
        starts = [child.started_at for child in children if child.started_at]
        ends = [child.ended_at for child in children]
        states: set[NodeState] = {child.state for child in judged}
        state = _decisive(states)
        if states == {"pending"} or (not states and not starts):
            state = "pending"
        elif "pending" in states and state == "done":
            state = self._left("running")
        last = self.now if state in {"running", "waiting"} else max(ends, default=0.0)
        return TreeNode(
            kind="loop",
            label=label,
            state=state,
            about=about,
            started_at=min(starts, default=0.0),
            ended_at=max(ends, default=0.0),
            seconds=last - min(starts) if starts and last else None,
            tokens=sum(child.tokens for child in children),
            children=tuple(children),
        )

    def _is_tolerated(self, node: TreeNode) -> bool:
        """Whether a step failed and the group went on after that."""
        failed = [child for child in node.children if child.kind in {"step", "loop"} and child.state == "failed"]
        is_handled = node.label in self.records.handled
        return node.state == "failed" and (is_handled or (bool(failed) and all(map(self._is_tolerated, failed))))

    def _left(self, state: NodeState) -> NodeState:
        return state if self.is_running or state == "pending" else "stopped"


def _planned(asked: Sequence[Step], output: object) -> Sequence[Step]:
    """Return the steps of a plan as the journal has it, or those asked for where it has none that can be read."""
    plan = cast("dict[str, object]", output).get("graph") if isinstance(output, dict) else getattr(output, "graph", "")
    try:
        return read_graph(plan, asked[0].task.text, None) if isinstance(plan, str) and plan else asked
    except RequestError:  # of another version
        return asked


def _decisive(states: Collection[NodeState]) -> NodeState:
    for state in _DECISIVE:
        if state in states:
            return state
    return "done"


def _split(path: str) -> tuple[str, list[str]]:
    """Return a path's name and marks: of `fix[2]#1` `fix` and `[2]`, `#1`."""
    name, marks = cast("re.Match[str]", _PATH.fullmatch(path)).groups()
    return name, _MARK.findall(marks)
