"""Runs that go on without their clients: begun by a request, and ended by themselves, by being cancelled, or left.

Nothing is kept on disk of a private run; its events stay in memory for a while, so that the client that began it can
read them. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from pyagent.core.errors import CapacityError, PyAgentError, RequestError
from pyagent.core.fleet.events import Event, ModelCalled, TextDelta
from pyagent.core.fleet.journal import PRIVATE_PREFIX, Journal, JournalRecord, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.steps import RunSpec

_MAX_PRIVATE_RUNS = 100
_PRIVATE_SECONDS = 600.0
"""How long the events of a private run stay after its end."""
_RETRY_SECONDS = 5.0
logger = logging.getLogger(__name__)
TakeTokens = Callable[[int], None]


@dataclass(slots=True)
class BackgroundRuns:
    """The runs of one fleet that belong to no connection. It belongs to the fleet's event loop.

    `keys` are the idempotency keys of requests under way that go on with runs, `void_keys` those that came to nothing
    and could not be dropped.
    """

    fleet: Fleet
    keys: dict[str, asyncio.Future[None]] = field(default_factory=dict[str, "asyncio.Future[None]"])
    void_keys: set[str] = field(default_factory=set[str])
    _private: MemoryJournal = field(default_factory=lambda: MemoryJournal(_MAX_PRIVATE_RUNS))
    _private_until: dict[str, float] = field(default_factory=dict[str, float])
    _jobs: dict[asyncio.Task[None], str] = field(default_factory=dict["asyncio.Task[None]", str])
    _num_of_tenant: Counter[str] = field(default_factory=Counter[str])
    _beginning: dict[str, asyncio.Future[str]] = field(default_factory=dict[str, "asyncio.Future[str]"])

    def journal_of(self, run: str) -> Journal:
        """Return what has the run's records: the memory of this server for a private one."""
        self._forget_private()
        return self._private if run.startswith(PRIVATE_PREFIX) else self.fleet.journal

    def check_room(self, tenant: str, most: int) -> None:
        """Raise `CapacityError` where a tenant has as many runs under way as it may."""
        if self._num_of_tenant[tenant] >= most:
            text = (
                f"{most} runs are under way, as many as one key may have (server.max_runs); let one end, or cancel it"
            )
            raise CapacityError(text, retry_after_seconds=_RETRY_SECONDS)

    async def begin(
        self, events: AsyncGenerator[Event, None], spec: RunSpec, take_tokens: TakeTokens, run: str | None = None
    ) -> str:
        """Run it without its caller; return its id once it has one. What keeps it from beginning is raised here.

        A `run` that is beginning already, by the id that was chosen, is that one.
        """
        if run is not None and run in self._beginning:
            await events.aclose()
            return await asyncio.shield(self._beginning[run])
        begun = asyncio.get_running_loop().create_future()
        self._num_of_tenant[spec.tenant] += 1
        job = asyncio.create_task(self._work(events, begun, spec, take_tokens))
        self._jobs[job] = ""
        job.add_done_callback(self._jobs.pop)
        if run is not None:
            self._beginning[run] = begun
            begun.add_done_callback(lambda _: self._beginning.pop(run, None))
        return await asyncio.shield(begun)

    async def _work(
        self,
        events: AsyncGenerator[Event, None],
        begun: asyncio.Future[str],
        spec: RunSpec,
        take_tokens: TakeTokens,
    ) -> None:
        started_at, run = time.time(), ""
        try:
            async with aclosing(events):
                async for event in events:
                    if not run:
                        run = self._note_begun(event.run, spec)
                        begun.set_result(run)
                    self._keep_private(event)
                    if isinstance(event, ModelCalled) and event.at >= started_at:  # a resumed run tells old ones too
                        take_tokens(event.usage.total_tokens)
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
            elif not isinstance(error, PyAgentError):
                logger.exception("the run %s ended by a fault", run)
        finally:
            self._num_of_tenant[spec.tenant] -= 1
            begun.cancel()
            if run.startswith(PRIVATE_PREFIX):
                self._private.close_run(run)
                self._private_until[run] = time.monotonic() + _PRIVATE_SECONDS

    def _note_begun(self, run: str, spec: RunSpec) -> str:
        job = asyncio.current_task()
        assert job is not None
        self._jobs[job] = run
        if run.startswith(PRIVATE_PREFIX):
            self._private.open_run(spec, name=run)
        return run

    def _keep_private(self, event: Event) -> None:
        if event.run.startswith(PRIVATE_PREFIX) and not isinstance(event, TextDelta):
            number = self._private.num_records(event.run)
            self._private.append(event.run, JournalRecord(number, event))

    def _forget_private(self) -> None:
        now = time.monotonic()
        for run in [run for run, until in self._private_until.items() if until <= now]:
            del self._private_until[run]
            if self._private.summary(run) is not None:
                self._private.remove(run)

    def cancel(self, run: str) -> None:
        """End a run. Raises `RequestError` for one that is over."""
        row = self.journal_of(run).summary(run)
        if row is not None and row.state == "cancelled":
            return
        if run.startswith(PRIVATE_PREFIX) and self.fleet.under_way(run) is None:
            raise RequestError(f"{run} is over", param="run", code="over")
        self.fleet.cancel(run)

    async def leave(self, grace_seconds: float) -> None:
        """Wait for the runs; those that do not end in this time are ended as by the death of this process."""
        try:
            if self._jobs and grace_seconds > 0:
                await asyncio.wait(list(self._jobs), timeout=grace_seconds)
        finally:
            for run in self._jobs.values():
                if (here := self.fleet.under_way(run)) is not None:
                    here.leave()
        await asyncio.gather(*self._jobs, return_exceptions=True)
