"""Runs that other programs begin by a protocol for agents (MCP, A2A): followed, asked, answered and ended.

A run has a task of its own, so that the protocol's cancellation, which may strike at every `await`, never interrupts
the run's own end. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import ALL_FILES, FileAccess
from pyagent.core.fleet.people import DENY
from pyagent.infrastructure.server.errors import without_folders

if TYPE_CHECKING:
    from pyagent.core.fleet.events import Event, Question
    from pyagent.core.fleet.orchestrator import Fleet

logger = logging.getLogger(__name__)
MAX_TASK_CHARACTERS = 2_000_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: its tenant, what it may read, and whether its word allows a tool to act on this machine."""

    tenant: str = ""
    files: FileAccess = ALL_FILES
    may_approve: bool = True


@dataclass(slots=True)
class CalledRun:
    """One run; without an agent the router chooses. `next` gives its events, and raises its error after the last."""

    fleet: Fleet
    agent: str | None
    task: Task
    caller: Caller
    can_ask: bool
    run_id: str = ""
    events: asyncio.Queue[Event | Exception | None] = field(default_factory=asyncio.Queue["Event | Exception | None"])
    job: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin."""
        self.job = asyncio.create_task(self._pump(), name="run for a caller")

    async def next(self) -> Event | None:
        """Return the next event, None after the last. Raises what the run ended with, after its `RunFailed`."""
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    def answer(self, question: Question, answer: str | None) -> None:
        """Give an answer; None, where the person gave none, denies an approval.

        Raises `RequestError` for an answer that the question refuses, and for none to what is no approval.
        """
        if question.kind == "approval" and (answer is None or not self.caller.may_approve):
            answer = DENY
        if answer is None:
            raise RequestError(f"the person gave no answer to: {question.text}", param="answer")
        self.fleet.answer(self.run_id, question.id, answer)

    async def close(self) -> None:
        """End the run, if it has not ended, and wait until it has."""
        if self.job is not None:
            self.job.cancel()
            await asyncio.wait([self.job])

    async def _pump(self) -> None:
        caller = self.caller
        run = self.fleet.run(
            self.task,
            agent=self.agent,
            tenant=caller.tenant,
            client=caller.tenant,
            file_access=caller.files,
            waits_for_answers=self.can_ask,
        )
        try:
            async with aclosing(run) as events:
                async for event in events:
                    self.run_id = event.run
                    self.events.put_nowait(event)
        except Exception as error:  # noqa: BLE001 - the caller is told
            self.events.put_nowait(error)
        finally:
            self.events.put_nowait(None)


def told_error(error: Exception, what: str, caller: Caller) -> str:
    """Return what a caller is told of an error; one that is not PyAgent's is logged, and not told."""
    if isinstance(error, PyAgentError):
        return without_folders(str(error)) if caller.files.is_limited else str(error)
    logger.error("a run for a caller failed: %s", what, exc_info=error)
    return f"{what} failed by an error of this server's own, which its log has"


def called_names(names: Mapping[str, object], prefix: str) -> dict[str, str]:
    """Return names that other programs take (letters, digits, _ and -), each with the name it stands for."""
    made: dict[str, str] = {}
    for name in names:
        plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in name)
        called = f"{prefix}{plain}"[:64]
        if called in made or called != f"{prefix}{name}":
            called = f"{called[:55]}-{blake2b(name.encode(), digest_size=4).hexdigest()}"
        made[called] = name
    return made
