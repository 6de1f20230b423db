"""An engine's stats as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.core.load_progress import LoadProgress
    from pyagent.core.runners.runner import CompileStats, RankStats
    from pyagent.infrastructure.engine.client import EngineState
    from pyagent.infrastructure.engine.expert_loads import ExpertLoad
    from pyagent.infrastructure.engine.memory.garbage import GarbageStats
    from pyagent.infrastructure.engine.stats import AdapterStats, DraftCounts, EngineStats, KvMoveStats

_Row = tuple[tuple[str, ...], float]
_Engine = tuple[str, str]
"""A model's name, and the number of the engine's copy."""
_MAX_ADAPTERS = 100
"""Of so many there is a histogram."""


def collect_engines(states: Sequence[EngineState]) -> Iterator[Metric]:
    """Return the metrics of engines, by model and copy; an engine that several links share counts once."""
    copies = [(str(number), copy) for state in states for number, copy in enumerate(state.copies or [state])]
    stats = {(model, copy): engine for copy, state in copies for model, engine in state.stats.items()}
    memory = {(account, copy): size for copy, state in copies for account, size in state.memory.items()}
    swap = {(model, copy): size for copy, state in copies for model, size in state.swap_bytes.items()}
    loads = {
        (model, copy, phase): seconds
        for copy, state in copies
        for model, phases in state.load_seconds.items()
        for phase, seconds in phases.items()
    }
    restarts = {(copy,): state.num_restarts for copy, state in copies}
    waves = max((state.num_waves for state in states), default=0)
    yield _gauge(
        "memory_bytes",
        "Bytes reserved in the engine's memory ledger, by account.",
        ("account", "engine"),
        memory.items(),
    )
    yield _gauge(
        "swap_bytes", "Bytes of files holding the KV of swapped-out requests.", ("model", "engine"), swap.items()
    )
    yield _gauge(
        "load_seconds",
        "Seconds that loading a model took, by phase.",
        ("model", "engine", "phase"),
        loads.items(),
    )
    yield from _loading({(model, copy): load for copy, state in copies for model, load in state.load_progress.items()})
    yield _counter(
        "restarts", "Engine processes that were restarted after a crash or a hang.", ("engine",), restarts.items()
    )
    yield _counter(
        "waves", "Times in which engine processes had something to do, one after another.", (), [((), waves)]
    )
    yield from _garbage({copy: state.garbage for copy, state in copies})
    yield from _requests(stats)
    yield from _steps(stats)
    yield from _drafts({key: engine.drafts for key, engine in stats.items() if engine.drafts is not None})
    yield _gauge(
        "spec_decode_draft_model_loaded",
        "Whether a model that is to have a draft model has it: 1, or 0 where it goes on without.",
        ("model", "engine"),
        [((model, copy), float(not fault)) for copy, state in copies for model, fault in state.draft_models.items()],
    )
    yield from _pages(stats)
    yield from _ranks({(model, copy): ranks for copy, state in copies for model, ranks in state.ranks.items()})
    yield from _compilation({(model, copy): of for copy, state in copies for model, of in state.compilation.items()})
    yield from _adapters(copies)
    yield from _experts({(model, copy): loads for copy, state in copies for model, loads in state.experts.items()})
    yield from _kv_moves({(model, copy): moved for copy, state in copies for model, moved in state.kv_moves.items()})


def _loading(loads: Mapping[_Engine, LoadProgress]) -> Iterator[Metric]:
    for name, text, field in (
        ("load_bytes", "Bytes of weights that are in memory, of a model that is loading.", "bytes_done"),
        ("load_expected_bytes", "Bytes of all weights, of a model that is loading.", "bytes_total"),
    ):
        yield _gauge(name, text, ("model", "engine"), [(key, getattr(load, field)) for key, load in loads.items()])


def _requests(stats: Mapping[_Engine, EngineStats]) -> Iterator[Metric]:
    running = [(key, engine.num_running) for key, engine in stats.items()]
    yield _gauge(
        "requests_running", "Requests in the running batch, which hold KV cache blocks.", ("model", "engine"), running
    )
    yield _gauge(
        "requests_waiting",
        "Requests waiting in the engine's queues, by request class.",
        ("model", "engine", "class"),
        [row for key, engine in stats.items() for row in _rows(engine.waiting, *key)],
    )
    for name, text, label, field in (
        ("requests_finished", "Requests that finished, by finish reason.", "reason", "finished"),
        ("preemptions", "Running requests preempted, by kind: swap or recompute.", "kind", "preemptions"),
    ):
        rows = [row for key, engine in stats.items() for row in _rows(getattr(engine, field), *key)]
        yield _counter(name, text, ("model", "engine", label), rows)


def _steps(stats: Mapping[_Engine, EngineStats]) -> Iterator[Metric]:
    for name, text, field in (
        ("steps", "Engine steps computed.", "num_steps"),
        ("slow_steps", "Engine steps that took more than five times what is usual.", "num_slow_steps"),
        ("busy_seconds", "Seconds the engine spent computing steps.", "busy_seconds"),
        ("prompt_tokens", "Prompt tokens of requests that started.", "prompt_tokens"),
        ("cached_tokens", "Prompt tokens found in the prefix cache.", "cached_tokens"),
        ("generation_tokens", "Output tokens sampled by the engine.", "generation_tokens"),
    ):
        counts = [(key, getattr(engine, field)) for key, engine in stats.items()]
        yield _counter(name, text, ("model", "engine"), counts)
    for name, text, field in (
        ("step_seconds", "Seconds of an engine step: p50, p95 and p99 of the last 1,024 steps.", "step_seconds"),
        (
            "scheduler_seconds",
            "Seconds of scheduling in a step: p50, p95 and p99 of the last 1,024 steps.",
            "scheduler_seconds",
        ),
        (
            "step_tokens",
            "Prompt and output tokens computed in a step: p50, p95 and p99 of the last 1,024 steps.",
            "tokens_per_step",
        ),
        (
            "queue_seconds",
            "Seconds a request waited in the queue: p50, p95 and p99 of the last 1,024 requests.",
            "queue_seconds",
        ),
        (
            "first_token_seconds",
            "Seconds to a request's first token: p50, p95 and p99 of the last 1,024 requests.",
            "first_token_seconds",
        ),
        (
            "inter_token_seconds",
            "Mean seconds between a request's output tokens: p50, p95 and p99 of the last 1,024 requests.",
            "inter_token_seconds",
        ),
    ):
        rows = [
            ((*key, quantile), getattr(getattr(engine, field), attribute))
            for key, engine in stats.items()
            for quantile, attribute in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"))
        ]
        yield _gauge(name, text, ("model", "engine", "quantile"), rows)
    trends = [(key, engine.step_trend) for key, engine in stats.items()]
    yield _gauge(
        "step_trend", "The p50 of the last 128 steps over that of the last 1,024.", ("model", "engine"), trends
    )
    slowest = [(key, step.seconds) for key, engine in stats.items() if (step := engine.slowest_step)]
    yield _gauge("slowest_step_seconds", "Seconds of the slowest of the slow steps.", ("model", "engine"), slowest)


def _drafts(drafts: Mapping[_Engine, DraftCounts]) -> Iterator[Metric]:
    """Speculative decoding, by vLLM's names."""
    for name, text, field in (
        ("spec_decode_num_drafts", "Sequences of draft tokens verified (speculative decoding).", "num_drafts"),
        ("spec_decode_num_draft_tokens", "Draft tokens verified (speculative decoding).", "num_draft_tokens"),
        (
            "spec_decode_num_accepted_tokens",
            "Draft tokens accepted, each an output token without a step of its own (speculative decoding).",
            "num_accepted_tokens",
        ),
        ("spec_decode_draft_model_tokens", "Tokens that a draft model wrote, verified or not.", "num_model_tokens"),
        ("spec_decode_draft_model_seconds", "Seconds that a draft model computed for.", "model_seconds"),
        (
            "spec_decode_verify_seconds",
            "Seconds of engine steps that verified draft tokens; of steps that computed prompts too, the drafts' part.",
            "verify_seconds",
        ),
    ):
        yield _counter(name, text, ("model", "engine"), [(key, getattr(one, field)) for key, one in drafts.items()])
    yield _counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted, by their position in the sequence of drafts, counted from 0.",
        ("model", "engine", "position"),
        [row for key, one in drafts.items() for row in _rows(one.accepted_at, *key)],
    )
    for name, text, field in (
        ("spec_decode_num_draft_tokens_per_source", "Draft tokens verified, by what proposed them.", "drafted_from"),
        (
            "spec_decode_num_accepted_tokens_per_source",
            "Draft tokens accepted, by what proposed them.",
            "accepted_from",
        ),
    ):
        rows = [row for key, one in drafts.items() for row in _rows(getattr(one, field), *key)]
        yield _counter(name, text, ("model", "engine", "source"), rows)
    yield _gauge(
        "spec_decode_saved_seconds",
        "Seconds that draft tokens saved, by the measured time of steps without any; below 0 they cost time.",
        ("model", "engine"),
        [(key, one.saved_seconds) for key, one in drafts.items()],
    )


