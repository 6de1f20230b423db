"""The peers as this node knows them, and the chain's router over them: which links there are, and in which order.

Knows no socket: the node tells what arrived, and gives each peer a backend. `ClusterRouter` is what
`core/chain/router.py` asks for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import msgspec

from pyagent.core.adapter_stacks import is_stack
from pyagent.core.backends import AGENT_PREFIX, Backend
from pyagent.core.cluster.absentees import Absentees
from pyagent.core.cluster.adverts import IDLE, NOTHING, Load, Offer
from pyagent.core.cluster.kv_peer import KvPeer
from pyagent.core.cluster.names import SCHEME, resolve, unique_names
from pyagent.core.cluster.prefixes import WarmPrefixes, num_warm_tokens, prefix_keys, unpack, warm_share
from pyagent.core.cluster.routing import LEAST_TOKENS, Balancer, Node
from pyagent.core.errors import ClusterError
from pyagent.core.messages import ChatRequest, Hint
from pyagent.core.token_estimate import estimated_request_tokens

_is_for_peer: ContextVar[bool] = ContextVar("answering a peer", default=False)
_DRAINING = "it is draining"
_MAX_STICKY = 10_000
_MAX_COUNTED = 4_096
_LOAD_SECONDS, _LOAD_BYTES_PER_SECOND = 1.0, 500e6
"""What loading a model takes at least, and how quickly its weights come from a disk."""


def answer_for_peer() -> None:
    """Have what is done now, and in tasks begun from here, answered by this node's own links: no circles."""
    _is_for_peer.set(True)


def is_for_peer() -> bool:
    """Return whether what is done now answers a peer."""
    return _is_for_peer.get()


