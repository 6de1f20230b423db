"""Write tests for the functions of a Python module: the model thinks of inputs, running them says what comes out.

python examples/fleets/write_tests.py
python examples/fleets/write_tests.py src/shop.py --output test_shop.py

The tests hold what the code does today, so that a change is seen; whether that is right is for you to read. The model
sees one function at a time and gives arguments as JSON, held to the function's own signature. They are run in a process
of its own, with a limit of time, without your environment: give it code that you would run yourself.
"""

import argparse
import ast
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

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

SAMPLE = Path(__file__).parent / "samples" / "project" / "shop.py"
LIMITS = {"budget.run.tokens": 100_000, "budget.run.seconds": 600}
MAX_FUNCTIONS, MAX_CHARACTERS, SECONDS = 30, 4_000, 5.0
TYPES: dict[str, dict[str, object]] = {
    "str": {"type": "string", "maxLength": 20},
    "int": {"type": "integer", "minimum": -1000, "maximum": 1000},
    "float": {"type": "number", "minimum": -1000, "maximum": 1000},
    "bool": {"type": "boolean"},
    "list[str]": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
    "list[int]": {"type": "array", "items": {"type": "integer", "minimum": -99, "maximum": 99}, "maxItems": 6},
    "list[float]": {"type": "array", "items": {"type": "number", "minimum": -99, "maximum": 99}, "maxItems": 6},
}
RUNNER = """
import importlib.util, json, sys
asked = json.load(sys.stdin)
spec = importlib.util.spec_from_file_location("subject", asked["module"])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    value = getattr(module, asked["name"])(**asked["arguments"])
    print(json.dumps({"value": repr(value)}))
except Exception as error:
    print(json.dumps({"error": type(error).__name__}))
"""


class Signature(msgspec.Struct, frozen=True):
    """A function whose parameters all have a type that JSON carries."""

    name: str
    code: str
    types: dict[str, str]

    @property
    def schema(self) -> dict[str, Any]:
        properties = {name: TYPES[kind] for name, kind in self.types.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": [*self.types],
            "additionalProperties": False,
        }


class Case(msgspec.Struct, frozen=True):
    """A call, and what came of it: a value as Python writes it, or the class of an error."""

    name: str
    arguments: dict[str, Any]
    value: str = ""
    error: str = ""


