"""How a run is shown: live on a terminal, plain lines in a pipe, JSON lines for programs. Reads events, writes text."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self

from pyagent.cli.load_line import load_text, loads_shown
from pyagent.cli.output import Colour, coloured, mark, spinner, write_json_line
from pyagent.cli.progress import Row, RunProgress, State, as_text, waits_for_rate
from pyagent.cli.startup import PlainFetchProgress
from pyagent.core.fleet.events import (
    AgentDeclined,
    AgentFailed,
    AgentFinished,
    Event,
    Progress,
    QuestionAsked,
    RateLimited,
    RouteChosen,
    StepRetried,
    StepSkipped,
    ToolResultFlagged,
    encode_event,
)
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pyagent.core.load_progress import LoadProgress
    from pyagent.infrastructure.models.store import Fetch

_MARKS: dict[State, tuple[str, str, Colour]] = {
    "running": ("○", "o", "cyan"),
    "done": ("●", "*", "green"),
    "failed": ("✗", "x", "red"),
}
_FETCH_REASON = "the embedded engine needs a model; this happens once"


class View(Protocol):
    """Shows a run while it goes on. A context manager, so that a terminal is left as it was found."""

    progress: RunProgress

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        """Take in an event."""
        ...

    def show_fetch(self, fetch: Fetch) -> None:
        """Take in how far the fetching of a model is; called in the thread that fetches."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal to others meanwhile."""
        ...


