"""What this node tells its peers of itself: an offer that changes seldom, and its load some times a second.

Only links that compute on this machine are offered, unless `cluster.offer` names others: peers do not spend a key of
this node's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pyagent.core.addresses import is_loopback
from pyagent.core.backends import AGENT_PREFIX, Backend, LinkSpec
from pyagent.core.chain import Chain
from pyagent.core.chain.link import identity_of
from pyagent.core.chain.settings import Price
from pyagent.core.cluster.adverts import MAX_NEW_PREFIXES, Load, Offer
from pyagent.core.cluster.member import MAX_ADVERT_BYTES
from pyagent.core.cluster.peers import ClusterRouter
from pyagent.core.cluster.prefixes import pack, unpack
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ModelInfo
from pyagent.core.moving_average import moving_average
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.answering import Answering
from pyagent.infrastructure.cluster.begun_loads import BegunLoads
from pyagent.infrastructure.cluster.placing import Placing
from pyagent.infrastructure.cluster.protocol import LOAD, WARM, load_codec, offer_codec
from pyagent.infrastructure.cluster.stealing import Stealing, answer_seconds, requests_per_second
from pyagent.infrastructure.cluster.tasks import Tasks
from pyagent.infrastructure.cluster.transport import Transport

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.client import EngineState
    from pyagent.infrastructure.engine.stats import EngineStats

_LIST_SECONDS = 5.0
AGENTS = "agents"
"""What `cluster.offer` calls the agents of this node."""
_OWN_SERVERS = ("lmstudio", "ollama")
_LOAD_SECONDS = 0.25
_OFFER_SECONDS = 5.0
_CALL_SECONDS = 5.0
_NEWEST_WEIGHT = 0.1
"""Of a measured round trip: a busy machine answers late now and then."""
_LOADS_A_SIGN = 8
"""A load that says nothing new is told each eighth time."""
logger = logging.getLogger(__name__)


@runtime_checkable
class EngineLink(Protocol):
    """A link that computes in this process, or in one of its own."""

    async def engine_state(self) -> EngineState:
        """Return what the engine is doing."""
        ...


def _names_of(link: Backend) -> set[str]:
    """Return what `cluster.offer` may call a link: its scheme, its name, or as the chain has it."""
    return {LinkSpec.parse(link.name).scheme, link.name, identity_of(link)}


def offered_links(links: Sequence[Backend], named: Sequence[str] | None) -> list[Backend]:
    """Return the links that peers may use: those of these schemes or names; None is those that compute here."""
    if named is not None:
        return [link for link in links if not _names_of(link).isdisjoint(named)]
    return [link for link in links if isinstance(link, EngineLink) or _is_own_server(link)]


def unknown_offers(links: Sequence[Backend], named: Sequence[str] | None) -> str:
    """Return which entries of `cluster.offer` are no links here; a node without links may share its settings."""
    known = {AGENTS}.union(*map(_names_of, links))
    return ", ".join(repr(name) for name in named or () if links and name not in known)


def _is_own_server(link: Backend) -> bool:
    """Whether a link is a model server on this machine that takes no key: any other may spend the user's money."""
    url = link.capabilities.url  # LM Studio's program is looked for here where the user gives none
    return LinkSpec.parse(link.name).scheme in _OWN_SERVERS and (not url or is_loopback(url))


