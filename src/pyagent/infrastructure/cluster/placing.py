"""Does this node's part of the placement: loads the model that `core.cluster.placement` says falls to it.

Knows what the others told by gossip, whether they are connected to this node or not: so all plan from the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pyagent.core.backends import Backend
from pyagent.core.cluster.adverts import NOTHING, Offer
from pyagent.core.cluster.peers import ClusterRouter, Standing
from pyagent.core.cluster.placement import MAX_WISHES, Holder, Reconciler, wanted_copies
from pyagent.core.errors import PyAgentError
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.begun_loads import BegunLoads
from pyagent.infrastructure.cluster.status import PlacementStatus, placement_of
from pyagent.infrastructure.cluster.tasks import Tasks

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.client import EngineState

_ASK_SECONDS = 5.0
_LOAD_SECONDS = 1800.0
"""How long others wait for a load that was begun here, for a client or not, which may fetch the model first."""
_LOOK_SECONDS, _QUICKEST_LOOK = 1.0, 0.02
_LOOKS_A_DELAY = 4
_NOT_HELD = "kv:"
"""Accounts whose memory an engine gives back for another model: KV of prompts that may be computed again."""
logger = logging.getLogger(__name__)


@runtime_checkable
class PlacingLink(Protocol):
    """A link that loads models when it is told to."""

    name: str

    async def engine_state(self) -> EngineState:
        """Return what the engine is doing."""
        ...

    async def placeable(self, models: Collection[str]) -> Mapping[str, int]:
        """Return which of these models are not loaded, and can be, with the bytes of their files, 0 where not known."""
        ...

    async def place(self, model: str) -> None:
        """Load a model beside those that are loaded."""
        ...


class Placing:
    """What this node wants and can do of the placement, and the load that runs."""

    def __init__(
        self,
        settings: Cluster,
        router: ClusterRouter,
        begun: BegunLoads,
        tell: Callable[[], Awaitable[None]],
        tasks: Tasks,
    ) -> None:
        """`tell` has the others told at once what this node offers; `begun` outlives it, and has its clock."""
        self._wishes = settings.placement
        self._begun = begun
        self._kept = begun.read()
        self._reconciler = Reconciler(router.own_id, settings.placement_delay_seconds, self._kept)
        self._look_seconds = min(_LOOK_SECONDS, max(_QUICKEST_LOOK, settings.placement_delay_seconds / _LOOKS_A_DELAY))
        self._router = router
        self._tell = tell
        self._tasks = tasks
        self._clock = begun.clock
        self._links: list[PlacingLink] = []
        self._loading = ""
        self._coming_since: dict[str, float] = {}
        self._memory_bytes: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._told_sizes: dict[str, int] = {}

    async def run(self) -> None:
        """Look again and again whether this node shall load a model."""
        while True:
            await asyncio.sleep(self._look_seconds)
            if self._loading:
                continue
            if model := self._reconciler.begin(self._clock(), self._holders(), self._wanted):
                self._loading = model
                self._tasks.begin(self._load(model))
            else:
                await self._keep_begun()

    # -- what is known ------------------------------------------------------------------------------------------------

    def status(self) -> tuple[PlacementStatus, ...]:
        """Return how many nodes have the wanted models."""
        offers = [self._router.own.offer, *(peer.offer for peer in self._router)]
        named = {model.id for offer in offers for model in offer.models}
        unsaid = self._wanted if NOTHING in offers else ()  # a node that just came may have what no other has
        return placement_of(self._wanted, self._holders(), named.union(unsaid))

    async def added(self, offer: Offer, links: Sequence[Backend]) -> Offer:
        """Return an offer with what there is to say of the placement, of these links."""
        self._links = [link for link in links if isinstance(link, PlacingLink)]
        own = {model.id for model in offer.models}
        wanted = sorted(self._wanted.keys() & own - self._reconciler.resting(self._clock()))[:MAX_WISHES]
        self._learn_sizes(wanted, offer)
        states = [await self._state(link) for link in self._links]
        found = [await self._placeable(link, state, wanted) for link, state in zip(self._links, states, strict=True)]
        placing = self._note_coming([name for state in states if state is not None for name in state.loading])
        return msgspec.structs.replace(
            offer,
            placement=self._wishes,
            placeable=tuple(name for names in found for name in names if name not in self._coming_since),
            placing=tuple(sorted(placing & self._wanted.keys() & own)),
            memory_bytes=sum(self._memory_bytes.get(link.name, 0) for link in self._links),
        )

    def _note_coming(self, loading: Collection[str]) -> set[str]:
        """Note which models are on their way into memory; return those that others are to wait for."""
        now, since = self._clock(), self._coming_since
        self._coming_since = {name: since.get(name, now) for name in {self._loading, *loading} - {""}}
        return {name for name, begun in self._coming_since.items() if now - begun < _LOAD_SECONDS}

    @property
    def _wanted(self) -> dict[str, int]:
        return wanted_copies([self._wishes, *(peer.offer.placement for peer in self._router)])

    def _holders(self) -> list[Holder]:
        known = {self._router.own_id: self._router.own, **{peer.id: peer for peer in self._router}}
        return [_holder(node_id, standing) for node_id, standing in known.items() if _answers(standing)]

    async def _state(self, link: PlacingLink) -> EngineState | None:
        """Return what a link's engine is doing, where it says so in time."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                state = await link.engine_state()
        except (PyAgentError, TimeoutError):
            return None
        # One that starts anew has not said: its weight in the ranking must not change for that.
        self._memory_bytes[link.name] = state.memory_bytes or self._memory_bytes.get(link.name, 0)
        return state

    async def _placeable(self, link: PlacingLink, state: EngineState | None, wanted: Collection[str]) -> list[str]:
        """Return which models a link could load: none where its engine does not say in time."""
        if state is None or not wanted:
            return []
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                able = await link.placeable(wanted)
                return [name for name, size_bytes in able.items() if self._fits(name, size_bytes, state)]
        except (PyAgentError, TimeoutError):
            return []

    def _learn_sizes(self, wanted: Collection[str], own: Offer) -> None:
        """Remember the sizes of models that some node has loaded: they are needed when none has any more.

        Of what others say the least counts, as their file may be another by that name.
        """
        for offer in (peer.offer for peer in self._router):
            for model in offer.models:
                if model.id in wanted and model.size_bytes:
                    self._told_sizes[model.id] = min(model.size_bytes, self._told_sizes.get(model.id, model.size_bytes))
        self._sizes |= {model.id: model.size_bytes for model in own.models if model.size_bytes}

    def _fits(self, model: str, file_bytes: int, state: EngineState) -> bool:
        """Whether a model's weights, of each copy of the engine, fit beside what is held.

        What was seen of it in memory here counts most, then its file here. True where nothing is known: loading tells.
        """
        held = sum(size for account, size in state.memory.items() if not account.startswith(_NOT_HELD))
        size_bytes = self._sizes.get(model) or file_bytes or self._told_sizes.get(model, 0)
        return not state.memory_bytes or size_bytes * max(1, len(state.copies)) <= state.memory_bytes - held

    # -- what is done -------------------------------------------------------------------------------------------------

    async def _load(self, model: str) -> None:
        logger.info("loading %s: fewer nodes have it than cluster.placement wants", model)
        rest_seconds = self._reconciler.begun()[model].rests_until - self._clock()
        try:
            await self._keep_begun()
            await self._tell()
            async with asyncio.timeout(_LOAD_SECONDS):
                await self._place(model)
            self._reconciler.note_loaded(self._clock(), [model])
        except PyAgentError as error:
            logger.warning("%s is left to other nodes for %.0f s: %s", model, rest_seconds, error)
        except TimeoutError:
            logger.warning("%s is left to other nodes: it does not load in %.0f s", model, _LOAD_SECONDS)
        except asyncio.CancelledError:  # the node stops
            self._reconciler.forget(model)
            raise
        finally:  # any other error is a task's of the node, and logged as that
            self._loading = ""
            await self._keep_begun()
        await self._tell()

    async def _keep_begun(self) -> None:
        """Have what was begun outlive this process, which a load may end."""
        if (begun := self._reconciler.begun()) != self._kept:
            await asyncio.to_thread(self._begun.write, begun)
            self._kept = begun

    async def _place(self, model: str) -> None:
        for link in self._links:
            if await link.placeable([model]):
                await link.place(model)
                return


def _answers(standing: Standing) -> bool:
    return not standing.load.is_draining and standing.offer.role != "prefill"


def _holder(node_id: str, standing: Standing) -> Holder:
    offer = standing.offer
    return Holder(
        id=node_id,
        loaded=frozenset(model.id for model in offer.models if model.is_loaded),
        loading=frozenset(offer.placing),
        placeable=frozenset(offer.placeable),
        memory_bytes=offer.memory_bytes,
        is_heard=offer is not NOTHING,
    )
