"""Guardrails: what they refuse, whom they tell, and that nothing passes one that is broken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.fleets import Custom, echo, events_of

import pyagent
from pyagent.core.errors import GuardrailError, PluginError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import FunctionCall, ToolCall
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.testing import Reply, ScriptedBackend


class NoSecrets:
    """Refuses what holds a key."""

    name = "no-secrets"

    async def check_task(self, context: Context, task: Task) -> str | None:
        return _reason(task.text)

    async def check_call(self, context: Context, name: str, arguments: object) -> str | None:
        return _reason(f"{name} {arguments}")

    async def check_output(self, context: Context, output: object) -> str | None:
        return _reason(str(output))


def _reason(text: str) -> str | None:
    return "it holds a key" if "sk-" in text else None


async def leak(context: Context, task: Task) -> object:
    return "sk-1"


def fleet_of(*guardrails: Any, agents: Any = (), tools: Any = (), script: Any = ()) -> Fleet:
    agents = agents or [Custom("echo", echo), Custom("leak", leak)]
    return Fleet(ScriptedBackend(script), agents, tools, guardrails=guardrails)


def test_task_and_output_are_refused() -> None:
    """A task is refused before the agent begins, a result before anybody sees it; others pass."""
    for agent, task, what in (("echo", "use sk-1", "task"), ("leak", "go", "output")):
        seen, error = asyncio.run(events_of(fleet_of(NoSecrets()), task, agent=agent))
        assert isinstance(error, GuardrailError)
        assert (error.guardrail, error.param) == ("no-secrets", what)
        assert not any(isinstance(event, ev.AgentFinished) for event in seen)
    assert asyncio.run(fleet_of(NoSecrets()).run_agent("echo", "hi")) == "hi!"


def test_refused_call_is_told_to_the_model() -> None:
    """A call that is refused does not run, and the model reads why."""
    ran: list[str] = []

    @tool
    async def send(text: str) -> str:
        """Send."""
        ran.append(text)
        return "sent"

    async def use(context: Context, task: Task) -> object:
        return (await context.complete(task.text, tools=["send"])).tool_results[0].text

    calls = [FunctionCall("send", json.dumps({"text": text})) for text in ("sk-1", "hello")]
    script = [*(Reply(tool_calls=(ToolCall(id="c", function=call),)) for call in calls), "Done."]
    fleet = fleet_of(NoSecrets(), agents=[Custom("use", use)], tools=[send], script=script)
    told = asyncio.run(fleet.run_agent("use", "go"))
    assert ran == ["hello"]
    assert "refuses the arguments of use: it holds a key" in str(told)


def test_broken_guardrail_refuses() -> None:
    """One that raises, gives nonsense or ends the program lets nothing pass."""

    class Raises:
        name = "raises"

        async def check_task(self, context: Context, task: Task) -> object:
            return {}["x"]

    class Odd:
        name = "odd"

        async def check_task(self, context: Context, task: Task) -> object:
            return False

    class Exits:
        name = "exits"

        async def check_task(self, context: Context, task: Task) -> object:
            raise SystemExit(1)

    for guardrail, told in ((Raises(), "KeyError"), (Odd(), "expected a reason or None"), (Exits(), "SystemExit")):
        with pytest.raises(GuardrailError, match=told):
            asyncio.run(fleet_of(guardrail).run_agent("echo", "hi"))


class _Plugin:
    def __init__(self, *guardrails: object) -> None:
        self._guardrails = guardrails

    @hookimpl
    def pyagent_register_guardrails(self) -> list[object]:
        return list(self._guardrails)


def test_guardrails_come_through_plugins() -> None:
    """A fleet of the settings has the guardrails of its plugins."""
    host = PluginHost()
    host.register(_Plugin(NoSecrets()), "guard")
    fleet = pyagent.Fleet(Settings(), backend=ScriptedBackend(()), agents=[Custom("leak", leak)], host=host)
    with pytest.raises(GuardrailError):
        asyncio.run(fleet.run_agent("leak", "go"))


def test_fleet_does_not_begin_without_its_guardrails(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A plugin whose guardrail is no guardrail is an error that names it, where others are left out."""
    from support.installed import install

    code = (
        "from pyagent.plugin import hookimpl\nclass G:\n    name = 'g'\n    def check_task(self, context, task): ...\n"
    )
    code += "@hookimpl\ndef pyagent_register_guardrails():\n    return [G()]\n"
    install(monkeypatch, tmp_path, "badguard", code, "guardrails")
    with pytest.raises(PluginError, match=r"guardrails of badguard are not there.*check_task"):
        pyagent.Fleet(Settings(), backend=ScriptedBackend(()))
