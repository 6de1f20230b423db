"""`pyagent runs stats`: what runs took, by window, and how much room the journal takes."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import Colour, coloured, for_terminal, write_json
from pyagent.cli.run_journal import cut, open_journal
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.fleet.rollups import StatsRow
    from pyagent.infrastructure.storage.journal import SqliteJournal

_WINDOW = re.compile(r"(\d{1,4})([mhd])")
_UNITS = {"m": 60, "h": 3_600, "d": 86_400}
_MAX_WINDOW_SECONDS = 365 * 86_400
_LEVEL_COLOURS: dict[str, Colour] = {"info": "dim", "warning": "yellow", "critical": "red"}


def window_seconds(text: str) -> int:
    """Return the seconds of a window as people write it: 5m, 1h, 7d."""
    from pyagent.infrastructure.storage.rollups import GRAIN_SECONDS

    found = _WINDOW.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _MAX_WINDOW_SECONDS or seconds % GRAIN_SECONDS:
        raise typer.BadParameter(
            f"expected a multiple of five minutes, such as 5m, 1h or 7d, got {text!r}", param_hint="--window"
        )
    return seconds


def stats(
    window: Annotated[str, typer.Option("--window", metavar="W", help="Length of a window: 5m, 1h, 7d.")] = "1h",
    by: Annotated[
        Literal["run", "agent", "tool", "link", "model"], typer.Option("--by", help="What to tell apart.")
    ] = "run",
    last: Annotated[int, typer.Option("--last", metavar="N", min=1, max=10_000, help="Windows to look back.")] = 24,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's runs.")] = None,
    size: Annotated[bool, typer.Option("--size", help="Say instead how much room the journal takes.")] = False,
    findings: Annotated[
        bool, typer.Option("--findings", help="Say instead what is odd: slow, dear or failing.")
    ] = False,
    learned: Annotated[
        bool, typer.Option("--learned", help="Say instead what was learned: each arm's mean, bound, chance and costs.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show what runs took by window: counts, failures, seconds, tokens and USD; deleted runs are counted too."""
    from pyagent.core.fleet.rollups import stats_of

    if learned:
        from pyagent.cli.run_learning import show_learned

        show_learned(config, tenant, as_json=as_json)
        return
    seconds, journal = window_seconds(window), open_journal(config)
    if size:
        _show_size(journal, as_json=as_json)
        return
    if findings:
        _show_findings(journal, as_json=as_json)
        return
    now = time.time()
    since = (now // seconds - last + 1) * seconds
    rows = stats_of(journal.rollups([by], since=since, tenant=tenant), seconds)
    if as_json:
        write_json(rows)
    else:
        _write(rows)


def _write(rows: list[StatsRow]) -> None:
    if not rows:
        sys.stdout.write("no runs in these windows; --last looks further back\n")
        return
    head = f"{'from':<16}  {'':<28} {'count':>6} {'failed':>6} {'mean':>8} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>8}"
    sys.stdout.write(coloured(f"{head}  {'tokens':>9} {'USD':>8}  (seconds)\n", "dim"))
    for row in rows:
        when = datetime.fromtimestamp(row.start).astimezone().strftime("%Y-%m-%d %H:%M")
        times = (row.seconds.mean, row.seconds.p50, row.seconds.p95, row.seconds.p99, row.seconds.max)
        failed = f"{row.failures:>6}"
        sys.stdout.write(
            f"{when:<16}  {for_terminal(cut(row.key, 28)):<28} {row.count:>6} "
            f"{coloured(failed, 'red') if row.failures else failed} "
            f"{' '.join(f'{value:>8.2f}' for value in times)}  {row.tokens.sum:>9.0f} {row.usd.sum:>8.4f}\n"
        )


def _show_findings(journal: SqliteJournal, *, as_json: bool) -> None:
    from pyagent.infrastructure.observability.alerts import look_at

    found = look_at(journal, time.time())
    if as_json:
        write_json(found)
        return
    for one in found:
        level = coloured(f"{one.level:<8}", _LEVEL_COLOURS[one.level])
        trend = f"{one.trend:+.0%} an hour" if one.trend else "no trend"
        sys.stdout.write(f"{level}  {for_terminal(one.text)}  (z {one.z_score:.1f}, {trend})\n")
    if not found:
        sys.stdout.write("nothing odd in the last seven days\n")


def _show_size(journal: SqliteJournal, *, as_json: bool) -> None:
    size = journal.size()
    if as_json:
        write_json(size)
        return
    ratio = f", {size.json_bytes / size.file_bytes:.1f} to 1" if size.file_bytes else ""
    sys.stdout.write(
        f"{size.num_runs} runs, {size.num_records} records: {format_bytes(size.json_bytes)} as JSON lines, "
        f"{format_bytes(size.file_bytes)} kept{ratio}\n"
    )
