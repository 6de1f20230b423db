"""What strategies of several rounds did, as lines for people. Each line holds one thing, however a model wrote it."""

from __future__ import annotations

from pyagent.logic.strategies.debate import Debate, Round
from pyagent.logic.strategies.reflection import Draft, Reflection
from pyagent.logic.strategies.tree_of_thoughts import Node, Tree

_MAX_SHOWN = 200


def reflection_lines(found: Reflection) -> list[str]:
    """Return a line for each draft, with the faults found in it."""
    return [_draft_line(number, draft) for number, draft in enumerate(found.drafts, 1)]


def _draft_line(number: int, draft: Draft) -> str:
    if draft.score is None:
        told = "not judged" if not draft.is_repeat else "said before"
    else:
        told = f"{draft.score} of 10" + (f"; {'; '.join(draft.faults)}" if draft.faults else "; no faults")
    return f"draft {number}: {_line(draft.answer)}  ({_line(told)})"


def debate_lines(found: Debate) -> list[str]:
    """Return a line for each round, with what each debater answered in it."""
    return [f"round {number}: {' | '.join(_answers(each))}" for number, each in enumerate(found.rounds, 1)]


def _answers(each: Round) -> list[str]:
    return [
        _line(answer) if answer else f"no answer: {_line(each.failures.get(number, ''))}"
        for number, answer in enumerate(each.answers, 1)
    ]


def tree_lines(found: Tree) -> list[str]:
    """Return a line for each thought, below the one that it follows, with its score; `*` marks those of the answer."""
    children: dict[int, list[Node]] = {}
    for node in found.nodes:
        children.setdefault(node.parent, []).append(node)
    on_way: set[int] = set()
    parent = 0
    for text in found.path:
        parent = next(node.number for node in children[parent] if node.text == text)
        on_way.add(parent)
    return _below(0, children, on_way)


def _below(parent: int, children: dict[int, list[Node]], on_way: set[int]) -> list[str]:
    lines: list[str] = []
    for node in children.get(parent, []):
        score = "-" if node.score is None else str(node.score)
        mark = "*" if node.number in on_way else "-"
        lines.append(f"{'  ' * (node.depth - 1)}{mark} {score:>2}  {_line(node.text)}")
        lines += _below(node.number, children, on_way)
    return lines


def _line(text: str) -> str:
    text = " ".join(text[: 4 * _MAX_SHOWN].split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
