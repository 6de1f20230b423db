"""Kill a run with -9 at random moments, resume it each time, and compare it with one that was left alone.

A run is a graph with a map, a loop, tries again, a condition and a failure that is gone on after; its agents use
models, tools of each effect, other agents, approvals and notes, ask again in doubt, and let a model call tools and an
agent and hand over to one. After each death it is resumed by a new process; questions whether a tool had its effect are
answered from what the tool really did. In the end the journal and the notes kept across runs have to equal those of an
uninterrupted run, and no effect may have happened twice, or never.

    make run-kills                                          200 deaths of runs of 500 steps
    python benchmarks/run_kills.py --kills 20 --steps 100
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from pyagent.core.errors import BackendError, NeedsAnswerError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.confidence import ConfidencePolicy
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.past import Past
from pyagent.core.fleet.step_options import Repeat, Retries
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tool_run import idempotency_key
from pyagent.core.fleet.tools import Effect, FleetTool
from pyagent.core.messages import ChatRequest, FunctionCall, ToolCall
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import Reply, ScriptedBackend

_LONGEST_LIFE_SECONDS = 0.12
_STEPS_AN_APPROVAL = 100
_NUM_CHUNKS = 10
_NUM_ROUNDS = 3
_DEATHS = frozenset({"NeedsAnswerError", "CancelledError"})
"""Kinds of failures that only an open question leaves behind."""


class Text(msgspec.Struct):
    """What the tools take."""

    text: str


class Divide:
    """Divides the work."""

    name = "divide"
    description = "divides work"

    async def run(self, context: Context, task: Task) -> list[list[int]]:
        """Return the numbers of the parts, in chunks."""
        await context.generate(f"divide {task.text}")
        numbers = list(range(int(task.text)))
        size = max(1, len(numbers) // _NUM_CHUNKS)
        return [numbers[start : start + size] for start in range(0, len(numbers), size)]


class Worker:
    """Works in parts: asks a model, looks, writes by key, writes once, and lets a person allow some of it."""

    name = "worker"
    description = "works"
    needs = ("part",)

    async def run(self, context: Context, task: Task) -> int:
        """Do the parts that the task lists, two side by side."""
        numbers: list[int] = json.loads(task.text)
        return sum(await context.map(lambda n: self._part(context, n), numbers, max_concurrency=2))

    async def _part(self, context: Context, number: int) -> int:
        if number % _STEPS_AN_APPROVAL == _STEPS_AN_APPROVAL - 1:
            await context.call_tool("allowed", Text(f"{number}"))
        length = await context.spawn("part", f"{number}")
        assert isinstance(length, int)
        return length


class Part:
    """One part of the work."""

    name = "part"
    description = "does a part"

    async def run(self, context: Context, task: Task) -> int:
        """Use a model and each kind of tool."""
        said = await context.generate(f"part {task.text}")
        await context.call_tool("look", Text(said))
        await context.call_tool("put", Text(task.text))
        await context.call_tool("append", Text(task.text))
        return len(said)


class Round:
    """One round of a loop: how many there were."""

    name = "round"
    description = "counts rounds"

    async def run(self, context: Context, task: Task) -> dict[str, int]:
        """Return the round's number, having written it once."""
        number = int(context.step.partition("#")[2])
        await context.call_tool("append", Text(f"round {context.step}"))
        context.memory.note(f"round {number}")
        context.memory.note(f"kept of round {number}", scope="fleet")
        await context.spawn("part", f"r{number}")
        return {"number": number}


class Flaky:
    """Fails until its third try."""

    name = "flaky"
    description = "fails twice"

    async def run(self, context: Context, task: Task) -> str:
        """Fail after an effect, or return what a model says."""
        said = await context.generate(f"flaky {context.step}")
        await context.call_tool("append", Text(context.step))
        if not context.step.endswith("~3"):
            raise BackendError("down for now", backend="flaky")
        return said


class Broken:
    """Fails after an effect."""

    name = "broken"
    description = "fails"

    async def run(self, context: Context, task: Task) -> str:
        """Fail."""
        await context.call_tool("put", Text(context.step))
        raise ValueError("broken")


class Loop:
    """Lets a model call tools and an agent, and hand over."""

    name = "loop"
    description = "loops"
    needs = ("part",)

    async def run(self, context: Context, task: Task) -> str:
        """Return what the agent gives that the model hands over to, and the notes of the rounds."""
        tools = ["look", "put", "append", "agent:part", "handoff:part"]
        completion = await context.complete("loop", tools=tools)
        notes = await context.memory.top(tokens=10_000)
        return f"{completion.text} {sorted(note.text for note in notes.notes)}"


_ROUNDS_OF_CALLS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("look", '{"text": "l1"}'), ("append", '{"text": "l1"}'), ("append", '{"text": "l2"}')),
    (("agent_part", '{"task": "a1"}'), ("agent_part", '{"task": "a2"}')),
    (("put", '{"text": "l3"}'), ("append", '{"text": "l4"}')),
    (("transfer_to_part", '{"task": "h1"}'),),
)


