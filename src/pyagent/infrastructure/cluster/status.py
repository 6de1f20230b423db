"""The cluster as one node sees it, for `pyagent cluster status` and `GET /pyagent/cluster`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from pyagent.core.cluster.adverts import MAX_MODELS, Role
from pyagent.core.cluster.cluster_state import clean_name
from pyagent.core.cluster.member import MemberView
from pyagent.core.cluster.peers import Peer
from pyagent.core.cluster.placement import Holder
from pyagent.infrastructure.cluster.frames import shown
from pyagent.infrastructure.cluster.transport import PeerStats


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A peer: what membership holds of it, what it told, and what went over its connection.

    `link` is what it is called as a link: by its name, or by its id where others have that name. It is in its `state`
    for `state_seconds`.
    `num_calls` are calls and streams of this node that it answers, `num_serving` those of it that this node answers.
    KV of `num_kv_loads` prompts came from it, `kv_loaded_bytes` in all; `kv_sent_bytes` went to it. `failure` is why it
    is not connected.
    """

    id: str
    name: str
    state: str
    version: str
    endpoints: tuple[str, ...]
    link: str = ""
    state_seconds: float = 0.0
    is_connected: bool = False
    failure: str = ""
    is_draining: bool = False
    role: Role = "both"
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    num_answered: int = 0
    num_warm_prefixes: int = 0
    free_kv_pages: int = 0
    num_calls: int = 0
    num_serving: int = 0
    num_kv_loads: int = 0
    kv_loaded_bytes: int = 0
    kv_sent_bytes: int = 0
    round_trip_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


class PlacementStatus(msgspec.Struct, frozen=True):
    """How many nodes shall have a model loaded, by `cluster.placement`, and how many that take requests have it.

    So many more load it now, as they were asked for, and so many could. Where no node has it among its models, loaded
    or not, it is not `is_named`: it may be mistyped.
    """

    model: str
    wanted: int
    live: int
    loading: int = 0
    able: int = 0
    is_named: bool = True


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, this node, and its peers by name. `keeps_kv`: there is an engine here, but its KV does not move.

    `unmet` says, a line each, why nodes that were looked for are not among the peers.
    """

    cluster: str
    epoch: int
    id: str
    name: str
    door_port: int
    endpoints: tuple[str, ...]
    is_draining: bool
    is_revoked: bool = False
    role: Role = "both"
    keeps_kv: bool = False
    models: tuple[str, ...]
    num_answered_for_peers: int
    num_given_away: int
    placement: tuple[PlacementStatus, ...] = ()
    unmet: tuple[str, ...] = ()
    peers: tuple[PeerStatus, ...]


def placement_of(
    wanted: Mapping[str, int], holders: Sequence[Holder], named: Collection[str]
) -> tuple[PlacementStatus, ...]:
    """Return the status of the wanted models, of very many the first by name; `named` are those that nodes offer."""
    return tuple(
        PlacementStatus(
            shown(model),
            wanted[model],
            live=sum(model in holder.loaded for holder in holders),
            loading=sum(model in holder.loading - holder.loaded for holder in holders),
            able=sum(model in holder.placeable for holder in holders),
            is_named=model in named,
        )
        for model in sorted(wanted)[:MAX_MODELS]
    )


def status_of(
    view: MemberView, peer: Peer | None, stats: PeerStats | None, now: float, *, num_answered: int = 0
) -> PeerStatus:
    """Return the status of a member, of which there is less to say while it is no peer.

    Its words are shown in terminals: they hold no control characters.
    """
    member = view.member
    status = PeerStatus(
        id=member.id,
        name=clean_name(member.name),
        state=view.state,
        state_seconds=max(0.0, now - view.since),
        version=clean_name(member.version),
        endpoints=tuple(map(shown, member.endpoints)),
        num_answered=num_answered,
    )
    if stats is not None:
        status = msgspec.structs.replace(
            status,
            bytes_sent=stats.bytes_sent,
            bytes_received=stats.bytes_received,
            messages_sent=stats.messages_sent,
            messages_received=stats.messages_received,
            num_calls=stats.in_flight,
            num_serving=stats.serving,
            failure=shown(stats.failure),
        )
    if peer is None:
        return status
    return msgspec.structs.replace(
        status,
        link=peer.backend.name,
        is_connected=peer.is_up,
        is_draining=peer.load.is_draining,
        role=peer.offer.role,
        models=tuple(shown(model.id) for model in peer.offer.models),
        agents=tuple(map(shown, peer.offer.agents)),
        num_running=peer.load.num_running,
        num_waiting=peer.load.num_waiting,
        num_warm_prefixes=len(peer.warm),
        free_kv_pages=peer.load.free_kv_pages,
        num_kv_loads=peer.kv.num_loads,
        kv_loaded_bytes=peer.kv.loaded_bytes,
        kv_sent_bytes=peer.kv.sent_bytes,
        round_trip_seconds=peer.round_trip_seconds,
    )
