"""The cluster as one of its nodes sees it, for Prometheus. What it asks of a peer is counted at the link `peer:NAME`.

Only live peers have series of their own, so that those of a peer that left, died or was forgotten vanish; of very many,
those beyond the first by name are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.infrastructure.cluster.status import ClusterStatus, PeerStatus

_MAX_PEERS = 256
_STATES = ("alive", "suspect", "dead", "left")
_COUNTERS = (
    ("sent_bytes", "Bytes sent to a peer, before encryption.", "bytes_sent"),
    ("received_bytes", "Bytes received from a peer, after decryption.", "bytes_received"),
    ("sent_messages", "Messages sent to a peer.", "messages_sent"),
    ("received_messages", "Messages received from a peer.", "messages_received"),
    ("answers_begun", "Answers to this node's requests that a peer began.", "num_answered"),
    ("kv_loads", "Prompts whose KV came from a peer.", "num_kv_loads"),
    ("kv_loaded_bytes", "Bytes of KV that came from a peer.", "kv_loaded_bytes"),
    ("kv_sent_bytes", "Bytes of KV that went to a peer.", "kv_sent_bytes"),
)
_GAUGES: tuple[tuple[str, str, Callable[[PeerStatus], float]], ...] = (
    ("connected", "Whether the connection with a peer stands.", lambda peer: float(peer.is_connected)),
    (
        "suspected",
        "Whether a peer did not answer and is about to be held for dead.",
        lambda peer: float(peer.state == "suspect"),
    ),
    ("draining", "Whether a peer takes no more requests.", lambda peer: float(peer.is_draining)),
    ("round_trip_seconds", "Measured round trip to a peer, averaged.", lambda peer: peer.round_trip_seconds),
    ("calls_waiting", "Calls and streams of this node that a peer answers.", lambda peer: peer.num_calls),
    ("calls_serving", "Calls and streams of a peer that this node answers.", lambda peer: peer.num_serving),
    ("requests_running", "Requests that a peer computes, as it told.", lambda peer: peer.num_running),
    ("requests_waiting", "Requests in a peer's queues, as it told.", lambda peer: peer.num_waiting),
    ("kv_pages_free", "Free pages of a peer's KV cache, as it told.", lambda peer: peer.free_kv_pages),
    ("warm_prefixes", "Pieces of prompts that a peer has computed, as it told.", lambda peer: peer.num_warm_prefixes),
)


def collect_cluster(status: ClusterStatus) -> Iterator[Metric]:
    """The members by state, what peers asked of this node, and the live peers by name."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    num_members = Counter(peer.state for peer in status.peers)
    members = GaugeMetricFamily("pyagent_cluster_members", "Other members by state.", labels=("state",))
    for state in _STATES:
        members.add_metric((state,), num_members[state])
    yield members
    answered = CounterMetricFamily("pyagent_cluster_answered", "Requests of peers that this node took.")
    answered.add_metric((), status.num_answered_for_peers)
    yield answered
    epoch = GaugeMetricFamily("pyagent_cluster_epoch", "Epoch of the cluster's secret; revoking a node begins one.")
    epoch.add_metric((), status.epoch)
    yield epoch
    yield from _placement(status)
    live = [peer for peer in status.peers if peer.state in {"alive", "suspect"}][:_MAX_PEERS]
    names = _distinct(live)
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(f"pyagent_peer_{name}", text, labels=("peer",))
        for peer, shown in zip(live, names, strict=True):
            counter.add_metric((shown,), float(getattr(peer, field)))
        yield counter
    for name, text, measure in _GAUGES:
        gauge = GaugeMetricFamily(f"pyagent_peer_{name}", text, labels=("peer",))
        for peer, shown in zip(live, names, strict=True):
            gauge.add_metric((shown,), measure(peer))
        yield gauge


def _placement(status: ClusterStatus) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    wanted = GaugeMetricFamily(
        "pyagent_cluster_copies_wanted", "Nodes that shall have a model loaded.", labels=("model",)
    )
    live = GaugeMetricFamily("pyagent_cluster_copies_live", "Nodes that have a wanted model loaded.", labels=("model",))
    for model in status.placement:
        wanted.add_metric((model.model,), model.wanted)
        live.add_metric((model.model,), model.live)
    yield wanted
    yield live


def _distinct(peers: list[PeerStatus]) -> list[str]:
    """Return a label for each: its name, with the id where another has that name."""
    num_named = Counter(peer.name for peer in peers)
    return [peer.name if num_named[peer.name] == 1 else f"{peer.name} ({peer.id})" for peer in peers]
