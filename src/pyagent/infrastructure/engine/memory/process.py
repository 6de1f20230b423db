"""What this process holds of the machine's memory: resident bytes, bytes of its heap, and what the heap keeps.

Reads the system's own figures; knows no ledger. Where the system does not say (it is not Linux, or the C library is not
GNU's), the answer is None or nothing happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LARGE_BYTES = 2 << 20
"""A huge page. What steps allocate and free is smaller."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Memory this process holds now, mapped files included; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def heap_bytes() -> int | None:
    """Return bytes that are allocated from the C library's heap now, by all threads."""
    import ctypes

    fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # mallinfo2(3)

    class Figures(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in fields.split()]

    mallinfo2 = _c_function("mallinfo2", Figures)
    if mallinfo2 is None:
        return None
    figures = mallinfo2()
    return figures.uordblks + figures.hblkhd


def return_large_blocks() -> None:
    """From now on the heap gives large blocks back to the system when they are freed, in the whole process.

    GNU's heap raises its limits with the first large block freed: it then keeps up to 64 MB at the end of each thread's
    arena, where `trim_memory` does not find them. After three loads of SmolLM2 an unloaded engine kept 101 MB, with
    fixed limits 60.
    """
    import ctypes

    mallopt = _c_function("mallopt", ctypes.c_int)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def _c_function(name: str, result: Any) -> Callable[..., Any] | None:  # Any: ctypes tells no more
    import ctypes

    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # no such function; no C library by that way
        return None
    function.restype = result
    return function
