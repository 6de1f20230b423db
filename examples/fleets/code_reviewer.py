"""Review the Python code below a folder: faults that are certain, the most complex functions, and a remark on each.

python examples/fleets/code_reviewer.py
python examples/fleets/code_reviewer.py src --top 5
python examples/fleets/code_reviewer.py src --resume r-7f3a

What is certain is computed: faults from the syntax tree, complexity by PyAgent's own agent `code-health`. The model is
asked for a severity and a sentence, one function at a time; without them the finding stands by itself. It only reads.
"""

import argparse
import ast
import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pyagent import (
    AgentError,
    Backend,
    Context,
    Fleet,
    PyAgentError,
    SamplingParams,
    Task,
    follow,
    load_settings,
    tool,
)

SAMPLE = Path(__file__).parent / "samples" / "project"
LIMITS = {"budget.run.tokens": 100_000, "budget.run.seconds": 600}
MAX_FILES, MAX_CHARACTERS, MAX_SHOWN_LINES = 2_000, 1_000_000, 40
MAX_ARGUMENTS, MAX_COMPLEXITY = 6, 5
SYSTEM = "You review Python code. Say in one sentence what to do about the fault."


class Fault(msgspec.Struct, frozen=True):
    """What is wrong at a place, as a fact."""

    file: str
    line: int
    function: str
    what: str
    code: str = ""


class Remark(msgspec.Struct, frozen=True):
    """What the model says of a fault."""

    severity: Literal["high", "medium", "low"]
    advice: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Finding(msgspec.Struct, frozen=True):
    """A fault, with the model's remark where it had one."""

    fault: Fault
    remark: Remark | None = None

    def __str__(self) -> str:
        place = f"{self.fault.file}:{self.fault.line} {self.fault.function}: {self.fault.what}"
        return place if self.remark is None else f"{place}\n    {self.remark.severity}: {self.remark.advice}"


class Review(msgspec.Struct, frozen=True):
    """All findings, the gravest first, and how much code was read."""

    num_files: int
    findings: list[Finding]

    def __str__(self) -> str:
        head = f"{self.num_files} files, {len(self.findings)} findings"
        return "\n".join([head, *(str(finding) for finding in self.findings)])


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The folder, and how many of the most complex functions to name."""

    folder: str
    top: Annotated[int, msgspec.Meta(ge=0, le=50)] = 3


@tool(effect="none")
def find_faults(files: list[str]) -> list[Fault]:
    """Return what the syntax trees of Python files show to be wrong."""
    found: list[Fault] = []
    for file in files[:MAX_FILES]:
        with Path(file).open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(MAX_CHARACTERS)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            found.append(Fault(file, getattr(error, "lineno", None) or 1, "(file)", f"cannot be parsed: {error}"))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += faults_of(node, file, text)
    return found


def faults_of(node: ast.FunctionDef | ast.AsyncFunctionDef, file: str, text: str) -> list[Fault]:
    code = "\n".join((ast.get_source_segment(text, node) or "").splitlines()[:MAX_SHOWN_LINES])
    facts = [
        (default.lineno, "has a default that all calls share and may change")
        for default in [*node.args.defaults, *node.args.kw_defaults]
        if isinstance(default, ast.List | ast.Dict | ast.Set)
    ]
    if (count := len(node.args.args) + len(node.args.kwonlyargs)) > MAX_ARGUMENTS:
        facts.append((node.lineno, f"takes {count} arguments"))
    facts += [
        (part.lineno, "catches every exception, also the one that ends the program")
        for part in ast.walk(node)
        if isinstance(part, ast.ExceptHandler) and part.type is None
    ]
    return [Fault(file, line, node.name, what, code) for line, what in facts]


class Reviewer:
    """Gathers the facts, and asks the model about one at a time."""

    name = "reviewer"
    description = "Reviews Python code below a folder."
    arguments = Options
    needs = ("code-health",)

    async def run(self, context: Context, task: Task) -> Review:
        options = task.arguments_as(Options)
        health = Task(arguments={"path": options.folder, "top": options.top})
        measured = msgspec.to_builtins(await context.spawn("code-health", health))
        files = [file["path"] for file in measured["files"]]
        faults = msgspec.convert(await context.call_tool("find_faults", {"files": files}), list[Fault])
        faults += [
            Fault(row["path"], row["line"], row["name"], f"has complexity {row['complexity']}")
            for row in measured["most_complex"]
            if row["complexity"] > MAX_COMPLEXITY
        ]
        context.progress(f"{len(faults)} findings; asking about each")
        findings: list[Finding] = []
        for fault in faults:
            findings.append(Finding(fault, await self.remark(context, fault)))
            context.keep(Review(len(files), findings))
        return Review(len(files), sorted(findings, key=rank))

    async def remark(self, context: Context, fault: Fault) -> Remark | None:
        context.progress(f"{Path(fault.file).name}:{fault.line} {fault.function} {fault.what}")
        question = f"{fault.code}\n\nThe fault: the function {fault.function} {fault.what}."
        try:
            sampling = SamplingParams(temperature=0.0, max_tokens=120)
            return await context.generate(question, schema=Remark, system=SYSTEM, sampling=sampling)
        except AgentError as error:  # no sentence that fits, twice: the fact is enough
            context.progress(str(error))
            return None


def rank(finding: Finding) -> tuple[int, str, int]:
    order = {"high": 0, "medium": 1, "low": 2}
    severity = 3 if finding.remark is None else order[finding.remark.severity]
    return severity, finding.fault.file, finding.fault.line


async def main(folder: Path, top: int = 3, *, backend: Backend | None = None, resume: str = "") -> Review:
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=[Reviewer(), "code-health"], tools=[find_faults]) as fleet:
        task = Task(arguments={"folder": str(folder), "top": top})
        return await follow(fleet.resume(resume) if resume else fleet.run(task, agent="reviewer"), Review)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Review the Python code below a folder.")
    options.add_argument("folder", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--top", type=int, default=3, help="how many of the most complex functions to name")
    options.add_argument("--resume", metavar="RUN", default="", help="go on with a review that did not end")
    given = options.parse_args()
    try:
        print(asyncio.run(main(given.folder, given.top, resume=given.resume)))
    except PyAgentError as error:
        sys.exit(f"code_reviewer: {error}")
