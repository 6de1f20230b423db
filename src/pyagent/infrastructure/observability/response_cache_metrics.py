"""A chain's response cache as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.core.response_cache.cache import ResponseCacheStats


def collect_response_cache(stats: ResponseCacheStats) -> Iterator[Metric]:
    """Return the cache's contents, and how requests were answered."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    requests = CounterMetricFamily(
        "pyagent_response_cache_requests",
        "Requests to the chain, by result: hit, shared (coalesced with an equal one), miss, bypass (not cacheable).",
        labels=("result",),
    )
    for result, count in (
        ("hit", stats.num_hits),
        ("shared", stats.num_shared),
        ("miss", stats.num_misses),
        ("bypass", stats.num_bypassed),
    ):
        requests.add_metric((result,), count)
    yield requests
    dropped = CounterMetricFamily(
        "pyagent_response_cache_dropped",
        "Answers evicted from the response cache because it was full, or expired because they were old.",
        labels=("cause",),
    )
    dropped.add_metric(("full",), stats.num_evicted)
    dropped.add_metric(("old",), stats.num_expired)
    yield dropped
    yield GaugeMetricFamily(
        "pyagent_response_cache_hit_ratio",
        "Fraction of cacheable requests that the response cache answered without computing.",
        stats.hit_ratio,
    )
    yield GaugeMetricFamily(
        "pyagent_response_cache_bytes", "Bytes of the answers in the response cache.", stats.num_bytes
    )
    entries = GaugeMetricFamily(
        "pyagent_response_cache_entries", "Answers in the response cache, by state: pinned or other.", labels=("state",)
    )
    entries.add_metric(("pinned",), stats.num_pinned)
    entries.add_metric(("other",), stats.num_entries - stats.num_pinned)
    yield entries
