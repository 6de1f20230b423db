"""A run's tree as lines: a node a line, its seconds and tokens at the right, what went wrong below it."""

from __future__ import annotations

import shutil
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyagent.cli.output import Colour, coloured, mark
from pyagent.core.fleet.tree_nodes import NodeState, TreeNode, folded
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.fleet.journal import RunSummary
    from pyagent.core.fleet.run_tree import RunTree
    from pyagent.core.fleet.steps import RunSpec

_MARKS: dict[NodeState, tuple[str, str, Colour]] = {
    "done": ("●", "*", "green"),
    "failed": ("✗", "x", "red"),
    "running": ("○", "o", "cyan"),
    "waiting": ("?", "?", "yellow"),
    "pending": ("·", ".", "dim"),
    "skipped": ("-", "-", "dim"),
    "stopped": ("!", "!", "yellow"),
}
_NUMBERS_WIDTH = 20
_LEAST_WIDTH, _MOST_WIDTH = 60, 140
_MAX_NOTE_LINES = 3
_DEEPEST = 12
_INDENT = "  "


def tree_width() -> int:
    """Return how wide a tree may be: as the terminal is, 80 columns where there is none."""
    return min(_MOST_WIDTH, max(_LEAST_WIDTH, shutil.get_terminal_size((80, 24)).columns))


def tree_lines(nodes: Sequence[TreeNode], width: int, *, is_folded: bool = True) -> Iterator[str]:
    """Yield the lines of a tree, none of them wider than `width`."""
    yield coloured(f"{'step':<{width - _NUMBERS_WIDTH}}{'seconds':>10}{'tokens':>10}", "dim")
    for node in folded(nodes) if is_folded else nodes:
        yield from _node_lines(node, width, 0)


def head_lines(run: str, row: RunSummary | None, spec: RunSpec, tree: RunTree, now: float) -> Iterator[str]:
    """Yield what there is to say of the run as a whole."""
    words = [run]
    if row is not None:
        words.append(row.state)
        if row.totals is None:
            words.append(f"{now - row.started_at:.1f} s so far" if row.state == "running" else "")
    if row is not None and (totals := row.totals) is not None:
        words.append(f"{totals.seconds:.1f} s")
        if totals.model_calls:
            words.append(f"{totals.prompt_tokens:,} tokens in, {totals.completion_tokens:,} out")
        words.append(f"${totals.usd:.4f}" if totals.usd else "")
    yield " · ".join(filter(None, words))
    if row is not None:
        started = datetime.fromtimestamp(row.started_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        since = [f"started {started}"]
        since += [f"forked from {spec.forked_from} at {spec.forked_at}"] if spec.forked_from else []
        num_resumed = tree.num_resumed - bool(spec.forked_from)  # a fork goes on from its beginning
        since += [f"resumed {num_resumed} times" if num_resumed > 1 else "resumed"] if num_resumed > 0 else []
        yield coloured(" · ".join(since), "dim")
        yield from _wrapped(row.task, tree_width(), "")


def _node_lines(node: TreeNode, width: int, depth: int) -> Iterator[str]:
    indent = _INDENT * min(depth, _DEEPEST)
    text, plain, colour = _MARKS[node.state]
    numbers = f"{_seconds(node):>10}{f'{node.tokens:,}' if node.tokens else '':>10}"
    room = width - len(numbers) - len(indent) - 2
    shown = _fitted(_words(node), room)
    yield f"{indent}{coloured(mark(text, plain), colour)} {shown}{numbers}".rstrip()
    for note in node.notes:
        colour = "red" if node.state == "failed" else "yellow"
        for line in _wrapped(note.text, width, f"{indent}    "):
            yield coloured(line, colour)
    for child in node.children:
        yield from _node_lines(child, width, depth + 1)


def _words(node: TreeNode) -> str:
    """Return what a node's line says before its numbers."""
    words = [node.label]
    if node.agent and node.agent not in {node.label, node.label.rpartition(".")[2]}:
        words.append(node.agent)
    if node.count > 1:
        words.append(f"x{node.count:,}")
        if node.longest_seconds >= 0.05:
            words.append(f"{node.shortest_seconds:.1f}-{node.longest_seconds:.1f} s each")
    if node.state not in {"done", "pending"} or not (node.waits_for or node.state == "done"):
        words.append(_said(node.state))
    if node.waits_for:
        words.append(f"waits for {node.waits_for}")
    if node.num_tries > 1 and node.kind != "loop":
        words.append(f"{node.num_tries} tries")
    return printable(_INDENT.join(filter(None, (*words, _one_line(node.about)))))


def _said(state: NodeState) -> str:
    return {"pending": "not begun", "waiting": ""}.get(state, state)


def _seconds(node: TreeNode) -> str:
    return "" if node.seconds is None else f"{node.seconds:,.1f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    text = printable(_one_line(text))
    return textwrap.wrap(
        text,
        width if _columns(text) == len(text) else width // 2,
        initial_indent=indent,
        subsequent_indent=indent,
        max_lines=_MAX_NOTE_LINES,
        placeholder=" …",
    )


def _fitted(text: str, room: int) -> str:
    """Return a text in exactly so many columns; letters of East Asia take two."""
    taken, kept = 0, list[str]()
    if (columns := _columns(text)) <= room - 1:
        return text + " " * (room - columns)
    for letter in text:
        if taken + _columns(letter) > room - 2:
            break
        kept.append(letter)
        taken += _columns(letter)
    return "".join(kept) + "…" + " " * (room - taken - 1)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
