"""Alerts: what the journal's numbers say is odd, in the log when it is new and when it is over, and as metrics.

A server looks each minute by itself; where none does, metrics that are read look, at most once a minute.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
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
        self._num_raised: Counter[Level] = Counter(dict.fromkeys(_LOG_LEVELS, 0))

    def raised(self) -> list[Finding]:
        """Return what is odd, the worst first, as of a minute ago at most."""
        return self._raised if self._clock() - self._looked_at < _SECONDS_BETWEEN else self.look()

    def look(self) -> list[Finding]:
        """Return what is odd now, the worst first; what is new is logged at its level, and what is over."""
        if self._journal is None:
            return []
        now = self._looked_at = self._clock()
        try:
            found = look_at(self._journal, now)
        except RequestError as error:
            logger.debug("the journal's numbers cannot be read: %s", error)
            return self._raised
        before, self._raised = self._raised, found
        self._tell(before, found)
        return found

    def _tell(self, before: list[Finding], found: list[Finding]) -> None:
        """Log and count the alerts that are new, and log those whose thing is no longer odd at any level."""
        known, odd = {(one.level, *_thing(one)) for one in before}, {_thing(one) for one in found}
        for one in found:
            if (one.level, *_thing(one)) not in known:
                self._num_raised[one.level] += 1
                facts = {"z_score": round(one.z_score, 1), "trend": round(one.trend, 3), "count": one.count}
                logger.log(_LOG_LEVELS[one.level], "%s", one.text, extra=facts)
        for one in before:
            if _thing(one) not in odd:
                logger.info("over: %s", one.text)

    def collect(self) -> Iterator[Metric]:
        """Return the alerts as metrics: the z-score and the trend of each."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
        counts = CounterMetricFamily("pyagent_alerts", "Alerts raised since the start, by level.", labels=("level",))
        for level in _LOG_LEVELS:
            counts.add_metric((level,), self._num_raised[level])
        yield counts


def look_at(journal: SqliteJournal, now: float) -> list[Finding]:
    """Return what the last week's numbers say is odd, of all tenants together."""
    return findings_of(journal.rollups(KINDS, since=now - LOOK_BACK_SECONDS))


def _thing(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.key, finding.quantity
