"""Numbers of runs by window: counts, sums, least and most, and quantiles of seconds, tokens and USD. Pure.

Sums are of whole microunits, so rollups merge to the same numbers in whatever order. Quantiles come from counts in
buckets whose bounds grow by 2 % (DDSketch: Masson, Rim and Lee, VLDB 2019): within 1 % of the exact value, and
rollups that are merged have the quantiles of all their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from pyagent.core.fleet.events import (
    AgentFailed,
    AgentFinished,
    Event,
    ModelCalled,
    RunFailed,
    RunFinished,
    ToolCalled,
    Totals,
)

Kind = Literal["run", "agent", "tool", "link", "model"]
KINDS: tuple[Kind, ...] = ("run", "agent", "tool", "link", "model")
ACCURACY = 0.01
"""How far a quantile may be from the exact one, as a part of it."""
_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)
_MICRO = 1_000_000
_MAX_MICRO = 1 << 60
MAX_KEY_CHARACTERS = 200
_LINK_FAULTS = {"timeout", "capacity", "model", "empty", "broken_off", "backend", "bug"}
"""Kinds of failed attempts that say something of the link, and not of the request or of the chain's limits."""
_NO_FAILURES = {"CancelledError", "NeedsAnswerError"}
_CANCELLED = "cancelled"


class Measure(msgspec.Struct, array_like=True):
    """Values of one quantity, in microunits: how many, sum, least, most, and how many fell into each bucket."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    buckets: dict[int, int] = {}

    def add(self, value: int) -> None:
        """Add a value; one below zero is zero."""
        value = min(max(0, value), _MAX_MICRO)
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value
        bucket = math.ceil(math.log(value) / _LOG_GROWTH) if value else -1
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Measure) -> None:
        """Add all values of another."""
        if not other.count:
            return
        self.least = min(self.least, other.least) if self.count else other.least
        self.most = max(self.most, other.most)
        self.count += other.count
        self.total += other.total
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def quantile(self, part: float) -> float:
        """Return the value that `part` of them do not exceed, within 1 %; 0 where there are none."""
        left = max(1, math.ceil(part * self.count))
        for bucket, count in sorted(self.buckets.items()):
            left -= count
            if left <= 0:
                value = 2 * _GROWTH**bucket / (_GROWTH + 1) if bucket >= 0 else 0.0
                return min(max(value, self.least), self.most) / _MICRO
        return 0.0


class Rollup(msgspec.Struct, array_like=True):
    """What happened in one window to one agent, tool, link or model. `last_at` is when it last did."""

    count: int = 0
    failures: int = 0
    last_at: float = 0.0
    seconds: Measure = msgspec.field(default_factory=Measure)
    tokens: Measure = msgspec.field(default_factory=Measure)
    usd: Measure = msgspec.field(default_factory=Measure)

    def add(self, observed: Observation) -> None:
        """Add one observation."""
        self.count += 1
        self.failures += observed.is_failure
        self.last_at = max(self.last_at, observed.at)
        for measure, value in (
            (self.seconds, observed.seconds),
            (self.tokens, observed.tokens),
            (self.usd, observed.usd),
        ):
            if value is not None and math.isfinite(value):
                measure.add(round(value * _MICRO))

    def merge(self, other: Rollup) -> None:
        """Add all of another."""
        self.count += other.count
        self.failures += other.failures
        self.last_at = max(self.last_at, other.last_at)
        self.seconds.merge(other.seconds)
        self.tokens.merge(other.tokens)
        self.usd.merge(other.usd)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent, tool, link, model or run did. What is not known is None."""

    kind: Kind
    key: str
    at: float
    is_failure: bool = False
    seconds: float | None = None
    tokens: float | None = None
    usd: float | None = None


class RollupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rollup with what it is of: `start` is its window's, in seconds since 1970, `grain` the window's length."""

    tenant: str
    kind: Kind
    key: str
    start: int
    grain: int
    rollup: Rollup


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of a row as people and programs read it."""

    sum: float
    mean: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float


class StatsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `pyagent runs stats`: one window of one agent, tool, link, model, or of all runs."""

    start: float
    window_seconds: int
    kind: Kind
    key: str
    count: int
    failures: int
    seconds: Spread
    tokens: Spread
    usd: Spread


def observations_of(event: Event) -> Iterator[Observation]:
    """Return what an event says of agents, tools, links, models and the run. Cancelled work says nothing."""
    observe = _OBSERVERS.get(type(event))
    return iter(()) if observe is None else observe(event)


def _of_totals(
    kind: Kind, key: str, event: AgentFinished | AgentFailed | RunFinished | RunFailed
) -> Iterator[Observation]:
    if isinstance(event, AgentFailed | RunFailed) and event.kind in _NO_FAILURES:
        return
    totals: Totals = event.totals
    yield Observation(
        kind=kind,
        key=key,
        at=event.at,
        is_failure=isinstance(event, AgentFailed | RunFailed),
        seconds=totals.seconds,
        tokens=totals.prompt_tokens + totals.completion_tokens,
        usd=totals.usd,
    )


def _of_tool(event: ToolCalled) -> Iterator[Observation]:
    if event.error != _CANCELLED:
        is_failure = event.error is not None
        yield Observation(kind="tool", key=event.tool, at=event.at, is_failure=is_failure, seconds=event.seconds)


def _of_call(event: ModelCalled) -> Iterator[Observation]:
    for attempt in event.attempts:
        if attempt.kind in _LINK_FAULTS:
            yield Observation(kind="link", key=attempt.backend, at=event.at, is_failure=True)
    if event.error is not None:
        return
    tokens = event.usage.prompt_tokens + event.usage.completion_tokens
    kinds: tuple[tuple[Kind, str], ...] = (("link", event.backend), ("model", event.model))
    for kind, key in kinds:
        if key:
            yield Observation(
                kind=kind, key=key, at=event.at, seconds=event.seconds, tokens=tokens, usd=event.usage.cost_usd
            )


# Any: an event of the kind that the key names.
_OBSERVERS: dict[type[Event], Callable[[Any], Iterator[Observation]]] = {
    AgentFinished: lambda event: _of_totals("agent", event.agent, event),
    AgentFailed: lambda event: _of_totals("agent", event.agent, event),
    RunFinished: lambda event: _of_totals("run", "", event),
    RunFailed: lambda event: _of_totals("run", "", event),
    ToolCalled: _of_tool,
    ModelCalled: _of_call,
}


OBSERVED = frozenset(_OBSERVERS)
"""The kinds of events that say something."""


def stats_of(rows: Iterable[RollupRow], window_seconds: int) -> list[StatsRow]:
    """Merge rows into windows, oldest first, then by key; a row that is coarser than the window stays as it is."""
    merged: dict[tuple[int, int, Kind, str], Rollup] = {}
    for row in rows:
        length = max(window_seconds, row.grain)
        place = (row.start - row.start % length, length, row.kind, row.key)
        merged.setdefault(place, Rollup()).merge(row.rollup)
    return [_stats_row(*place, rollup) for place, rollup in sorted(merged.items(), key=lambda item: item[0])]


def _stats_row(start: int, length: int, kind: Kind, key: str, rollup: Rollup) -> StatsRow:
    return StatsRow(
        start=start,
        window_seconds=length,
        kind=kind,
        key=key,
        count=rollup.count,
        failures=rollup.failures,
        seconds=spread_of(rollup.seconds),
        tokens=spread_of(rollup.tokens),
        usd=spread_of(rollup.usd),
    )


def spread_of(measure: Measure) -> Spread:
    """Return a quantity in its own unit."""
    return Spread(
        sum=measure.total / _MICRO,
        mean=measure.total / measure.count / _MICRO if measure.count else 0.0,
        min=measure.least / _MICRO,
        max=measure.most / _MICRO,
        p50=measure.quantile(0.5),
        p95=measure.quantile(0.95),
        p99=measure.quantile(0.99),
    )