def _pages(stats: Mapping[_Engine, EngineStats]) -> Iterator[Metric]:
    pools = {key: engine.pool for key, engine in stats.items()}
    states = ("limit", "free", "cached", "active")
    rows = [((*key, state), getattr(pool, state)) for key, pool in pools.items() for state in states]
    yield _gauge(
        "kv_pages",
        "Pages of KV cache memory, by state; free pages include the cached ones.",
        ("model", "engine", "state"),
        rows,
    )
    evicted = [row for key, pool in pools.items() for row in _rows(pool.evictions, *key)]
    yield _counter("kv_evictions", "Cached KV pages evicted, by cause.", ("model", "engine", "cause"), evicted)
    ratios = [(key, pool.hits_tokens / max(1, pool.queried_tokens)) for key, pool in pools.items()]
    yield _gauge(
        "cache_hit_ratio",
        "Fraction of prompt tokens found in the prefix cache, since start.",
        ("model", "engine"),
        ratios,
    )


def _adapters(copies: Sequence[tuple[str, EngineState]]) -> Iterator[Metric]:
    of_all = {
        (model, copy, name): stats
        for copy, state in copies
        for model, adapters in state.adapters.items()
        for name, stats in adapters.items()
    }
    for metric, name, text, field in (
        (_counter, "adapter_requests", "Requests that named an adapter of a model.", "num_requests"),
        (_gauge, "adapter_requests_running", "Requests with an adapter that are not over.", "num_running"),
        (_counter, "adapter_loads", "Times in which an adapter was loaded.", "num_loads"),
        (_counter, "adapter_failed_loads", "Loads of an adapter that failed.", "num_failed_loads"),
        (_counter, "adapter_load_seconds", "Seconds that the loads of an adapter took.", "load_seconds"),
        (
            _counter,
            "adapter_evictions",
            "Times in which an idle adapter gave way to what else needed memory.",
            "num_evictions",
        ),
        (_gauge, "adapter_bytes", "Bytes that an adapter holds; 0 while it is not in memory.", "num_bytes"),
    ):
        rows = [(key, getattr(stats, field)) for key, stats in of_all.items()]
        yield metric(name, text, ("model", "engine", "adapter"), rows)
    yield _adapter_seconds(of_all)


