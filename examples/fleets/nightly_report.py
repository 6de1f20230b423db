"""A report of the day, for cron: what the log counted, what changed since the day before, and two sentences on it.

python examples/fleets/nightly_report.py --day 2026-11-22
python examples/fleets/nightly_report.py /var/log/shop.log --code src --reports ~/reports

Counting and comparing are steps that know no model; they run side by side. The model only puts the facts into words,
and may use no number that is not among them. A night's run has the day in its name: started again after a crash it goes
on, and once the report is written it is not run twice.
"""

import argparse
import asyncio
import hashlib
import os
import re
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from pyagent import (
    AgentError,
    Backend,
    Context,
    Fleet,
    PyAgentError,
    RequestError,
    SamplingParams,
    Step,
    Task,
    follow,
    load_settings,
    tool,
)

SAMPLES = Path(__file__).parent / "samples"
LIMITS = {"budget.run.tokens": 20_000, "budget.run.seconds": 300}
LINE = re.compile(r"(\d{4}-\d\d-\d\d)T\S{1,30} ([A-Z]{4,8}) (.{0,300})")
MAX_MESSAGES = 5
DAY_BEFORE_FIRST = "there is no log of the day before"
NO_WORDS = "(no words tonight: the facts)"


class LogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log, and the day that is asked about."""

    log: str
    day: date


class Counts(msgspec.Struct, frozen=True):
    """A day's lines by level, and its most frequent errors, numbers in them as `N`."""

    levels: dict[str, int] = {}
    errors: dict[str, int] = {}


class Days(msgspec.Struct, frozen=True):
    """The day, and the day before."""

    today: Counts
    before: Counts


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the report goes, and the day it is of."""

    file: str
    day: date


class Report(msgspec.Struct, frozen=True):
    """The report as it is in its file."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.text}\nwritten to {self.file}"


@tool(effect="none")
def count_log(log: str, day: date) -> Days:
    """Count a log's lines of a day and of the day before."""
    counted = {day: Counter[str](), day - timedelta(days=1): Counter[str]()}
    errors = {key: Counter[str]() for key in counted}
    with Path(log).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if (found := LINE.match(line)) and (key := day_of(found[1])) in counted:
                counted[key][found[2]] += 1
                if found[2] in {"ERROR", "CRITICAL"}:
                    errors[key][re.sub(r"\d+", "N", found[3]).strip()] += 1
    today, before = [Counts(dict(counted[key]), dict(errors[key].most_common(MAX_MESSAGES))) for key in counted]
    return Days(today, before)


@tool(effect="idempotent")
def write_report(file: str, text: str) -> str:
    """Write the report, all or nothing."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    part = Path(f"{file}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)
    return file


def day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


class Counting:
    """Counts the log."""

    name = "counting"
    description = "Counts a day's log."
    arguments = LogFile

    async def run(self, context: Context, task: Task) -> Days:
        given = task.arguments_as(LogFile)
        found = await context.call_tool("count_log", msgspec.to_builtins(given))
        days = msgspec.convert(found, Days)
        if not days.today.levels:
            raise AgentError(f"{given.log} has no lines of {given.day}", agent=self.name)
        context.progress(f"{sum(days.today.levels.values())} lines, {num_errors(days.today)} errors")
        return days


class Writing:
    """Writes the report from what the steps before it found."""

    name = "writing"
    description = "Writes a report."
    arguments = Target

    async def run(self, context: Context, task: Task) -> Report:
        target = task.arguments_as(Target)
        facts = facts_of(msgspec.convert(task.results["log"], Days))
        facts += [f"code: {str(task.results['code']).splitlines()[0]}"] if "code" in task.results else []
        listed = "\n".join(f"- {fact}" for fact in facts)
        text = f"# {target.day}\n\n{await self.words(context, listed)}\n\n{listed}\n"
        await context.call_tool("write_report", {"file": target.file, "text": text})
        return Report(target.file, text)

    async def words(self, context: Context, facts: str) -> str:
        """Return two sentences on the facts; the facts stand alone where the model says what they do not."""
        sampling = SamplingParams(temperature=0.0, max_tokens=100, stop=["\n\n"])
        question = f"{facts}\n\nSay in two sentences what happened on the server."
        answer = await context.generate(question, sampling=sampling)
        text = answer[: answer.rfind(".") + 1].strip()
        if invented := set(re.findall(r"\d+", text)) - set(re.findall(r"\d+", facts)):
            context.progress(f"the model's words are left out: nothing says {', '.join(sorted(invented))}")
            return NO_WORDS
        return text or NO_WORDS


def num_errors(counts: Counts) -> int:
    return counts.levels.get("ERROR", 0) + counts.levels.get("CRITICAL", 0)


def facts_of(days: Days) -> list[str]:
    """Return what is certain, a sentence each."""
    today, before = days.today, days.before
    change = num_errors(today) - num_errors(before)
    then = (
        f"{'more' if change > 0 else 'fewer'} by {abs(change)} than the day before" if change else "as the day before"
    )
    lines = f"{sum(today.levels.values())} lines, {num_errors(today)} errors"
    new = [f"new: {message} ({count} times)" for message, count in today.errors.items() if message not in before.errors]
    known = [f"again: {message} ({count} times)" for message, count in today.errors.items() if message in before.errors]
    return [f"{lines}, {then if before.levels else DAY_BEFORE_FIRST}", *new, *known]


def name_of(*paths: Path | None) -> str:
    """Return a short name of what is asked for, so that another log's night is another run."""
    return hashlib.sha256(repr([path and path.resolve() for path in paths]).encode()).hexdigest()[:6]


async def main(
    log: Path, day: date, reports: Path, code: Path | None = None, *, backend: Backend | None = None
) -> Report:
    night = f"night-{day}-{name_of(log, reports, code)}"
    target = {"file": str(reports / f"{day}.md"), "day": day.isoformat()}
    count = Task(text=f"Count {log.name}", arguments={"log": str(log), "day": day.isoformat()})
    steps = [Step(name="log", agent="counting", task=count)]
    if code is not None:
        steps.append(Step(name="code", agent="code-health", task=Task(arguments={"path": str(code)})))
    write = Task(text=f"Report {day}", arguments=target)
    steps.append(Step(name="report", agent="writing", task=write, after=tuple(step.name for step in steps)))
    settings = load_settings(overrides=LIMITS).settings
    agents = [Counting(), Writing(), "code-health"]
    async with Fleet(settings, backend=backend, agents=agents, tools=[count_log, write_report]) as fleet:
        try:
            return await follow(fleet.run(steps, run_id=night), Report)
        except RequestError as error:
            if error.code != "run_exists":
                raise
        return await follow(fleet.resume(night), Report)


if __name__ == "__main__":
    yesterday = datetime.now(tz=UTC).date() - timedelta(days=1)
    options = argparse.ArgumentParser(description="Write the report of a day.")
    options.add_argument("log", type=Path, nargs="?", default=SAMPLES / "server.log")
    options.add_argument("--day", type=date.fromisoformat, default=yesterday, help="2026-11-22; yesterday if not given")
    options.add_argument("--code", type=Path, help="a folder of Python code to measure besides")
    options.add_argument("--reports", type=Path, default=Path("reports"), help="the folder for the reports")
    given = options.parse_args()
    try:
        print(asyncio.run(main(given.log, given.day, given.reports, given.code)))
    except PyAgentError as error:
        if getattr(error, "code", None) != "done":
            sys.exit(f"nightly_report: {error}")
        print(f"{given.reports / str(given.day)}.md is written already")
