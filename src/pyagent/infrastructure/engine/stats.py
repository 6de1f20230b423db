"""The engine's statistics: counts since it started, what it holds now, percentiles over its last steps and requests.

A snapshot is plain numbers, so that it can cross to another process and into any exporter.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyagent._rust import PoolStats
    from pyagent.infrastructure.engine.request import Request

_WINDOW = 1024
_RECENT = 128
_REFRESH = 32
_SLOW = 5.0
"""A step is slow above so many times what is usual."""


class Percentiles(msgspec.Struct, frozen=True):
    """The p50, p95 and p99 of the last 1,024 values; zeros before there are any."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that took long: its seconds, what was usual, and the tokens and requests of its batch."""

    seconds: float
    usual_seconds: float
    num_tokens: int
    num_requests: int


class PoolCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of KV memory now, prompt tokens looked up and found since start, and evicted pages by cause."""

    num_pages: int = 0
    limit: int = 0
    free: int = 0
    cached: int = 0
    active: int = 0
    hits_tokens: int = 0
    queried_tokens: int = 0
    evictions: dict[str, int] = {}

    @classmethod
    def of(cls, stats: PoolStats) -> PoolCounts:
        """Return the counts of a pool."""
        return cls(
            num_pages=stats.num_pages,
            limit=stats.limit,
            free=stats.free,
            cached=stats.cached,
            active=stats.active,
            hits_tokens=stats.hits_tokens,
            queried_tokens=stats.queried_tokens,
            evictions=stats.evictions_by_cause,
        )


class DraftCounts(msgspec.Struct, kw_only=True):
    """Speculative decoding since the model was loaded: sequences of drafts verified, their tokens, those accepted.

    `accepted_at` has the last by their place in the sequence, counted from 0. `drafted_from` and `accepted_from` have
    tokens by what proposed them: the request's `own` text, answers `shared` by a tenant, what was `predicted`, a
    `model`. A draft model wrote `num_model_tokens`, verified or not, and computed for `model_seconds`. Steps that
    verified drafts took `verify_seconds`, of those that computed prompts too the drafts' part. `saved_seconds` is what
    steps of one token each would have taken for the same tokens, less what drafts took; below 0 they cost time.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: dict[str, int] = {}
    drafted_from: dict[str, int] = {}
    accepted_from: dict[str, int] = {}
    num_model_tokens: int = 0
    model_seconds: float = 0.0
    verify_seconds: float = 0.0
    saved_seconds: float = 0.0

    def note(self, num_tokens: int, num_accepted: int, source: str) -> None:
        """Count a sequence of drafts that was verified."""
        self.num_drafts += 1
        self.num_draft_tokens += num_tokens
        self.num_accepted_tokens += num_accepted
        for counts, number in ((self.drafted_from, num_tokens), (self.accepted_from, num_accepted)):
            counts[source] = counts.get(source, 0) + number
        for place in map(str, range(num_accepted)):
            self.accepted_at[place] = self.accepted_at.get(place, 0) + 1

    def note_step(self, seconds: float, plain_seconds: float) -> None:
        """Count a step that verified drafts; without any, steps for its tokens would have taken `plain_seconds`."""
        self.verify_seconds += seconds
        self.saved_seconds += plain_seconds - seconds

    def note_model(self, num_tokens: int, seconds: float) -> None:
        """Count what a draft model has written and computed for in all."""
        self.saved_seconds -= seconds - self.model_seconds
        self.num_model_tokens, self.model_seconds = num_tokens, seconds

    def copy(self) -> DraftCounts:
        """Return the counts as they are now."""
        tables = {name: dict(getattr(self, name)) for name in ("accepted_at", "drafted_from", "accepted_from")}
        return msgspec.structs.replace(self, **tables)


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has done and does. Seconds unless the name says otherwise.

    `num_prompt_tokens_left` of the requests that it has are not computed yet, as if none of those that wait were
    cached. `scheduler_seconds` is the seconds of scheduling in a step; `tokens_per_step` counts prompt
    tokens and output tokens. `prefill_tokens_per_second` is what the last prompts added to their steps; 0 before there
    are any. `num_slow_steps` took more than five times what is usual, the p50 or what their prompt
    tokens should take; `slowest_step` took the longest of them. `step_trend` is the p50 of the last 128 steps over that
    of the last 1,024: above 1, steps get slower. `preemptions` are by kind, `finished` by reason, `waiting` by request
    class. `drafts` are counted where there may be any.
    """

    num_running: int = 0
    num_prompt_tokens_left: int = 0
    max_num_running: int = 0
    waiting: dict[str, int] = {}
    num_steps: int = 0
    generation_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: dict[str, int] = {}
    finished: dict[str, int] = {}
    busy_seconds: float = 0.0
    step_seconds: Percentiles = Percentiles()
    step_trend: float = 1.0
    num_slow_steps: int = 0
    slowest_step: SlowStep | None = None
    scheduler_seconds: Percentiles = Percentiles()
    tokens_per_step: Percentiles = Percentiles()
    queue_seconds: Percentiles = Percentiles()
    first_token_seconds: Percentiles = Percentiles()
    inter_token_seconds: Percentiles = Percentiles()
    prefill_tokens_per_second: float = 0.0
    pool: PoolCounts = PoolCounts()
    drafts: DraftCounts | None = None


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter of a loaded model: requests that named it, and those that run; its loads, and how often it gave way.

    `load_seconds` are those of all loads, `request_seconds` those of all requests that are over, loading included;
    `requests_within` counts these by the seconds that they took at most, as Prometheus has histograms.
    `num_bytes` is what it holds of the ledger now; 0 while it is not in memory.
    """

    num_requests: int = 0
    num_running: int = 0
    request_seconds: float = 0.0
    requests_within: dict[str, float] = {}
    num_loads: int = 0
    num_failed_loads: int = 0
    load_seconds: float = 0.0
    num_evictions: int = 0
    rank: int = 0
    num_bytes: int = 0


