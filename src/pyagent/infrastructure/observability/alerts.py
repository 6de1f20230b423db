"""Alerts: what the journal's numbers say is odd, in the log when it is new, and as metrics.

Looked at when metrics are read, at most once a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyagent.core.errors import RequestError
from pyagent.core.fleet.findings import LOOK_BACK_SECONDS, Finding, Level, findings_of
from pyagent.core.fleet.rollups import KINDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.infrastructure.storage.journal import SqliteJournal

_SECONDS_BETWEEN = 60.0
_LOG_LEVELS: dict[Level, int] = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}
logger = logging.getLogger("pyagent.alerts")


class Alerts:
    """The alerts of one journal; None has none. `clock` gives seconds since 1970."""

    def __init__(self, journal: SqliteJournal | None, clock: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._clock = clock
        self._looked_at = float("-inf")
        self._raised: list[Finding] = []

    def raised(self) -> list[Finding]:
        """Return what is odd now, the worst first; what was not a minute ago is logged at its level."""
        now = self._clock()
        if self._journal is None or now - self._looked_at < _SECONDS_BETWEEN:
            return self._raised
        self._looked_at = now
        try:
            found = look_at(self._journal, now)
        except RequestError as error:
            logger.debug("the journal's numbers cannot be read: %s", error)
            return self._raised
        before = {_name(one) for one in self._raised}
        for one in found:
            if _name(one) not in before:
                facts = {"z_score": round(one.z_score, 1), "trend": round(one.trend, 3), "count": one.count}
                logger.log(_LOG_LEVELS[one.level], "%s", one.text, extra=facts)
        self._raised = found
        return found

    def collect(self) -> Iterator[Metric]:
        """Return the alerts as metrics: the z-score and the trend of each."""
        from prometheus_client.core import GaugeMetricFamily

        labels = ("level", "kind", "key", "quantity")
        scores = GaugeMetricFamily(
            "pyagent_alert_z_score",
            "Odd numbers of runs: how far an agent's, tool's, link's or model's newest hour is from its usual one.",
            labels=labels,
        )
        trends = GaugeMetricFamily(
            "pyagent_alert_trend",
            "Odd numbers of runs: change with each hour, as a part of the usual value.",
            labels=labels,
        )
        for one in self.raised():
            scores.add_metric((one.level, one.kind, one.key, one.quantity), one.z_score)
            trends.add_metric((one.level, one.kind, one.key, one.quantity), one.trend)
        yield scores
        yield trends


def look_at(journal: SqliteJournal, now: float) -> list[Finding]:
    """Return what the last week's numbers say is odd, of all tenants together."""
    return findings_of(journal.rollups(KINDS, since=now - LOOK_BACK_SECONDS))


def _name(finding: Finding) -> tuple[Level, str, str, str]:
    return finding.level, finding.kind, finding.key, finding.quantity
