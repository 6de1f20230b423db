"""ZMQ sockets in an asyncio loop: callbacks for what arrives, events of connections, the file descriptor of one.

The loop reads a socket itself instead of through `zmq.asyncio`, which takes 1.7 times the processor time for each
message (a round trip of two sockets in one process: 109 to 141 against 64 to 75 us). Knows no message of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import socket as system_socket
import struct
from collections.abc import Callable, Sequence
from typing import cast

import zmq

from pyagent.core.errors import ClusterError

Part = bytes | memoryview
_BATCH = 100
"""Messages of one socket that are taken before the loop's other work has its turn."""
_ENDPOINT = re.compile(r"tcp://(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:.]{2,45}(?:%[\w.-]{1,32})?\]):(\d{1,5})")
_EVENT = struct.Struct("=Hi")
_TCP_INFO_BYTES, _BYTES_RECEIVED_AT, _BYTES_RECEIVED = 136, 128, struct.Struct("=Q")
"""Of Linux' `struct tcp_info`."""
_numbers = itertools.count()


class LoopSocket:
    """A ZMQ socket whose messages an event loop hands to `receive`, and which tells when there is room to send."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[list[zmq.Frame]], None],
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._receive = receive
        self._on_room = on_room
        self._lacks_room = self._is_scheduled = self._is_draining = False
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        try:
            self._loop.add_reader(self._fd, self.drain)
        except NotImplementedError as error:  # Windows' default loop
            socket.close(0)
            raise ClusterError("the cluster needs an event loop that watches sockets: SelectorEventLoop") from error
        self._drain_soon()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._socket.closed

    def send(self, parts: Sequence[Part]) -> bool:
        """Send without waiting; return False when there is no room. Raises `zmq.ZMQError` when the peer is gone."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._lacks_room = True
            return False
        finally:
            self._drain_soon()  # sending may take the wake-up call for what has arrived (ZMQ_FD is edge-triggered)
        return True

    def _drain_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.drain()

    def drain(self) -> bool:
        """Hand out what has arrived; return whether that was all. Harmless while it is doing so."""
        if self._is_draining:
            return False
        self._is_draining = True
        try:
            return self._drain()
        except BaseException:
            self._drain_soon()  # what is left would wait for the next arrival
            raise
        finally:
            self._is_draining = False

    def _drain(self) -> bool:
        for _ in range(_BATCH):
            if self._socket.closed:
                return True
            if not self._events() & zmq.POLLIN:  # asking costs a fifth of the exception that receiving would end in
                self._tell_room()
                return True
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        self._drain_soon()
        return False

    def _events(self) -> int:
        return int(self._socket.getsockopt(zmq.EVENTS))

    def _tell_room(self) -> None:
        if self._lacks_room and self._on_room and self._events() & zmq.POLLOUT:
            self._lacks_room = False
            self._on_room()

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close the socket; what is sent already may leave for so long while the context ends."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._socket.close(int(linger_seconds * 1000))


def watch_events(socket: zmq.Socket[bytes], events: int, on_event: Callable[[zmq.Event, int], None]) -> LoopSocket:
    """Call `on_event` with the events of a socket's connections and their values."""
    endpoint = f"inproc://pyagent-events-{next(_numbers)}"
    socket.monitor(endpoint, events)
    context = cast("zmq.Context[zmq.Socket[bytes]]", socket.context)
    pair = context.socket(zmq.PAIR)
    pair.setsockopt(zmq.RCVHWM, 0)  # a full queue would stop ZMQ's own thread
    pair.connect(endpoint)

    def receive(frames: list[zmq.Frame]) -> None:
        event, value = _EVENT.unpack(frames[0].bytes)
        if event != zmq.EVENT_MONITOR_STOPPED:
            on_event(zmq.Event(event), value)

    return LoopSocket(pair, receive)


def is_endpoint(text: str) -> bool:
    """Return whether a text is a TCP endpoint with a numeric address, as nodes tell each other theirs.

    A name would be resolved in ZMQ's own thread, and another transport would lead into this machine.
    """
    match = _ENDPOINT.fullmatch(text)
    return match is not None and int(match[1]) < 1 << 16


class Connection:
    """A TCP connection that ZMQ holds, by its file descriptor: where it comes from, and how to end it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._address = self._peer_name()
        self.host = str(self._address[0]) if self._address else ""

    def num_read(self) -> int | None:
        """Return how many bytes ZMQ has read from the connection, where the system (Linux) tells."""
        with contextlib.suppress(OSError, AttributeError, struct.error), self._duplicate() as duplicate:
            info = duplicate.getsockopt(system_socket.IPPROTO_TCP, system_socket.TCP_INFO, _TCP_INFO_BYTES)
            if duplicate.getpeername() == self._address:
                (num_received,) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)
                return num_received - _num_unread(duplicate)
        return None

    def end(self) -> None:
        """End the connection, if the descriptor is still that connection's."""
        with contextlib.suppress(OSError), self._duplicate() as duplicate:
            if duplicate.getpeername() == self._address:
                duplicate.shutdown(system_socket.SHUT_RDWR)

    def _peer_name(self) -> tuple[str, int] | None:
        with contextlib.suppress(OSError), self._duplicate() as duplicate:
            return duplicate.getpeername()
        return None

    def _duplicate(self) -> system_socket.socket:
        duplicate = os.dup(self._fd)
        try:
            return system_socket.socket(system_socket.AF_INET, system_socket.SOCK_STREAM, fileno=duplicate)
        except OSError:  # the connection has ended, and its number is that of something else now
            os.close(duplicate)
            raise


def _num_unread(connection: system_socket.socket) -> int:
    import fcntl  # Unix has it
    import termios

    (num_bytes,) = struct.unpack("=i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return num_bytes
