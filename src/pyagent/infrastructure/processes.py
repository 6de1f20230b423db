"""Processes that PyAgent starts for itself: the folder of their socket, how they notice our end, and how they ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import threading
import time
from pathlib import Path

_LONGEST_PATH = 90
"""Bytes of a folder's path; a socket's whole path has room for 107."""
_LOOK_SECONDS = 0.5


def socket_folder() -> Path:
    """Make a folder for sockets that only this user can enter."""
    folder = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="pyagent-", dir=folder if len(folder) < _LONGEST_PATH else "/tmp"))  # noqa: S108 - the folder is made for this user alone


def end_with_parent() -> None:
    """Exit when standard input closes, a pipe to the process that started this one: its end closes it."""
    threading.Thread(target=_read_to_end, name="pyagent-parent", daemon=True).start()


def _read_to_end() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def end_with(process_id: int) -> None:
    """Exit when another process of this machine ends."""
    threading.Thread(target=_await_end, args=(process_id,), name="pyagent-owner", daemon=True).start()


def _await_end(process_id: int) -> None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(process_id)], [], [])
    else:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(process_id, 0)
                time.sleep(_LOOK_SECONDS)
    os._exit(0)


def describe_exit(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
