"""The messages between two nodes, and the versions of them that this one understands.

A message is one frame, msgpack of the structs below, and its buffers are frames after it. What is longer than
`Limits.inline_bytes` is announced by `Begin` among the other messages and travels as `Chunk`s on a connection of its
own. Ids are the sender's for calls it makes and transfers it sends; whose they are follows from the message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from pyagent.core.errors import WireError
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.fault import Fault
from pyagent.infrastructure.wire.hello import Hello

_OLDEST, _NEWEST = 1, 1
HELLO = Hello("pyagent-cluster", f"{_OLDEST}-{_NEWEST}")
"""The first message each way on each connection; its version is the range that this node understands."""
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")

_MAX_SHOWN = 500
MAX_BUFFERS = 64
MAX_HEADER_BYTES = 256 << 10
"""The longest message without its buffers: room for an inline payload, and for the text of an error."""
Channel = Literal["calls", "bulk"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer may cost, and how long things may take."""

    max_in_flight: int = 1024
    """Calls and streams of a peer that are served at a time."""
    max_message_bytes: int = 2 << 30
    """The longest payload with its buffers."""
    max_held_bytes: int = 4 << 30
    """Bytes of long messages from a peer that are arriving, or that handlers work on; more of them wait."""
    max_transfers: int = 64
    """Long messages to a peer, or from it, at a time."""
    max_queued: int = 1000
    """Messages that wait for a connection, in ZMQ's queue and once more in ours."""
    inline_bytes: int = 64 << 10
    chunk_bytes: int = 1 << 20
    window_bytes: int = 8 << 20
    """Bytes of a long message that may be on their way."""
    stream_window: int = 32
    """Items of a stream that may wait for their reader."""
    max_guests: int = 64
    """Connections to this node that have not said hello yet."""
    connect_seconds: float = 2.0
    handshake_seconds: float = 5.0
    heartbeat_seconds: float = 2.0
    silence_seconds: float = 10.0
    """A connection on which nothing comes for this time is closed."""
    first_pause_seconds: float = 0.05
    longest_pause_seconds: float = 5.0
    ping_seconds: float = 2.0
    linger_seconds: float = 0.5
    """How long `stop` waits for what is already sent to leave."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """The second message of the node that connected: what the connection is for."""

    channel: Channel


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The connection is given up, for this reason."""

    reason: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """Ask for one answer, within `seconds`."""

    id: int
    method: str
    seconds: float | None
    payload: bytes = b""


class Stream(msgspec.Struct, frozen=True, tag=True):
    """Ask for a stream of answers, `credit` of them before the reader has taken any."""

    id: int
    method: str
    credit: int
    seconds: float | None = None
    payload: bytes = b""


class Cast(msgspec.Struct, frozen=True, tag=True):
    """Tell something that has no answer."""

    method: str
    payload: bytes = b""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """A call's answer."""

    id: int
    payload: bytes = b""


class Item(msgspec.Struct, frozen=True, tag=True):
    """One answer of a stream."""

    id: int
    payload: bytes = b""


class End(msgspec.Struct, frozen=True, tag=True):
    """The stream is complete."""

    id: int


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The call or stream failed."""

    id: int
    fault: Fault


class Credit(msgspec.Struct, frozen=True, tag=True):
    """The reader of a stream has taken `num` more items."""

    id: int
    num: int


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The caller no longer waits for a call or stream."""

    id: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Ask for a `Pong` with the same token."""

    token: int


class Pong(msgspec.Struct, frozen=True, tag=True):
    """Answer a `Ping`."""

    token: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Announce a long message: its frame without the payload, and the sizes of the payload and of each buffer."""

    transfer: int
    message: bytes
    sizes: tuple[int, ...]


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Allow a long message's sender to send until it has sent `num_bytes`."""

    transfer: int
    num_bytes: int


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """The bytes of a long message from `offset` on, which are its one buffer."""

    transfer: int
    offset: int


class Received(msgspec.Struct, frozen=True, tag=True):
    """The long message has arrived."""

    transfer: int


class Reject(msgspec.Struct, frozen=True, tag=True):
    """The receiver does not take the long message, or no more of it."""

    transfer: int
    reason: str


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """The sender sends no more of the long message."""

    transfer: int


Long = Call | Stream | Returned | Item
"""Messages that may be long."""
Message = (
    Hello
    | Open
    | Refused
    | Call
    | Stream
    | Cast
    | Returned
    | Item
    | End
    | Raised
    | Credit
    | Cancel
    | Ping
    | Pong
    | Begin
    | Grant
    | Chunk
    | Received
    | Reject
    | Abandon
)


def codec_for(peer_id: str) -> Codec[Message]:
    """Return the codec of messages with a peer, whose name its errors have."""
    return Codec(Message, f"node {peer_id}", MAX_HEADER_BYTES)


def shown(text: str) -> str:
    """Return a peer's words as a log and an error may hold them: not long, on one line, no control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_SHOWN])


def agree(ours: Hello, theirs: Hello, peer: str) -> int:
    """Return the newest version that both ends understand. Raises `WireError` when there is none."""
    if theirs.protocol != ours.protocol:
        raise WireError(f"{peer} speaks {theirs.protocol[:40]!r}, expected {ours.protocol!r}", peer=peer)
    low, high = _versions(ours, peer)
    their_low, their_high = _versions(theirs, peer)
    if max(low, their_low) > min(high, their_high):
        text = (
            f"{peer} understands versions {their_low} to {their_high} of {ours.protocol!r}, this node {low} to {high}; "
            f"upgrade PyAgent on the {'other' if their_high < low else 'older'} node"
        )
        raise WireError(text, peer=peer)
    return min(high, their_high)


def _versions(hello: Hello, peer: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(hello.version)
    if match is None:
        raise WireError(f"{peer} says version {hello.version[:40]!r}, expected a range like '1-2'", peer=peer)
    return int(match[1]), int(match[2])
