"""Budgets: tokens are reserved before a call and settled after it, in this budget and in all those around it.

Runs and agents each have one, inside each other. A reservation is granted by every level or by none, so that two
calls cannot both take the last tokens. Single-threaded by design: it lives on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyagent.core.errors import BudgetError
from pyagent.core.messages import Usage


@dataclass(slots=True)
class Budget:
    """Tokens that may be used under `name`; None is no limit of its own."""

    name: str
    max_tokens: int | None = None
    parent: Budget | None = None
    used_tokens: int = 0
    reserved_tokens: int = 0

    @property
    def left_tokens(self) -> int | None:
        """Tokens neither used nor reserved, here and around; None when there is no limit."""
        own = None if self.max_tokens is None else max(0, self.max_tokens - self.used_tokens - self.reserved_tokens)
        outer = self.parent.left_tokens if self.parent else None
        return min((left for left in (own, outer) if left is not None), default=None)

    def reserve(self, num_tokens: int) -> Reservation:
        """Set tokens aside for a call; raises `BudgetError` naming the budget that lacks them."""
        levels = self._levels()
        for level in levels:
            if level.max_tokens is None:
                continue
            left = level.max_tokens - level.used_tokens - level.reserved_tokens
            if num_tokens > left:
                raise BudgetError(
                    f"the budget of {level.name} is {level.max_tokens:,} tokens, {max(0, left):,} of them are left, "
                    f"and the next call may need {num_tokens:,}; raise budget.run.tokens or ask for less",
                    resource="tokens",
                )
        for level in levels:
            level.reserved_tokens += num_tokens
        return Reservation(levels, num_tokens)

    def _levels(self) -> list[Budget]:
        levels: list[Budget] = [self]
        while (outer := levels[-1].parent) is not None:
            levels.append(outer)
        return levels


@dataclass(slots=True)
class Reservation:
    """Tokens set aside; `settle` once with what was really used. Settling again does nothing."""

    levels: list[Budget]
    num_tokens: int
    is_settled: bool = field(default=False, init=False)

    def settle(self, usage: Usage | None) -> None:
        """Give back the reservation and count the use; without figures the whole reservation counts as used."""
        if self.is_settled:
            return
        self.is_settled = True
        used = self.num_tokens if usage is None else usage.prompt_tokens + usage.completion_tokens
        for level in self.levels:
            level.reserved_tokens -= self.num_tokens
            level.used_tokens += used