class _LineView:
    """What views that write lines have in common."""

    def __init__(self) -> None:
        self.progress = RunProgress()
        self.show_fetch = PlainFetchProgress(_FETCH_REASON).show

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal to others: nothing is painted in place here."""
        return nullcontext()


class JsonView(_LineView):
    """One event a line."""

    def show(self, event: Event) -> None:
        """Write the event."""
        self.progress.apply(event)
        write_json_line(encode_event(event))


class PlainView(_LineView):
    """One line for each thing that happened to a top step; the answers come at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._progress_lines = set[str]()

    def show(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        self.progress.apply(event)
        line = self._line(event)
        if isinstance(event, Progress) and line in self._progress_lines:
            return  # parts of one task say the same: once is enough
        if isinstance(event, Progress):
            self._progress_lines.add(line)
        if line:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _line(self, event: Event) -> str:
        match event:
            case RouteChosen():
                sure = "" if event.score is None else f" {event.score:.2g}"
                by = "" if event.how == "named" else f"by {event.how}{sure}: "
                return f"{marked('running')} {event.agent:<12} {by}{printable(event.reason)}"
            case Progress() | QuestionAsked() | ToolResultFlagged():
                return f"  {event.agent:<12} {printable(_said(event))}"
            case AgentFinished() if "/" not in event.step:
                return finished_line(self.progress.rows[event.step])
            case AgentFailed() if "/" not in event.step:
                return f"{marked('failed')} {event.agent:<12} {printable(event.error)}"
            case AgentDeclined() if "/" not in event.step:
                return f"  {event.agent:<12} declines: {printable(event.reason)}"
            case _:
                return step_line(event)


class LiveView:
    """Rows that change in place, a line each, with the tail of the text as it comes; painted by a clock of its own."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.progress = RunProgress()
        self._fetch: Fetch | None = None
        self._loads: dict[str, LoadProgress] = {}
        self._shown = ExitStack()
        self._live = Live(
            console=console,
            refresh_per_second=_DRAWN_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            get_renderable=self._drawn,
        )

    def __enter__(self) -> Self:
        self._shown.enter_context(loads_shown(self._show_load))
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._shown.close()
        for row in self.progress.rows.values():
            is_over = row.state != "running"
            sys.stdout.write(f"{finished_line(row) if is_over else stopped_line(row)}\n")
        sys.stdout.flush()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop painting meanwhile."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def show(self, event: Event) -> None:
        """Take in the event; the next drawing has it."""
        self.progress.apply(event)

    def show_fetch(self, fetch: Fetch) -> None:
        """Take in how far the fetching of a model is."""
        self._fetch = fetch if fetch.done_bytes < fetch.total_bytes or not fetch.total_bytes else None

    def _show_load(self, load: LoadProgress) -> None:
        """Take in how far a model is on its way into memory; called in the thread that tells it."""
        others = {name: other for name, other in self._loads.items() if name != load.name}
        self._loads = others if load.is_over else {**others, load.name: load}

    def _drawn(self) -> RenderableType:
        from rich.text import Text

        seconds = time.time() - self.progress.started_at
        lines = [live_line(row, seconds) for row in list(self.progress.rows.values())]
        if (fetch := self._fetch) is not None:
            total = f" of {format_bytes(fetch.total_bytes)}" if fetch.total_bytes else ""
            lines.append(f"  fetching {fetch.name}: {format_bytes(fetch.done_bytes)}{total}")
        lines += [f"  {load_text(load)}" for load in self._loads.values()]
        lines.append(coloured(f"{spinner(seconds)} {seconds:5.1f} s · {self.progress.rates(seconds)}", "dim"))
        text = Text.from_ansi("\n".join(lines))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


_DRAWN_PER_SECOND = 5


def _said(event: Progress | QuestionAsked | ToolResultFlagged) -> str:
    match event:
        case Progress():
            return event.text
        case QuestionAsked():
            return f"asks: {event.question.text}"
        case ToolResultFlagged():
            return event.line


def marked(state: State, shown: str = "") -> str:
    """Return the mark of a state in its colour, or `shown` in its stead."""
    text, plain, colour = _MARKS[state]
    return coloured(shown or mark(text, plain), colour)


def live_line(row: Row, seconds: float) -> str:
    """Return a row while it runs: progress of its children, what it last said, what it is writing."""
    if row.state != "running":
        return finished_line(row).partition("\n")[0]
    parts = f"{row.num_children_done}/{row.num_children} " if row.num_children else ""
    tail = coloured(" ".join(row.tail.split())[-120:], "dim")
    return f"{marked('running', spinner(seconds))} {row.agent:<12} {parts}{row.line}  {tail}"


def stopped_line(row: Row) -> str:
    """Return a row that was stopped before it was over."""
    return f"{marked('failed')} {row.agent:<12} stopped: {row.line}"


def step_line(event: Event) -> str:
    """Return a line about a step that waits, is tried again, or does not run; of other events an empty one."""
    if isinstance(event, RateLimited):
        return f"  {event.step} {waits_for_rate(event)}"
    if isinstance(event, StepRetried):
        return f"  {event.step} failed and is tried again in {event.seconds:.1f} s: {printable(event.error)}"
    if not isinstance(event, StepSkipped):
        return ""
    why = f"not so: {event.condition}" if event.condition else f"{event.cause} failed or did not run"
    return f"  {event.step} is skipped, {printable(why)}"


def finished_line(row: Row) -> str:
    """Return a row when it is over: the first line of its result, its time and its speed."""
    if row.state == "failed":
        return f"{marked('failed')} {row.agent:<12} {row.line}"
    text = as_text(row.output).strip()
    first = printable(text.partition("\n")[0].rstrip())
    shown = first if len(first) <= 72 else first[:71] + "…"
    cost = ""
    if row.totals:
        cost = f"{row.totals.seconds:.1f} s"
        if row.totals.model_calls:
            share = row.totals.cached_tokens / max(1, row.totals.prompt_tokens)
            cost += f", {row.totals.completion_tokens} tokens out at {row.totals.tokens_per_second:.0f} tok/s"
            cost += f", prefix cache {share:.0%}"
    return f"{marked(row.state)} {row.agent:<12} {shown}" + (coloured(f"   ({cost})", "dim") if cost else "")


def make_view(*, as_json: bool) -> View:
    """Return the view that suits where the output goes."""
    if as_json:
        return JsonView()
    if not sys.stdout.isatty():
        return PlainView()
    from rich.console import Console

    return LiveView(Console())
