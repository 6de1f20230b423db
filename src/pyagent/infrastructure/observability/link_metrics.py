"""The links of a chain as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyagent.core.chain.figures import LinkState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_BREAKERS = {"closed": 0.0, "half-open": 1.0, "open": 2.0}
_COUNTERS = (
    ("requests", "Requests sent to a link.", "num_requests"),
    ("answers", "Of these, those answered to the end.", "num_answers"),
    ("hedges", "Requests sent because another link was late.", "num_hedges"),
    ("hedges_won", "Of these, those that answered first.", "num_hedges_won"),
    ("continued", "Answers that a link took over in the middle.", "num_continued"),
    ("restarted", "Answers of others that a link began anew.", "num_restarted"),
    ("prompt_tokens", "Prompt tokens of a link's calls.", "prompt_tokens"),
    ("generation_tokens", "Tokens a link generated.", "completion_tokens"),
    ("cost_usd", "What a link cost, by its price.", "usd"),
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
    failures = CounterMetricFamily("pyagent_link_failures", "Requests a link did not answer.", labels=("link", "kind"))
    for link, state in rows:
        for kind, count in state.failures.items():
            failures.add_metric((link, kind), count)
    yield failures
    gauges: tuple[tuple[str, str, Iterable[tuple[str, float | None]]], ...] = (
        ("breaker", "0 closed, 1 half-open, 2 open.", ((link, _BREAKERS[state.breaker]) for link, state in rows)),
        ("requests_running", "Calls under way.", ((link, float(state.num_in_flight)) for link, state in rows)),
        ("concurrency_limit", "Calls that may be under way.", ((link, state.limit) for link, state in rows)),
        ("rest_seconds", "Until a link that asked for a pause is asked again.", _rests(rows)),
    )
    for name, text, values in gauges:
        gauge = GaugeMetricFamily(f"pyagent_link_{name}", text, labels=("link",))
        for link, value in values:
            if value is not None:
                gauge.add_metric((link,), value)
        yield gauge
    quantiles = GaugeMetricFamily(
        "pyagent_link_first_token_seconds", "First tokens of the last calls.", labels=("link", "quantile")
    )
    for link, state in rows:
        for quantile, value in (("0.5", state.first_token_p50), ("0.95", state.first_token_p95)):
            if value is not None:
                quantiles.add_metric((link, quantile), value)
    yield quantiles


def _rests(rows: Iterable[tuple[str, LinkState]]) -> Iterator[tuple[str, float | None]]:
    return ((link, state.rest_seconds) for link, state in rows)


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{name} ({at + 1})" if name in names[:at] else name for at, name in enumerate(names)]
