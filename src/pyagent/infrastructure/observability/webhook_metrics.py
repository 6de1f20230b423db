"""Webhooks as Prometheus has them: what waits to be sent or run, and what failed. No names of endpoints or keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyagent.infrastructure.storage.webhooks.endpoints import SqliteWebhooks

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def collect_webhooks(webhooks: SqliteWebhooks) -> Iterator[Metric]:
    """Return the metrics of a journal's webhooks, of all clients together."""
    from prometheus_client.core import GaugeMetricFamily

    sent = GaugeMetricFamily(
        "pyagent_webhook_messages", "Messages of webhooks kept in the journal, by state.", labels=("state",)
    )
    for state, count in webhooks.outbox.counts().items():
        sent.add_metric((state,), count)
    yield sent
    disabled = GaugeMetricFamily("pyagent_webhooks_disabled", "Webhooks disabled since they took nothing for days.")
    disabled.add_metric((), webhooks.num_disabled())
    yield disabled
    came = GaugeMetricFamily(
        "pyagent_hook_messages", "Messages of incoming webhooks kept in the journal, by state.", labels=("state",)
    )
    for state, count in webhooks.inbox.counts().items():
        came.add_metric((state,), count)
    yield came