@dataclass(slots=True, eq=False, kw_only=True)
class Standing:
    """What is known of a node: what it offers, how busy it is, what it has computed.

    Since its last load `num_sent` requests went to it from here, with `num_sent_tokens` of prompts to compute. `sent`
    are the keys of prompts that went to it, `warm` of those whose answers began: it may compute the others now.
    `round_trip_seconds` is measured, 0 for this node.
    """

    offer: Offer = NOTHING
    load: Load = IDLE
    warm: WarmPrefixes = field(default_factory=WarmPrefixes)
    sent: WarmPrefixes = field(default_factory=WarmPrefixes)
    num_sent: int = 0
    num_sent_tokens: int = 0
    round_trip_seconds: float = 0.0

    def tell(self, load: Load) -> None:
        """Take a new load; what was sent before it is counted in it."""
        self.load, self.num_sent, self.num_sent_tokens = load, 0, 0

    def send(self, keys: Sequence[int], num_tokens: int) -> None:
        """Note that a prompt is sent to it: a second one that begins alike will find it there."""
        self.num_sent += 1
        self.num_sent_tokens += max(LEAST_TOKENS, num_tokens - self._num_warm(keys, num_tokens))
        self.sent.add(keys)

    def _num_warm(self, keys: Sequence[int], num_tokens: int) -> int:
        return max(num_warm_tokens(keys, known, num_tokens) for known in (self.warm, self.sent))

    def has(self, model: str) -> bool:
        """Whether it offers a model, or an agent as `agent:NAME`."""
        if model.startswith(AGENT_PREFIX):
            return model.removeprefix(AGENT_PREFIX) in self.offer.agents
        ids = [one.id for one in self.offer.models]
        return model in ids or is_stack(model, ids)

    def must_load(self, model: str) -> bool:
        """Whether it offers a model that is not in its memory."""
        return any(model == one.id and one.is_loaded is False for one in self.offer.models)

    def as_node(self, name: str, keys: Sequence[int], num_tokens: int, load_seconds: float = 0.0) -> Node:
        """Return the node as a request sees it whose prompt has these keys and so many tokens.

        `load_seconds` pass before the model is in its memory.
        """
        return Node(
            id=name,
            num_running=self.load.num_running,
            num_waiting=self.load.num_waiting,
            num_sent=self.num_sent,
            num_free=self.load.num_free,
            num_prompt_tokens_left=self.load.num_prompt_tokens_left + self.num_sent_tokens,
            num_warm_tokens=self._num_warm(keys, num_tokens),
            prefill_tokens_per_second=self.load.prefill_tokens_per_second,
            first_token_seconds=self.load.first_token_seconds,
            load_seconds=load_seconds,
            round_trip_seconds=self.round_trip_seconds,
            price=self.offer.price,
            weight=self.offer.weight,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Peer(Standing):
    """A peer and its link. `called` is the name it gives itself, `name` the one it goes by.

    `is_up` is whether its connection stands: else it is no link until it is up again. `kv` is what is known of moving
    KV with it.
    """

    id: str
    called: str
    backend: Backend
    name: str = ""
    kv: KvPeer = field(default_factory=KvPeer)
    boot: int = 0
    is_up: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether it takes requests now."""
        return not self.absence()

    def take(self, load: Load) -> bool:
        """Take a load it told; False for one that is older than the last."""
        if load.sequence <= self.load.sequence:
            return False
        self.tell(load)
        self.warm.add(unpack(load.new_prefixes))
        return True

    def absence(self) -> str:
        """Return why it takes no requests now; empty when it does."""
        if not self.is_up:
            return "it is not connected"
        if self.load.is_draining:
            return _DRAINING
        if self.offer.role == "prefill":
            return "it computes prompts only"
        return "" if self.offer.models or self.offer.agents else "it offers nothing"

    def connected(self) -> None:
        """Note that its connection stands: it may have started anew, so that what it told before is void."""
        self.is_up = True
        self.tell(IDLE)
        self.warm.clear()
        self.sent.clear()
        self.kv.renew()


@dataclass(slots=True)
class ClusterRouter:
    """Orders this node's engine and the peers. `engine_names` are the links of this node that compute themselves.

    `own` is what is known of this node itself; `offered_names` are its links that peers may use. Links that are neither
    peers nor the engine keep their place: what the user put before the engine stays before it. A conversation or run
    stays with the node that has it, while that node is there. A node that `is_leaving` asks all others first.
    """

    balancer: Balancer
    own_name: str = ""
    secret: bytes = b""
    engine_names: Sequence[str] = ()
    offered_names: Sequence[str] = ()
    default_model: str = ""
    own_id: str = ""
    is_leaving: bool = False
    own: Standing = field(default_factory=Standing)
    new_prefixes: list[int] = field(default_factory=list[int])
    absentees: Absentees = field(default_factory=Absentees)
    _peers: dict[str, Peer] = field(default_factory=dict[str, Peer])
    _sticky: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict[tuple[str, str], str])
    _id_to_answered: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])

    # -- the chain's questions ------------------------------------------------------------------------------------

    def backends(self) -> Sequence[Backend]:
        """Return the links of the peers; those that take no requests now are absent."""
        return [peer.backend for peer in self]

    def asked(self, request: ChatRequest, name: str) -> None:
        """Note a request that is sent, so that a burst spreads before any load is told, and its prompt stays whole."""
        node = self.own if name in self.engine_names else self._named(name)
        if node is not None:
            node.send(self._keys(request), estimated_request_tokens(request))

    def taker(self, node: str) -> str:
        """Return the link of a node that has room, as another one said, by its id; empty when it can take nothing.

        That one may have heard a newer load of it: where the last that came here says that it drains, it is asked all
        the same, for this one request. What another says of it changes nothing else.
        """
        if node == self.own_id:
            return next(iter(self.engine_names), "")
        peer = self._peers.get(node)
        return peer.backend.name if peer is not None and peer.absence() in {"", _DRAINING} else ""

    def hinted(self, hint: Hint) -> Sequence[str]:
        """Return the peer that has the hint's conversation or run; none for a private one, or a peer's own hint."""
        home = self._sticky.get((hint.tenant, hint.session or hint.run))
        return [] if home is None or hint.private or _is_for_peer.get() else [home]

    def order(self, request: ChatRequest, names: Sequence[str]) -> Sequence[str]:
        """Return links in the order to try them: the engine and the peers ranked, in the place of the engine.

        A peer without the model that a request names is not asked; one without the default model is a last resort.
        """
        peers = {peer.backend.name: peer for peer in self}
        if is_for_peer():
            return [name for name in names if name in self.offered_names]
        engine = next((name for name in names if name in self.engine_names), None)
        model = request.model or self.default_model
        usable = {name: peers[name] for name in names if name in peers and peers[name].has(model)}
        lacks = self.own.offer.models and not self.own.has(model)
        ranked = self._ranked(request, None if lacks else engine, usable)
        others = [name for name in names if name not in peers and name != engine]
        before = others if engine is None else [name for name in others if names.index(name) < names.index(engine)]
        after = [name for name in others if name not in before]
        lacking = [] if request.model else [name for name in names if name in peers and name not in usable]
        if engine is not None and lacks and not (request.model and usable):
            lacking.append(engine)
        return [*before, *ranked, *after, *lacking]

    def away(self, model: str) -> str:
        """Return a peer that has a model and takes no requests now, or had it lately and is gone."""
        if is_for_peer():
            return ""
        absent = (peer for peer in self if not peer.is_usable)
        standing = (one.backend.name for one in absent if one.has(model) or model in {one.backend.name, _address(one)})
        return next(standing, "") or self.absentees.last_node(model)

    def own_links(self, name: str) -> Sequence[str]:
        """Return this node's engine, or else what it offers, where `peer:NAME` names this node; else nothing."""
        try:
            is_own = self._node_of(name) == self.own_id
        except ClusterError:
            return ()
        return (self.engine_names or self.offered_names) if is_own else ()

    def why_none(self, link: str) -> str:
        """Return why `peer:NAME` names no node, or several; or this one, where it has nothing to ask."""
        try:
            is_own = self._node_of(link) == self.own_id
        except ClusterError as error:
            return str(error)
        return f"{link} is this node, which has no link that computes" if is_own else ""

    def _node_of(self, link: str) -> str | None:
        """Return the id of the node that `peer:NAME` names; None for what does not read so. Raises `ClusterError`."""
        scheme, _, name = link.partition(":")
        if scheme != SCHEME or not name:
            return None
        return resolve(name, {self.own_id: self.own_name, **{peer.id: peer.called for peer in self}})

    def began(self, request: ChatRequest, name: str) -> None:
        """Note that a link began an answer: who has the prompt now, and whose conversation it is."""
        if key := _sticky_key(request):
            self._sticky[key] = name
            self._sticky.move_to_end(key)
            if len(self._sticky) > _MAX_STICKY:
                self._sticky.popitem(last=False)
        if name in self.engine_names:
            self.computed(request)
        elif peer := self._named(name):
            self._count_answer(peer.id)
            peer.warm.add(self._keys(request))

    # -- what the node learns ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer_id: str) -> Peer | None:
        """Return a peer by its id."""
        return self._peers.get(peer_id)

    def add(self, peer: Peer) -> None:
        """Add a peer; it is a link once it is up and has told what it offers."""
        self._peers[peer.id] = peer
        self.tell_apart()

    def remove(self, peer_id: str, *, may_return: bool = True) -> None:
        """Remove a peer that left or died; one that was revoked may not return."""
        if (peer := self._peers.pop(peer_id, None)) is not None:
            if may_return:
                self.absentees.note(peer.backend.name, peer.offer)
            self.tell_apart()
        if not may_return:
            self._id_to_answered.pop(peer_id, None)

    def tell_apart(self) -> None:
        """Give each peer the name it goes by, so that no two have the same."""
        names = unique_names({peer.id: peer.called for peer in self}, self.own_name)
        for peer in self:
            peer.name = names[peer.id]
            peer.backend.name = f"{SCHEME}:{peer.name}"

    def computed(self, request: ChatRequest) -> None:
        """Note that this node computed a prompt, its own or a peer's; nothing is told of private ones."""
        if not request.private:
            self.new_prefixes += self.own.warm.add(self._keys(request))

    def holders(self, request: ChatRequest) -> list[tuple[Peer, float]]:
        """Return the peers that have computed the beginning of a prompt, and the share of it, the most first."""
        keys = self._keys(request)
        shares = [(peer, warm_share(keys, peer.warm)) for peer in self if peer.is_up]
        return sorted((held for held in shares if held[1]), key=lambda held: -held[1])

    def take_new_prefixes(self, at_most: int) -> list[int]:
        """Return the newest keys not told yet, and forget the others: they are in the whole list."""
        new, self.new_prefixes = self.new_prefixes[-at_most:], []
        return new

    def num_answered(self, peer_id: str) -> int:
        """Return how many answers a node began for this one: also before it was held for dead, and came back."""
        return self._id_to_answered.get(peer_id, 0)

    def _count_answer(self, peer_id: str) -> None:
        self._id_to_answered[peer_id] = self._id_to_answered.pop(peer_id, 0) + 1
        if len(self._id_to_answered) > _MAX_COUNTED:
            self._id_to_answered.popitem(last=False)

    def _named(self, name: str) -> Peer | None:
        return next((peer for peer in self if peer.backend.name == name), None)

    def _keys(self, request: ChatRequest) -> list[int]:
        if not request.model and self.default_model:
            request = msgspec.structs.replace(request, model=self.default_model)
        return prefix_keys(request, self.secret)

    def _load_seconds(self, model: str) -> float:
        """Return how long a node takes, about, to load a model, by the size that those say who have it in memory."""
        offers = (standing.offer for standing in (self.own, *self))
        sizes = (one.size_bytes or 0 for offer in offers for one in offer.models if one.id == model)
        return _LOAD_SECONDS + max(sizes, default=0) / _LOAD_BYTES_PER_SECOND

    # -- ranking --------------------------------------------------------------------------------------------------

    def _ranked(self, request: ChatRequest, engine: str | None, peers: dict[str, Peer]) -> list[str]:
        if not peers:
            return [] if engine is None else [engine]
        keys, num_tokens = self._keys(request), estimated_request_tokens(request)
        standings: dict[str, Standing] = {**peers, **({} if engine is None else {engine: self.own})}
        model = request.model or self.default_model
        loads = self._load_seconds(model)
        nodes = [
            standing.as_node(name, keys, num_tokens, loads if standing.must_load(model) else 0.0)
            for name, standing in standings.items()
        ]
        ranked = [node.id for node in self.balancer.order(nodes, num_tokens)]
        home = self._sticky.get(_sticky_key(request) or ("", ""))
        if home in ranked:
            ranked.remove(home)
            ranked.insert(0, home)
        return sorted(ranked, key=lambda name: name == engine) if self.is_leaving else ranked


def _address(peer: Peer) -> str:
    return f"{SCHEME}:{peer.id}"


def _sticky_key(request: ChatRequest) -> tuple[str, str] | None:
    """Return what a request belongs to: its conversation, else its run; never that of another tenant."""
    belongs = request.session or request.origin.run
    return (request.origin.tenant, belongs) if belongs else None
