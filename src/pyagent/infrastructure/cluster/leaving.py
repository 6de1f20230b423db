"""How a node gives its work to the others: what has not begun at once, what runs by the end of its time.

Knows the engines' queues and the answers under way. Who takes the work is for the nodes that asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from pyagent.core.backends import Backend
from pyagent.core.errors import PyAgentError
from pyagent.core.withdrawal import Withdrawal

_ALL = 1_000_000
_AGAIN_SECONDS = 0.25
"""Requests that were on their way to the queue when it was emptied are found the next time."""
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.05
logger = logging.getLogger(__name__)


@runtime_checkable
class WithdrawingLink(Protocol):
    """A link whose waiting requests can be given back."""

    async def withdraw(self, wanted: Withdrawal) -> int:
        """Give requests back that have not begun; return how many."""
        ...


async def withdraw(links: Sequence[Backend], wanted: Withdrawal) -> int:
    """Have links give waiting requests back; return how many. An engine that does not answer in time gives none."""
    num_given = 0
    for link in links:
        if isinstance(link, WithdrawingLink) and num_given < wanted.at_most:
            try:
                num_given += await asyncio.wait_for(link.withdraw(wanted), _ANSWER_SECONDS)
            except (PyAgentError, TimeoutError) as error:
                logger.warning("%s gives no request back: %s", link.name, error or "it does not answer")
    return num_given


async def hand_over(
    links: Sequence[Backend],
    is_over: Callable[[], bool],
    seconds: float,
    *,
    of_peers: bool,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Give back what waits, again and again, until nothing runs, the time is over, or it is wanted no more.

    With `of_peers`, what this node's own clients wait for stays.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while is_wanted():
        await withdraw(links, Withdrawal(at_most=_ALL, of_peers=of_peers))
        if await _ended(is_over, min(until, clock() + _AGAIN_SECONDS)) or clock() >= until:
            return


async def _ended(is_over: Callable[[], bool], until: float) -> bool:
    """Wait until nothing runs, or until this moment of the loop's clock; return whether nothing does."""
    clock = asyncio.get_running_loop().time
    while not is_over() and clock() < until:  # noqa: ASYNC110 - seldom, and bounded
        await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, until - clock())))
    return is_over()
