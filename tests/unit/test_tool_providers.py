"""Tool providers in a real fleet: opened on the first run, closed with it, and left out when they misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import pyagent
from pyagent.core.errors import DeadlineError, RequestError
from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess, find_path
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.plugins import PluginHost
from pyagent.plugin import hookimpl
from pyagent.testing import ScriptedBackend


async def _same(arguments: object) -> object:
    return arguments


def _tool(name: str, description: str = "gives back what it is given") -> FleetTool:
    return FleetTool(name, description, {"properties": {"x": {"type": "integer"}}, "required": ["x"]}, _same)


class Provider:
    """Brings tools, and says when it was opened and closed."""

    def __init__(self, name: str, tools: object = (), work: Callable[[], Awaitable[object]] | None = None) -> None:
        self.name = name
        self.tools, self.work = tools, work
        self.said: list[str] = []

    async def open(self) -> Sequence[FleetTool]:
        self.said.append("open")
        if self.work is not None:
            await self.work()
        return cast("Sequence[FleetTool]", self.tools)

    async def close(self) -> None:
        self.said.append("close")


class User:
    """Calls the tool that its task names, or lists the tools."""

    name = "user"
    description = "calls a tool"

    async def run(self, context: Context, task: Task) -> object:
        return await context.call_tool(task.text, {"x": 1}) if task.text != "list" else list(context.tools)


def _fleet(*providers: object, tools: Sequence[FleetTool] = ()) -> Fleet:
    return Fleet(ScriptedBackend([]), [User()], tools, tool_providers=cast("Any", providers))


def test_providers_are_opened_on_the_first_run_and_closed_with_the_fleet() -> None:
    """A fleet that ran opened its provider once, whatever it ran at once; one that did not run never opened it."""
    used, unused = Provider("a", [_tool("t")]), Provider("b")

    async def main() -> None:
        async with _fleet(unused):
            pass
        async with _fleet(used) as fleet:
            assert used.said == []
            assert await asyncio.gather(*(fleet.run_agent("user", "t") for _ in range(3))) == [{"x": 1}] * 3
            assert used.said == ["open"]

    asyncio.run(main())
    assert used.said == ["open", "close"]
    assert unused.said == []


def test_tools_of_a_provider_are_checked_like_others() -> None:
    """Arguments that do not follow a provided tool's schema are refused."""

    class Wrong(User):
        async def run(self, context: Context, task: Task) -> object:
            return await context.call_tool("t", {})

    async def main() -> None:
        async with Fleet(ScriptedBackend([]), [Wrong()], tool_providers=[Provider("a", [_tool("t")])]) as fleet:
            with pytest.raises(RequestError, match="the tool t cannot take these arguments: the value: 'x' is a req"):
                await fleet.run_agent("user", "x")

    asyncio.run(main())


async def _hang() -> None:
    await asyncio.sleep(3600)


async def _refuse_to_end() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


