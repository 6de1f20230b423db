"""The plugin host: what is found, when it is imported, and how it is listed."""

from __future__ import annotations

import json
import logging
import sys
import threading
from types import ModuleType

import pytest
from support.plugins import AGENTS, Install, discover, info_of
from typer.testing import CliRunner

from pyagent.cli.plugins import app
from pyagent.core import plugin_watch
from pyagent.core.backends import LinkSpec
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, PluginError


def test_discovery_imports_nothing(install: Install) -> None:
    """Metadata alone tells what a plugin brings; asking for another noun does not import it."""
    install("poet", "raise SystemExit('imported')", version="2.5")
    host = discover()
    info = info_of(host, "poet")
    assert (info.state, info.nouns, info.version, info.distribution) == ("idle", ("agents",), "2.5", "poet")
    assert host.tools() == {}
    assert info_of(host, "poet").state == "idle"


def test_plugin_is_loaded_on_first_use(install: Install) -> None:
    """Asking for agents imports the plugins that bring agents, once, and measures it."""
    install("poet", AGENTS.format(name="haiku"))
    host = discover()
    assert host.agents()["haiku"] is host.agents()["haiku"]
    info = info_of(host, "poet")
    assert info.state == "loaded"
    assert info.load_seconds > 0
    assert info.provides == {"agents": ("haiku",)}
    assert info.hooks == ("pyagent_register_agents",)
    assert not info.is_builtin


def test_builtins_come_by_the_same_door() -> None:
    """What ships with PyAgent is listed beside the rest, found by its entry points."""
    infos = {info.name: info for info in discover().plugins()}
    if "native" not in infos:
        pytest.skip("pyagent is not installed here, only on the path")
    assert infos["native"].is_builtin
    assert infos["native"].distribution == "pyagent-fleet"


def test_name_without_noun_fills_any_hook(install: Install) -> None:
    """An entry point without a noun is loaded whenever any hook is needed."""
    install("poet", AGENTS.format(name="haiku"), entries="poet = poet")
    host = discover()
    assert info_of(host, "poet").nouns == ()
    assert "haiku" in host.agents()
    assert info_of(host, "poet").nouns == ("agents",)


def test_one_plugin_may_have_a_module_for_each_noun(install: Install) -> None:
    """A plugin with several entry points is one plugin, and each of its modules is imported when it is needed."""
    install("poet", AGENTS.format(name="haiku"), entries="poet.agents = poet\npoet.tools = poet_tools")
    host = discover()
    assert "haiku" in host.agents()
    assert "poet_tools" not in sys.modules
    assert info_of(host, "poet").nouns == ("agents", "tools")


def test_objects_may_be_plugins(install: Install) -> None:
    """An entry point may name an object in a module."""
    source = """
        from types import SimpleNamespace
        from pyagent.plugin import hookimpl

        class Poet:
            @hookimpl
            def pyagent_register_agents(self):
                return (SimpleNamespace(name="haiku", description="d", run=self.write),)

            async def write(self, context, task):
                return "done"

        poet = Poet()
    """
    install("poet", source, entries="poet.agents = poet:poet")
    assert "haiku" in discover().agents()


def test_disabled_plugin_is_listed_but_never_imported(install: Install) -> None:
    """`plugins.disable` keeps a plugin out, and the list says so."""
    install("poet", "raise SystemExit('imported')")
    host = discover(disable=["poet", "nobody"])
    assert "haiku" not in host.agents()
    assert info_of(host, "poet").state == "disabled"
    assert host.unknown_names() == ["nobody"]


def test_list_shows_the_good_and_the_broken(install: Install) -> None:
    """`plugins list` has a line for each plugin: what it brings and how fast, or why it is not used."""
    install("poet", AGENTS.format(name="haiku"), version="0.1.0")
    install("broken", "1 / 0")
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0, result.exception
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "0.1.0" in lines["poet"]
    assert "agents=1" in lines["poet"]
    assert "loads in" in lines["poet"]
    assert "quarantined: failed at import: ZeroDivisionError" in lines["broken"]
    listed = {entry["name"]: entry for entry in json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)}
    assert listed["poet"]["provides"] == {"agents": ["haiku"]}
    assert listed["broken"]["state"] == "quarantined"


def test_show_names_hooks_and_clashes(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plugins show` tells version, hooks, names and clashes; an unknown name gets the nearest."""
    monkeypatch.setenv("PYAGENT_PLUGINS__ORDER", "omega")
    install("alpha", AGENTS.format(name="haiku"))
    install("omega", AGENTS.format(name="haiku"))
    text = CliRunner().invoke(app, ["show", "alpha"]).stdout
    assert "pyagent_register_agents" in text
    assert "agents haiku: omega before alpha" in text
    shown = json.loads(CliRunner().invoke(app, ["show", "alpha", "--json"]).stdout)
    assert shown["provides"] == {"agents": ["haiku"]}
    error = CliRunner().invoke(app, ["show", "alhpa"]).exception
    assert isinstance(error, ConfigError)
    assert "did you mean 'alpha'?" in str(error)
    lines = CliRunner().invoke(app, ["list"]).stdout
    assert "omega comes before alpha" in lines


@pytest.mark.parametrize("where", ["import", "hook", "factory"])
def test_plugin_that_hangs_is_named(install: Install, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A plugin whose import, hook or backend takes long is named in a warning while the program waits for it."""
    monkeypatch.setattr(plugin_watch, "SLOW_SECONDS", 0.05)
    waits = {name: "wait()" if name == where else "pass" for name in ("import", "hook", "factory")}
    source = f"""
        from pyagent.plugin import hookimpl
        from slow_waits import wait
        {waits["import"]}

        def make(link, settings):
            {waits["factory"]}

        @hookimpl
        def pyagent_register_backends():
            {waits["hook"]}
            return {{"slow": make}}
    """
    told, waiting = threading.Event(), ModuleType("slow_waits")
    waiting.wait = lambda: told.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow_waits", waiting)
    warnings: list[str] = []

    class Listens(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())
            told.set()

    handler = Listens()
    logging.getLogger("pyagent.plugins").addHandler(handler)
    try:
        install("sloth", source, entries="sloth.backends = sloth")
        make = discover().backends()["slow"]
        with pytest.raises(PluginError, match="NoneType"):
            make(LinkSpec.parse("slow:x"), load_settings(None).settings)
    finally:
        logging.getLogger("pyagent.plugins").removeHandler(handler)
    assert told.is_set()
    assert warnings[0].startswith("plugin sloth has been at it for 0.05 s (")
