"""The runs of a fleet as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyagent.core.fleet.run_stats import RunStats

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
