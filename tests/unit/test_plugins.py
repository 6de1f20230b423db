"""The plugin host: what is found, when it is imported, who wins, and what happens to the broken ones."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

import pyagent.plugin
from pyagent.cli.plugins import app
from pyagent.core.backends import LinkSpec
from pyagent.core.config import Settings
from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.hooks import hookimpl
from pyagent.core.plugin_checks import NOUNS
from pyagent.core.plugins import PluginHost, PluginInfo
from pyagent.core.settings import Plugins
from pyagent.testing import EchoBackend

Install = Callable[..., None]
ROOT = Path(__file__).parents[2]

AGENTS = """
    from types import SimpleNamespace
    from pyagent.plugin import hookimpl

    async def run(context, task):
        return "done"

    @hookimpl
    def pyagent_register_agents():
        return [SimpleNamespace(name="{name}", description="d", run=run, home=__name__)]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a distribution with entry points and a module into a folder on `sys.path`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def write(
        name: str,
        source: str = "",
        *,
        entries: str | None = None,
        requires: str = "",
        version: str = "1.0",
        module: str = "",
    ) -> None:
        module = module or name.replace("-", "_")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        requirement = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}")
        lines = entries if entries is not None else f"{name}.agents = {module}"
        (info / "entry_points.txt").write_text(f"[pyagent]\n{lines}\n")
        if source:
            (site / f"{module}.py").write_text(textwrap.dedent(source))

    yield write  # type: ignore[misc]
    for module in set(sys.modules) - before:
        del sys.modules[module]


BUILTINS = [info.name for info in PluginHost.discover(Plugins()).plugins()]


def discover(*, disable: Sequence[str] = (), order: Sequence[str] = ()) -> PluginHost:
    """A host that uses the plugins of the test alone."""
    return PluginHost.discover(Plugins(disable=[*disable, *BUILTINS], order=[*order]))


def info_of(host: PluginHost, name: str) -> PluginInfo:
    return next(info for info in host.plugins() if info.name == name)


async def _run(context: object, task: object) -> str:
    return "done"


def agents_plugin(*names: str, **marks: bool) -> object:
    class Plugin:
        @hookimpl(**marks)  # type: ignore[call-overload]
        def pyagent_register_agents(self) -> list[object]:
            return [SimpleNamespace(name=name, description="d", run=_run, home=self) for name in names]

    return Plugin()


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
BROKEN |= {
    f"agent-{kind}": (AGENT.format(lines), reason)
    for kind, lines, reason in [
        ("sync", "def run(self, context, task): return 'x'", "whose `run` is not `async def run(self, context, task)`"),
        ("short", "async def run(self, task): return 'x'", "whose `run` takes (task), expected (context, task)"),
        ("yields", "async def run(self, context, task): yield 'x'", "whose `run` is an async generator"),
        ("silent", "description = None\n        " + RUN, "whose `description` is None, expected a text"),
        ("needy", "needs = 'nobody'\n        " + RUN, "whose `needs` is 'nobody', expected a sequence"),
        ("lonely", "needs = ('haikus',)\n        " + RUN, "needs 'haikus', which no enabled plugin brings"),
        ("circle", "needs = ('odd',)\n        " + RUN, "agents need each other in a circle: odd -> odd"),
        ("scores", RUN + "\n        async def score(self, task): return 1.0", "whose `score` is not `def score(self, "),
        ("closes", RUN + "\n        async def close(self, how): pass", "whose `close` is not `async def close(self)`"),
        ("slash", "name = 'a/b'", "without spaces and slashes"),
    ]
}


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


def test_disabled_plugin_is_listed_but_never_imported(install: Install) -> None:
    """`plugins.disable` keeps a plugin out, and the list says so."""
    install("poet", "raise SystemExit('imported')")
    host = discover(disable=["poet", "nobody"])
    assert "haiku" not in host.agents()
    assert info_of(host, "poet").state == "disabled"
    assert host.unknown_names() == ["nobody"]


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


def backends_plugin(**schemes: object) -> object:
    class Plugin:
        @hookimpl
        def pyagent_register_backends(self) -> object:
            return schemes

    return Plugin()


def test_backend_factory_failures_name_the_plugin() -> None:
    """A factory that raises, lacks a package or makes no backend is a `PluginError`; PyAgent's own errors pass."""

    def raises(link: LinkSpec, _: Settings) -> None:
        raise KeyError(str(link))

    def lacks(_: LinkSpec, __: Settings) -> None:
        import not_there_at_all  # noqa: F401  # pyright: ignore[reportMissingImports]

    def refuses(_: LinkSpec, __: Settings) -> None:
        raise ConfigError("bad target", key="chain")

    host = PluginHost()
    plugin = backends_plugin(
        echo=lambda _, __: EchoBackend(), raises=raises, lacks=lacks, refuses=refuses, wrong=lambda _, __: 3
    )
    host.register(plugin, "mine")
    factories = host.backends()
    assert factories["echo"](LinkSpec("echo"), Settings()).name == "echo"
    for scheme, reason in {
        "raises": "plugin 'mine' failed to make the backend raises:x: KeyError",
        "lacks": "plugin 'mine' needs the package 'not-there-at-all'",
        "wrong": "made a int for wrong:x, which is not a Backend",
    }.items():
        with pytest.raises(PluginError) as caught:
            factories[scheme](LinkSpec(scheme, "x"), Settings())
        assert reason in str(caught.value)
    with pytest.raises(ConfigError, match="bad target"):
        factories["refuses"](LinkSpec("refuses"), Settings())


