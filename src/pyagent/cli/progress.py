"""What a run looks like so far: events folded into rows. Pure; `view` draws it.

Invariant: every top step of the run has one row, in the order they began; what its children do shows in that row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pyagent.cli.output import for_terminal
from pyagent.core.fleet.events import (
    AgentDeclined,
    AgentFailed,
    AgentFinished,
    AgentStarted,
    AnswerDoubted,
    Event,
    HistoryCompacted,
    ModelCalled,
    OptionChosen,
    Progress,
    QuestionAnswered,
    QuestionAsked,
    RateLimited,
    RouteChosen,
    RunFailed,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolResultFlagged,
    Totals,
)
from pyagent.core.one_line import printable

State = Literal["running", "done", "failed"]
_MAX_TAIL = 400


@dataclass(slots=True)
class Row:
    """One top step: who works on it, what it last said, and how it ended."""

    step: str
    agent: str
    state: State = "running"
    line: str = ""
    tail: str = ""
    output: object = None
    totals: Totals | None = None
    num_children: int = 0
    num_children_done: int = 0


@dataclass(slots=True)
class RunProgress:
    """The whole run. `apply` takes each event once, in order."""

    run: str = ""
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    totals: Totals | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    started_at: float = field(default_factory=time.time)

    def apply(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case RunStarted():
                self.run, self.started_at = event.run, event.at
            case RunFinished() | RunFailed():
                self.totals = event.totals
                self.error = event.error if isinstance(event, RunFailed) else None
            case ModelCalled():
                self._count(event)
            case RouteChosen():
                row = self._row(event.step, event.agent)
                row.state, row.line, row.tail = "running", printable(event.reason), ""
            case Progress():
                self._row(event.step, event.agent).line = printable(event.text)
            case (
                RateLimited()
                | OptionChosen()
                | HistoryCompacted()
                | ToolResultFlagged()
                | AnswerDoubted()
                | QuestionAsked()
                | QuestionAnswered()
            ):
                self._row(event.step, event.agent).line = _line_of(event)
            case TextDelta():
                row = self._row(event.step, event.agent)
                row.tail = (row.tail + for_terminal(event.text))[-_MAX_TAIL:]
            case AgentStarted() | AgentFinished() | AgentFailed() | AgentDeclined():
                self._agent(event)
            case _:
                pass

    def _agent(self, event: AgentStarted | AgentFinished | AgentFailed | AgentDeclined) -> None:
        row = self._row(event.step, event.agent)
        is_child = "/" in event.step
        if isinstance(event, AgentStarted):
            row.num_children += is_child
        elif is_child:
            row.num_children_done += 1
        elif isinstance(event, AgentFinished):
            row.state, row.output, row.totals = "done", event.output, event.totals
        else:
            error = event.error if isinstance(event, AgentFailed) else f"declines: {event.reason}"
            row.state, row.line, row.totals = "failed", printable(error), event.totals

    def _count(self, event: ModelCalled) -> None:
        usage = event.usage
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.prompt_tokens_details.cached_tokens
        self.completion_tokens += usage.completion_tokens
        for attempt in event.attempts:
            self._row(event.step, event.agent).line = f"{attempt.backend} did not answer: {printable(attempt.reason)}"

    def _row(self, step: str, agent: str) -> Row:
        top = step.partition("/")[0]
        if top not in self.rows:
            self.rows[top] = Row(top, agent)
        row = self.rows[top]
        if "/" not in step:
            row.agent = agent
        return row

    def summary(self, outcome: Literal["done", "failed", "interrupted"], loss: str = "") -> str:
        """Return the last line: how it ended, time, tokens, cache, and where to read more, or why (`loss`) nowhere."""
        seconds = self.totals.seconds if self.totals else time.time() - self.started_at
        words = [f"{outcome} in {seconds:.1f} s"]
        if self.prompt_tokens or self.completion_tokens:
            words.append(f"{self.prompt_tokens:,} tokens in, {self.completion_tokens:,} out")
            words.append(self.rates(seconds))
        if self.totals and self.totals.usd:
            words.append(f"${self.totals.usd:.4f}")
        if self.run:
            words.append(f"run {self.run} ({f'not kept: {loss}' if loss else f'pyagent runs show {self.run}'})")
        return " · ".join(words)

    def rates(self, seconds: float) -> str:
        """Return tokens a second, in and out together, and the share of prompts found in the prefix cache."""
        rate = (self.prompt_tokens + self.completion_tokens) / max(seconds, 1e-6)
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return f"{rate:,.0f} tok/s in and out · prefix cache {share:.0%}"


def _line_of(
    event: RateLimited
    | OptionChosen
    | HistoryCompacted
    | ToolResultFlagged
    | AnswerDoubted
    | QuestionAsked
    | QuestionAnswered,
) -> str:
    match event:
        case RateLimited():
            return waits_for_rate(event)
        case OptionChosen():
            return printable(f"{event.kind} {event.option}: {event.reason}")
        case HistoryCompacted() | ToolResultFlagged():
            return printable(event.line)
        case AnswerDoubted():
            return f"not sure: {printable(event.reason)}"
        case QuestionAsked():
            return f"asks: {printable(event.question.text)}"
        case QuestionAnswered():
            return f"was told: {printable(event.answer)}"


def waits_for_rate(event: RateLimited) -> str:
    """Return what is shown of a wait for a turn."""
    return f"waits {event.seconds:.1f} s for the rate of {printable(event.what)}, {event.rate}"


def as_text(output: object) -> str:
    """Return a result as people read it: a text, what its type says of itself, or JSON."""
    if isinstance(output, str):
        return output
    has_words = isinstance(output, msgspec.Struct) and type(output).__str__ is not msgspec.Struct.__str__
    return str(output) if has_words else msgspec.json.format(as_json(output), indent=2).decode()


def as_json(output: object) -> bytes:
    """Return a result for programs."""
    return msgspec.json.encode(output, enc_hook=str)
