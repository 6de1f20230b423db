"""How a run is shown: live on a terminal, plain lines in a pipe, JSON lines for programs. Reads events, writes text."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

from pyagent.cli.output import write_json_line
from pyagent.cli.progress import Row, RunProgress, as_text
from pyagent.core.fleet.events import (
    AgentDeclined,
    AgentFailed,
    AgentFinished,
    Event,
    Progress,
    RouteChosen,
    TextDelta,
    encode_event,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MARKS = {"running": "○", "done": "●", "failed": "✗"}


class View(Protocol):
    """Shows a run while it goes on. A context manager, so that a terminal is left as it was found."""

    progress: RunProgress

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        """Take in an event."""
        ...


class JsonView:
    """One event a line."""

    def __init__(self) -> None:
        self.progress = RunProgress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def show(self, event: Event) -> None:
        """Write the event."""
        self.progress.apply(event)
        write_json_line(encode_event(event))


class PlainView:
    """One line for each thing that happened to a top step; the answers come at the end."""

    def __init__(self) -> None:
        self.progress = RunProgress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def show(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        self.progress.apply(event)
        line = self._line(event)
        if line:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _line(self, event: Event) -> str:
        match event:
            case RouteChosen():
                by = "" if event.how == "named" else f"by {event.how}: "
                return f"○ {event.agent:<12} {by}{event.reason}"
            case Progress():
                return f"  {event.agent:<12} {event.text}"
            case AgentFinished() if "/" not in event.step:
                return finished_line(self.progress.rows[event.step])
            case AgentFailed() if "/" not in event.step:
                return f"✗ {event.agent:<12} {event.error}"
            case AgentDeclined() if "/" not in event.step:
                return f"  {event.agent:<12} declines: {event.reason}"
            case _:
                return ""


class LiveView:
    """Rows that change in place, a line each, with the tail of what is being written."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.progress = RunProgress()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for row in self.progress.rows.values():
            if row.state != "running":
                sys.stdout.write(finished_line(row) + "\n")
        sys.stdout.flush()

    def show(self, event: Event) -> None:
        """Take in the event, and draw when a tenth of a second has passed."""
        self.progress.apply(event)
        now = time.monotonic()
        if now - self._drawn_at > 0.1 or not isinstance(event, TextDelta):
            self._drawn_at = now
            self._live.update(self._drawn(), refresh=True)

    def _drawn(self) -> RenderableType:
        from rich.text import Text

        width = shutil.get_terminal_size().columns
        lines = [live_line(row)[: width - 1] for row in self.progress.rows.values()]
        seconds = time.time() - self.progress.started_at
        lines.append(f"{seconds:5.1f} s · {self.progress.rates(seconds)}")
        return Text("\n".join(lines))


def live_line(row: Row) -> str:
    """A row while it runs: progress of its children, what it last said, what it is writing."""
    if row.state != "running":
        return finished_line(row).partition("\n")[0]
    parts = f"{row.num_children_done}/{row.num_children} " if row.num_children else ""
    return f"{_MARKS[row.state]} {row.agent:<12} {parts}{row.line}  {' '.join(row.tail.split())[-120:]}"


def finished_line(row: Row) -> str:
    """A row when it is over: the first line of its result, its time and its speed."""
    if row.state == "failed":
        return f"{_MARKS[row.state]} {row.agent:<12} {row.line}"
    text = as_text(row.output).strip()
    first = text.partition("\n")[0]
    shown = first if len(first) <= 72 else first[:71] + "…"
    cost = ""
    if row.totals:
        cost = f"{row.totals.seconds:.1f} s"
        if row.totals.model_calls:
            share = row.totals.cached_tokens / max(1, row.totals.prompt_tokens)
            cost += f", {row.totals.completion_tokens} tokens at {row.totals.tokens_per_second:.0f} tok/s"
            cost += f", prefix cache {share:.0%}"
    return f"{_MARKS[row.state]} {row.agent:<12} {shown}" + (f"   ({cost})" if cost else "")


def make_view(*, as_json: bool) -> View:
    """The view that suits where the output goes."""
    if as_json:
        return JsonView()
    if not sys.stdout.isatty():
        return PlainView()
    from rich.console import Console

    return LiveView(Console())
