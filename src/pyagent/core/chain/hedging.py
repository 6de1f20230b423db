"""A late link is overtaken: after its own usual time another is asked too, and the first to give a token answers.

The loser is cancelled. Hedges are drawn from a budget that each request fills by a few percent of one, so that a slow
day cannot double the load. Requests with tools are never hedged: a backend may run tools itself.
"""

from __future__ import annotations

import asyncio

from pyagent.core.chain.resuming import Told
from pyagent.core.chain.tries import Tries
from pyagent.core.chain.turn import Turn
from pyagent.core.resilience.retry import RetryBudget

_Racing = dict["asyncio.Task[None]", Turn]


async def begin(turn: Turn, tries: Tries, told: Told, hedges: RetryBudget) -> Turn | None:
    """Begin a turn, or one that overtakes it; returns the one that has a first token, None when none has.

    What fails is told to `tries`, which may raise. All but the returned turn are closed.
    """
    patience = None if tries.request.tools else turn.member.hedge_seconds()
    hedges.succeed()
    if patience is not None and hedges.left >= 1:
        return await _raced(turn, tries, told, hedges, patience)
    try:
        await turn.begin(told.request_for(turn.member), may_be_empty=bool(told.text))
    except Exception as error:  # noqa: BLE001 - one link's bug must not keep the next from answering
        await close(turn, tries)
        tries.failed(turn, error)
        return None
    except BaseException:
        await close(turn, tries)
        raise
    return turn


async def close(turn: Turn, tries: Tries) -> None:
    """Close a turn; what it cost counts against the request's limit."""
    await turn.aclose()
    tries.spent_usd += turn.spent_usd
    turn.spent_usd = 0.0


async def _raced(turn: Turn, tries: Tries, told: Told, hedges: RetryBudget, patience: float) -> Turn | None:
    racing: _Racing = {_started(turn, told): turn}
    try:
        await asyncio.wait(racing, timeout=patience)
        if not any(task.done() for task in racing):
            other = tries.next_now(is_hedge=True) if hedges.left >= 1 else None
            if other is not None:
                hedges.spend()
                other.member.figures.num_hedges += 1
                racing[_started(other, told)] = other
        while racing:
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: racing[task].is_hedge):
                first = racing.pop(task)
                error = task.exception()
                if error is None:
                    first.member.figures.num_hedges_won += first.is_hedge
                    return first
                await close(first, tries)
                if not isinstance(error, Exception):
                    raise error
                tries.failed(first, error)
        return None
    finally:
        for task in racing:
            task.cancel()
        await asyncio.gather(*racing, return_exceptions=True)
        for loser in racing.values():
            await close(loser, tries)


def _started(turn: Turn, told: Told) -> asyncio.Task[None]:
    asked = told.request_for(turn.member)
    return asyncio.ensure_future(turn.begin(asked, is_raced=True, may_be_empty=bool(told.text)))
