"""Ends a process group that outlived the process that began it: run as a program, which stands by itself.

`python -I -S outlived.py`. Its standard input is a pipe of the beginner's, which is told the group's id and ends with
the beginner, also by SIGKILL. Then the group, which sees its own input close, has a second to end by itself, and
another after SIGTERM. A beginner that ends the group by itself kills this program.
"""

from __future__ import annotations

import os
import signal
import time

_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.02


def main() -> None:
    """Wait for the beginner's end, then see to the group's."""
    told = b""
    while piece := os.read(0, 64):
        told += piece
    group = int(told or b"0")
    for number in (signal.SIGTERM, signal.SIGKILL):
        if group <= 1 or _has_ended(group):
            return
        os.killpg(group, number)


def _has_ended(group: int) -> bool:
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


if __name__ == "__main__":
    main()
