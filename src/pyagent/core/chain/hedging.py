"""A late link is overtaken: after its own usual time another is asked too, and the first to give a token answers.

The loser is cancelled. Hedges are drawn from a budget that each request fills by a few percent of one, so that a slow
day cannot double the load. Requests with tools are never hedged: a backend may run tools itself.
"""

from __future__ import annotations

import asyncio

from pyagent.core.chain.attempt import Attempt
from pyagent.core.chain.delivered_answer import DeliveredAnswer
from pyagent.core.chain.failover import Failover
from pyagent.core.resilience.retry import RetryBudget

_Racing = dict["asyncio.Task[None]", Attempt]


async def begin(
    attempt: Attempt, failover: Failover, delivered: DeliveredAnswer, hedges: RetryBudget
) -> Attempt | None:
    """Begin an attempt, or one that overtakes it; returns the one that has a first token, None when none has.

    What fails is told to `failover`, which may raise. All but the returned attempt are closed.
    """
    patience = None if failover.request.tools else attempt.link.hedge_seconds()
    hedges.succeed()
    if patience is not None and hedges.left >= 1:
        return await _raced(attempt, failover, delivered, hedges, patience)
    try:
        await attempt.begin(delivered.request_for(attempt.link), may_be_empty=bool(delivered.text))
    except Exception as error:  # noqa: BLE001 - one link's bug must not keep the next from answering
        await close(attempt, failover)
        failover.failed(attempt, error)
        return None
    except BaseException:
        await close(attempt, failover)
        raise
    return attempt


async def close(attempt: Attempt, failover: Failover) -> None:
    """Close an attempt; what it cost counts against the request's limit."""
    await attempt.aclose()
    failover.spent_usd += attempt.spent_usd
    attempt.spent_usd = 0.0


async def _raced(
    attempt: Attempt, failover: Failover, delivered: DeliveredAnswer, hedges: RetryBudget, patience: float
) -> Attempt | None:
    racing: _Racing = {_started(attempt, delivered): attempt}
    try:
        await asyncio.wait(racing, timeout=patience)
        if not any(task.done() for task in racing):
            other = failover.start_now(is_hedge=True) if hedges.left >= 1 else None
            if other is not None:
                hedges.spend()
                other.link.stats.num_hedges += 1
                racing[_started(other, delivered)] = other
        while racing:
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: racing[task].is_hedge):
                first = racing.pop(task)
                error = task.exception()
                if error is None:
                    first.link.stats.num_hedges_won += first.is_hedge
                    return first
                await close(first, failover)
                if not isinstance(error, Exception):
                    raise error
                failover.failed(first, error)
        return None
    finally:
        for task in racing:
            task.cancel()
        await asyncio.gather(*racing, return_exceptions=True)
        for loser in racing.values():
            await close(loser, failover)


def _started(attempt: Attempt, delivered: DeliveredAnswer) -> asyncio.Task[None]:
    asked = delivered.request_for(attempt.link)
    return asyncio.ensure_future(attempt.begin(asked, is_raced=True, may_be_empty=bool(delivered.text)))
