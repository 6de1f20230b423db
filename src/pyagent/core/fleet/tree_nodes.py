"""What a run's tree is made of: a node for a step, an agent, a call; and like siblings folded into one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

import msgspec

Kind = Literal["step", "loop", "agent", "model", "tool", "part"]
NodeState = Literal["done", "failed", "running", "waiting", "pending", "skipped", "stopped"]
"""`waiting` is begun and waits, `pending` has not begun, `stopped` was left when its run ended."""

_MAX_UNFOLDED = 12
_MIN_ADJACENT = 4
_MAX_NOTES = 3
_NUMBER = re.compile(r"(\d+)")


class TreeNote(msgspec.Struct, frozen=True):
    """Something to know about a node. Nodes are alike when the kinds of their notes are."""

    kind: str
    text: str


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A step, an agent that another spawned, a call of a model or a tool; or `count` like ones, folded.

    `label` is a step's path, of a spawned agent what is added to its parent's. `started_at` and `ended_at` are seconds
    since 1970, 0 where it did not begin. `tokens` are in and out, of all below it.
    """

    kind: Kind
    label: str
    state: NodeState
    agent: str = ""
    about: str = ""
    waits_for: str = ""
    notes: tuple[TreeNote, ...] = ()
    num_tries: int = 1
    started_at: float = 0.0
    ended_at: float = 0.0
    seconds: float | None = None
    tokens: int = 0
    children: tuple[TreeNode, ...] = ()
    count: int = 1
    shortest_seconds: float = 0.0
    longest_seconds: float = 0.0


def folded(nodes: Sequence[TreeNode]) -> tuple[TreeNode, ...]:
    """Return siblings with those that are alike as one: all that are where there are many, else long rows of them."""
    nodes = [msgspec.structs.replace(node, children=folded(node.children)) for node in nodes]
    if len(nodes) <= _MAX_UNFOLDED:
        rows = [list(row) for _, row in groupby(nodes, _likeness)]
        return tuple(node for row in rows for node in (row if len(row) < _MIN_ADJACENT else [_as_one(row)]))
    alike: dict[object, list[TreeNode]] = {}
    for node in nodes:
        alike.setdefault(_likeness(node), []).append(node)
    return tuple(_as_one(row) if len(row) > 1 else row[0] for row in alike.values())


def _likeness(node: TreeNode) -> object:
    """Return what is equal for nodes that are alike: numbers in their labels and notes do not count."""
    label = node.label if node.kind in {"tool", "part"} else _NUMBER.sub("", node.label) if node.kind != "step" else ""
    notes = tuple(note.kind for note in node.notes)
    below = frozenset(_likeness(child) for child in node.children)
    return (node.kind, label, node.state, node.agent, _NUMBER.sub("", node.waits_for), notes, node.num_tries > 1, below)


def _as_one(row: Sequence[TreeNode]) -> TreeNode:
    times = [node.seconds for node in row if node.seconds is not None]
    begins, ends = [node.started_at for node in row if node.started_at], [node.ended_at for node in row]
    first = row[0]
    return msgspec.structs.replace(
        first,
        label=common_label([node.label for node in row]),
        about=first.about if len({node.about for node in row}) == 1 else "",
        notes=_few(note for node in row for note in node.notes),
        num_tries=max(node.num_tries for node in row),
        started_at=min(begins, default=0.0),
        ended_at=max(ends, default=0.0),
        seconds=max(ends) - min(begins) if begins and all(ends) else None,
        tokens=sum(node.tokens for node in row),
        children=folded([child for node in row for child in node.children]),
        count=sum(node.count for node in row),
        shortest_seconds=min(times, default=0.0),
        longest_seconds=max(times, default=0.0),
    )


def _few(notes: Iterable[TreeNote]) -> tuple[TreeNote, ...]:
    """Return the first notes that differ, and how many more there are."""
    found = list(dict.fromkeys(notes))
    more = TreeNote("more", f"and {len(found) - _MAX_NOTES} more of this kind")
    return tuple(found) if len(found) <= _MAX_NOTES else (*found[:_MAX_NOTES], more)


def common_label(labels: Sequence[str]) -> str:
    """Return one label for several: `fix[1-7,9]` where one number tells them apart, else the first and how many."""
    if len(set(labels)) == 1:
        return labels[0]
    parts = [_NUMBER.split(label) for label in labels]
    varying = [place for place, each in enumerate(zip(*parts, strict=False)) if len(set(each)) > 1]
    if len({len(part) for part in parts}) > 1 or len(varying) != 1 or not varying[0] % 2:
        return f"{labels[0]} and {len(labels) - 1} more"
    place, first = varying[0], parts[0]
    numbers = _ranges(sorted({int(part[place]) for part in parts}))
    return "".join((*first[:place], numbers, *first[place + 1 :]))


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers in order as `1-7,9`; of many ranges the first and the last."""
    ranges = [[number for _, number in row] for _, row in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    shown = [f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in ranges]
    return ",".join(shown if len(shown) <= _MAX_NOTES else (*shown[: _MAX_NOTES - 1], "…", shown[-1]))
