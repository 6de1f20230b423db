"""Answers that a chain keeps, as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.core.response_cache.cache import ResponseCacheStats


def collect_response_cache(figures: ResponseCacheStats) -> Iterator[Metric]:
    """What is kept, and how requests were answered."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    requests = CounterMetricFamily(
        "pyagent_response_cache_requests",
        "Requests by how they were answered: kept (a hit), shared (coalesced), computed (a miss), passed (not cached).",
        labels=("answer",),
    )
    for answer, count in (
        ("kept", figures.num_hits),
        ("shared", figures.num_shared),
        ("computed", figures.num_misses),
        ("passed", figures.num_passed),
    ):
        requests.add_metric((answer,), count)
    yield requests
    dropped = CounterMetricFamily(
        "pyagent_response_cache_dropped",
        "Answers evicted from the response cache because it was full, or expired because they were old.",
        labels=("cause",),
    )
    dropped.add_metric(("full",), figures.num_evicted)
    dropped.add_metric(("old",), figures.num_expired)
    yield dropped
    yield GaugeMetricFamily(
        "pyagent_response_cache_hit_ratio",
        "Fraction of cacheable requests that the response cache answered without computing.",
        figures.hit_ratio,
    )
    yield GaugeMetricFamily(
        "pyagent_response_cache_bytes", "Bytes of the answers in the response cache.", figures.num_bytes
    )
    kept = GaugeMetricFamily(
        "pyagent_response_cache_kept", "Answers in the response cache, by state: pinned or other.", labels=("state",)
    )
    kept.add_metric(("pinned",), figures.num_pinned)
    kept.add_metric(("other",), figures.num_kept - figures.num_pinned)
    yield kept
