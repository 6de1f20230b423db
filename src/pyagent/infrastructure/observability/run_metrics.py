"""The runs of a fleet as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyagent.core.fleet.run_stats import RunStats
from pyagent.core.fleet.turns import RateStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def collect_runs(stats: RunStats, num_running: int) -> Iterator[Metric]:
    """Return the metrics of a fleet's runs, of all clients together."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    running = GaugeMetricFamily("pyagent_runs_running", "Runs of the agent fleet under way.")
    running.add_metric((), num_running)
    yield running
    ended = CounterMetricFamily("pyagent_runs", "Runs of the agent fleet that are over, by state.", labels=("state",))
    for state, count in stats.ended.items():
        ended.add_metric((state,), count)
    yield ended
    steps = HistogramMetricFamily("pyagent_run_step_seconds", "Seconds that a step of a run took, retries included.")
    steps.add_metric((), stats.step_seconds.buckets(), stats.step_seconds.total)
    yield steps
    yield from _collect_rates(stats.rates)


def _collect_rates(stats: RateStats) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    waiting = GaugeMetricFamily(
        "pyagent_rate_waiting", "Agents and calls of tools that wait for their turn by a rate.", labels=("rate",)
    )
    for name, count in stats.waiting.items():
        waiting.add_metric((name,), count)
    yield waiting
    for metric, text, values in (
        ("pyagent_rate_waits", "Turns by a rate that were waited for.", stats.waits),
        ("pyagent_rate_wait_seconds", "Seconds that turns by a rate were waited for.", stats.seconds),
        ("pyagent_rate_missed", "Turns by a rate that would have come after the deadline.", stats.missed),
    ):
        counter = CounterMetricFamily(metric, text, labels=("rate",))
        for name, value in values.items():
            counter.add_metric((name,), value)
        yield counter
