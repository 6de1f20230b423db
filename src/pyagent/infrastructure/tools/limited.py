"""Becomes a program with bounded time, memory and files, without network where the system lets it: run as a module.

`python -I limited.py DESCRIPTOR SECONDS MEMORY_BYTES FILE_BYTES USES_NETWORK PROGRAM...`. It stands by itself
and imports nothing of PyAgent's. The program gets namespaces of its own for the network and for processes, so that all
that it began ends with it. Where the system has none it says so on the descriptor, and the program runs all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_DIE_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38
NOT_APART = b"not apart"
MAX_PROCESSES = 512
"""Processes and threads of a program at once: far more than a test needs, far fewer than keep a machine from others."""


def main() -> None:
    """Bound this process, then become the program, as the first process of its namespace where there is one."""
    descriptor, seconds, memory_bytes, file_bytes, uses_network = (int(text) for text in sys.argv[1:6])
    program = sys.argv[6:]
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    is_apart = libc is not None and separate(libc, uses_network=bool(uses_network))
    if not is_apart and not uses_network:
        os.write(descriptor, NOT_APART)
    os.close(descriptor)
    if libc is not None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _limit(seconds, memory_bytes, file_bytes)
    if is_apart and (child := os.fork()):
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    if is_apart and libc is not None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    try:
        os.execvp(program[0], program)  # noqa: S606 - what the caller names
    except OSError as error:
        os.write(2, f"{program[0]} cannot be run: {error.strerror}\n".encode())
        os._exit(127)


def separate(libc: ctypes.CDLL, *, uses_network: bool) -> bool:
    """Leave the network and the processes of others; return whether that was possible.

    In a user namespace of its own the processes are counted apart from the user's others, and so may be bounded; those
    of root never are.
    """
    flags = _CLONE_NEWPID | (0 if uses_network else _CLONE_NEWNET)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(flags | _CLONE_NEWUSER) != 0:
        return bool(libc.unshare(flags) == 0)
    with suppress(OSError):
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    import resource

    _bound(resource.RLIMIT_NPROC, MAX_PROCESSES)
    return True


def _limit(seconds: int, memory_bytes: int, file_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows: the caller's clock alone bounds it
        return
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _bound(kind, most)


def _bound(kind: int, most: int) -> None:
    import resource

    with suppress(ValueError, OSError):  # a lower bound holds already
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
