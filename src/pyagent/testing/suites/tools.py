"""What every tool, and every tool provider, must do.

class TestCount(ToolConformance):
    examples = ({"text": "three small words"},)

    def make(self):
        return count_words
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import msgspec
import pytest

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_providers import OPEN_SECONDS, ToolProvider
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject
from pyagent.testing.backends import EchoBackend, Reply, ScriptedBackend
from pyagent.testing.suites.checks import check_host_takes, check_json, run

_OTHER_TYPES: dict[str, object] = {
    "string": 7,
    "integer": "seven",
    "number": "seven",
    "boolean": "perhaps",
    "array": "none",
    "object": "none",
}
_CLOSE_SECONDS = 5.0


class ToolConformance:
    """Derive from it, and define `make`; `examples` are arguments that the tool takes, each called at least once.

    `model` are a model's replies, for a tool that asks one.
    """

    examples: ClassVar[Sequence[JsonObject]] = ()
    model: ClassVar[Sequence[Reply | str]] = ()

    def make(self) -> FleetTool:
        """Return the tool."""
        raise NotImplementedError

    def is_same(self, one: object, other: object) -> bool:
        """Return whether two outputs say the same; override it where an output tells of the time it took."""
        return one == other

    def test_host_takes_the_tool(self) -> None:
        """It has a name, a description that a model can choose it by, and a sound schema of an object."""
        tool = self.make()
        check_host_takes("tools", [tool])
        assert tool.description.strip(), "it has no description: a model chooses by it"
        try:
            tool.check()
        except RequestError as error:
            raise AssertionError(str(error)) from error
        assert self.examples, "`examples` is empty: nothing would be tested"

    def test_examples_are_answered_with_json(self) -> None:
        """Each example is taken, and what comes of it can be written as JSON, as a model is told it."""
        for example in self.examples:
            check_json(f"what comes of {example!r:.80}", self._called(self.make(), example))

    def test_json_text_is_taken_like_a_dict(self) -> None:
        """Arguments that come as JSON text, as models write them, are those of the dict."""
        tool = self.make()
        for example in self.examples:
            text = msgspec.json.encode(example).decode()
            read = [run(tool.checked(each)) for each in (example, text)]
            assert read[0] == read[1], f"{text} is read differently"

    def test_arguments_of_another_type_are_refused(self) -> None:
        """An argument of another type, or one that is missing, is refused before the function runs."""
        tool = self.make()
        for wrong in _wrong(tool.definition().function.parameters or {}, self.examples):
            try:
                run(tool.checked(wrong))
            except RequestError:
                continue
            raise AssertionError(f"it takes {wrong!r:.200}, which does not follow its schema")

    def test_calls_at_once_do_not_mix(self) -> None:
        """Several calls at the same time are answered; where a call changes nothing, each as it is alone."""
        tool, examples = self.make(), [*self.examples] * 4

        async def work() -> list[object]:
            return await asyncio.gather(*(self._call(tool, example) for example in examples))

        found = run(work())
        if tool.effect == "none":
            for example, output in zip(examples, found, strict=True):
                self._check_same(example, output, self._called(tool, example))

    def test_call_without_effect_can_be_repeated(self) -> None:
        """A tool that says that a second call changes nothing more gives the same again."""
        tool = self.make()
        if tool.effect == "once":
            pytest.skip("each of its calls may change something")
        for example in self.examples:
            self._check_same(example, self._called(tool, example), self._called(tool, example))

    def _check_same(self, example: JsonObject, one: object, other: object) -> None:
        assert self.is_same(one, other), f"of {example!r:.80} it gives {one!r:.80} and {other!r:.80}"

    def _called(self, tool: FleetTool, arguments: JsonObject) -> object:
        return run(self._call(tool, arguments))

    async def _call(self, tool: FleetTool, arguments: JsonObject) -> object:
        """Return what an agent gets that calls it; the model repeats what it is asked, or says the replies."""
        backend = ScriptedBackend([*self.model]) if self.model else EchoBackend()
        fleet = Fleet(backend, [_Caller(tool.name, arguments)], [tool], approved_tools=["*"])
        try:
            called = cast("_Called", await fleet.run_agent("caller", "call it"))
        except PyAgentError as error:
            raise AssertionError(f"the example {arguments!r:.200} is not answered: {error}") from error
        return called.output


@dataclass(frozen=True)
class _Called:
    output: object


@dataclass
class _Caller:
    """An agent that calls a tool."""

    tool: str
    arguments: JsonObject
    name: str = "caller"
    description: str = "Calls a tool."

    async def run(self, context: Context, task: Task) -> _Called:
        return _Called(await context.call_tool(self.tool, self.arguments))


class ToolProviderConformance:
    """Derive from it, and define `make`."""

    def make(self) -> ToolProvider:
        """Return a new provider, not open; what it reaches for is there."""
        raise NotImplementedError

    def test_host_takes_the_provider(self) -> None:
        """It has a name, `async open()` and `async close()`."""
        check_host_takes("tool_providers", [self.make()])

    def test_open_brings_tools(self) -> None:
        """`open` brings tools with names of their own and sound schemas, within ten seconds."""
        provider = self.make()

        async def work() -> Sequence[FleetTool]:
            started = time.monotonic()
            try:
                opened = list(await provider.open())
                assert time.monotonic() - started < OPEN_SECONDS, "it takes longer to open than a fleet waits"
                return opened
            finally:
                await provider.close()

        tools = run(work())
        wrong = [tool for tool in cast("list[object]", tools) if not isinstance(tool, FleetTool)]
        assert not wrong, f"it brings something else than tools: {wrong[0]!r:.80}"
        names = [tool.name for tool in tools]
        assert names, "it brings no tool"
        assert len(set(names)) == len(names), f"it brings a name twice: {', '.join(sorted(names))}"
        for tool in tools:
            try:
                tool.check()
            except RequestError as error:
                raise AssertionError(str(error)) from error

    def test_close_is_safe_twice_and_unopened(self) -> None:
        """`close` may come without `open`, and twice, and takes less than five seconds."""

        async def work() -> None:
            for is_open in (False, True):
                provider = self.make()
                if is_open:
                    await provider.open()
                started = time.monotonic()
                await provider.close()
                await provider.close()
                assert time.monotonic() - started < _CLOSE_SECONDS, "it takes longer to close than a fleet waits"

        run(work())

    def test_close_leaves_nothing_running(self) -> None:
        """After `close` no task that it began is left."""
        provider = self.make()

        async def work() -> set[asyncio.Task[object]]:
            before = asyncio.all_tasks()
            await provider.open()
            await provider.close()
            await asyncio.sleep(0.05)
            return {task for task in asyncio.all_tasks() if task not in before and not task.done()}

        left = run(work())
        assert not left, f"it leaves tasks behind: {', '.join(task.get_name() for task in left)}"

    def test_open_that_is_cancelled_can_be_closed(self) -> None:
        """A fleet that ends while it opens cancels it, and closes it all the same."""
        provider = self.make()

        async def work() -> None:
            opening = asyncio.ensure_future(provider.open())
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            await provider.close()

        run(work())


def _wrong(schema: JsonObject, examples: Sequence[JsonObject]) -> Iterator[JsonObject | str]:
    """Yield arguments that do not follow a schema: each example without what it must have, or with another type."""
    yield "[]"
    yield "not json"
    properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
    required = cast("Sequence[str]", schema.get("required", ()))
    for example in examples:
        yield from ({name: value for name, value in example.items() if name != lacked} for lacked in required)
        for name, described in properties.items():
            kind = described.get("type")
            if isinstance(kind, str) and kind in _OTHER_TYPES:
                yield {**example, name: _OTHER_TYPES[kind]}
