"""Answers actions: plain arithmetic at once, the rest by workers with bounded time and memory."""

from __future__ import annotations

from pyagent.logic.agents.math.actions import Action, Solved
from pyagent.logic.agents.math.arithmetic import solved_at_once
from pyagent.logic.sandbox.pool import Work, WorkerPool


class Sandbox:
    """Workers that answer actions. `seconds` of the processor bound a question, `memory_bytes` a worker's memory."""

    def __init__(self, *, seconds: float = 5.0, memory_bytes: int = 1 << 30, max_workers: int = 4) -> None:
        work = Work(
            agent="math",
            module="pyagent.logic.agents.math.worker",
            result=Solved,
            smaller="something smaller",
            needs="sympy",
            seconds=seconds,
            memory_bytes=memory_bytes,
        )
        self._workers = WorkerPool(work, max_workers=max_workers)

    async def compute(self, action: Action) -> Solved:
        """Return the answer. Raises `RequestError` for a question without one, `AgentError` when a bound is hit."""
        return solved_at_once(action) or await self._workers.ask(action)

    async def close(self) -> None:
        """End the workers that are idle; a busy one ends with its question."""
        await self._workers.close()
