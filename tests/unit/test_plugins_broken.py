"""Broken plugins: each is quarantined with its reason, and takes nothing else down."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.plugins import AGENTS, BUILTINS, Install, agents_plugin, discover, info_of

from pyagent.core.hooks import hookimpl
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins

BROKEN = {
    "raises": ("1 / 0", "failed at import: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)", "failed at import: SystemExit: 3"),
    "syntax": ("def (", "failed at import: SyntaxError"),
    "missing": ("import not_there_at_all", "needs the package 'not-there-at-all', which is not installed: pip install"),
    "renamed": ("from os import not_there", "failed at import: ImportError: cannot import name"),
    "empty": ("x = 1", "says it brings agents, but empty does not fill pyagent_register_agents"),
    "misspelt": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agent(): return []",
        "fills the hook pyagent_register_agent, which does not exist; did you mean 'pyagent_register_agents'?",
    ),
    "unmarked": ("def pyagent_register_agents(): return []", "without the mark @hookimpl"),
    "arguments": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(fleet): return []",
        "has pyagent_register_agents with the argument 'fleet'; that hook takes no arguments",
    ),
    "wrapper": (
        "from pyagent.plugin import hookimpl\n@hookimpl(wrapper=True)\ndef pyagent_register_agents(): return (yield)",
        "wrappers are not supported",
    ),
    "fails": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): return [][0]",
        "failed in pyagent_register_agents: IndexError",
    ),
    "lazy": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): import not_there_either",
        "needs the package 'not-there-either'",
    ),
    "returns": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): return 'agents'",
        "returned str from pyagent_register_agents, expected a sequence of agents",
    ),
    "nameless": (
        "from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): return [object()]",
        "expected agents: instances with a `name` without spaces",
    ),
    "runless": (
        "from types import SimpleNamespace as N\nfrom pyagent.plugin import hookimpl\n"
        "@hookimpl\ndef pyagent_register_agents(): return [N(name='a', description='d')]",
        "expected agents with `run`",
    ),
    "twice": (
        "from types import SimpleNamespace as N\nfrom pyagent.plugin import hookimpl\n"
        "async def run(context, task): pass\n"
        "@hookimpl\ndef pyagent_register_agents(): return [N(name='a', description='d', run=run)] * 2",
        "brings the name 'a' twice",
    ),
}


AGENT = """
    from pyagent.plugin import hookimpl

    class Agent:
        name = "odd"
        description = "d"
        {}

    @hookimpl
    def pyagent_register_agents():
        return [Agent()]
"""


RUN = "async def run(self, context, task): return 'done'"


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_plugin_is_quarantined(install: Install, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Whatever is wrong with a plugin, it is named with the reason, once, and the others go on."""
    source, reason = BROKEN[kind]
    install(kind, source)
    install("poet", AGENTS.format(name="haiku"))
    host = discover()
    with caplog.at_level(logging.WARNING, "pyagent.plugins"):
        assert "haiku" in host.agents()
        host.agents()
    info = info_of(host, kind)
    assert info.state == "quarantined"
    assert reason in info.reason
    assert info.provides == {}
    said = [record.getMessage() for record in caplog.records if kind in record.getMessage()]
    assert said == [f"plugin {kind} is quarantined, the program goes on without it: {info.reason}"]


def test_circle_between_plugins_spares_the_built_ins(install: Install) -> None:
    """Plugins whose agents need each other are out, by name, and the built-in agents stay."""
    for name, other in (("rhyme", "metre"), ("metre", "rhyme")):
        install(name, AGENT.replace('"odd"', f'"{name}"').format(f"needs = ('{other}',)\n        " + RUN))
    host = PluginHost.discover(Plugins())
    agents = host.agents()
    assert any("circle: " in info_of(host, name).reason for name in ("rhyme", "metre"))
    assert {"summarize", "reasoning"} <= set(agents)
    assert not {"rhyme", "metre"} & set(agents)


def test_winner_does_not_depend_on_the_order_of_a_folder(install: Install) -> None:
    """Third-party plugins stand by name, whatever order they were installed in."""
    for name in ("zeta", "beta", "alpha"):
        install(name, AGENTS.format(name="haiku"))
    assert [info.name for info in discover().plugins() if info.name not in BUILTINS] == ["alpha", "beta", "zeta"]


def test_ctrl_c_passes_through_a_loading_plugin(install: Install) -> None:
    """Ctrl+C while a plugin loads ends the program, not the plugin."""
    install("poet", "raise KeyboardInterrupt")
    host = discover()
    with pytest.raises(KeyboardInterrupt):
        host.agents()


def test_missing_module_of_the_plugin_itself_is_a_broken_installation(install: Install) -> None:
    """An entry point to a module that is not there asks for a new installation, not for another package."""
    install("poet")
    host = discover()
    host.agents()
    assert "names the module 'poet', which is not there; reinstall the package" in info_of(host, "poet").reason


def test_missing_package_of_an_extra_names_the_extra(install: Install) -> None:
    """When the plugin lists the absent package under an extra, the sentence names that extra."""
    install("poet", "import rhyme_book.sonnets", requires='rhyme-book (>=1.0) ; extra == "rhymes"')
    host = discover()
    host.agents()
    assert info_of(host, "poet").reason == (
        "needs the package 'rhyme-book', which is not installed: pip install rhyme-book"
    )


@pytest.mark.parametrize(
    ("entries", "hint"),
    [("poet.agnets = poet", "did you mean 'agents'?"), ("poet.zzz = poet", "it may need a newer PyAgent")],
)
def test_unknown_noun_is_quarantined_by_metadata(install: Install, entries: str, hint: str) -> None:
    """A noun that no hook is for is told at discovery, with the nearest one."""
    install("poet", "1 / 0", entries=entries)
    info = info_of(discover(), "poet")
    assert info.state == "quarantined"
    assert hint in info.reason


def test_broken_metadata_hides_nobody(install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A distribution whose metadata cannot be read is passed over with a warning."""
    install("poet", AGENTS.format(name="haiku"))
    bad = tmp_path / "site/bad-1.0.dist-info"
    bad.mkdir()
    (bad / "entry_points.txt").write_bytes(b"[pyagent]\nx.agents = \xff\xfe")
    odd = tmp_path / "site/odd-1.0.dist-info"
    odd.mkdir()
    (odd / "entry_points.txt").write_text("[pyagent]\nno equals sign here\n")
    assert "haiku" in discover().agents()
    assert "cannot be read" in caplog.text


def test_quarantine_takes_back_what_a_plugin_brought() -> None:
    """A plugin that fails in one hook is out of all of them, and the name it held goes to the next."""

    class Half:
        name = "haiku"
        description = "d"

        async def run(self, context: object, task: object) -> str:
            return "done"

        @hookimpl
        def pyagent_register_agents(self) -> list[object]:
            return [self]

        @hookimpl
        def pyagent_register_tools(self) -> list[object]:
            raise OSError("no disk")

    host = PluginHost()
    host.register(Half(), "half")
    other = agents_plugin("haiku")
    host.register(other, "other")
    assert isinstance(host.agents()["haiku"], Half)
    assert host.tools() == {}
    assert host.agents()["haiku"].home is other  # type: ignore[attr-defined]
