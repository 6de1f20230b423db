"""What several copies of an engine say, as one: counts and bytes add up, percentiles are those of the slowest copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pyagent.core.load_progress import LoadProgress
from pyagent.core.prompt_cache import CachePages, CacheQuery, CacheQueryResult, ModelCache, ViewCache
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.memory.garbage import GarbageStats
from pyagent.infrastructure.engine.stats import (
    AdapterStats,
    DraftCounts,
    EngineStats,
    KvMoveStats,
    Percentiles,
    PoolCounts,
    SlowStep,
)

_S = TypeVar("_S", bound=msgspec.Struct)


def merged_state(states: Sequence[EngineState]) -> EngineState:
    """Return the state of an engine whose copies are in these; of one copy, its own."""
    if len(states) == 1:
        return states[0]
    return EngineState(
        state="",
        num_arriving=sum(state.num_arriving for state in states),
        num_arriving_tokens=sum(state.num_arriving_tokens for state in states),
        models=list({model.id: model for state in states for model in state.models}.values()),
        loading=sorted({name for state in states for name in state.loading}),
        load_progress={name: _load(each) for name, each in _by_name(state.load_progress for state in states).items()},
        memory=_added(state.memory for state in states),
        memory_bytes=sum(state.memory_bytes for state in states),
        runners={name: runner for state in states for name, runner in state.runners.items()},
        swap_bytes=_added(state.swap_bytes for state in states),
        num_restarts=sum(state.num_restarts for state in states),
        stats={name: _merged(each) for name, each in _by_name(state.stats for state in states).items()},
        kv_moves={
            name: _sums(KvMoveStats, each) for name, each in _by_name(state.kv_moves for state in states).items()
        },
        adapters={
            model: {
                name: _adapter(each)
                for name, each in _by_name(state.adapters.get(model, {}) for state in states).items()
            }
            for model in dict.fromkeys(model for state in states for model in state.adapters)
        },
        load_seconds={name: phases for state in states for name, phases in state.load_seconds.items()},
        attention={name: backend for state in states for name, backend in state.attention.items()},
        compilation={name: stats for state in states for name, stats in state.compilation.items()},
        draft_models={name: fault for state in states for name, fault in state.draft_models.items()},
        faults={name: fault for state in states for name, fault in state.faults.items()},
        garbage=GarbageStats(
            num_collections=sum(state.garbage.num_collections for state in states),
            pause_seconds=sum(state.garbage.pause_seconds for state in states),
            longest_pause_seconds=max(state.garbage.longest_pause_seconds for state in states),
            num_frozen=sum(state.garbage.num_frozen for state in states),
        ),
        copies=list(states),
    )


def _adapter(each: Sequence[AdapterStats]) -> AdapterStats:
    return msgspec.structs.replace(_sums(AdapterStats, each), rank=max(one.rank for one in each))


def _load(each: Sequence[LoadProgress]) -> LoadProgress:
    left = [one.seconds_left for one in each if one.seconds_left is not None]
    return LoadProgress(
        model=each[0].model,
        bytes_done=sum(one.bytes_done for one in each),
        bytes_total=sum(one.bytes_total for one in each),
        seconds=max(one.seconds for one in each),
        seconds_left=max(left, default=None),
    )


def merged_cache(results: Sequence[CacheQueryResult], query: CacheQuery) -> CacheQueryResult:
    """Return the answer of all copies to a query: prompts of all, pages added up."""
    if len(results) == 1:
        return results[0]
    names = list(dict.fromkeys(cache.model for result in results for cache in result.models))
    limit = query.limit if isinstance(query, ViewCache) else None
    return CacheQueryResult(
        models=[
            _one_cache([cache for result in results for cache in result.models if cache.model == name], limit)
            for name in names
        ],
        report=next((result.report for result in results if result.report is not None), None),
        num_tokens=max(result.num_tokens for result in results),
    )


def _one_cache(caches: Sequence[ModelCache], limit: int | None) -> ModelCache:
    pages = [cache.pages for cache in caches if cache.pages is not None]
    prompts = sorted((prompt for cache in caches for prompt in cache.prompts), key=lambda prompt: prompt.idle_seconds)
    kept = [cache.pages.page_bytes for cache in caches if cache.pages is not None]
    return ModelCache(
        model=caches[0].model,
        pages=msgspec.structs.replace(_sums(CachePages, pages), page_bytes=kept[0]) if pages else None,
        pins={name: tokens for cache in caches for name, tokens in cache.pins.items()},
        prompts=prompts[:limit],
    )


def _merged(stats: Sequence[EngineStats]) -> EngineStats:
    slowest = max((one.slowest_step for one in stats if one.slowest_step), key=_seconds, default=None)
    trend = max(one.step_trend for one in stats)
    rate = max(one.prefill_tokens_per_second for one in stats)  # of one prompt, which one copy computes
    pool = _sums(PoolCounts, [one.pool for one in stats])
    drafts = [one.drafts for one in stats if one.drafts is not None]
    return msgspec.structs.replace(
        _sums(EngineStats, stats),
        pool=pool,
        drafts=_sums(DraftCounts, drafts) if drafts else None,
        slowest_step=slowest,
        step_trend=trend,
        prefill_tokens_per_second=rate,
    )


def _seconds(step: SlowStep) -> float:
    return step.seconds


def _sums(kind: type[_S], values: Sequence[_S]) -> _S:
    """Return a struct whose numbers and tables of numbers are the sums of these; percentiles are the largest.

    Fields of other kinds have their defaults.
    """
    fields: dict[str, Any] = {}  # Any: of each field its own type
    for name in kind.__struct_fields__:
        each = [getattr(value, name) for value in values]
        match each[0]:
            case int() | float():
                fields[name] = sum(each)
            case dict():
                fields[name] = _added(each)
            case Percentiles():
                fields[name] = Percentiles(*(max(getattr(one, p) for one in each) for p in ("p50", "p95", "p99")))
            case _:
                continue
    return kind(**fields)


def _added(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for table in tables:
        counts.update(table)
    return dict(counts)


def _by_name(tables: Iterable[Mapping[str, _S]]) -> dict[str, list[_S]]:
    found: dict[str, list[_S]] = {}
    for table in tables:
        for name, stats in table.items():
            found.setdefault(name, []).append(stats)
    return found
