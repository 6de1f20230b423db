"""A switch that delays and loses frames, and parts its ports, in user space: `support.slow_switch DELAY LOSS PID...`

Opens a TAP device `eth0` in the network namespace of each process, carries Ethernet frames between them, and writes
`ready`. A line `DELAY LOSS PARTS` of its input changes it at once: PARTS are ports by number, as in `0,1|2,3,4`, or `-`
for all together; no frame goes from a part to another. It ends with its input. Kernels without `tc netem` have no other
way.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

from support.networks import entered

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME_BYTES = 65_536


def open_tap(pid: int) -> int:
    """Return the descriptor of a new TAP device in the namespace of a process."""
    with entered(pid):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TAP | _IFF_NO_PI))
        return tap


class Switch:
    """The ports, and what is done with frames between them."""

    def __init__(self, taps: list[int], delay: float, loss: float) -> None:
        self.taps = taps
        self.delay, self.loss = delay, loss
        self.tap_to_part = dict.fromkeys(taps, 0)
        self.rng = random.Random(7)
        self.mac_to_tap: dict[bytes, int] = {}
        self.waiting: list[tuple[float, int, int, bytes]] = []
        self.count = 0

    def change(self, line: str) -> None:
        delay, loss, parts = line.split()
        self.delay, self.loss = float(delay), float(loss)
        self.tap_to_part = dict.fromkeys(self.taps, 0)
        for number, part in enumerate(parts.split("|") if parts != "-" else []):
            self.tap_to_part |= {self.taps[int(port)]: number for port in part.split(",")}

    def take(self, tap: int, frame: bytes) -> None:
        """Send a frame on to where it is addressed, or to all."""
        self.mac_to_tap[frame[6:12]] = tap
        known = self.mac_to_tap.get(frame[:6])
        for to in [other for other in self.taps if other != tap] if known is None else [known]:
            if self.tap_to_part[to] == self.tap_to_part[tap] and self.rng.random() >= self.loss:
                self.count += 1
                heapq.heappush(self.waiting, (time.monotonic() + self.delay, self.count, to, frame))

    def deliver(self) -> None:
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(self.waiting)
            with contextlib.suppress(OSError):  # its queue is full, or it is down: lost
                os.write(tap, frame)


def main(delay: float, loss: float, pids: list[int]) -> None:
    switch = Switch([open_tap(pid) for pid in pids], delay, loss)
    selector = selectors.DefaultSelector()
    for tap in switch.taps:
        selector.register(tap, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        waiting = switch.waiting
        for key, _ in selector.select(max(0.0, waiting[0][0] - time.monotonic()) if waiting else None):
            if key.fileobj is sys.stdin:
                if not (told := os.read(sys.stdin.fileno(), 4096)):
                    return
                for line in told.decode().splitlines():
                    switch.change(line)
                continue
            with contextlib.suppress(OSError):
                switch.take(key.fd, os.read(key.fd, _FRAME_BYTES))
        switch.deliver()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), [int(pid) for pid in sys.argv[3:]])
