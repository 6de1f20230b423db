"""Which plugin wins a name: by settings, by marks, by hand."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.plugins import AGENTS, Install, agents_plugin, discover, info_of

from pyagent.core.errors import PluginError
from pyagent.core.hooks import hookimpl
from pyagent.core.plugins import PluginHost


def test_two_distributions_with_one_plugin_name(install: Install) -> None:
    """The first distribution on `sys.path` keeps the plugin name; the other is listed with what to do."""
    install("poet", AGENTS.format(name="haiku"))
    install("verse", AGENTS.format(name="sonnet"), entries="poet.agents = verse")
    host = discover()
    names = {info.name: info for info in host.plugins()}
    used, shadowed = names["poet"], next(info for name, info in names.items() if name.startswith("poet@"))
    assert used.state == "idle"
    assert shadowed.state == "quarantined"
    assert f"taken by {used.distribution}" in shadowed.reason


def test_first_in_order_wins_and_the_clash_is_told(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    """Of two plugins with one agent name the first is used, the clash is listed, and `plugins.order` decides."""
    install("alpha", AGENTS.format(name="haiku"))
    install("omega", AGENTS.format(name="haiku"))
    for order in (["alpha"], ["omega"]):
        host = discover(order=order)
        assert host.agents()["haiku"].home == order[0]  # type: ignore[attr-defined]
        assert [clash.winner for clash in host.clashes()] == order
    assert discover().agents()["haiku"].home == "alpha", "without an order, by name"  # type: ignore[attr-defined]
    assert not caplog.records, "every command would be too often"


def test_marks_order_what_the_settings_do_not(install: Install) -> None:
    """pluggy's tryfirst and trylast order plugins; what `plugins.order` names comes before them."""
    marked = AGENTS.replace("@hookimpl", "@hookimpl({mark}=True)")
    install("last", marked.format(name="haiku", mark="trylast"))
    install("plain", AGENTS.format(name="haiku"))
    install("early", marked.format(name="haiku", mark="tryfirst"))
    assert discover().agents()["haiku"].home == "early"  # type: ignore[attr-defined]
    assert discover(disable=["early"]).agents()["haiku"].home == "plain"  # type: ignore[attr-defined]
    assert discover(order=["last"]).agents()["haiku"].home == "last"  # type: ignore[attr-defined]


def test_plugin_by_hand_comes_first(install: Install) -> None:
    """What a program registers itself wins over what is installed, also after that was loaded."""
    install("poet", AGENTS.format(name="haiku"))
    host = discover()
    assert host.agents()["haiku"].home == "poet"  # type: ignore[attr-defined]
    mine = agents_plugin("haiku", "sonnet")
    host.register(mine, "mine")
    assert host.agents()["haiku"].home is mine  # type: ignore[attr-defined]
    assert set(host.agents()) >= {"haiku", "sonnet"}
    assert info_of(host, "mine").nouns == ("agents",)


def test_wrong_plugin_by_hand_is_the_callers_error() -> None:
    """Registering a wrong object raises, naming plugin, hook and argument."""

    class Wrong:
        @hookimpl
        def pyagent_register_tools(self, budget: int) -> list[object]:
            return [budget]

    host = PluginHost()
    with pytest.raises(PluginError, match="'budget'; that hook takes no arguments") as caught:
        host.register(Wrong(), "wrong")
    assert (caught.value.plugin, caught.value.hook) == ("wrong", "pyagent_register_tools")
    with pytest.raises(PluginError, match="is the class Wrong; register an instance"):
        host.register(Wrong, "wrong")
    host.register(agents_plugin("a"), "right")
    with pytest.raises(PluginError, match="called 'right' is there already"):
        host.register(agents_plugin("b"), "right")
    assert [info.name for info in host.plugins()] == ["right"]


def test_disabled_by_hand_is_not_used() -> None:
    """The settings disable a plugin registered by hand too."""
    host = PluginHost(disable=["mine"])
    host.register(agents_plugin("a"), "mine")
    assert host.agents() == {}
    assert info_of(host, "mine").state == "disabled"


def test_modules_may_be_registered() -> None:
    """A module is registered as an object is."""
    module = ModuleType("by_hand")
    exec("from pyagent.plugin import hookimpl\n@hookimpl\ndef pyagent_register_agents(): return []", module.__dict__)
    host = PluginHost()
    host.register(module, "module")
    assert host.agents() == {}
    assert info_of(host, "module").state == "loaded"
