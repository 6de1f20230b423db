"""Factories of backends that break, and schemes that are none."""

from __future__ import annotations

import pytest
from support.plugins import info_of

from pyagent.core.backends import LinkSpec
from pyagent.core.config import Settings
from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.hooks import hookimpl
from pyagent.core.plugins import PluginHost
from pyagent.testing import EchoBackend


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
