"""Connections that have not yet said who they are: so many at a time, and the busiest address loses one first.

ZMQ takes any number of TCP connections and gives each some seconds to prove its key; an outsider could take all of the
process's file descriptors with them.
"""

from __future__ import annotations

from collections import Counter

from pyagent.infrastructure.cluster.frames import Limits
from pyagent.infrastructure.cluster.sockets import Connection


class Guests:
    """Accepted connections by their file descriptor, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._max_guests = limits.max_guests
        self._fd_to_connection: dict[int, Connection] = {}

    def enter(self, fd: int) -> None:
        """Take note of a connection; one too many ends the oldest of the address that has most of them."""
        self._fd_to_connection[fd] = Connection(fd)
        if len(self._fd_to_connection) > self._max_guests:
            [(busiest, _)] = Counter(one.host for one in self._fd_to_connection.values()).most_common(1)
            oldest = next(fd for fd, one in self._fd_to_connection.items() if one.host == busiest)
            self._fd_to_connection.pop(oldest).end()

    def leave(self, fd: int) -> None:
        """Take note that a connection has said who it is, or has ended."""
        self._fd_to_connection.pop(fd, None)