def test_backend_factory_that_breaks_gives_way_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Of two plugins that bring a scheme the second makes the link where the first breaks; a wrong link is told."""

    def breaks(_: LinkSpec, __: Settings) -> None:
        raise SystemExit(3)

    def refuses(_: LinkSpec, __: Settings) -> None:
        raise ConfigError("bad target", key="chain")

    host = PluginHost()
    host.register(backends_plugin(echo=breaks, strict=refuses), "first")
    host.register(backends_plugin(echo=lambda _, __: EchoBackend(), strict=lambda _, __: EchoBackend()), "second")
    with caplog.at_level("WARNING"):
        assert host.backends()["echo"](LinkSpec("echo"), Settings()).name == "echo"
    assert "plugin 'first' failed to make the backend echo: SystemExit" in caplog.text
    with pytest.raises(ConfigError, match="bad target"):
        host.backends()["strict"](LinkSpec("strict"), Settings())
    host = PluginHost()
    host.register(backends_plugin(echo=breaks), "first")
    host.register(backends_plugin(echo=lambda _, __: 3), "second")
    with pytest.raises(PluginError, match="'first' failed"):
        host.backends()["echo"](LinkSpec("echo"), Settings())


@pytest.mark.parametrize("schemes", [{"a:b": print}, {"a": 3}, {"": print}])
def test_wrong_schemes_are_quarantined(schemes: dict[str, object]) -> None:
    """A scheme is text without a colon and comes with something to call."""
    host = PluginHost()
    host.register(backends_plugin(**schemes), "mine")
    assert host.backends() == {}
    assert "schemes without a colon" in info_of(host, "mine").reason


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


API = (
    "ABILITIES BLOCK_TOKENS Abilities Agent AgentError Answer Backend BackendError BackendFactory Batch BudgetError "
    "Capabilities CapacityError ChatDelta ChatRequest ConfigError Context ContextOverflowError Deadline DeadlineError "
    "Decline Dialect EmbedRequest EmbedResult EvictionPolicy EvictionPolicyFactory FailedAttempt FinishReason "
    "FleetTool FunctionCall FunctionDefinition Health Hint HttpPool ImagePart ImageUrl JsonCalls JsonSchemaFormat "
    "KvReservation LargestStep Likelihood LineReader LineTooLongError LinkSpec Message ModelError ModelInfo "
    "ModelNeeds ModelRunner NamedCalls Origin OutputParser PagedRunner Parsed Parts PluginError PreemptingPolicy "
    "PrefixKey PromptTokensDetails PyAgentError PythonCalls QueuePolicy QueuePolicyFactory Queued Reasoning "
    "ReasoningEffort RequestError ResponseFormat Role RunnerFactory RunnerInfo RunnerOptions SamplingParams Score "
    "Settings StepOutput TagDialect Task TextPart Timings TokenLogprob Tool ToolCall ToolCallDelta ToolProvider "
    "Unsupported UnsupportedError Usage WireError XmlCalls collect describe_model error_body estimated_tokens "
    "estimated_usage fulfil hookimpl read_headers readable_path trace_headers"
)


def test_plugin_api_is_pinned() -> None:
    """What plugins may import is this list; a change here is a change for their authors."""
    assert pyagent.plugin.__all__ == API.split()
    for name in pyagent.plugin.__all__:
        assert getattr(pyagent.plugin, name) is not None
    with pytest.raises(AttributeError, match="has no 'Nothing'"):
        _ = pyagent.plugin.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", sorted((ROOT / "plugins").iterdir()), ids=lambda folder: folder.name)
def test_shipped_plugins_use_the_public_api_alone(folder: Path) -> None:
    """The plugins in this repository import only `pyagent.plugin`, and in their tests `pyagent.testing`."""
    for file in folder.rglob("*.py"):
        nodes = [
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        ours = {name for name in names if name.partition(".")[0] == "pyagent"}
        assert ours <= ({"pyagent.plugin", "pyagent.testing"} if "tests" in file.parts else {"pyagent.plugin"})


def test_plugin_api_is_light() -> None:
    """Importing the plugin API brings neither settings, nor HTTP, nor logs with it."""
    heavy = ("pydantic", "httpx", "structlog", "starlette", "rich", "sympy", "torch")
    code = f"import pyagent.plugin, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.strip() == "[]"


def test_every_noun_has_a_method() -> None:
    """Each hook's noun is a method of the host."""
    assert all(callable(getattr(PluginHost, noun)) for noun in NOUNS)
