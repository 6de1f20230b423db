"""Finding a node's clone, which a cloned disk is, where both are connected with a third node alone.

Under its own id a node tells each peer the random number of its start (`boot`), and a peer passes that on to all that
are connected under this id. Who hears another number than its own answers with a proof: an HMAC over both, keyed with
what only the holder of their one secret key can compute. As a number is new with each start, a proof over this node's
own was made while it ran, by another node that has its key. Nothing else changes keys: no peer can make up a clone.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated

import msgspec

from pyagent.infrastructure.cluster.handshake import NONCE_BYTES, Nonce
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.protocol import TWIN
from pyagent.infrastructure.cluster.transport import Transport
from pyagent.infrastructure.wire.codec import Codec

_MAX_BYTES = 1 << 10


class Start(msgspec.Struct, frozen=True):
    """The start of a node. `proof` is over its number and the `other` that it has heard of, both empty at first."""

    node_id: Annotated[str, msgspec.Meta(max_length=32)]
    boot: Nonce
    other: Annotated[bytes, msgspec.Meta(max_length=NONCE_BYTES)] = b""
    proof: Annotated[bytes, msgspec.Meta(max_length=32)] = b""


start_codec: Codec[Start] = Codec(Start, "a node of the cluster", _MAX_BYTES)


class Twins:
    """This node's part: it tells its start, passes on those of others, and knows its clone by the proof."""

    def __init__(self, keys: NodeKeys, boot: bytes, transport: Transport, on_twin: Callable[[bool], None]) -> None:
        """`on_twin` is told of a clone, and whether this node is the one of both that is to take new keys."""
        self._keys = keys
        self._boot = boot
        self._transport = transport
        self._on_twin = on_twin

    def register(self) -> None:
        """Have the transport hand starts on."""
        self._transport.handle(TWIN, self._take)

    def tell(self, peer_id: str) -> None:
        """Tell a peer of this start."""
        self._transport.cast(peer_id, TWIN, start_codec.encode(Start(self._keys.node_id, self._boot)))

    def _take(self, peer_id: str, payload: bytes, _buffers: object) -> None:
        told = start_codec.decode(payload)
        if told.node_id == self._keys.node_id:
            self._judge(peer_id, told)
        elif told.node_id == peer_id:  # none speaks for another
            self._transport.cast_everywhere(peer_id, TWIN, payload)

    def _judge(self, peer_id: str, told: Start) -> None:
        """Answer another start under this node's id; it is a clone's where it proves that."""
        if told.boot == self._boot:
            return  # this node's own, which comes back on each connection
        is_proved = told.other == self._boot and hmac.compare_digest(told.proof, self._proof(told.boot, self._boot))
        is_to_change = is_proved and self._boot > told.boot
        if not is_to_change:  # a clone that is to change hears it from this node
            own = Start(self._keys.node_id, self._boot, told.boot, self._proof(self._boot, told.boot))
            self._transport.cast(peer_id, TWIN, start_codec.encode(own))
        if is_proved:
            self._on_twin(is_to_change)

    def _proof(self, boot: bytes, other: bytes) -> bytes:
        secret = self._keys.shared_with(self._keys.public)
        return hmac.digest(secret, b"pyagent twin 1\0" + boot + other, "sha256")
