"""Frames over one TCP connection of the door, and the transcript of what was said.

An outsider is at the other end until the opposite is proved: frames are short, and nothing is read ahead of the
message that is due. The transcript is a hash of every frame in the order that both ends agree on, so that a proof over
it covers all that was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import struct
from typing import TypeVar, cast

from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.wire.codec import Codec, with_length

MAX_FRAME_BYTES = 4 << 10
_LENGTH = struct.Struct("!I")
KNOCK_ADVICE = "other nodes knock at 8322, or where `pyagent node` says"
_HTTP_TOLD = f"it answers HTTP: that port is for clients; {KNOCK_ADVICE}"
_NO_DOOR_TOLD = f"what answers there is no node; {KNOCK_ADVICE}"
M = TypeVar("M")


def unreachable(place: str, error: OSError) -> ClusterError:
    """Return the error that says why no connection with a place came about, in the system's own words."""
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno > 0:
        reason = os.strerror(error.errno)  # asyncio's own text repeats the address in its place
    return ClusterError(f"{place} cannot be reached: {reason}", peer=place)


class FrameStream:
    """One connection; `peer` names the other end in errors."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._is_understood = False
        self._transcript = hashlib.blake2b(digest_size=32, person=b"pyagent door 1")

    @property
    def transcript(self) -> bytes:
        """The hash of all frames so far, sent and received."""
        return self._transcript.digest()

    @property
    def peer_host(self) -> str:
        """The address that the other end is seen at; of a link-local IPv6 one, with the interface."""
        address = cast("tuple[str, int] | tuple[str, int, int, int] | None", self._writer.get_extra_info("peername"))
        if address is None:
            return ""
        scope = address[3] if len(address) == 4 else 0
        return f"{address[0]}%{scope}" if scope and "%" not in address[0] else address[0]

    async def receive(self, codec: Codec[M]) -> M:
        """Return the next message. Raises `WireError` for anything else than one within the codec's bound."""
        try:
            length = await self._reader.readexactly(_LENGTH.size)
            if length == b"HTTP":
                raise WireError(_HTTP_TOLD, peer=self.peer)
            (num_bytes,) = _LENGTH.unpack(length)
            if num_bytes > codec.max_bytes:
                told = f"it announced a message of {num_bytes} bytes, the most is {codec.max_bytes}"
                raise WireError(told if self._is_understood else _NO_DOOR_TOLD, peer=self.peer)
            frame = await self._reader.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WireError("it hung up", peer=self.peer) from error
        self._note(frame)
        return self._understood(frame, codec)

    def _understood(self, frame: bytes, codec: Codec[M]) -> M:
        try:
            message = codec.decode(frame)
        except WireError as error:
            raise (error if self._is_understood else WireError(_NO_DOOR_TOLD, peer=self.peer)) from error
        self._is_understood = True
        return message

    async def send(self, *frames: bytes) -> None:
        """Send frames, each already encoded. Raises `WireError` where the other end hung up."""
        for frame in frames:
            self._note(frame)
            self._writer.write(with_length(frame))
        try:
            await self._writer.drain()
        except OSError as error:
            raise WireError("it hung up", peer=self.peer) from error

    def abort(self) -> None:
        """Drop the connection, whatever is still to be sent."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection after what was sent."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _note(self, frame: bytes) -> None:
        self._transcript.update(with_length(frame))