def reply(request: ChatRequest) -> Reply | str:
    """Answer as the request says: with the next round of calls, in doubt where a 7 is asked for, or plainly."""
    text = request.messages[-1].text
    if request.tools:
        number = sum(message.role == "assistant" for message in request.messages)
        made = [FunctionCall(name, arguments) for name, arguments in _ROUNDS_OF_CALLS[number]]
        return Reply(text="", tool_calls=tuple(ToolCall(id=f"c{n}", function=each) for n, each in enumerate(made)))
    if text.startswith("You seem unsure"):
        return "it is so"
    return f"maybe {text}" if text.endswith("7") else f"answer to {text}"


def graph(num_steps: int) -> list[Step]:
    """Return the graph of a run: a map of loops, a loop, tries again, and branches taken and not."""
    retries = Retries(max=3, seconds=0.01)
    return [
        Step(name="divide", agent="divide", task=Task(text=f"{num_steps}")),
        Step(name="chunk", agent="worker", task=Task(text="{item}"), after=("divide",), for_each="{divide}"),
        Step(
            name="rounds",
            after=("divide",),
            repeat=Repeat(max=9, until=f"round.number >= {_NUM_ROUNDS}"),
            steps=(
                Step(name="before", agent="part", task=Task(text="b")),
                Step(name="round", agent="round", task=Task(text="go")),
                Step(name="later", agent="part", task=Task(text="l"), after=("round",), when="round.number > 1"),
            ),
        ),
        Step(name="flaky", agent="flaky", task=Task(text="go"), retries=retries),
        Step(name="broken", agent="broken", task=Task(text="go"), after=("divide",)),
        Step(name="never", agent="part", task=Task(text="n"), after=("divide",), when="exists divide[100000]"),
        Step(
            name="mend",
            agent="part",
            task=Task(text="m"),
            after=("broken", "never", "flaky"),
            join="done",
            when="failed broken and skipped never and done flaky",
        ),
        Step(name="loop", agent="loop", task=Task(text="go"), after=("rounds",)),
        Step(name="end", agent="part", task=Task(text="e"), after=("chunk", "loop", "mend")),
    ]


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file, which need not be there."""
    return file.read_text().splitlines() if file.exists() else []


def make_tools(effects: Path) -> list[FleetTool]:
    """Return tools whose effects are lines of a file: a tool of each kind, and one that a person has to allow."""

    def tool(name: str, effect: Effect, *, needs_approval: bool = False) -> FleetTool:
        async def function(arguments: Text) -> None:
            if effect == "none":
                return
            done = lines_of(effects)
            line = f"{name} {idempotency_key()}"
            await asyncio.sleep(random.uniform(0, 0.002))
            if effect == "once" or line not in done:
                with effects.open("a") as file:
                    file.write(f"{line}\n")
            await asyncio.sleep(random.uniform(0, 0.002))

        return FleetTool(name, "works", Text, function, effect=effect, needs_approval=needs_approval)

    kinds: tuple[tuple[str, Effect], ...] = (("look", "none"), ("put", "idempotent"), ("append", "once"))
    return [*(tool(name, effect) for name, effect in kinds), tool("allowed", "once", needs_approval=True)]


async def work(folder: Path, num_steps: int, run: str, answers: dict[str, str]) -> None:
    """Run or resume; say which run it is, and whether it ended or asks."""
    journal = SqliteJournal(folder / "journal")
    tools = make_tools(folder / "effects")
    limits = FleetLimits(run_agents=10**9, confidence=ConfidencePolicy(act="retry"))
    agents = [Divide(), Worker(), Part(), Round(), Flaky(), Broken(), Loop()]
    async with Fleet(ScriptedBackend(reply), agents, tools, journal=journal, limits=limits) as fleet:
        events = fleet.resume(run, answers=answers) if run else fleet.run(graph(num_steps))
        try:
            async for event in events:
                if isinstance(event, ev.RunStarted):
                    print(event.run, flush=True)
        except NeedsAnswerError:
            print("asks", flush=True)
        else:
            print("done", flush=True)


class Killer:
    """One run through its deaths."""

    def __init__(self, folder: Path, num_steps: int, rng: random.Random) -> None:
        self.folder, self.num_steps, self.rng = folder, num_steps, rng
        self.run = ""
        self.num_kills = 0
        self.num_questions = 0

    def live(self, *, is_killed: bool) -> bool:
        """Let one process work until it ends or is killed; return whether the run is done."""
        answers = json.dumps(self._answers())
        command = [sys.executable, __file__, "--work", str(self.folder), "--steps", str(self.num_steps)]
        command += ["--run", self.run, "--answers", answers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            self.run = (process.stdout.readline().split() or [self.run])[0]
            if is_killed:
                time.sleep(self.rng.uniform(0, _LONGEST_LIFE_SECONDS))
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    self.num_kills += 1
            said = process.stdout.read().split()
        return "done" in said or self._is_done()

    def _is_done(self) -> bool:
        """Whether the run ended, though its process was killed before it could say so."""
        journal = SqliteJournal(self.folder / "journal")
        is_done = any(row.run == self.run and row.state == "done" for row in journal.runs())
        journal.close()
        return is_done

    def _answers(self) -> dict[str, str]:
        """Answer the open questions as the effects are."""
        if not self.run:
            return {}
        journal = SqliteJournal(self.folder / "journal")
        open_questions = set(Past.of(journal, self.run).open_questions)
        done = " ".join(lines_of(self.folder / "effects"))
        keys: dict[tuple[str, str], str] = {}
        answers: dict[str, str] = {}
        for record in journal.replay(self.run):
            event = record.event
            if isinstance(event, ev.ToolStarted):
                keys[event.step, event.call] = event.key
            if isinstance(event, ev.QuestionAsked) and event.question.id in open_questions:
                key = keys.get((event.step, event.call.rpartition(".effect")[0]), "")
                has_happened = "yes" if key and key in done else "no"
                answers[event.question.id] = "allow" if event.question.kind == "approval" else has_happened
        self.num_questions += len(answers)
        journal.close()
        return answers

    def story(self) -> Counter[str]:
        """Return what the run's records say, without what only tells of deaths and questions."""
        journal = SqliteJournal(self.folder / "journal")
        told = Counter[str]()
        for record in journal.replay(self.run):
            line = _line(record.event)
            # A failure may be told again: one beside an open question is tried again from what its calls gave.
            told[line] = 1 if isinstance(record.event, ev.AgentFailed) else told[line] + 1
        del told[""]
        journal.close()
        return told

    def effects(self) -> Counter[str]:
        """Return how often each effect happened."""
        return Counter(lines_of(self.folder / "effects"))

    def kept_notes(self) -> list[str]:
        """Return the notes that are kept across runs."""
        journal = SqliteJournal(self.folder / "journal")
        notes = sorted(note.text for note in journal.memory.notes(""))
        journal.close()
        return notes


