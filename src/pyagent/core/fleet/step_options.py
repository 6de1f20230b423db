"""What a step of a graph may say of itself: when it runs, how often, after which failures again, what it may use."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.errors import AgentError, BackendError, BudgetError, CapacityError, DeadlineError

Join = Literal["all", "any", "done"]
"""When a step runs: after all before it are done, after all have ended and any is done, or after all have ended."""
RetryOn = Literal["timeout", "backend", "capacity", "agent"]

ALL_KINDS: tuple[RetryOn, ...] = ("timeout", "backend", "capacity", "agent")
_KIND_TO_ERROR: dict[RetryOn, type[Exception]] = {
    "timeout": DeadlineError,
    "backend": BackendError,
    "capacity": CapacityError,
    "agent": AgentError,
}


class Repeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Run a step until a condition on its result holds, `max` times at most; without a condition so many times."""

    max: int
    until: str = ""


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Try a step that failed again, `max` times; the first wait is of about `seconds`, each is twice the one before.

    `on` says after which failures. What ends the run, such as its budget, is never tried again.
    """

    max: int = 3
    seconds: float = 1.0
    on: tuple[RetryOn, ...] = ALL_KINDS

    def takes(self, error: Exception) -> bool:
        """Return whether a step that failed in this way is tried again."""
        kinds = tuple(_KIND_TO_ERROR[kind] for kind in self.on)
        return isinstance(error, kinds) and not isinstance(error, BudgetError)


class StepBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a step may use with all its items, rounds and tries: tokens and USD; and `seconds`, for each try."""

    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
