"""What this process does for some seconds: processor time by thread, Python functions by samples, memory, garbage.

Threads of the Rust core and of other processes of the engine are told by the system's count of their processor time:
what they compute has no Python frame. Sampling stops nothing; tracing allocations, where asked for, slows all of it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from pyagent.infrastructure.engine.memory.process import heap_bytes, resident_bytes

_INTERVAL_SECONDS = 0.01
_MOST_ROWS = 30
_WAITING_FILES = ("threading.py", "selectors.py", "queue.py", "socket.py")
_LEAST_SECONDS = 0.01


class ThreadTime(msgspec.Struct, frozen=True):
    """Processor seconds of a thread in the time. `pyagent-N` are those that compute in the Rust core."""

    process_id: int
    name: str
    cpu_seconds: float


class HotSpot(msgspec.Struct, frozen=True):
    """A Python function: in how many of the samples it ran itself (or a native call of it), and in how many at all."""

    function: str
    own: int
    total: int


class Allocations(msgspec.Struct, frozen=True):
    """What a line of Python holds of what was allocated in the time."""

    line: str
    num_bytes: int
    count: int


class Collections(msgspec.Struct, frozen=True):
    """Garbage collections in the time, and what the collector looks at: objects by type, and those it leaves alone."""

    count: int
    pause_seconds: float
    longest_pause_seconds: float
    num_tracked: int
    num_frozen: int
    top_types: dict[str, int]


class Profile(msgspec.Struct, frozen=True):
    """What was seen. `allocations` is empty unless they were traced; `heap_bytes` is None where it is not known."""

    seconds: float
    num_samples: int
    threads: list[ThreadTime]
    functions: list[HotSpot]
    resident_bytes: int
    resident_growth: int
    heap_bytes: int | None
    collections: Collections
    allocations: list[Allocations]


_one_at_a_time = threading.Lock()


def take_profile(
    seconds: float, process_ids: Sequence[int] = (), *, traces_allocations: bool = False
) -> Profile | None:
    """Watch this process, and the threads of others, for so long; None where that is done already. Blocks."""
    if not _one_at_a_time.acquire(blocking=False):
        return None
    try:
        return _take(seconds, [os.getpid(), *process_ids], traces_allocations=traces_allocations)
    finally:
        _one_at_a_time.release()


def _take(seconds: float, process_ids: Sequence[int], *, traces_allocations: bool) -> Profile:
    before, resident, start = _cpu_seconds(process_ids), resident_bytes(), time.monotonic()
    with _pauses() as pauses, _traced(traces_allocations) as allocations:
        samples = _Samples()
        while (left := start + seconds - time.monotonic()) > 0:
            samples.take()
            time.sleep(min(_INTERVAL_SECONDS, left))
    after = _cpu_seconds(process_ids)
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    threads = [
        ThreadTime(process_id, names.get(thread_id, name), round(spent, 2))
        for (process_id, thread_id, name), cpu in after.items()
        if (spent := cpu - before.get((process_id, thread_id, name), 0.0)) >= _LEAST_SECONDS
    ]
    return Profile(
        seconds=round(time.monotonic() - start, 2),
        num_samples=samples.num_taken,
        threads=sorted(threads, key=lambda thread: -thread.cpu_seconds)[:_MOST_ROWS],
        functions=samples.hottest(),
        resident_bytes=resident_bytes(),
        resident_growth=resident_bytes() - resident,
        heap_bytes=heap_bytes(),
        collections=_collections(pauses),
        allocations=allocations,
    )


class _Samples:
    """Which functions threads were in; those that wait are left out, and so is the thread that looks."""

    def __init__(self) -> None:
        self.num_taken = 0
        self._own = Counter[str]()
        self._total = Counter[str]()

    def take(self) -> None:
        """Look at all threads once."""
        self.num_taken += 1
        for thread_id, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage] - its documented name
            if thread_id == threading.get_ident() or frame.f_code.co_filename.endswith(_WAITING_FILES):
                continue
            self._own[_name_of(frame)] += 1
            self._total.update({_name_of(outer) for outer in _stack(frame)})

    def hottest(self) -> list[HotSpot]:
        """The functions that ran most often themselves."""
        return [HotSpot(name, count, self._total[name]) for name, count in self._own.most_common(_MOST_ROWS)]


def _stack(frame: FrameType | None) -> Generator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name_of(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{frame.f_code.co_qualname} ({'/'.join(path.parts[-2:])}:{frame.f_code.co_firstlineno})"


def _cpu_seconds(process_ids: Sequence[int], proc: Path = Path("/proc")) -> dict[tuple[int, int, str], float]:
    """Processor seconds of threads by process, id and name; nothing where the system does not say."""
    found: dict[tuple[int, int, str], float] = {}
    for process_id in dict.fromkeys(process_ids):
        for stat in (proc / str(process_id) / "task").glob("*/stat"):
            try:
                name, fields = stat.read_text(encoding="utf-8", errors="replace").split("(", 1)[1].rsplit(")", 1)
            except (OSError, IndexError, ValueError):  # it has just ended
                continue
            user, system = fields.split()[11:13]
            found[process_id, int(stat.parent.name), name] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


@contextmanager
def _pauses() -> Generator[list[float]]:
    """Seconds of each garbage collection meanwhile."""
    pauses: list[float] = []
    started = 0.0

    def note(phase: str, info: Mapping[str, int]) -> None:
        nonlocal started
        del info
        if phase == "start":
            started = time.perf_counter()
        elif started:
            pauses.append(time.perf_counter() - started)

    gc.callbacks.append(note)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(note)


@contextmanager
def _traced(is_wanted: bool) -> Generator[list[Allocations]]:
    """Lines that hold most of what is allocated meanwhile; they are there when it is over."""
    lines: list[Allocations] = []
    is_ours = is_wanted and not tracemalloc.is_tracing()
    if is_ours:
        tracemalloc.start()
    try:
        yield lines
        if is_wanted:
            held = tracemalloc.take_snapshot().statistics("lineno")[:_MOST_ROWS]
            lines += [
                Allocations(f"{'/'.join(Path(place.filename).parts[-3:])}:{place.lineno}", one.size, one.count)
                for one in held
                for place in one.traceback[:1]
            ]
    finally:
        if is_ours:
            tracemalloc.stop()


def _collections(pauses: Sequence[float]) -> Collections:
    objects = gc.get_objects()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects)
    return Collections(
        count=len(pauses),
        pause_seconds=round(sum(pauses), 6),
        longest_pause_seconds=round(max(pauses, default=0.0), 6),
        num_tracked=len(objects),
        num_frozen=gc.get_freeze_count(),
        top_types=dict(types.most_common(10)),
    )
