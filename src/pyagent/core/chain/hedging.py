"""Attempts that begin at the same time: the first to give a token answers, the others are cancelled and closed.

Knows attempts and what each is asked, not why a hedge is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyagent.core.chain.attempt import Attempt
from pyagent.core.chain.link import Link
from pyagent.core.messages import ChatRequest


@dataclass(slots=True)
class Race:
    """The attempts under way, each in a task of its own. On exit all are closed but a winner that `finished` gave."""

    _racing: dict[asyncio.Task[None], Attempt] = field(default_factory=dict["asyncio.Task[None]", Attempt])
    _winner: Attempt | None = None

    def enter(self, attempt: Attempt, request_for: Callable[[Link], ChatRequest], *, may_be_empty: bool) -> None:
        """Begin an attempt."""
        begun = attempt.begin(request_for, is_raced=True, may_be_empty=may_be_empty)
        self._racing[asyncio.ensure_future(begun)] = attempt

    async def is_late(self, seconds: float) -> bool:
        """Return whether no attempt has begun or failed after `seconds`."""
        done, _ = await asyncio.wait(self._racing, timeout=seconds)
        return not done

    async def finished(self) -> tuple[Attempt, Exception | None] | None:
        """Return an attempt that has a first token, or failed with the error; of two at once the hedge last."""
        if not self._racing:
            return None
        done, _ = await asyncio.wait(self._racing, return_when=asyncio.FIRST_COMPLETED)
        task = min(done, key=lambda task: self._racing[task].is_hedge)
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        attempt = self._racing.pop(task)
        self._winner = None if error else attempt
        return attempt, error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for task in self._racing:
                task.cancel()
            await asyncio.gather(*self._racing, return_exceptions=True)
            for loser in self._racing.values():
                await loser.aclose()
        except BaseException:  # cancelled while a loser closes: the winner reaches no one that would close it
            if self._winner is not None:
                await self._winner.aclose()
            raise
