"""Plugins of a test: distributions in a folder on the path, and a host that uses them alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from pyagent.core.found_plugin import PluginInfo
from pyagent.core.hooks import hookimpl
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins

Install = Callable[..., None]


AGENTS = """
    from types import SimpleNamespace
    from pyagent.plugin import hookimpl

    async def run(context, task):
        return "done"

    @hookimpl
    def pyagent_register_agents():
        return [SimpleNamespace(name="{name}", description="d", run=run, home=__name__)]
"""


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
