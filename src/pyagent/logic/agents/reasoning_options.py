"""How the reasoning agent is told to go about a question: a strategy, and the options that are its own.

An option of one strategy is never ignored under another: it chooses its own, or is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.logic.strategies.settling import SettleBy
from pyagent.logic.strategies.tree_of_thoughts import Search, TreeBounds

Strategy = Literal["chain-of-thought", "self-consistency", "reflection", "debate", "tree-of-thoughts"]
_SEEDED: tuple[Strategy, ...] = ("self-consistency", "debate", "tree-of-thoughts")
_BOUNDED: tuple[Strategy, ...] = ("reflection", "debate", "tree-of-thoughts")
_OF_TREE = ("search", "branches", "beam", "depth", "min_score", "max_calls")
_OPTION_TO_STRATEGIES: dict[str, tuple[Strategy, ...]] = {
    "samples": ("self-consistency",),
    "rounds": ("reflection", "debate"),
    "debaters": ("debate",),
    "agents": ("debate",),
    "settle": ("debate",),
    **dict.fromkeys(_OF_TREE, ("tree-of-thoughts",)),
    "seed": _SEEDED,
    "tokens": _BOUNDED,
    "tools": ("chain-of-thought",),
}


class ReasoningArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to go about it. An option that only one strategy has chooses it; `seed` alone is self-consistency's.

    `question` is for tasks that are JSON. `tools` names the fleet's tools that the model may call; without them it
    calls none. `agents` debate instead of the model. `tokens` bounds prompts and answers of all calls together.
    """

    strategy: Strategy | None = None
    samples: int | None = None
    seed: int | None = None
    tools: tuple[str, ...] = ()
    rounds: int | None = None
    debaters: int | None = None
    agents: tuple[str, ...] = ()
    settle: SettleBy | None = None
    search: Search | None = None
    branches: int | None = None
    beam: int | None = None
    depth: int | None = None
    min_score: int | None = None
    max_calls: int | None = None
    tokens: int | None = None
    question: str | None = None

    def chosen(self) -> Strategy:
        """Return the strategy; raises `RequestError` for options of another one, or that several have."""
        given = [name for name in _OPTION_TO_STRATEGIES if getattr(self, name) not in {None, ()}]
        left: Sequence[Strategy] = get_args(Strategy) if self.strategy is None else (self.strategy,)
        for name in given:
            left = [each for each in left if each in _OPTION_TO_STRATEGIES[name]]
            if not left:
                raise RequestError(f"{name} is for {_told(name)}", param=name)
        self._check_pairs()
        if not given or len(left) == 1 or "self-consistency" in left:
            return left[0] if len(left) == 1 else "self-consistency" if given else "chain-of-thought"
        raise RequestError(f"{given[0]} is for {_told(given[0])}; say which by `strategy`", param="strategy")

    def _check_pairs(self) -> None:
        if self.debaters is not None and self.agents:
            raise RequestError("debaters is how often the model debates; agents name theirs", param="debaters")
        if self.beam is not None and self.search == "depth-first":
            raise RequestError("beam is for search=beam", param="beam")

    def asked(self, task: Task) -> str:
        """Return the question; raises `RequestError` where there is none, or two."""
        if task.text.strip() and self.question is not None:
            raise RequestError("the question is given twice, as the text and as `question`", param="question")
        question = task.text if self.question is None else self.question
        if not question.strip():
            raise RequestError("reasoning needs a question", param="text")
        return question

    def bounds(self) -> TreeBounds:
        """Return how far a tree of thoughts goes."""
        given = {name: getattr(self, name) for name in _OF_TREE[1:] if getattr(self, name) is not None}
        return TreeBounds(**given)


def _told(option: str) -> str:
    """Return the strategies that an option is for, in words."""
    *others, last = _OPTION_TO_STRATEGIES[option]
    return f"the strategies {', '.join(others)} and {last}" if others else f"the strategy {last}"
