"""What the journal's numbers say is odd, and what a fresh process makes of what failed lately."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from support.fleets import Custom, ask

from pyagent.cli.root import run as run_command
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import AgentError, BackendError
from pyagent.core.fleet import orchestrator
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import RunStarted, ToolCalled
from pyagent.core.fleet.findings import Finding, findings_of
from pyagent.core.fleet.journal import JournalRecord
from pyagent.core.fleet.reliability import HALF_LIFE_SECONDS, failing, failure_rates
from pyagent.core.fleet.rollups import Kind, Observation, Rollup, RollupRow
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.core.settings import Settings
from pyagent.core.settings.program import Paths
from pyagent.fleet import Fleet
from pyagent.infrastructure.observability.alerts import Alerts
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import Reply, ScriptedBackend


def _row(hour: int, seconds: Sequence[float], failures: int = 0, key: str = "a", kind: Kind = "agent") -> RollupRow:
    rollup = Rollup()
    for place, value in enumerate(seconds):
        rollup.add(Observation(kind=kind, key=key, at=hour * 3_600, seconds=value, is_failure=place < failures))
    return RollupRow(tenant="", kind=kind, key=key, start=hour * 3_600, grain=3_600, rollup=rollup)


USUAL = [_row(hour, [1.0 + (hour % 3) * 0.05] * 10) for hour in range(12)]


def _found(*last: RollupRow, past: Sequence[RollupRow] = USUAL) -> list[tuple[str, str]]:
    return [(one.level, one.quantity) for one in findings_of([*past, *last])]


def test_what_got_slow_is_found_at_three_levels() -> None:
    """The newest window is compared with the median and MAD of those before; how far says the level."""
    assert _found(_row(12, [1.2] * 5)) == []
    assert _found(_row(12, [1.5] * 5)) == [("info", "seconds")]
    assert _found(_row(12, [1.7] * 5)) == [("warning", "seconds")]
    assert _found(_row(12, [3.0] * 5)) == [("critical", "seconds")]
    assert _found(_row(12, [0.1] * 5)) == []  # quicker is well
    [finding] = findings_of([*USUAL, _row(12, [3.0] * 5)])
    assert finding.text == "agent a takes 3 s on average, and usually 1.05 s"
    assert (finding.value, finding.usual, finding.count) == (3.0, pytest.approx(1.05), 5)


def test_few_counts_and_short_pasts_say_nothing() -> None:
    """A window of two calls, and a past of four windows, are no ground for a finding."""
    assert _found(_row(12, [9.0] * 2)) == []
    assert _found(_row(12, [9.0] * 5), past=USUAL[:4]) == []


def test_bad_hours_of_the_past_hide_nothing() -> None:
    """Two windows of a hundred seconds move neither median nor MAD; a mean and a deviation they would."""
    past = [*USUAL, _row(12, [100.0] * 5), _row(13, [100.0] * 5)]
    assert _found(_row(14, [3.0] * 5), past=past) == [("critical", "seconds")]


def test_failures_are_found_by_rate_and_by_change() -> None:
    """Half or most of all calls failing is odd at once; a rate that grew is odd by its past."""
    assert _found(_row(0, [1.0] * 10, failures=5), past=[]) == [("warning", "failures")]
    assert _found(_row(0, [1.0] * 10, failures=10), past=[]) == [("critical", "failures")]
    assert _found(_row(12, [1.0] * 20, failures=8)) == [("info", "failures")]
    assert _found(_row(12, [1.0] * 20, failures=1)) == []


def test_trend_is_the_slope_of_the_last_hours() -> None:
    """A thing that gets slower each hour has its growth for an hour as its trend."""
    rows = [_row(hour, [1.0 + 0.01 * hour] * 5) for hour in range(20)]
    [finding] = findings_of([*rows, _row(20, [5.0] * 5)])
    assert finding.trend == pytest.approx(0.01 / finding.usual, rel=0.01)


@given(st.floats(0.001, 1_000), st.integers(6, 40), st.integers(3, 50))
@settings(max_examples=60, deadline=None)
def test_what_is_always_alike_is_never_odd(seconds: float, num_windows: int, count: int) -> None:
    """Equal windows, and ones that differ by less than a third, say nothing."""
    rows = [_row(hour, [seconds * (1 + 0.3 * (hour == num_windows - 1))] * count) for hour in range(num_windows)]
    assert findings_of(rows) == []


def test_worst_comes_first() -> None:
    """Findings are in the order of their levels."""
    rows = [*(_row(0, [1.0] * 4, failures=2, key=key) for key in "xy"), _row(0, [1.0] * 4, failures=4, key="z")]
    assert [one.key for one in findings_of(rows)] == ["z", "x", "y"]


# -- what failed lately ------------------------------------------------------------------------------------------------


def test_failures_are_forgotten_by_half_lives() -> None:
    """Three failures in a row count, two do not; what failed counts as well again when it says, and not before."""
    row = _row(0, [1.0] * 5, failures=5)
    [seconds] = failing(failure_rates([row], 0.0)).values()
    assert failing(failure_rates([row], seconds - 1)) != {}
    assert failing(failure_rates([row], seconds + 1)) == {}
    assert HALF_LIFE_SECONDS < seconds < 3 * HALF_LIFE_SECONDS
    assert failing(failure_rates([_row(0, [1.0] * 2, failures=2)], 0.0)) == {}
    assert failing(failure_rates([_row(0, [1.0] * 3, failures=3)], 0.0)) != {}
    assert failing(failure_rates([_row(0, [1.0] * 10, failures=4)], 0.0)) == {}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class World:
    """Processes with one journal: each has a chain of two links and a fleet of its own."""

    def __init__(self, folder: Path, num_links: int = 2) -> None:
        self.settings = Settings(paths=Paths(data=folder))
        self.clock = Clock()
        self.is_broken = True
        self.num_links = num_links

    def link(self, number: int) -> ScriptedBackend:
        """Return a link; the first is broken for a while."""
        error = BackendError("gone", backend=f"link{number}", retryable=False)
        return ScriptedBackend(
            lambda _: Reply(error=error) if self.is_broken and number == 0 else Reply(f"from {number}"),
            name=f"link{number}",
        )

    async def process(self, num_runs: int = 1) -> tuple[list[str], list[int]]:
        """Return the answers of so many runs of a fresh process, and how often each link was asked."""
        links = [self.link(number) for number in range(self.num_links)]
        chain = Chain(links, clock=self.clock)
        answers: list[str] = []
        async with Fleet(self.settings, backend=chain, agents=[Custom("a", ask)], tools=[]) as fleet:
            for _ in range(num_runs):
                try:
                    answers.append(str(await fleet.run_agent("a", "hello")))
                except BackendError:
                    answers.append("failed")
        return answers, [len(link.requests) for link in links]


def test_fresh_process_avoids_a_failing_link_and_returns(tmp_path: Path) -> None:
    """What an earlier process saw fail is not asked while another link is well, and is probed again later."""
    world = World(tmp_path)
    assert asyncio.run(world.process(3)) == (["from 1"] * 3, [3, 3])
    assert asyncio.run(world.process()) == (["from 1"], [0, 1])

    async def later() -> None:
        links = [world.link(0), world.link(1)]
        chain = Chain(links, clock=world.clock)
        async with Fleet(world.settings, backend=chain, agents=[Custom("a", ask)], tools=[]) as fleet:
            world.is_broken = False
            assert await fleet.run_agent("a", "hello") == "from 1"
            assert "before this start" in chain.link_states()[0].reason
            world.clock.now += 301
            assert await fleet.run_agent("a", "hello") == "from 0"
            assert chain.link_states()[0].breaker == "closed"

    asyncio.run(later())


def test_failing_link_is_asked_where_it_is_the_only_one(tmp_path: Path) -> None:
    """What failed before is no reason to refuse when no other link is left."""
    world = World(tmp_path, num_links=1)
    assert asyncio.run(world.process(3))[0] == ["failed"] * 3
    world.is_broken = False
    assert asyncio.run(world.process()) == (["from 0"], [1])


def test_failing_agent_comes_after_its_equals(tmp_path: Path) -> None:
    """Of two agents of one score the one that failed lately is chosen last, until it counts as well again."""
    chosen: list[str] = []

    def agent(name: str) -> Custom:
        async def run(context: Context, task: Task) -> object:
            chosen.append(name)
            if name == "first" and "break" in task.text:
                raise AgentError("broken", agent=name)
            return name

        return Custom(name, run, score=lambda _: 0.9)

    async def process(*tasks: str, seconds_later: float = 0.0) -> None:
        fleet = Fleet(
            Settings(paths=Paths(data=tmp_path)),
            backend=ScriptedBackend([]),
            agents=[agent("first"), agent("second")],
            tools=[],
        )
        fleet._scores.clock = lambda: time.monotonic() + seconds_later
        async with fleet:
            for task in tasks:
                try:
                    async for _ in fleet.run(task):
                        pass
                except AgentError:
                    continue

    asyncio.run(process("break", "break", "break"))
    assert chosen == ["first"] * 3
    asyncio.run(process("go"))
    assert chosen[3:] == ["second"]
    asyncio.run(process("go", seconds_later=5_000))
    assert chosen[4:] == ["first"]


# -- where it is said --------------------------------------------------------------------------------------------------


def _journal_with_failures(folder: Path) -> SqliteJournal:
    journal = SqliteJournal(folder / "journal")
    run = journal.open_run(RunSpec(steps=(Step(name="a", task=Task(text="t")),)))
    journal.append(run, JournalRecord(0, RunStarted(run=run, task="t")))
    for number in range(1, 5):
        event = ToolCalled(run=run, step="a", agent="a", tool="look", arguments={}, seconds=1.0, error="broken")
        journal.append(run, JournalRecord(number, event))
    journal.close_run(run)
    return journal


def test_alert_is_logged_once_and_is_a_metric(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An alert is logged at its level when it is new, and a metric as long as it lasts."""
    clock = Clock()
    clock.now = time.time()
    alerts = Alerts(_journal_with_failures(tmp_path), clock)
    with caplog.at_level(logging.INFO, "pyagent.alerts"):
        for _ in range(3):
            families = list(alerts.collect())
            clock.now += 61
    [record] = caplog.records
    text = "tool look failed in 100% of the last 4 calls, and usually in 0%"
    assert (record.levelno, record.getMessage()) == (logging.CRITICAL, text)
    [sample] = families[0].samples
    assert sample.labels == {"level": "critical", "kind": "tool", "key": "look", "quantity": "failures"}
    assert counts_of(families) == {"info": 0, "warning": 0, "critical": 1}
    clock.now += 8 * 86_400
    with caplog.at_level(logging.INFO, "pyagent.alerts"):
        scores, trends, counts = alerts.collect()
    assert (scores.samples, trends.samples) == ([], [])
    assert counts_of([counts]) == {"info": 0, "warning": 0, "critical": 1}
    assert (caplog.records[-1].levelno, caplog.records[-1].getMessage()) == (logging.INFO, f"over: {text}")