def _line(event: ev.Event) -> str:
    """Return an event without times and names of runs; nothing for what a death adds."""
    fields: dict[str, Any] = msgspec.to_builtins(event, enc_hook=str)
    if isinstance(event, ev.NotesRead):
        fields["notes"] = sorted(note.text for note in event.notes)
    is_of_death = isinstance(event, ev.RunResumed | ev.RunFailed | ev.QuestionAsked)
    is_of_death |= isinstance(event, ev.AgentFailed) and event.kind in _DEATHS
    if is_of_death or isinstance(event, ev.QuestionAnswered) or fields.get("attempt", 1) > 1:
        return ""
    if isinstance(event, ev.ToolCalled | ev.ModelCalled) and event.error == "cancelled":
        return ""
    return repr(
        {name: value for name, value in fields.items() if name not in {"run", "at", "seconds", "totals", "key"}}
    )


def kill_runs(num_kills: int, num_steps: int, seed: int) -> tuple[int, int, int]:
    """Kill until there were so many deaths, each run to its end; return deaths, runs and questions.

    Raises `AssertionError` for a run that does not equal the uninterrupted one, and for an effect done twice or never.
    """
    rng = random.Random(seed)
    totals = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        plain = Killer(_made(Path(folder) / "plain"), num_steps, rng)
        while not plain.live(is_killed=False):
            pass
        expected = plain.story()
        while totals["kills"] < num_kills:
            killer = Killer(_made(Path(folder) / f"run{totals['runs']}"), num_steps, rng)
            while not killer.live(is_killed=totals["kills"] + killer.num_kills < num_kills):
                pass
            totals.update(kills=killer.num_kills, runs=1, questions=killer.num_questions)
            difference = (killer.story() - expected) | (expected - killer.story())
            assert not difference, f"seed {seed}: the journals differ: {list(difference)[:3]}"
            effects = killer.effects()
            assert max(effects.values()) == 1, f"seed {seed}: an effect happened twice"
            assert len(effects) == len(plain.effects()), f"seed {seed}: an effect is missing"
            assert killer.kept_notes() == plain.kept_notes(), f"seed {seed}: the notes kept across runs differ"
    return totals["kills"], totals["runs"], totals["questions"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    """Work, or kill what works."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    parser.add_argument("--answers", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(work(options.work, options.steps, options.run, json.loads(options.answers)))
        return
    started = time.perf_counter()
    kills, runs, questions = kill_runs(options.kills, options.steps, options.seed)
    seconds = time.perf_counter() - started
    print(f"{kills} deaths by kill -9 of {runs} runs of {options.steps} steps, {questions} questions, {seconds:.0f} s")
    print("every journal equals the uninterrupted run's; no effect happened twice, none is missing")


if __name__ == "__main__":
    main()