class KvMoveStats(msgspec.Struct, kw_only=True):
    """KV of a model that came from elsewhere since it was loaded; what loads it counts in one of these.

    What was `refused` is not alike; of what was `declined`, computing is quicker. `bytes_sent` were read for others.
    """

    num_loads: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    refused: int = 0
    failed: int = 0
    declined: int = 0
    bytes_sent: int = 0

    def note_loaded(self, num_tokens: int, num_bytes: int, seconds: float) -> None:
        """Count a load that came in whole."""
        self.num_loads += 1
        self.tokens += num_tokens
        self.bytes += num_bytes
        self.seconds += seconds


class Window:
    """The last values of a figure."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_WINDOW)

    def add(self, value: float) -> None:
        """Take a value in; the oldest goes when there are too many."""
        self._values.append(value)

    def median(self, num_values: int = _WINDOW) -> float:
        """Return the p50 of the last so many values, 0 before there are any; may be asked from any thread."""
        values = sorted(list(self._values)[-num_values:])
        return values[len(values) // 2] if values else 0.0

    def percentiles(self) -> Percentiles:
        """Of the values now; may be asked from any thread."""
        values = sorted(self._values)
        if not values:
            return Percentiles()
        return Percentiles(*(values[min(len(values) - 1, len(values) * part // 100)] for part in (50, 95, 99)))


@dataclass(slots=True)
class Counts:
    """The engine's own running counts; one thread writes them."""

    num_steps: int = 0
    generation_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy_seconds: float = 0.0
    num_slow_steps: int = 0
    slowest_step: SlowStep | None = None
    _usual_seconds: float | None = None
    finished: Counter[str] = field(default_factory=Counter[str])
    step_seconds: Window = field(default_factory=Window)
    scheduler_seconds: Window = field(default_factory=Window)
    tokens_per_step: Window = field(default_factory=Window)
    queue_seconds: Window = field(default_factory=Window)
    first_token_seconds: Window = field(default_factory=Window)
    inter_token_seconds: Window = field(default_factory=Window)

    def note_step_time(self, seconds: float, expected: float, num_tokens: int, num_requests: int) -> None:
        """Record a step's seconds, and those expected of its tokens; called before `note_step`."""
        self.busy_seconds += seconds
        usual = max(expected, self._usual_seconds or math.inf)
        if seconds > _SLOW * usual:
            self.num_slow_steps += 1
            if self.slowest_step is None or seconds > self.slowest_step.seconds:
                self.slowest_step = SlowStep(
                    seconds=seconds, usual_seconds=usual, num_tokens=num_tokens, num_requests=num_requests
                )
        self.step_seconds.add(seconds)
        if (self.num_steps + 1) % _REFRESH == 0:
            self._usual_seconds = self.step_seconds.median()

    def note_step(self, planning: float, num_tokens: int, num_output_tokens: int) -> None:
        """Count a computed step."""
        self.num_steps += 1
        self.generation_tokens += num_output_tokens
        self.scheduler_seconds.add(planning)
        self.tokens_per_step.add(num_tokens)

    def note_end(self, request: Request) -> None:
        """Count a request that ended."""
        self.finished[request.finish_reason or "error"] += 1
        if request.scheduled is None:
            return
        self.prompt_tokens += request.num_prompt_tokens
        self.cached_tokens += request.num_cached or 0
        self.queue_seconds.add(request.scheduled - request.arrived)
        if request.first_token is None or request.last_token is None:
            return
        self.first_token_seconds.add(request.first_token - request.arrived)
        if request.num_output_tokens > 1:
            self.inter_token_seconds.add((request.last_token - request.first_token) / (request.num_output_tokens - 1))

    def _trend(self) -> float:
        return self.step_seconds.median(_RECENT) / (self.step_seconds.median() or 1.0) if self.num_steps else 1.0

    def snapshot(  # noqa: PLR0913 - each is a figure of its own
        self,
        *,
        num_running: int,
        num_prompt_tokens_left: int,
        max_num_running: int,
        waiting: dict[str, int],
        preemptions: Mapping[str, int],
        prefill_tokens_per_second: float,
        pool: PoolStats,
        drafts: DraftCounts | None = None,
    ) -> EngineStats:
        """Return the counts with what the engine holds now."""
        return EngineStats(
            num_running=num_running,
            num_prompt_tokens_left=num_prompt_tokens_left,
            max_num_running=max_num_running,
            waiting=waiting,
            num_steps=self.num_steps,
            generation_tokens=self.generation_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            preemptions=dict(preemptions),
            finished=dict(self.finished),
            busy_seconds=self.busy_seconds,
            step_seconds=self.step_seconds.percentiles(),
            step_trend=self._trend(),
            prefill_tokens_per_second=prefill_tokens_per_second,
            num_slow_steps=self.num_slow_steps,
            slowest_step=self.slowest_step,
            scheduler_seconds=self.scheduler_seconds.percentiles(),
            tokens_per_step=self.tokens_per_step.percentiles(),
            queue_seconds=self.queue_seconds.percentiles(),
            first_token_seconds=self.first_token_seconds.percentiles(),
            inter_token_seconds=self.inter_token_seconds.percentiles(),
            pool=PoolCounts.of(pool),
            drafts=drafts and drafts.copy(),
        )
