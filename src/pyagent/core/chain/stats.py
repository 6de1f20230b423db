"""What happened at each link: counters that the chain keeps, and the view of them that people and metrics get."""

from __future__ import annotations

from collections import Counter

import msgspec

from pyagent.core.chain.failures import Failure
from pyagent.core.chain.settings import Price
from pyagent.core.resilience.breaker import State


class LinkStats(msgspec.Struct):
    """Counters of one link since the chain was made."""

    num_requests: int = 0
    num_answers: int = 0
    num_hedges: int = 0
    num_hedges_won: int = 0
    num_continued: int = 0
    num_restarted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    failures: Counter[Failure] = msgspec.field(default_factory=Counter[Failure])


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """A link as it stands: its breaker, its limits, and what it did. `num_` counts since the chain was made.

    `limit` is how many calls may be under way, None any number; `failures` counts by kind; `hedges` are requests sent
    here because another link was late.
    """

    backend: str
    breaker: State
    reason: str = ""
    retry_in_seconds: float = 0.0
    cooldown_seconds: float = 0.0
    num_in_flight: int = 0
    limit: int | None = None
    num_requests: int = 0
    num_answers: int = 0
    failures: dict[str, int] = {}
    num_hedges: int = 0
    num_hedges_won: int = 0
    num_continued: int = 0
    num_restarted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    first_token_p50: float | None = None
    first_token_p95: float | None = None
    weight: float | None = None
    price: Price | None = None