class Written(msgspec.Struct, frozen=True):
    """The tests, and the functions that have none, each with the reason."""

    output: str
    cases: list[Case]
    left_out: dict[str, str]

    def __str__(self) -> str:
        reasons = [f"  {name}: {reason}" for name, reason in self.left_out.items()]
        return "\n".join([f"{len(self.cases)} tests written to {self.output}", *reasons])


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The module, where its tests go, and how many for each function."""

    module: str
    output: str
    num_cases: int = 2


@tool(effect="none")
def read_functions(module: str) -> list[Signature]:
    """Return the public functions of a module; one that cannot be called with JSON has no types."""
    if not Path(module).stem.isidentifier():
        raise ValueError(f"{module} cannot be imported by its name")
    tree = ast.parse(text := Path(module).read_text(encoding="utf-8"), module)
    found: list[Signature] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            kinds = {each.arg: ast.unparse(each.annotation) for each in node.args.args if each.annotation is not None}
            is_known = len(kinds) == len(node.args.args) and set(kinds.values()) <= set(TYPES)
            is_plain = not (node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.posonlyargs)
            code = (ast.get_source_segment(text, node) or "")[:MAX_CHARACTERS]
            found.append(Signature(node.name, code, kinds if is_known and is_plain else {}))
    return found[:MAX_FUNCTIONS]


@tool(effect="none")
async def call_function(module: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a function of a module in a process of its own; return its value as text, or its error's class."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-I", "-c", RUNNER],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    asked = json.dumps({"module": module, "name": name, "arguments": arguments}).encode()
    try:
        output, _ = await asyncio.wait_for(process.communicate(asked), SECONDS)
        return json.loads(output.splitlines()[-1])
    except (TimeoutError, IndexError, ValueError):
        return {"failed": "it takes too long, or ends the process"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@tool(effect="idempotent")
def write_tests(module: str, output: str, cases: list[Case]) -> int:
    """Write a file for pytest, all or nothing."""
    lines = ['"""What the module does today, as a model and its own code told."""', "", "import sys"]
    lines += ["from pathlib import Path", "", "import pytest", ""]
    lines += [f"sys.path.insert(0, {str(Path(module).resolve().parent)!r})", f"import {Path(module).stem} as subject"]
    for number, case in enumerate(cases, 1):
        call = f"subject.{case.name}(**{case.arguments!r})"
        lines += ["", "", f"def test_{case.name}_{number}() -> None:"]
        if case.error:
            lines += [f"    with pytest.raises(Exception) as raised:\n        {call}"]
            lines += [f"    assert type(raised.value).__name__ == {case.error!r}"]
        else:
            lines += [f"    assert {call} == {case.value}"]
    part = Path(f"{output}.part")
    part.write_text("\n".join([*lines, ""]), encoding="utf-8")
    os.replace(part, output)
    return len(cases)


class Tester:
    """Asks for inputs, runs them, and writes what came out."""

    name = "tester"
    description = "Writes tests for the functions of a Python module."
    arguments = Options

    async def run(self, context: Context, task: Task) -> Written:
        options = task.arguments_as(Options)
        read = await context.call_tool("read_functions", {"module": options.module})
        functions = msgspec.convert(read, list[Signature])
        cases: list[Case] = []
        left_out: dict[str, str] = {}
        for function in functions:
            if not function.types:
                left_out[function.name] = "its parameters have no types that JSON carries"
                continue
            found = [await self.case(context, options.module, function, seed) for seed in range(options.num_cases)]
            new = [case for case in found if case is not None and case not in cases]
            cases += {json.dumps(case.arguments): case for case in new}.values()
            if not any(found):
                left_out[function.name] = "no input gave a value that a test can hold"
        if not cases:
            raise AgentError(
                f"no test for {options.module}: {left_out or 'it has no public functions'}", agent=self.name
            )
        arguments = {"module": options.module, "output": options.output, "cases": msgspec.to_builtins(cases)}
        await context.call_tool("write_tests", arguments)
        return Written(options.output, cases, left_out)

    async def case(self, context: Context, module: str, function: Signature, seed: int) -> Case | None:
        """Return a call with its outcome; nothing where the model gives no arguments, or a test cannot hold it."""
        sampling = SamplingParams(temperature=0.9, seed=seed, max_tokens=120)
        question = f"{function.code}\n\nGive arguments to test the function {function.name}, as JSON."
        try:
            given = await context.generate(question, schema=function.schema, sampling=sampling)
        except AgentError as error:
            context.progress(f"{function.name}: {error}")
            return None
        arguments = msgspec.convert(given, dict[str, Any])
        called = await context.call_tool(
            "call_function", {"module": module, "name": function.name, "arguments": arguments}
        )
        outcome = msgspec.convert(called, dict[str, Any])
        shown = outcome.get("value") or outcome.get("error") or outcome.get("failed")
        context.progress(f"{function.name}({json.dumps(arguments)}) gives {shown}")
        if "error" in outcome:
            return Case(function.name, arguments, error=outcome["error"])
        return Case(function.name, arguments, outcome["value"]) if is_literal(outcome.get("value", "")) else None


def is_literal(text: str) -> bool:
    """Whether a test can say a value as its text: not an object, and not `nan`, which equals nothing."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


async def main(module: Path, output: Path, *, backend: Backend | None = None, resume: str = "") -> Written:
    settings = load_settings(overrides=LIMITS).settings
    tools = [read_functions, call_function, write_tests]
    async with Fleet(settings, backend=backend, agents=[Tester()], tools=tools) as fleet:
        task = Task(arguments={"module": str(module), "output": str(output)})
        return await follow(fleet.resume(resume) if resume else fleet.run(task, agent="tester"), Written)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Write tests for the functions of a Python module.")
    options.add_argument("module", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--output", type=Path, default=Path("test_subject.py"))
    options.add_argument("--resume", metavar="RUN", default="", help="go on with a run that did not end")
    given = options.parse_args()
    try:
        print(asyncio.run(main(given.module, given.output, resume=given.resume)))
    except PyAgentError as error:
        sys.exit(f"write_tests: {error}")
