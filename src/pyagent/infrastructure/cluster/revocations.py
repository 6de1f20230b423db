"""Words that put a node out of a cluster: signed by the member who says so, and passed on by all."""

from __future__ import annotations

from collections.abc import Container

from pyagent.core.cluster.cluster_state import ClusterState
from pyagent.core.cluster.messages import Revocation
from pyagent.infrastructure.cluster.keys import NodeKeys, node_id_of
from pyagent.infrastructure.cluster.signatures import is_signed, sign


def revocation_by(keys: NodeKeys, cluster_id: str, node_id: str) -> Revocation:
    """Return the signed word of a node that another one is out of a cluster. Takes some 10 ms."""
    return Revocation(node_id, keys.public, sign(keys, _said(cluster_id, node_id)))


def is_valid(told: Revocation, state: ClusterState, others: Container[str] = ()) -> bool:
    """Whether a revocation counts: its revoker is or was a member, or one of `others`, and said it of this cluster.

    A node that was away may never have heard of a revoker that is gone and forgotten: there the current secret speaks
    for the word, as it names whom it was made to keep out.
    """
    by = node_id_of(told.by)
    is_known = by in state.members or by in state.revoked or by in others or told.id in state.current.excludes
    return is_known and is_signed(told.by, _said(state.cluster_id, told.id), told.signature)


def _said(cluster_id: str, node_id: str) -> bytes:
    return f"pyagent revocation 1\0{cluster_id}\0{node_id}".encode()