def _raising(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def work() -> None:
        raise error

    return work


BAD = {
    "raises": (Provider("bad", [_tool("b")], _raising(OSError("no such server"))), "OSError: no such server"),
    "exits": (Provider("bad", [_tool("b")], _raising(SystemExit(3))), "raised SystemExit: 3"),
    "cancels": (Provider("bad", [_tool("b")], _raising(asyncio.CancelledError())), "though it was not cancelled"),
    "hangs": (Provider("bad", [_tool("b")], _hang), "the deadline passed"),
    "swallows": (Provider("bad", [_tool("b")], _refuse_to_end), "the deadline passed"),
    "none": (Provider("bad", None), "gave a NoneType, expected a sequence of FleetTools"),
    "text": (Provider("bad", "tools"), "gave a str, expected"),
    "items": (Provider("bad", ["hammer"]), "gave a str among its tools"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_provider_is_named_and_left_out(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that fails, hangs or brings nonsense is named in a warning; the others' tools work; all are closed."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 1.0)
    bad, sentence = BAD[kind]
    good = Provider("good", [_tool("t")])

    async def main() -> object:
        async with _fleet(bad, good) as fleet:
            assert await fleet.run_agent("user", "list") == ["t"]
            return await fleet.run_agent("user", "t")

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == {"x": 1}
    warned = [record.getMessage() for record in caplog.records if "tool provider bad" in record.getMessage()]
    assert any(sentence in text and "left out" in text for text in warned), warned
    assert (bad.said, good.said) == (["open", "close"], ["open", "close"])


def test_tool_with_a_broken_schema_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    """One tool whose schema cannot be checked is left out by name; the provider's others stay."""
    broken = FleetTool("broken", "", {"properties": {"a": {"type": "nonsense"}}}, _same)

    async def main() -> object:
        async with _fleet(Provider("a", [broken, _tool("t")])) as fleet:
            return await fleet.run_agent("user", "list")

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == ["t"]
    assert "the tool provider a: the tool broken cannot be offered: the JSON schema cannot be checked" in caplog.text


def test_first_tool_of_a_name_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """The fleet's own tools come before a provider's, and providers in their order; the clash is named."""
    own, first, second = (_tool("t", f"from {place}") for place in ("own", "first", "second"))

    async def main() -> None:
        fleet = _fleet(Provider("a", [first, _tool("u", "from a")]), Provider("b", [second, _tool("u")]), tools=[own])
        async with fleet:
            assert await fleet.run_agent("user", "list") == ["t", "u"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    for provider, tool in (("a", "t"), ("b", "t"), ("b", "u")):
        assert f"the tool provider {provider} brings a tool {tool!r}, whose name is taken" in caplog.text
    with pytest.raises(RequestError, match="two tool providers are called 'a'"):
        _fleet(Provider("a"), Provider("a"))


def test_run_with_a_deadline_does_not_wait_longer_and_spoils_nothing() -> None:
    """A run that has no time for a slow provider fails alone; the provider opens on, and the next run has its tools."""
    gate = asyncio.Event()
    provider = Provider("slow", [_tool("t")], gate.wait)

    async def main() -> None:
        async with _fleet(provider) as fleet:
            with pytest.raises(DeadlineError, match="the tool providers"):
                await fleet.run_agent("user", "t", timeout_seconds=0.05)
            gate.set()
            assert await fleet.run_agent("user", "t") == {"x": 1}

    asyncio.run(main())
    assert provider.said == ["open", "close"]


def test_fleet_that_closes_ends_what_opens() -> None:
    """Closing a fleet while a provider opens cancels the opening, then closes the provider."""
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.sleep(3600)

    provider = Provider("slow", [], hang)

    async def main() -> None:
        async with _fleet(provider) as fleet:
            job = asyncio.create_task(fleet.run_agent("user", "t"))
            await begun.wait()
        await asyncio.wait([job])
        assert job.cancelled() or job.exception() is not None

    asyncio.run(main())
    assert provider.said == ["open", "close"]


def test_provider_does_not_open_in_the_name_of_a_run(tmp_path: Path) -> None:
    """What a provider begins outlives the run that opened it, and has not that run's access to files."""
    (tmp_path / "a").touch()
    seen: list[object] = []

    async def look() -> None:
        seen.append(find_path(str(tmp_path / "a")))

    async def main() -> None:
        async with _fleet(Provider("a", [_tool("t")], look)) as fleet:
            access = FileAccess.below(tmp_path / "none")
            async for _ in fleet.run("t", agent="user", file_access=access):
                pass

    asyncio.run(main())
    assert seen == [tmp_path / "a"]


class Plugin:
    """A plugin with one provider."""

    def __init__(self, provider: object) -> None:
        self.provider = provider

    @hookimpl
    def pyagent_register_tool_providers(self) -> list[object]:
        return [self.provider]


def test_plugin_brings_a_provider_to_a_fleet() -> None:
    """A fleet made of plugins opens their providers; tools given by hand are all there are."""
    host, provider = PluginHost(), Provider("stub", [_tool("t")])
    host.register(Plugin(provider), "stub")

    async def main() -> None:
        given: Any = {"backend": ScriptedBackend([]), "agents": [User()], "host": host}
        async with pyagent.Fleet(**given) as fleet:
            assert await fleet.run_agent("user", "t") == {"x": 1}
        async with pyagent.Fleet(**given, tools=[_tool("only")]) as fleet:
            assert await fleet.run_agent("user", "list") == ["only"]

    asyncio.run(main())
    assert provider.said == ["open", "close"]
    assert host.plugins()[0].provides == {"tool_providers": ("stub",)}


class _SyncOpen(Provider):
    def open(self) -> Any:
        return []


class _Unclosable:
    name = "bad"

    async def open(self) -> Any:
        return []


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        (_SyncOpen("bad"), "whose `open` is not `async def open(self)`"),
        (_Unclosable(), "tool_providers with `close`"),
        (Provider("a b"), "`name` without spaces"),
        ("hammer", "instances with a `name`"),
    ],
)
def test_plugin_with_a_malformed_provider_is_quarantined(provider: object, reason: str) -> None:
    """A provider without a name, an async `open` or an async `close` keeps its plugin out, with the reason."""
    host = PluginHost()
    host.register(Plugin(provider), "bad")
    assert host.tool_providers() == {}
    (info,) = host.plugins()
    assert info.state == "quarantined"
    assert reason in info.reason
