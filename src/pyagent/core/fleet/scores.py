"""How well a task fits each agent, as the agents themselves say: `score(task)`, guarded.

An agent's `score` is somebody else's code. It runs in a thread of its own, so that one that hangs costs a moment once
and never again; one that raises or returns nonsense takes its agent out of the choice, with a warning that names it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from inspect import iscoroutine
from typing import Self, cast

from pyagent.core.fleet.agent import Agent, Task

logger = logging.getLogger(__name__)

SCORE_SECONDS = 2.0
"""How long all scores together may take; they are meant to take microseconds."""


class Score(float):
    """A score with its reason, which people who watch the run are shown: `Score(0.9, "it is an expression")`."""

    __slots__ = ("reason",)
    reason: str

    def __new__(cls, value: float, reason: str = "") -> Self:
        """Keep the reason beside the number."""
        score = super().__new__(cls, value)
        score.reason = reason
        return score


@dataclass(slots=True)
class Scores:
    """Asks the agents of one fleet, and remembers those whose `score` hung or was complained of.

    Agents that `fail_until` a time of the clock come after those of equal score: ties go by the order of what `of`
    returns.
    """

    agents: Mapping[str, Agent]
    fail_until: Mapping[str, float] = field(default_factory=dict[str, float])
    clock: Callable[[], float] = time.monotonic
    _hung: set[str] = field(default_factory=set[str])
    _warned: set[str] = field(default_factory=set[str])

    async def of(self, task: Task) -> dict[str, Score | None]:
        """Each agent's score of the task: None when only its description can tell, 0 when its `score` is broken."""
        calls = {
            name: _call_in_thread(name, cast("Callable[[Task], object]", score), task)
            for name, agent in self.agents.items()
            if callable(score := getattr(agent, "score", None)) and name not in self._hung
        }
        if calls:
            await asyncio.wait(calls.values(), timeout=SCORE_SECONDS)
        scores: dict[str, Score | None] = dict.fromkeys(sorted(self.agents, key=self._is_failing))
        for name, call in calls.items():
            scores[name] = self._settled(name, call)
        return scores | dict.fromkeys(self._hung, Score(0))

    def _is_failing(self, name: str) -> bool:
        return self.fail_until.get(name, float("-inf")) > self.clock()

    def _settled(self, name: str, call: asyncio.Future[tuple[object, BaseException | None]]) -> Score | None:
        if not call.done():
            call.cancel()
            self._hung.add(name)
            return self._fault(name, f"gave no answer in {SCORE_SECONDS:g} s and is not asked again")
        returned, error = call.result()
        if error is not None:
            return self._fault(name, f"raised {type(error).__name__}: {error}")
        try:
            return checked_score(returned)
        except ValueError as fault:
            return self._fault(name, str(fault))

    def _fault(self, name: str, what: str) -> Score:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("the agent %s is left out of the choice, its score %s; it can be asked by name", name, what)
        return Score(0)


def checked_score(returned: object) -> Score | None:
    """Return what `score` returned; raises `ValueError` when it is neither None nor a number from 0 to 1."""
    if returned is None or isinstance(returned, Score):
        score = returned
    elif isinstance(returned, int | float) and not isinstance(returned, bool):
        score = Score(returned)
    else:
        if iscoroutine(returned):
            returned.close()
        raise ValueError(f"returned {returned!r:.80}, expected a number from 0 to 1, or None")
    if score is not None and (math.isnan(score) or not 0 <= score <= 1):
        raise ValueError(f"returned {float(score)}, expected a number from 0 to 1, or None")
    return score


def _call_in_thread(
    name: str, function: Callable[[Task], object], task: Task
) -> asyncio.Future[tuple[object, BaseException | None]]:
    """Call the function in a daemon thread, which the program's end does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def settle(returned: object, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((returned, error))

    def work() -> None:
        returned, error = cast("object", None), cast("BaseException | None", None)
        try:
            returned = function(task)
        except BaseException as raised:  # noqa: BLE001 - a plugin's failure must not end the program, nor its exit
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, returned, error)

    threading.Thread(target=copy_context().run, args=(work,), name=f"score {name}", daemon=True).start()
    return future
