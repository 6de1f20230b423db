"""Plugins loaded anew in a running program: what is new, what stays when that is wrong, and what cannot change."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType

import pytest
from support.plugins import AGENTS, BUILTINS, Install, agents_plugin, discover, info_of

from pyagent.core import plugin_watch
from pyagent.core.errors import PluginError
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins

_NUMBERS = itertools.count()
NEEDS = """
    from types import SimpleNamespace
    from pyagent.plugin import hookimpl

    async def run(context, task):
        return "done"

    @hookimpl
    def pyagent_register_agents():
        return [SimpleNamespace(name="{name}", description="d", run=run, needs={needs!r})]
"""


@pytest.fixture
def again(install: Install, tmp_path: Path) -> Install:
    """Installs a package in place of the one before, as `pip install -U` does."""

    def write(name: str, source: str, **more: str) -> None:
        for found in (tmp_path / "site").glob(f"{name}-*.dist-info"):
            shutil.rmtree(found)
        number = next(_NUMBERS)  # a file of the same length, written within a second, is not compiled again
        install(name, textwrap.dedent(source) + "\n" + "#" * number, **more)

    return write


def test_reloaded_plugin_is_the_one_installed_now(again: Install) -> None:
    """The module, the version and the entry points are those of now, and the clash of the old names is gone."""
    again("poet", AGENTS.format(name="haiku"))
    host = discover()
    old = host.agents()["haiku"]
    again("poet", AGENTS.format(name="limerick"), version="2.0")
    info = host.reload("poet")
    assert (info.version, info.state, info.provides) == ("2.0", "loaded", {"agents": ("limerick",)})
    assert "haiku" not in host.agents()
    assert host.agents()["limerick"] is not old
    assert host.reload("poet").provides == {"agents": ("limerick",)}, "and once more"


def test_reload_finds_what_was_installed_meanwhile(again: Install) -> None:
    """A package installed while the program runs is loaded by its name; one that is gone says what to do."""
    host = discover()
    with pytest.raises(PluginError, match="there is no plugin 'poet'"):
        host.reload("poet")
    again("poet", AGENTS.format(name="haiku"))
    host.reload("poet")
    assert "haiku" in host.agents()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "failed at import: ZeroDivisionError"),
        (NEEDS.format(name="haiku", needs=("nobody",)), "needs 'nobody', which no enabled plugin brings"),
        (NEEDS.format(name="other", needs=()), "'fan' needs 'haiku'"),
        ("x = 1", "does not fill pyagent_register_agents"),
    ],
)
def test_plugin_before_goes_on_when_the_new_one_is_wrong(
    again: Install, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    """A new version that fails, or that others cannot do with, is refused; the agents and modules stay as they were."""
    again("poet", AGENTS.format(name="haiku"))
    again("fan", NEEDS.format(name="fan", needs=("haiku",)))
    host = discover()
    before, module = host.agents(), sys.modules["poet"]
    again("poet", source, version="2.0")
    with pytest.raises(PluginError, match="the plugin 'poet' is not loaded: ") as caught:
        host.reload("poet")
    assert reason in str(caught.value)
    assert host.agents() == before
    assert sys.modules["poet"] is module
    assert (info_of(host, "poet").state, info_of(host, "fan").state) == ("loaded", "loaded")
    assert not caplog.records, "nothing goes on without it"
    again("poet", AGENTS.format(name="haiku"), version="3.0")
    assert host.reload("poet").version == "3.0"


def test_quarantined_plugin_comes_back_mended(again: Install) -> None:
    """A plugin that was broken at the start is used once it is mended."""
    again("poet", "1 / 0")
    host = discover()
    assert host.agents() == {}
    again("poet", AGENTS.format(name="haiku"), version="1.1")
    host.reload("poet")
    assert "haiku" in host.agents()


def test_unloaded_plugin_is_out_until_it_is_loaded_anew(again: Install) -> None:
    """Its agents are gone, its module is forgotten, the list says so; one that others need stays."""
    again("poet", AGENTS.format(name="haiku"))
    host = discover()
    host.agents()
    info = host.unload("poet")
    assert (info.state, host.agents(), "poet" in sys.modules) == ("disabled", {}, False)
    assert "unloaded while the program ran" in info.reason
    host.reload("poet")
    again("fan", NEEDS.format(name="fan", needs=("haiku",)))
    host.reload("fan")
    with pytest.raises(PluginError, match="the plugin 'poet' is needed: of fan its agent 'fan' needs 'haiku'"):
        host.unload("poet")
    assert "haiku" in host.agents()


def test_what_cannot_change_says_why(again: Install) -> None:
    """Built-in plugins, those registered by hand, disabled ones and guardrails stay, each with its sentence."""
    guard = """
        from pyagent.plugin import hookimpl

        class Guard:
            name = "guard"
            async def check_task(self, context, task): return None

        @hookimpl
        def pyagent_register_guardrails(): return [Guard()]
    """
    again("guard", guard, entries="guard.guardrails = guard")
    again("poet", AGENTS.format(name="haiku"))
    host = discover(disable=["poet"])
    host.register(agents_plugin("sonnet"), "mine")
    for name, reason in (
        ("mine", "was registered by the program"),
        ("poet", "is disabled by plugins.disable"),
        ("guard", "brings guardrails, which a running program keeps"),
        (BUILTINS[0], "comes with PyAgent"),
        ("paot", "did you mean 'poet'?"),
    ):
        with pytest.raises(PluginError, match=reason):
            host.unload(name)
    host.reload("guard")
    assert "guard" in host.guardrails()


@pytest.mark.parametrize("where", ["import", "hook"])
def test_plugin_that_never_ends_is_left_behind(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """An import or a hook that does not end takes its time and no more: it is named, and the others go on."""
    monkeypatch.setattr(plugin_watch, "SLOW_SECONDS", 0.01)
    gate, waiting = threading.Event(), ModuleType("never_ends")
    waiting.wait = lambda: gate.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "never_ends", waiting)
    waits = {name: "never_ends.wait()" if name == where else "pass" for name in ("import", "hook")}
    source = f"""
        import never_ends
        from pyagent.plugin import hookimpl
        {waits["import"]}

        @hookimpl
        def pyagent_register_agents():
            {waits["hook"]}
            return []
    """
    install("sloth", source)
    install("poet", AGENTS.format(name="haiku"))
    host = PluginHost.discover(Plugins(disable=list(BUILTINS), load_seconds=0.2))
    try:
        with caplog.at_level(logging.WARNING, "pyagent.plugins"):
            assert list(host.agents()) == ["haiku"]
    finally:
        gate.set()
    info = info_of(host, "sloth")
    assert info.state == "quarantined"
    assert "had not ended after 0.2 s, and is left behind; plugins.load_seconds gives it longer" in info.reason
    assert caplog.records[0].getMessage().startswith("plugin sloth has been at it for 0.01 s (")


def test_loop_that_is_left_behind_is_ended() -> None:
    """A thread that computes for ever is asked to end, so that it takes no processor for ever."""
    threads: list[threading.Thread] = []

    def spin() -> None:
        threads.append(threading.current_thread())
        while True:
            pass

    with pytest.raises(TimeoutError, match="importing x had not ended"):
        plugin_watch.in_time("x", "importing x", 0.05, spin)
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_runs_under_way_keep_their_agents(again: Install) -> None:
    """A fleet whose plugins changed gives new runs the new agent; the old one is closed after the run that has it."""
    import pyagent
    from pyagent.testing import EchoBackend

    source = """
        import asyncio
        from pyagent.plugin import hookimpl

        class Poet:
            name = "poet"
            description = "d"
            begun, gate = asyncio.Event(), asyncio.Event()
            is_closed = False

            async def run(self, context, task):
                self.begun.set()
                if task.text == "wait":
                    await self.gate.wait()
                return f"{said} {{self.is_closed}}"

            async def close(self):
                self.is_closed = True

        @hookimpl
        def pyagent_register_agents(): return [Poet()]
    """
    again("poet", source.format(said="old"))
    host = discover()

    async def work() -> tuple[object, object, bool]:
        fleet = pyagent.Fleet(backend=EchoBackend(), agents=["poet"], host=host)
        async with fleet:
            old = fleet.agents["poet"]
            slow = asyncio.create_task(fleet.run_agent("poet", "wait"))
            await old.begun.wait()  # type: ignore[attr-defined]
            again("poet", source.format(said="renewed"), version="2.0")
            host.reload("poet")
            await fleet.renew()
            new = await fleet.run_agent("poet", "now")
            assert not old.is_closed  # type: ignore[attr-defined]
            old.gate.set()  # type: ignore[attr-defined]
            result = await slow
            return result, new, old.is_closed  # type: ignore[attr-defined]

    slow, new, _ = asyncio.run(work())
    assert (slow, new) == ("old False", "renewed False")
