"""One child process of an engine: start it, exchange messages with it, notice its end.

The child inherits a pipe, its standard input, and ends when that closes: it cannot outlive this process. Messages
travel over ZMQ on a socket in a folder that only this user can enter, and that is removed after the child's hello.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess  # the command is this interpreter
import sys
from collections.abc import Iterator

import msgspec
import zmq

from pyagent.infrastructure.engine.subprocess.layout import VISIBLE_GPUS
from pyagent.infrastructure.engine.subprocess.protocol import (
    HELLO,
    FromEngine,
    Start,
    Stop,
    from_engine,
    hello_codec,
    start_codec,
    to_engine,
)
from pyagent.infrastructure.processes import socket_folder
from pyagent.infrastructure.wire.codec import MAX_FRAME_BYTES, with_length

_END_SECONDS = 3.0


class ChildProcess:
    """A process, and the socket to it. One thread owns it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], start: Start) -> None:
        self._folder = socket_folder()
        endpoint = f"ipc://{self._folder}/engine"
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.socket.bind(endpoint)
        command = [sys.executable, "-P", "-m", "pyagent.infrastructure.engine.subprocess.main"]
        # A group of its own: Ctrl+C in a terminal is for this process, which ends the other in order.
        # Its GPUs are named before it begins: a process that has asked the driver for one has seen them all.
        environment = {**os.environ, VISIBLE_GPUS: ",".join(start.gpus)} if start.gpus else None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, env=environment)  # noqa: S603
        self._process_fd = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
        told = start_codec.encode(msgspec.structs.replace(start, endpoint=endpoint))
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin
            self.process.stdin.write(with_length(hello_codec.encode(HELLO)) + with_length(told))
            self.process.stdin.flush()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def register(self, poller: zmq.Poller) -> None:
        """Wake the poller at messages, and at the end of the process where the system can tell."""
        poller.register(self.socket, zmq.POLLIN)
        if self._process_fd is not None:
            poller.register(self._process_fd, zmq.POLLIN)

    @property
    def is_watched(self) -> bool:
        """Whether a poller wakes at the end of the process; where not, poll `is_dead`."""
        return self._process_fd is not None

    def remove_folder(self) -> None:
        """Remove the socket's folder; a socket that is connected needs none."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, frame: bytes) -> bool:
        """Send without waiting; return False when the socket's queue is full."""
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[FromEngine]:
        """Yield the messages that have arrived. Raises `WireError` for bytes that are none."""
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield from_engine.decode(frame)

    def end(self, *, is_orderly: bool = False) -> int:
        """End the process, with a `Stop` first when orderly; return its exit code."""
        if is_orderly and not self.is_dead and self.send(to_engine.encode(Stop())):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)
        self.process.kill()
        code = self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self._process_fd is not None:
            os.close(self._process_fd)
        self.socket.close()
        self.remove_folder()
        return code
