"""The links of a chain as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyagent.core.chain.stats import LinkState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_BREAKERS = {"closed": 0.0, "half-open": 1.0, "open": 2.0}
_COUNTERS = (
    ("requests", "Requests sent to a link of the fallback chain.", "num_requests"),
    ("answers", "Requests that a link answered to the end.", "num_answers"),
    ("hedges", "Hedged requests sent to a link because another link was slow.", "num_hedges"),
    ("hedges_won", "Hedged requests that a link answered first.", "num_hedges_won"),
    ("continued", "Answers of failed links that a link continued in mid-answer.", "num_continued"),
    ("restarted", "Answers of failed links that a link restarted from the beginning.", "num_restarted"),
    ("prompt_tokens", "Prompt tokens of the requests that a link answered.", "prompt_tokens"),
    ("generation_tokens", "Output tokens that a link generated.", "completion_tokens"),
    ("cost_usd", "US dollars spent at a link, by its configured price.", "usd"),
)


def collect_links(states: Sequence[LinkState]) -> Iterator[Metric]:
    """The figures of links, by name. Links of one name are told apart by their place."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    names = _distinct([state.backend for state in states])
    rows = list(zip(names, states, strict=True))
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(f"pyagent_link_{name}", text, labels=("link",))
        for link, state in rows:
            counter.add_metric((link,), float(getattr(state, field)))
        yield counter
    failures = CounterMetricFamily(
        "pyagent_link_failures", "Requests that a link did not answer, by kind of failure.", labels=("link", "kind")
    )
    for link, state in rows:
        for kind, count in state.failures.items():
            failures.add_metric((link, kind), count)
    yield failures
    gauges: tuple[tuple[str, str, Iterable[tuple[str, float | None]]], ...] = (
        (
            "breaker",
            "State of a link's circuit breaker: 0 closed, 1 half-open, 2 open.",
            ((link, _BREAKERS[state.breaker]) for link, state in rows),
        ),
        (
            "requests_running",
            "Requests in flight at a link.",
            ((link, float(state.num_in_flight)) for link, state in rows),
        ),
        (
            "concurrency_limit",
            "Requests that may be in flight at a link at once.",
            ((link, state.limit) for link, state in rows),
        ),
        ("cooldown_seconds", "Seconds of cooldown left until a link is asked again.", _rests(rows)),
    )
    for name, text, values in gauges:
        gauge = GaugeMetricFamily(f"pyagent_link_{name}", text, labels=("link",))
        for link, value in values:
            if value is not None:
                gauge.add_metric((link,), value)
        yield gauge
    quantiles = GaugeMetricFamily(
        "pyagent_link_first_token_seconds",
        "Time to first token of a link: p50 and p95 of its last 200 answers.",
        labels=("link", "quantile"),
    )
    for link, state in rows:
        for quantile, value in (("0.5", state.first_token_p50), ("0.95", state.first_token_p95)):
            if value is not None:
                quantiles.add_metric((link, quantile), value)
    yield quantiles


def _rests(rows: Iterable[tuple[str, LinkState]]) -> Iterator[tuple[str, float | None]]:
    return ((link, state.cooldown_seconds) for link, state in rows)


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{name} ({at + 1})" if name in names[:at] else name for at, name in enumerate(names)]
