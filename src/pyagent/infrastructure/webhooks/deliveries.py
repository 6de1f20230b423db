"""The loop that delivers webhooks: takes what is due from the outbox, one message of each endpoint at a time.

Every server of a journal runs it; which one delivers to an endpoint is settled there. Logs name endpoints and messages
by their ids, never a URL or a body.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pyagent.core.errors import RequestError
from pyagent.core.webhooks.messages import Delivery, new_message_id, ping_message
from pyagent.core.webhooks.schedule import Answer
from pyagent.infrastructure.storage.webhooks.endpoints import SqliteWebhooks
from pyagent.infrastructure.storage.webhooks.outbox import Claim
from pyagent.infrastructure.webhooks.sender import Sender

if TYPE_CHECKING:
    from pyagent.core.fleet.journal import Journal

POLL_SECONDS = 0.5
"""How often the outbox is looked into: other processes write to it, too."""
_PRUNE_SECONDS = 3_600.0
_MAX_AT_ONCE = 16
logger = logging.getLogger("pyagent.webhooks")


class Deliveries:
    """Delivers what one journal's outbox has."""

    def __init__(self, webhooks: SqliteWebhooks, sender: Sender, *, clock: Callable[[], float] = time.time) -> None:
        self._webhooks = webhooks
        self._sender = sender
        self._clock = clock
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._is_failing = False
        self.settled: list[Delivery] = []

    async def run(self) -> None:
        """Deliver until cancelled."""
        pruned_at = float("-inf")
        try:
            while True:
                if self._clock() - pruned_at > _PRUNE_SECONDS:
                    pruned_at = self._clock()
                    self._guarded(lambda: self._webhooks.outbox.prune(self._clock()))
                self._guarded(self._start)
                self.settled.clear()
                await self._wait(POLL_SECONDS)
        finally:
            await self._end()

    async def deliver_due(self) -> list[Delivery]:
        """Deliver all that is due now, each message once; return what became of them."""
        try:
            while self._start() or self._jobs:
                await self._wait(POLL_SECONDS)
            return list(self.settled)
        finally:
            await self._end()

    def _start(self) -> int:
        """Begin with what is due; return with how many messages."""
        if (room := _MAX_AT_ONCE - len(self._jobs)) <= 0:
            return 0
        claims = self._webhooks.outbox.claim(self._clock(), self._jobs, room)
        for claim in claims:
            self._jobs[claim.endpoint] = asyncio.create_task(self._deliver(claim))
        return len(claims)

    async def _deliver(self, claim: Claim) -> None:
        is_settled = False
        try:
            answer = await self._sender.send(claim.url, claim.secrets, claim.id, claim.body)
            became = self._webhooks.outbox.settle(claim, answer, self._clock())
            is_settled = True
            if became is not None:
                self.settled.append(became)
                _log(became)
        except RequestError as error:
            logger.warning("what became of %s cannot be kept, so that it is sent again: %s", claim.id, error)
        finally:
            if not is_settled:
                with suppress(Exception):  # the lease ends with this process at the latest
                    self._webhooks.outbox.release(claim.endpoint)
            del self._jobs[claim.endpoint]
            self._wake.set()

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do it; a journal that cannot be read now is looked into again, with one warning."""
        try:
            work()
            self._is_failing = False
        except RequestError as error:
            if not self._is_failing:
                logger.warning("webhooks wait: %s", error)
            self._is_failing = True

    async def _wait(self, seconds: float) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _end(self) -> None:
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._sender.close()


async def ping(webhooks: SqliteWebhooks, tenant: str, endpoint: str) -> Answer:
    """Send an endpoint a message that only tries it, once; raises `RequestError` for one that is not there."""
    url, secrets = webhooks.signing_secrets(tenant, endpoint)
    sender = Sender(allows_private=webhooks.allows_private)
    try:
        return await sender.send(url, secrets, new_message_id(), ping_message(endpoint, time.time()).body)
    finally:
        await sender.close()


async def deliver_for(journal: Journal) -> None:
    """Deliver what a journal has, until cancelled; nothing where it is in memory."""
    from pyagent.infrastructure.storage.journal import SqliteJournal

    if isinstance(journal, SqliteJournal):
        sender = Sender(allows_private=journal.webhooks.allows_private)
        await Deliveries(journal.webhooks, sender).run()


def _log(became: Delivery) -> None:
    facts: dict[str, object] = {"webhook": became.endpoint, "delivery": became.id, "type": became.type}
    facts |= {"state": became.state, "attempts": became.attempts, "status": became.status}
    logger.log(logging.WARNING if became.state == "dead" else logging.INFO, "webhook", extra=facts)
