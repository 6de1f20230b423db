"""What was moved of a model's KV since it was loaded."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class KvMoveStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV loaded from elsewhere. What was `refused` is not alike; of what was `declined`, computing is quicker.

    `bytes_sent` were read for others.
    """

    num_loads: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    refused: int = 0
    failed: int = 0
    declined: int = 0
    bytes_sent: int = 0


@dataclass(slots=True)
class KvMoveCounts:
    """The running counts of a loader; one event loop writes them."""

    num_loads: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    refused: int = 0
    failed: int = 0
    declined: int = 0

    def note_loaded(self, num_tokens: int, num_bytes: int, seconds: float) -> None:
        """Count a load that came in whole."""
        self.num_loads += 1
        self.tokens += num_tokens
        self.bytes += num_bytes
        self.seconds += seconds

    def snapshot(self, bytes_sent: int) -> KvMoveStats:
        """Return the counts now."""
        return KvMoveStats(
            num_loads=self.num_loads,
            tokens=self.tokens,
            bytes=self.bytes,
            seconds=self.seconds,
            refused=self.refused,
            failed=self.failed,
            declined=self.declined,
            bytes_sent=bytes_sent,
        )
