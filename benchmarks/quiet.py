"""Samples on a machine that others use too: waiting for quiet, saying who disturbed, medians."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

QUIET_CORES = 0.15
QUIET_WAIT_SECONDS = 30.0
MAX_TRIES = 3


@dataclass
class Samples:
    """What was measured of one engine for one figure."""

    values: list[float] = field(default_factory=list[float])
    num_disturbed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        disturbed = f" ({self.num_disturbed} disturbed)" if self.num_disturbed else ""
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]{disturbed}"


def busy_seconds() -> float:
    """CPU time spent by everybody on the machine, time stolen by its host included."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all its descendants that live."""
    pids = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += tree(int(child))
    except OSError:
        pass
    return pids


def seconds_of(pid: int) -> float:
    """CPU time of a process and its descendants, finished ones included."""
    ticks = 0
    for each in tree(pid):
        try:
            ticks += sum(int(text) for text in Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def foreign_cores(work: Callable[[], float]) -> tuple[float, float]:
    """What `work` returned, and how many cores others used meanwhile."""
    start, busy, own = time.perf_counter(), busy_seconds(), seconds_of(os.getpid())
    value = work()
    seconds = max(time.perf_counter() - start, 0.05)
    return value, (busy_seconds() - busy - (seconds_of(os.getpid()) - own)) / seconds


def wait_quiet() -> None:
    """Returns when others leave the machine alone for half a second, or after QUIET_WAIT_SECONDS."""

    def pause() -> float:
        time.sleep(0.5)
        return 0.0

    end = time.monotonic() + QUIET_WAIT_SECONDS
    while time.monotonic() < end and foreign_cores(pause)[1] > QUIET_CORES:
        pass


def take(samples: Samples, work: Callable[[], float], max_tries: int = MAX_TRIES, *, waits: bool = True) -> str:
    """Adds one sample of `work`, the first quiet one or the least disturbed of `max_tries`, and describes it.

    Without `waits` it is the first, as the machine is.
    """
    tries: list[tuple[float, float]] = []
    for _ in range(max_tries if waits else 1):
        if waits:
            wait_quiet()
        value, foreign = foreign_cores(work)
        tries.append((foreign, value))
        if foreign <= QUIET_CORES:
            break
    foreign, value = min(tries)
    samples.values.append(value)
    samples.num_disturbed += foreign > QUIET_CORES
    return f"{value:.4g}, others used {max(foreign, 0.0):.2f} cores, try {len(tries)}"


def peak_memory_mib(pid: int) -> float:
    """Sum of the high-water marks of a process and its descendants."""
    total = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    return total / 1024


def machine() -> str:
    """This machine in words: processor, cores, and the instruction sets that matter here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    facts = dict(line.replace("\t", "").split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    flags = set(facts.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    sets = " ".join(name for name in wanted if name in flags)
    name = f"{facts.get('model name', '?').strip()} family {facts.get('cpu family', '?').strip()}"
    return f"{name}, {os.cpu_count()} cores, {sets}"
