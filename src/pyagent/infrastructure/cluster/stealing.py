"""Gives what waits in this node's engines to idle peers, as their loads come in.

The engine says what has not begun, `core.cluster.stealing` how many go where, and the chain that asked for a request
asks the node it is given to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyagent.core.chain import Chain
from pyagent.core.cluster.peers import ClusterRouter, Peer
from pyagent.core.cluster.stealing import Backlog, Idle, move_seconds, shares
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.cluster.leaving import withdraw

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.stats import EngineStats

_PAUSE_SECONDS = 0.05
"""Between two looks, however many loads arrive."""
_ENDS = ("stop", "length", "tool_calls")
logger = logging.getLogger(__name__)


def requests_per_second(stats: EngineStats) -> float:
    """Return how many requests an engine answers in a second of work; 0 before the first."""
    return _num_answered(stats) / stats.busy_seconds if stats.busy_seconds else 0.0


def answer_seconds(stats: EngineStats) -> float:
    """Return how long an answer takes from its first token to its last; 0 before the first."""
    return stats.generation_tokens / max(1, _num_answered(stats)) * stats.inter_token_seconds.p50


def _num_answered(stats: EngineStats) -> int:
    return sum(stats.finished.get(reason, 0) for reason in _ENDS)


class Stealing:
    """Looks whenever a peer without a queue tells its load, while requests wait here."""

    def __init__(
        self, chain: Chain, router: ClusterRouter, engine_stats: Callable[[], Mapping[str, EngineStats]]
    ) -> None:
        """`engine_stats` returns what this node's engines said last, by model."""
        self._chain = chain
        self._router = router
        self._engine_stats = engine_stats
        self._look = asyncio.Event()
        self._given: dict[str, tuple[int, int]] = {}
        """How many each peer was given since the load of this number: peers that ask them elsewhere do not tell."""
        self.num_given = 0
        """Waiting requests that idle peers took."""

    def heard(self) -> None:
        """Note that a load came in, of this node or of a peer."""
        if self._router.own.load.num_waiting:
            self._look.set()

    async def run(self) -> None:
        """Give work away for ever; what goes wrong is said, and tried again at the next load."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self.give()
            except Exception as error:  # noqa: BLE001 - one link's bug must not stop the others' work
                logger.warning("waiting requests cannot be moved: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def give(self) -> int:
        """Give waiting requests to idle peers; return how many."""
        before = self.num_given
        for model, stats in self._engine_stats().items():
            num_waiting = sum(stats.waiting.values())
            if not num_waiting or not (idle := self._idle(model)):
                continue
            mean = stats.prompt_tokens / max(1, _num_answered(stats))
            backlog = Backlog(
                num_waiting=num_waiting,
                requests_per_second=requests_per_second(stats),
                answer_seconds=answer_seconds(stats),
                mean_prompt_tokens=mean,
            )
            for peer_id, count in shares(backlog, idle).items():
                waited = next(move_seconds(backlog, node) for node in idle if node.id == peer_id)
                wanted = Withdrawal(at_most=count, to=peer_id, model=model, waited_seconds=waited)
                self._note_given(peer_id, await withdraw(self._chain.links, wanted))
        return self.num_given - before

    def _note_given(self, peer_id: str, count: int) -> None:
        self.num_given += count
        if (peer := self._router.get(peer_id)) is not None:
            self._given[peer_id] = (peer.load.sequence, count + self._num_given_to(peer))
        self._given = {one: given for one, given in self._given.items() if self._router.get(one) is not None}

    def _num_given_to(self, peer: Peer) -> int:
        sequence, count = self._given.get(peer.id, (-1, 0))
        return count if sequence == peer.load.sequence else 0

    def _num_free(self, peer: Peer) -> int:
        return peer.load.num_free - max(peer.num_sent, self._num_given_to(peer))

    def _idle(self, model: str) -> list[Idle]:
        """Return the peers that would begin requests for a model at once, by their last loads and what went since."""
        return [
            Idle(
                id=peer.id,
                num_free=self._num_free(peer),
                requests_per_second=peer.load.requests_per_second,
                answer_seconds=peer.load.answer_seconds,
                prefill_tokens_per_second=peer.load.prefill_tokens_per_second,
                round_trip_seconds=peer.round_trip_seconds,
            )
            for peer in self._router
            if peer.is_usable and not peer.load.num_waiting and self._num_free(peer) > 0
            if any(one.id == model and one.is_loaded for one in peer.offer.models)
        ]
