"""Tree of thoughts: steps are proposed and valued, and the best are followed (Yao et al. 2023, arXiv:2305.10601).

Breadth-first with a beam, or depth-first with a way back. Proposals and values are typed; the values of a level are
asked for side by side, and each prompt begins with the question and the steps that it shares with its siblings. One
call, and the tokens for it, are kept for the answer, so that a search that is cut short still has one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.messages import JsonObject, Message, SamplingParams
from pyagent.logic.strategies.calls import Ask, Calls, End, Lack, Said
from pyagent.logic.strategies.chain_of_thought import GREEDY, SYSTEM, Thought

Search = Literal["beam", "depth-first"]
MAX_WIDTH = 8
"""Of proposals and of the beam."""
MAX_DEPTH = 8
MAX_CALLS = 200
_MAX_CHARACTERS = 160
"""Of a thought: about 40 tokens in English."""
_MAX_TOKENS_A_THOUGHT = 160
"""A token a letter, as digits are."""
_PATH_TOKENS_A_THOUGHT = 50
_NUMBERING = re.compile(r"^\s*(?:step\s*)?\d{1,2}[.):]\s+", re.IGNORECASE)
_PROPOSE = "Propose next steps, different from each other, each in one short sentence. How many: "
_VALUE = (
    "How good is the last step: do the steps lead to the answer? Give a score from 0 (wrong) to 10 (sure), and say "
    "whether they are all that is needed."
)
_CONCLUDE = "Go on from these steps and finish. End with one line: Answer: ..."


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a thought is, and whether nothing is missing but the answer."""

    score: Annotated[int, msgspec.Meta(ge=0, le=10)]
    is_solved: bool


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A thought in the tree: its number from 1 on, the one it follows (0 is the question), and its value.

    `score` is None where the model gave none; `is_kept` when the search went on from it or could have.
    """

    number: int
    parent: int
    depth: int
    text: str
    score: int | None = None
    is_solved: bool = False
    is_kept: bool = False


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, the thoughts that it goes on from and the steps after them, all thoughts, and why there are no more.

    `score` is that of the last thought on the way; None where no thought had one.
    """

    answer: str
    path: list[str]
    steps: list[str]
    score: int | None
    nodes: list[Node]
    end: End
    num_calls: int
    num_tokens: int
    is_cut: bool = False


class TreeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How far to search: proposals a thought, thoughts a level (`beam`), levels, the least score, and calls."""

    branches: int = 3
    beam: int = 2
    depth: int = 3
    min_score: int = 3
    max_calls: int = 40

    def check(self) -> None:
        """Raise `RequestError` naming the first number that is out of range."""
        ranges = {"branches": (1, MAX_WIDTH), "beam": (1, MAX_WIDTH), "depth": (1, MAX_DEPTH), "min_score": (0, 10)}
        for name, (least, most) in (ranges | {"max_calls": (2, MAX_CALLS)}).items():
            if not least <= getattr(self, name) <= most:
                text = f"{name} goes from {least} to {most}, got {getattr(self, name)}"
                raise RequestError(text, param=name)


@dataclass(slots=True)
class _Search:
    """The tree so far, and how it grows."""

    calls: Calls
    question: str
    bounds: TreeBounds
    seed: int
    nodes: list[Node] = field(default_factory=list[Node])
    num_proposed: int = 0

    @property
    def best(self) -> Node | None:
        """The thought to go on from: solved before others, then by score, then the deeper; of equal ones the first."""
        kept = [node for node in self.nodes if node.is_kept]
        return max(kept, key=lambda node: (node.is_solved, node.score, node.depth), default=None)

    def path(self, node: Node | None) -> list[str]:
        """Return the thoughts from the question to a node."""
        found: list[str] = []
        while node is not None:
            found.append(node.text)
            node = self.parent(node)
        return found[::-1]

    def parent(self, node: Node) -> Node | None:
        """Return the thought that a node follows; None where that is the question."""
        return self.nodes[node.parent - 1] if node.parent else None

    async def grow(self, parents: Sequence[Node | None]) -> tuple[list[Node], End | None]:
        """Add the thoughts that follow these; return those worth following, the best first, and why it has to end."""
        proposed = await self.calls.ask_all([self._propose(parent) for parent in parents])
        over = _over(proposed)
        fresh = [
            node
            for parent, said in zip(parents, proposed, strict=True)
            if isinstance(said, Said)
            for node in self._children(parent, cast("dict[str, list[str]]", said.output)["thoughts"])
        ]
        values = await self.calls.ask_all([self._value(node) for node in fresh])
        valued = [self._valued(node, value) for node, value in zip(fresh, values, strict=True)]
        for node in valued:
            self.nodes[node.number - 1] = node
        scores = [node.score for node in self.nodes if node.score is not None]
        if scores:
            self.calls.report(max(scores))
            self.calls.context.progress(f"thoughts: {len(self.nodes)}, the best has {max(scores)} of 10")
            self.calls.context.keep({"thoughts": self.path(self.best)})
        kept = [node for node in valued if node.is_kept]
        over = over or _over(values) or (None if kept else _failure([*proposed, *values]))
        return sorted(kept, key=lambda node: (-node.is_solved, -(node.score or 0))), over

    def _children(self, parent: Node | None, texts: Sequence[str]) -> list[Node]:
        """Return the new thoughts among these: neither blank, nor said twice, nor the question, nor a step before."""
        said = {_form(text) for text in [self.question, *self.path(parent)]}
        children: list[Node] = []
        for text in (_NUMBERING.sub("", " ".join(text.split())) for text in texts):
            if any(map(str.isalnum, text)) and _form(text) not in said:
                said.add(_form(text))
                above, depth = (parent.number, parent.depth) if parent else (0, 0)
                children.append(Node(number=len(self.nodes) + 1, parent=above, depth=depth + 1, text=text))
                self.nodes.append(children[-1])
        return children

    def _valued(self, node: Node, said: Said | Lack) -> Node:
        if isinstance(said, Lack):
            return node
        value = cast("Value", said.output)
        is_kept = value.score >= self.bounds.min_score
        return msgspec.structs.replace(node, score=value.score, is_solved=value.is_solved and is_kept, is_kept=is_kept)

    def _propose(self, parent: Node | None) -> Ask:
        text: JsonObject = {"type": "string", "minLength": 1, "maxLength": _MAX_CHARACTERS}
        num = self.bounds.branches
        thoughts = {"type": "array", "items": text, "minItems": 1, "maxItems": num}
        schema: JsonObject = {
            "type": "object",
            "properties": {"thoughts": thoughts},
            "required": ["thoughts"],
            "additionalProperties": False,
        }
        sampling = SamplingParams(
            temperature=0.7,
            top_p=0.95,
            max_tokens=32 + _MAX_TOKENS_A_THOUGHT * num,
            seed=(self.seed + self.num_proposed) & (2**63 - 1),
        )
        self.num_proposed += 1
        return Ask(messages=self._messages(self.path(parent), f"{_PROPOSE}{num}"), sampling=sampling, schema=schema)

    def _value(self, node: Node) -> Ask:
        sampling = SamplingParams(temperature=0.0, max_tokens=48)
        return Ask(messages=self._messages(self.path(node), _VALUE), sampling=sampling, schema=Value)

    def conclude(self, path: Sequence[str]) -> Ask:
        """Return the call that makes an answer of a path."""
        return Ask(messages=self._messages(path, _CONCLUDE), sampling=GREEDY)

    def _messages(self, path: Sequence[str], what: str) -> list[Message]:
        steps = "".join(f"\n{place}. {text}" for place, text in enumerate(path, 1))
        told = f"\n\nSteps so far:{steps}" if path else ""
        return [Message("system", SYSTEM), Message("user", f"{self.question}{told}\n\n{what}")]


async def tree_of_thoughts(  # noqa: PLR0913 - ways to search
    context: Context,
    question: str,
    *,
    search: Search = "beam",
    bounds: TreeBounds = TreeBounds(),  # noqa: B008 - frozen
    seed: int = 0,
    max_tokens: int | None = None,
) -> Tree:
    """Search for steps that lead to the answer, and answer from the best ones found.

    `max_tokens` bounds prompts and answers of all calls together. Where calls or tokens end, or no thought is good
    enough, the answer goes on from the best thought so far, or from the last one before it whose prompt is within the
    tokens left; where it fails, it is that thought. Raises `BudgetError` where not even an answer without thoughts is
    within the bound, and what that one fails by.
    """
    bounds.check()
    calls = Calls(context, "tree-of-thoughts", bounds.max_calls, max_tokens)
    state = _Search(calls, question, bounds, seed)
    held = calls.hold(state.conclude([]), bounds.depth * _PATH_TOKENS_A_THOUGHT)
    end = await (_by_beam(state) if search == "beam" else _by_depth(state))
    calls.release(held)
    last = state.best
    while last is not None and not calls.affords(state.conclude(state.path(last))):
        last = state.parent(last)
    path = state.path(last)
    with context.phase("tree-of-thoughts answer"):
        said = await calls.ask(state.conclude(path))
    if isinstance(said, Lack) and not path:
        raise said.error
    thought, end = (Thought([], path[-1]), said.end) if isinstance(said, Lack) else (said.thought, end)
    return Tree(
        answer=thought.answer,
        path=path,
        steps=thought.steps,
        score=last.score if last else None,
        nodes=state.nodes,
        end=end,
        num_calls=calls.num_calls,
        num_tokens=calls.num_tokens,
        is_cut=thought.is_cut,
    )


async def _by_beam(state: _Search) -> End:
    """Keep the best thoughts of each level."""
    level: Sequence[Node | None] = [None]
    for depth in range(1, state.bounds.depth + 1):
        with state.calls.context.phase(f"tree-of-thoughts level {depth}"):
            found, over = await state.grow(level)
        if (end := _end_of(found, over)) is not None:
            return end
        if not found:
            return End("pruned", f"no new thought of level {depth} has {state.bounds.min_score} of 10 or more")
        level = found[: state.bounds.beam]
    return End("rounds", f"{state.bounds.depth} levels are searched, and no thought says that it solves the question")


async def _by_depth(state: _Search) -> End:
    """Follow the best thought down, and go back to the next best where its branch ends."""
    stack: list[Node | None] = [None]
    while stack:
        node = stack.pop()
        if node is not None and node.depth >= state.bounds.depth:
            continue
        with state.calls.context.phase(f"tree-of-thoughts below {node.number if node else 0}"):
            found, over = await state.grow([node])
        if (end := _end_of(found, over)) is not None and (end.reason != "failed" or not stack):
            return end
        stack += reversed(found)
    return End("pruned", "every thought is followed to its end or not good enough")


def _end_of(found: Sequence[Node], over: End | None) -> End | None:
    if found and found[0].is_solved:
        return End("solved", f"thought {found[0].number} solves it, by its value")
    return over


def _over(said: Sequence[Said | Lack]) -> End | None:
    """Return the end of the calls or tokens, if one of these met it."""
    return next((each.end for each in said if isinstance(each, Lack) and each.end.reason != "failed"), None)


def _failure(said: Sequence[Said | Lack]) -> End | None:
    return next((each.end for each in said if isinstance(each, Lack)), None)


def _form(text: str) -> str:
    return " ".join(text.split()).casefold()
