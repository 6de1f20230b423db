"""Budgets: tokens and money are reserved before a call and settled after it, in this budget and in all those around it.

The fleet, its runs and their agents each have one, inside each other. A reservation is granted by every level or by
none, so that two calls cannot both take what is left. Single-threaded by design: it lives on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyagent.core.errors import BudgetError
from pyagent.core.messages import Usage

if TYPE_CHECKING:
    from pyagent.core.fleet.events import Totals


@dataclass(slots=True)
class Budget:
    """Tokens and USD that may be used under `name`; None is no limit of its own. `setting` is what raises it."""

    name: str
    max_tokens: int | None = None
    parent: Budget | None = None
    max_usd: float | None = None
    setting: str = "budget.run"
    used_tokens: int = 0
    reserved_tokens: int = 0
    used_usd: float = 0.0
    reserved_usd: float = 0.0

    @property
    def left_tokens(self) -> int | None:
        """Tokens neither used nor reserved, here and around; None when there is no limit."""
        outer = self.parent.left_tokens if self.parent else None
        return min((left for left in (self._own_tokens, outer) if left is not None), default=None)

    @property
    def left_usd(self) -> float | None:
        """USD neither used nor reserved, here and around; None when there is no limit."""
        outer = self.parent.left_usd if self.parent else None
        return min((left for left in (self._own_usd, outer) if left is not None), default=None)

    @property
    def _own_tokens(self) -> int | None:
        return None if self.max_tokens is None else max(0, self.max_tokens - self.used_tokens - self.reserved_tokens)

    @property
    def _own_usd(self) -> float | None:
        return None if self.max_usd is None else max(0.0, self.max_usd - self.used_usd - self.reserved_usd)

    def reserve(self, num_tokens: int, usd: float = 0.0) -> Reservation:
        """Set tokens and money aside for a call; raises `BudgetError` naming the budget that lacks them."""
        levels = self._levels()
        for level in levels:
            level._check(num_tokens, usd)
        for level in levels:
            level.reserved_tokens += num_tokens
            level.reserved_usd += usd
        return Reservation(levels, num_tokens, usd)

    def _check(self, num_tokens: int, usd: float) -> None:
        left_tokens, left_usd = self._own_tokens, self._own_usd
        if left_tokens is not None and num_tokens > left_tokens:
            raise BudgetError(
                f"the budget of {self.name} is {self.max_tokens:,} tokens, {left_tokens:,} of them are left, "
                f"and the next call may need {num_tokens:,}; raise {self.setting}.tokens or ask for less",
                resource="tokens",
                setting=self.setting,
            )
        if left_usd is not None and usd > left_usd:
            raise BudgetError(
                f"the budget of {self.name} is ${self.max_usd:g}, ${left_usd:.6f} of it is left, and the next call may "
                f"cost ${usd:.6f}; raise {self.setting}.usd or ask for less",
                resource="usd",
                setting=self.setting,
            )

    def count(self, totals: Totals, run: Budget) -> None:
        """Count what was used before the run was resumed, up to the run's budget: the fleet's own is of this time."""
        for level in self._levels():
            level.used_tokens += totals.prompt_tokens + totals.completion_tokens
            level.used_usd += totals.usd
            if level is run:
                break

    def _levels(self) -> list[Budget]:
        levels: list[Budget] = [self]
        while (outer := levels[-1].parent) is not None:
            levels.append(outer)
        return levels


@dataclass(slots=True)
class Reservation:
    """Tokens and money set aside; `settle` once with what was really used. Settling again does nothing."""

    levels: list[Budget]
    num_tokens: int
    usd: float = 0.0
    is_settled: bool = field(default=False, init=False)

    def settle(self, usage: Usage | None, usd: float | None = None) -> None:
        """Give back the reservation and count the use; what is not known counts as used to the whole reservation."""
        if self.is_settled:
            return
        self.is_settled = True
        used = self.num_tokens if usage is None else usage.prompt_tokens + usage.completion_tokens
        spent = self.usd if usd is None else usd
        for level in self.levels:
            level.reserved_tokens -= self.num_tokens
            level.used_tokens += used
            level.reserved_usd = max(0.0, level.reserved_usd - self.usd)
            level.used_usd += spent
