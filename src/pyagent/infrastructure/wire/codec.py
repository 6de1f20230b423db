"""Messages as frames: msgpack of typed structs, bounded in size. Values cross, code never does.

Whatever bytes arrive, reading them ends in a message or in a `WireError`; memory follows what has arrived, not what a
length claims. A socket that keeps message borders (ZMQ) carries frames as they are; in a stream of bytes (a pipe) each
has its length before it, as 4 bytes, big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import UnionType
from typing import Generic, TypeVar, cast

import msgspec

from pyagent.core.errors import WireError

MAX_FRAME_BYTES = 256 << 20
"""The longest frame: room for a context of images, far below what fills a machine's memory."""
_CHUNK_BYTES = 64 << 10
_LENGTH = struct.Struct("!I")
_M = TypeVar("_M")


class Codec(Generic[_M]):
    """One direction of a protocol. `messages` is a struct, or a union of tagged ones; `peer` sends them."""

    def __init__(self, messages: type[_M] | UnionType, peer: str, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(messages)
        self.peer = peer
        self.max_bytes = max_bytes

    def encode(self, message: _M) -> bytes:
        """Return a message's frame. Raises `WireError` for one that is too long, or holds what has no encoding."""
        try:
            frame = self._encoder.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:  # a lone surrogate, 2**64, a program's
            raise WireError(f"a message has no encoding: {error}", peer=self.peer) from error
        return self._within_bound(frame)

    def decode(self, frame: bytes) -> _M:
        """Return a frame's message. Raises `WireError` for anything else than one whole message of this protocol."""
        try:
            return cast("_M", self._decoder.decode(self._within_bound(frame)))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise WireError(f"{self.peer} sent what is no message of its protocol: {error}", peer=self.peer) from error

    def _within_bound(self, frame: bytes) -> bytes:
        if len(frame) > self.max_bytes:
            raise WireError(f"a message has {len(frame)} bytes, the most is {self.max_bytes}", peer=self.peer)
        return frame


def with_length(frame: bytes) -> bytes:
    """Return a frame as a stream of bytes carries it, after its length."""
    return _LENGTH.pack(len(frame)) + frame


def read_frame(read: Callable[[int], bytes], peer: str, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Read one frame from a stream; `read` blocks for up to so many bytes and returns none at the end.

    Raises `WireError` when the stream ends before the frame does, or the frame is longer than `max_bytes`.
    """
    (num_bytes,) = _LENGTH.unpack(_read_exactly(read, _LENGTH.size, peer))
    if num_bytes > max_bytes:
        raise WireError(f"{peer} announced a message of {num_bytes} bytes, the most is {max_bytes}", peer=peer)
    return _read_exactly(read, num_bytes, peer)


def _read_exactly(read: Callable[[int], bytes], num_bytes: int, peer: str) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = read(min(_CHUNK_BYTES, num_bytes - len(data)))
        if not chunk:
            raise WireError(f"{peer} hung up after {len(data)} of {num_bytes} bytes", peer=peer)
        data += chunk
    return bytes(data)
