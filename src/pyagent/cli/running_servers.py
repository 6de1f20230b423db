"""Which servers of this user run, told by files in the data folder: commands read what `serve` and `node` wrote.

A server holds a lock on its file as long as it lives, so a file without one is of a server that died, and a process id
is never somebody else's. Imports no more than a server has imported anyway.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from pyagent.infrastructure.private_files import make_private_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server: its file, its process, and where it listens; a node of a cluster at its `door` too, else that is 0."""

    file: Path
    process_id: int
    host: str
    port: int
    door: int

    def stop(self, seconds: float) -> bool:
        """Ask it to end, as SIGTERM does: running answers may finish. Whether it ended within `seconds`."""
        os.kill(self.process_id, signal.SIGTERM)
        end = time.monotonic() + seconds
        while _is_locked(self.file):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


@contextlib.contextmanager
def announced(data: Path, host: str, port: int, door: int = 0) -> Generator[None]:
    """Be found by other commands while the block runs; where the data folder cannot be written, go on without."""
    file = data / "servers" / f"{os.getpid()}.json"
    told = {"process_id": os.getpid(), "host": host, "port": port, "door": door}
    with contextlib.ExitStack() as kept:
        try:
            _write(file, json.dumps(told).encode(), kept)
        except OSError as error:
            kept.close()
            logger.warning("`pyagent stop` and commands without --url will not find this server: %s", error)
        yield


def _write(file: Path, content: bytes, kept: contextlib.ExitStack) -> None:
    """Write the file and hold its lock; closing `kept` removes it, also where it could not be written whole."""
    make_private_folder(file.parent)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    kept.callback(os.close, descriptor)
    kept.callback(file.unlink, missing_ok=True)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


def running_servers(data: Path) -> list[RunningServer]:
    """Return the servers that live, by port; files of those that died are removed where they can be."""
    try:
        found = [_read(file) for file in (data / "servers").glob("*.json")]
    except OSError:  # a folder that cannot be looked into has none that this user could ask
        return []
    return sorted((server for server in found if server), key=lambda server: server.port)


def _read(file: Path) -> RunningServer | None:
    if not _is_locked(file):
        with contextlib.suppress(OSError):  # the disk may be one that is only read
            file.unlink(missing_ok=True)
        return None
    try:
        told = json.loads(file.read_bytes())
        return RunningServer(
            file, int(told["process_id"]), str(told["host"]), int(told["port"]), int(told.get("door", 0))
        )
    except (OSError, ValueError, KeyError, TypeError):  # it is just being written
        return None


def _is_locked(file: Path) -> bool:
    """Whether the process that wrote the file lives."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
