"""Dialects of plugins in the engine: its models' answers are read by them, and a fault of theirs ends one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.calling_model import saying
from support.native import run

from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatRequest, FunctionDefinition, Message, SamplingParams, Tool
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.plugin import Dialect, NamedCalls, Parsed, TagDialect, hookimpl

TIME = Tool(FunctionDefinition("time", "Tell the time.", {"type": "object", "additionalProperties": False}))
ASK = ChatRequest(
    messages=[Message("user", "what time is it")], tools=[TIME], sampling=SamplingParams(temperature=0, max_tokens=100)
)
OURS = TagDialect(
    name="ours", models="ours", clues=("<tool_call>",), calls=NamedCalls("@call", ("@end",), (" {name} ",))
)


class FailingParser:
    is_reasoning = False

    def push(self, text: str) -> Parsed:
        if "x" in text:
            raise RuntimeError("the parser failed")
        return Parsed(text)

    def finish(self, *, is_cut: bool = False) -> Parsed:
        return Parsed()

    def copy(self) -> FailingParser:
        return self


@dataclass(frozen=True)
class Failing(TagDialect):
    def parser(  # type: ignore[override]
        self, tools: Sequence[Tool], *, is_reasoning: bool = False, is_held: bool = False
    ) -> FailingParser:
        return FailingParser()


def test_dialect_of_a_plugin_reads_answers(model: Path) -> None:
    """It is tried before the built-in ones, and its calls come out of the engine as any model's."""

    async def main() -> None:
        async with saying(model, "So. @call time {}@end", dialects=[OURS]) as backend:
            answer = await collect(backend.chat(ASK))
        (call,) = answer.tool_calls
        assert (answer.text, call.function.name, call.function.arguments) == ("So.", "time", "{}")
        assert answer.last.finish_reason == "tool_calls"

    run(main())


def test_dialect_of_a_plugin_holds_a_model_to_its_calls(model: Path) -> None:
    """Where a call is wanted, the model writes one by the plugin's grammar, whatever it would have said."""

    async def main() -> None:
        forced = ChatRequest(
            messages=ASK.messages,
            tools=[TIME],
            tool_choice="required",
            parallel_tool_calls=False,
            reasoning_effort="none",
            sampling=ASK.sampling,
        )
        async with saying(model, "no, never", dialect="ours", dialects=[OURS]) as backend:
            (call,) = (await collect(backend.chat(forced))).tool_calls
        assert (call.function.name, call.function.arguments) == ("time", "{}")

    run(main())


def test_parser_that_raises_ends_its_answer_alone(model: Path) -> None:
    """The answer ends with an error; the next one is served."""
    failing = Failing(name="failing", models="none", clues=("<tool_call>",), calls=OURS.calls)

    async def main() -> None:
        async with saying(model, "a x b", "fine", dialects=[failing]) as backend:
            with pytest.raises(PyAgentError, match="the parser failed"):
                await collect(backend.chat(ASK))
            assert (await collect(backend.chat(ASK))).text == "fine"

    run(main())


class Plugin:
    @hookimpl
    def pyagent_register_dialects(self) -> Sequence[Dialect]:
        return [OURS]


def test_settings_name_a_dialect_of_a_plugin() -> None:
    """`engine.dialect` takes a plugin's dialect by name."""
    host = PluginHost()
    host.register(Plugin(), "ours")
    options = options_of(load_settings(overrides={"engine.dialect": "ours"}).settings, host)
    assert (options.dialect, list(options.dialects)) == ("ours", [OURS])
