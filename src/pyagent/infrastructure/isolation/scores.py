"""How well a task fits an agent of an isolated plugin, asked in a process that may do less than the plugin does.

Every task that the router weighs is shown to `score`, also those that go to another agent: so its process reads what
the plugin declared, and has no network, writes nothing and calls nothing. What it returns is a number and a line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import msgspec

from pyagent.core.errors import AgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.scores import SCORE_SECONDS, Score, checked_score
from pyagent.core.one_line import printable
from pyagent.infrastructure.isolation.capabilities import Capabilities
from pyagent.infrastructure.isolation.messages import ScoreTask
from pyagent.infrastructure.isolation.process import IsolatedPlugin

SECONDS = 0.8 * SCORE_SECONDS
"""Of one score, its process's start included: less than the router waits, which asks a hung `score` never again."""
_MOST_LATE = 3
"""Scores in a row that may be late; then the agent has none."""
_MOST_REASON = 200
logger = logging.getLogger("pyagent.plugins")


class Scorer:
    """Asks one agent of a plugin. Late scores are none: the machine may be busy."""

    def __init__(self, plugin: IsolatedPlugin, agent: str, seconds: float = SECONDS) -> None:
        self._plugin = replace(plugin, allowed=Capabilities(read=plugin.allowed.read), seconds=seconds)
        self._agent = agent
        self._num_late = 0

    def score(self, task: Task) -> Score | None:
        """Return the agent's score, in this thread; None where it gave none in time. Raises what the agent raises."""
        if self._num_late >= _MOST_LATE:
            return None
        started = time.monotonic()
        try:
            data = asyncio.run(self._plugin.score(ScoreTask(self._agent, task)))
        except AgentError:
            if time.monotonic() - started < self._plugin.seconds:
                raise
            self._late()
            return None
        self._num_late = 0
        return self._read(data)

    def _late(self) -> None:
        self._num_late += 1
        if self._num_late == _MOST_LATE:
            text = "the isolated agent %s gave no score within %.1f s, %d times in a row: its description counts"
            logger.warning(text, self._agent, self._plugin.seconds, _MOST_LATE)

    def _read(self, data: bytes) -> Score | None:
        try:
            found = msgspec.msgpack.decode(data, type=tuple[float, str] | None)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            text = f"the plugin {self._plugin.name} returned what is no score: {error}"
            raise AgentError(text, agent=self._agent) from error
        if found is None:
            return None
        score, reason = found
        return checked_score(Score(score, printable(reason[:_MOST_REASON])[:_MOST_REASON]))
