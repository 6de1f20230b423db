"""How many runs each tenant may begin (`server.run_rate`), by whichever API; the level is kept with the journal."""

from __future__ import annotations

from dataclasses import dataclass

from pyagent.core.errors import CapacityError
from pyagent.core.fleet.rate_store import RateStore
from pyagent.core.rates import Rate, read_bucket_rate


@dataclass(frozen=True, slots=True)
class RunRate:
    """The rate; None is none."""

    rate: Rate | None = None

    @classmethod
    def of(cls, text: str | None) -> RunRate:
        """Return the rate of the setting."""
        return cls(None if text is None else read_bucket_rate(text))

    def take(self, store: RateStore, tenant: str) -> None:
        """Count a run that a tenant begins. Raises `CapacityError` for one too many, which says when to come again."""
        if self.rate is None:
            return
        if wait := store.take(f"runs:{tenant}", self.rate):
            text = f"one key may begin {self.rate.text} runs (server.run_rate); try again in {wait:.1f} s"
            raise CapacityError(text, retry_after_seconds=wait)