def counts_of(families: Iterable[Metric]) -> dict[str, float]:
    """Return the alerts raised so far by level."""
    [counts] = [family for family in families if family.name == "pyagent_alerts"]
    return {sample.labels["level"]: sample.value for sample in counts.samples}


def test_a_server_looks_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each minute, also when nothing reads its metrics, once there is a fleet; a look that fails is not the last."""
    journal = _journal_with_failures(tmp_path)
    broken = BrokenJournal(tmp_path / "broken")
    backend = AgentBackend(lambda: orchestrator.Fleet(ScriptedBackend(()), [], journal=broken))
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            assert not caplog.records
            await backend.made()
        if len(waits) == 3:
            assert "looking for alerts failed" in caplog.records.pop().getMessage()
            backend._alerts = Alerts(journal)
        if len(waits) == 5:
            raise asyncio.CancelledError

    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        asyncio.run(backend.watch(sleep))
    assert waits == [60.0] * 5
    assert [record.levelname for record in caplog.records if record.name == "pyagent.alerts"] == ["CRITICAL"]


class BrokenJournal(SqliteJournal):
    """A journal with a bug."""

    def rollups(self, *_: object, **__: object) -> list[RollupRow]:
        """Raise."""
        raise ZeroDivisionError


def test_findings_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`runs stats --findings` and `doctor` say what is odd, and the first also that nothing is."""
    (tmp_path / "p.toml").write_text(f'chain = ["openai:http://127.0.0.1:9/v1"]\n[paths]\ndata = "{tmp_path}"\n')
    config = ["--config", str(tmp_path / "p.toml")]
    assert run_command(["runs", "stats", "--findings", *config]) == 0
    assert capsys.readouterr().out == "nothing odd in the last seven days\n"
    _journal_with_failures(tmp_path).close()
    assert run_command(["runs", "stats", "--findings", *config]) == 0
    assert capsys.readouterr().out.startswith("critical  tool look failed in 100% of the last 4 calls")
    assert run_command(["runs", "stats", "--findings", "--json", *config]) == 0
    [finding] = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert finding.level == "critical"
    run_command(["doctor", *config])
    assert "tool look failed in 100%" in capsys.readouterr().out