class Advertising:
    """Measures what the chain's offered links have (`cluster.offer`), and how busy their engines are."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        chain: Chain,
        settings: Cluster,
        agents: Backend | None,
        router: ClusterRouter,
        answering: Answering,
        transport: Transport,
        advertise: Callable[[bytes], None],
        tasks: Tasks,
        begun: BegunLoads,
    ) -> None:
        """`advertise` has membership tell what this node offers."""
        self._chain = chain
        self._settings = settings
        self._agents = agents
        self._router = router
        self._answering = answering
        self._transport = transport
        self._sequence = 0
        self._left_out = ""
        self.engine_stats: Mapping[str, EngineStats] = {}
        self._advertise = advertise
        self._telling = asyncio.Lock()
        self.placing = Placing(settings, router, begun, self._tell_offer, tasks)
        self.stealing = Stealing(chain, router, lambda: self.engine_stats)

    async def offer(self) -> Offer:
        """Return what the links have now; one that does not say in time has nothing."""
        links = offered_links(self._chain.links, self._settings.offer)
        self._router.offered_names = [link.name for link in links]
        lists = await asyncio.gather(*map(_models, links))
        says = [link.capabilities for link in links]
        usd = self._settings.usd_per_million_tokens
        agents = [] if self._agents is None else await _models(self._agents)
        offer = Offer(
            models=tuple(msgspec.structs.replace(model, aliases=()) for models in lists for model in models),
            agents=tuple(model.id.removeprefix(AGENT_PREFIX) for model in agents),
            abilities=tuple(sorted(frozenset[str]().union(*(one.abilities for one in says)))),
            gives_several=any(one.gives_several for one in says),
            continues=any(one.assistant_prefix == "continued" for one in says),
            role=self._settings.role,
            price=None if usd is None else Price(input=usd, output=usd),
            weight=self._settings.weight,
        )
        return (await self.placing.added(offer, links)).bounded()

    async def advert(self) -> tuple[Offer, bytes]:
        """Return the offer and how it is told: gossip has no room for very much, which is said once."""
        whole = await self.offer()
        offer = fitted(whole)
        is_whole = (offer.models, offer.agents) == (whole.models, whole.agents)
        told = "" if is_whole else "models and agents are"
        told = told if offer.placement == whole.placement else "cluster.placement is"
        if told and told != self._left_out:
            logger.warning("this node offers more than the others can be told of; %s left out", told)
        self._left_out = told
        return offer, offer_codec.encode(offer)

    async def load(self) -> Load:
        """Return how busy the engines are, and which prompts they computed since it was asked last."""
        states = [await link.engine_state() for link in self._chain.links if isinstance(link, EngineLink)]
        self.engine_stats = by_model = {name: one for state in states for name, one in state.stats.items()}
        stats = by_model.values()
        num_free = sum(max(0, one.max_num_running - one.num_running) for one in stats)
        num_arriving = sum(state.num_arriving for state in states)
        num_placed = min(num_arriving, num_free)  # each takes a place, or waits where none is free
        self._sequence += 1
        return Load(
            sequence=self._sequence,
            num_running=num_placed + sum(one.num_running for one in stats) or self._answering.num_running,
            num_waiting=num_arriving - num_placed + sum(sum(one.waiting.values()) for one in stats),
            num_free=num_free - num_placed,
            num_prompt_tokens_left=sum(one.num_prompt_tokens_left for one in stats)
            + sum(state.num_arriving_tokens for state in states),
            prefill_tokens_per_second=max((one.prefill_tokens_per_second for one in stats), default=0.0),
            requests_per_second=sum(map(requests_per_second, stats)),
            answer_seconds=max(map(answer_seconds, stats), default=0.0),
            first_token_seconds=max((one.first_token_seconds.p50 for one in stats), default=0.0),
            free_kv_pages=sum(one.pool.free for one in stats),
            is_draining=self._answering.is_draining,
            new_prefixes=pack(self._router.take_new_prefixes(MAX_NEW_PREFIXES)),
        )

    # -- telling --------------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Have the transport hand peers' loads on."""
        self._transport.handle(LOAD, self._take_load)

    async def greet(self, peer_id: str) -> None:
        """Learn which prompts a peer has computed, and tell it this node's load."""
        with contextlib.suppress(PyAgentError):
            reply = await self._transport.call(peer_id, WARM, b"", timeout=_CALL_SECONDS)
            if (peer := self._router.get(peer_id)) is not None:
                peer.warm.add(unpack(reply.payload))
        self._transport.cast(peer_id, LOAD, load_codec.encode(self._router.own.load))

    async def tell_loads(self) -> None:
        """Tell the load again and again; an engine that cannot say now is asked again."""
        while True:
            try:
                await self.tell_load()
            except Exception as error:  # noqa: BLE001 - one link's bug must not silence the node
                logger.warning("the load cannot be told: %s", error)
            await asyncio.sleep(_LOAD_SECONDS)

    async def tell_load(self) -> None:
        """Tell the load now, where it says something new, or has not been told for a while."""
        own = self._router.own
        before, load = own.load, await self.load()
        own.tell(load)
        self.stealing.heard()
        is_new = msgspec.structs.replace(load, sequence=before.sequence) != before
        if is_new or load.sequence % _LOADS_A_SIGN == 0:
            told = load_codec.encode(load)
            for peer in self._router:
                self._transport.cast(peer.id, LOAD, told)
        stats = self._transport.stats()
        for peer in self._router:
            if peer.id in stats and (seconds := stats[peer.id].round_trip_seconds):
                peer.round_trip_seconds = moving_average(peer.round_trip_seconds or None, seconds, _NEWEST_WEIGHT)

    async def tell_offers(self, moved: Callable[[], None]) -> None:
        """Have membership tell what this node offers and where it listens, when that has changed."""
        while True:
            await asyncio.sleep(_OFFER_SECONDS)
            moved()
            await self._tell_offer()

    async def _tell_offer(self) -> None:
        async with self._telling:
            offer, told = await self.advert()
            if offer != self._router.own.offer:
                self._router.own.offer = offer
                self._advertise(told)

    def _take_load(self, peer_id: str, payload: bytes, _buffers: object) -> None:
        if (peer := self._router.get(peer_id)) is not None:
            peer.take(load_codec.decode(payload))
            self.stealing.heard()


def fitted(offer: Offer) -> Offer:
    """Return as much of an offer as there is room for: the wishes, the models in memory, and of the rest the first."""
    bare = msgspec.structs.replace(offer, models=(), agents=())
    if _size(bare) > MAX_ADVERT_BYTES // 2:
        offer = msgspec.structs.replace(offer, placement={}, placeable=())
    while _size(offer) > MAX_ADVERT_BYTES and (offer.models or offer.agents):
        agents = offer.agents[: len(offer.agents) // 2]
        offer = msgspec.structs.replace(offer, models=_fewer(offer.models), agents=agents)
    return offer


def _size(offer: Offer) -> int:
    return len(offer_codec.encode(offer))


def _fewer(models: Sequence[ModelInfo]) -> tuple[ModelInfo, ...]:
    """Return half of the models that are not in memory, and those that are; where all are, half of them."""
    others = [model.id for model in models if not model.is_loaded]
    kept = set(others[: len(others) // 2])
    return (
        tuple(model for model in models if model.is_loaded or model.id in kept)
        if others
        else tuple(models[: len(models) // 2])
    )


async def _models(link: Backend) -> list[ModelInfo]:
    try:
        return await asyncio.wait_for(link.models(), _LIST_SECONDS)
    except Exception:  # noqa: BLE001 - a link that cannot say has nothing to offer
        return []