def _adapter_seconds(of_all: Mapping[tuple[str, str, str], AdapterStats]) -> Metric:
    """Return how long requests took, of the adapters that were asked most: each has a row for each bound."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(
        "pyagent_engine_adapter_request_seconds",
        "Seconds from naming an adapter to the end of the request, loading included, of requests that are over.",
        labels=("model", "engine", "adapter"),
    )
    busiest = sorted(of_all.items(), key=lambda one: -one[1].num_requests)[:_MAX_ADAPTERS]
    for key, stats in busiest:
        family.add_metric(key, [*stats.requests_within.items()], stats.request_seconds)
    return family


def _experts(loads: Mapping[_Engine, Sequence[ExpertLoad]]) -> Iterator[Metric]:
    for name, text, field in (
        (
            "expert_imbalance",
            "Tokens of a layer's busiest expert over the mean of its experts, since the model was loaded.",
            "imbalance",
        ),
        ("experts_unused", "Experts of a layer that no token has had since the model was loaded.", "num_unused"),
    ):
        rows = [((*key, str(one.layer)), getattr(one, field)) for key, each in loads.items() for one in each]
        yield _gauge(name, text, ("model", "engine", "layer"), rows)


def _kv_moves(moved: Mapping[_Engine, KvMoveStats]) -> Iterator[Metric]:
    for name, text, field in (
        ("kv_loads", "Prompts whose KV was loaded from another engine.", "num_loads"),
        ("kv_loaded_tokens", "Prompt tokens whose KV was loaded from another engine.", "tokens"),
        ("kv_loaded_bytes", "Bytes of KV loaded from other engines.", "bytes"),
        ("kv_load_seconds", "Seconds that loading KV from other engines took.", "seconds"),
        ("kv_loads_failed", "Loads of KV that failed, so that the prompt was computed.", "failed"),
        ("kv_loads_refused", "Loads of KV refused because the other engine's is not alike.", "refused"),
        ("kv_loads_declined", "Loads of KV left out because computing was expected to be quicker.", "declined"),
        ("kv_sent_bytes", "Bytes of KV read for other engines.", "bytes_sent"),
    ):
        rows = [(key, getattr(one, field)) for key, one in moved.items()]
        yield _counter(name, text, ("model", "engine"), rows)


def _ranks(ranks: Mapping[_Engine, Sequence[RankStats]]) -> Iterator[Metric]:
    for name, text, field in (
        ("rank_memory_bytes", "Bytes that a rank holds of its device's memory.", "memory_bytes"),
        ("rank_step_seconds", "Seconds of a step on a rank: p50 of the last 1,024 steps.", "step_seconds"),
        ("rank_busy_seconds", "Seconds for which a rank has been at its present step.", "busy_seconds"),
        ("rank_silent_seconds", "Seconds since a rank's process should have said how it is.", "silent_seconds"),
    ):
        rows = [((*key, str(one.rank)), getattr(one, field)) for key, each in ranks.items() for one in each]
        yield _gauge(name, text, ("model", "engine", "rank"), rows)


def _compilation(compiled: Mapping[_Engine, CompileStats]) -> Iterator[Metric]:
    for name, text, field in (
        ("compiles", "Compilations of a function of the model's steps, those read from disk included.", "num_compiles"),
        ("compile_seconds", "Seconds that compiling a function of the model's steps took.", "seconds"),
    ):
        rows = [((*key, one.name), getattr(one, field)) for key, of in compiled.items() for one in of.functions]
        yield _counter(name, text, ("model", "engine", "function"), rows)
    recompiles = [
        ((*key, one.name), sum(one.recompiles.values())) for key, of in compiled.items() for one in of.functions
    ]
    yield _counter(
        "recompiles",
        "Compilations of a function while requests were served, each of which made steps wait.",
        ("model", "engine", "function"),
        recompiles,
    )
    for name, text, field in (
        ("graph_captures", "Steps captured in CUDA graphs.", "num_captures"),
        ("graph_capture_seconds", "Seconds that capturing steps in CUDA graphs took.", "capture_seconds"),
        ("graph_replays", "Steps computed by a captured CUDA graph.", "num_replays"),
    ):
        yield _counter(name, text, ("model", "engine"), [(key, getattr(of, field)) for key, of in compiled.items()])


def _garbage(garbage: Mapping[str, GarbageStats]) -> Iterator[Metric]:
    for name, text, field in (
        ("gc_collections", "Python garbage collections in the engine's process.", "num_collections"),
        ("gc_pause_seconds", "Seconds that garbage collections stopped the engine's Python threads.", "pause_seconds"),
    ):
        yield _counter(name, text, ("engine",), [((copy,), getattr(one, field)) for copy, one in garbage.items()])
    for name, text, field in (
        (
            "gc_longest_pause_seconds",
            "Seconds of the longest garbage collection in the engine's process.",
            "longest_pause_seconds",
        ),
        ("gc_frozen_objects", "Objects that the garbage collector leaves alone in the engine's process.", "num_frozen"),
    ):
        yield _gauge(name, text, ("engine",), [((copy,), getattr(one, field)) for copy, one in garbage.items()])


def _rows(named: Mapping[str, float], *first: str) -> list[_Row]:
    return [((*first, name), value) for name, value in named.items()]


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[_Row]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"pyagent_engine_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Iterable[_Row]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"pyagent_engine_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
