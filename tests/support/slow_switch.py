"""A switch that delays and loses frames, in user space: `support.slow_switch DELAY_SECONDS LOSS PID...`

Opens a TAP device `eth0` in the network namespace of each process, carries Ethernet frames between them, and writes
`ready`; ends with its input. Kernels without `tc netem` have no other way.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME_BYTES = 65_536
_libc = ctypes.CDLL(None, use_errno=True)


def open_tap(pid: int) -> int:
    """Return the descriptor of a new TAP device in the namespace of a process."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if _libc.setns(theirs, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TAP | _IFF_NO_PI))
        return tap
    finally:
        _libc.setns(home, _CLONE_NEWNET)
        os.close(theirs)
        os.close(home)


def main(delay: float, loss: float, pids: list[int]) -> None:
    rng, taps = random.Random(7), [open_tap(pid) for pid in pids]
    selector, mac_to_tap = selectors.DefaultSelector(), dict[bytes, int]()
    for tap in taps:
        selector.register(tap, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    waiting: list[tuple[float, int, int, bytes]] = []
    print("ready", flush=True)
    count = 0
    while True:
        for key, _ in selector.select(max(0.0, waiting[0][0] - time.monotonic()) if waiting else None):
            if key.fileobj is sys.stdin:
                return
            try:
                frame = os.read(key.fd, _FRAME_BYTES)
            except OSError:
                continue
            mac_to_tap[frame[6:12]] = key.fd
            known = mac_to_tap.get(frame[:6])
            for tap in [other for other in taps if other != key.fd] if known is None else [known]:
                if rng.random() >= loss:
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + delay, count, tap, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # its queue is full, or it is down: lost
                os.write(tap, frame)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), [int(pid) for pid in sys.argv[3:]])
