"""The memory that processors write to: never the model's, and never used again while a plugin may still write there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

_FLOAT_BYTES = 4


class Scratch:
    """Lends floats. Where a borrower keeps them, the next one gets others."""

    def __init__(self) -> None:
        self._memory = bytearray()

    @contextmanager
    def lend(self, shape: Sequence[int]) -> Generator[memoryview[float]]:
        """Lend floats of 32 bits of this shape; what they are is not said."""
        num_bytes = _FLOAT_BYTES
        for length in shape:
            num_bytes *= length
        memory, self._memory = self._memory, bytearray()
        if len(memory) != num_bytes:
            memory = bytearray(num_bytes)
        lent = memoryview(memory).cast("f", shape=list(shape))
        yield lent
        if _is_free(lent, memory):
            self._memory = memory


def _is_free(lent: memoryview[float], memory: bytearray) -> bool:
    """Take floats back; return False where a plugin still refers to them, in whatever way."""
    try:
        lent.release()
        memory.append(0)  # refused while anything refers to the memory
        memory.pop()
    except BufferError:
        return False
    return True
