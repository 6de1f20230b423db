"""How far a model is on its way into memory, as it is told to people, programs and monitoring. Pure."""

from __future__ import annotations

import msgspec

from pyagent.core.sizes import format_bytes, format_duration


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a model's weights is in memory, and for how many seconds they have been loading.

    `bytes_total` is 0 before the load has begun: its file is fetched or looked at, or others load first. `engine` is
    the number of the engine's copy, where there are several. `seconds_left` are as long as the rest takes at the rate
    so far, None while that is not known. `is_over` is told once, of a load that failed too.
    """

    model: str
    bytes_done: int = 0
    bytes_total: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None
    engine: int | None = None
    is_over: bool = False

    @property
    def percent(self) -> int:
        """Percent of the bytes; 0 before the load has begun."""
        return 100 * self.bytes_done // max(1, self.bytes_total)

    @property
    def name(self) -> str:
        """The model's name, with the number of the engine's copy where there are several."""
        return self.model if self.engine is None else f"{self.model} (engine {self.engine})"

    @property
    def told(self) -> str:
        """What people are told: `40 %, 3.2 GB of 8.0 GB, 12 s left`."""
        passed = f"{format_duration(self.seconds)} so far"
        if not self.bytes_total:
            return passed
        left = passed if self.seconds_left is None else f"{format_duration(self.seconds_left)} left"
        return f"{self.percent} %, {format_bytes(self.bytes_done)} of {format_bytes(self.bytes_total)}, {left}"
