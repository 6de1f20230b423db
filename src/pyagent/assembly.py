"""The composition root: settings become plugins, plugins a chain and agents, and these a fleet.

The command line, the server and programs (`pyagent.Fleet`) build on these functions and on nothing below them. What is
given by hand is used as it is; what is not comes from the settings and the installed plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyagent.core.backends import Backend, Link
from pyagent.core.chain import Chain
from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.fleet import orchestrator
from pyagent.core.plugins import PluginHost

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.journal import Journal
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.storage.journal import FileJournal

__all__ = ["Fleet", "make_backend", "make_chain", "make_host", "make_journal"]


def make_host(settings: Settings) -> PluginHost:
    """The installed plugins, found but not imported."""
    return PluginHost.discover(settings.plugins)


def make_backend(entry: str, settings: Settings, host: PluginHost) -> Backend:
    """The backend of one chain entry.

    Raises `ConfigError` naming the schemes there are, `PluginError` when the plugin that brings it is broken.
    """
    link = Link.parse(entry)
    factories = host.backends()
    if link.scheme not in factories:
        for plugin in host.plugins():
            if plugin.state == "quarantined" and plugin.name == link.scheme:
                raise PluginError(f"the backend {link.scheme!r} is not there: {plugin.reason}", plugin=plugin.name)
        nearest = get_close_matches(link.scheme, factories, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(sorted(factories)) or 'none'}"
        raise ConfigError(f"no plugin brings the backend {link.scheme!r} (chain entry {entry!r}); {hint}", key="chain")
    return factories[link.scheme](link, settings)


def make_chain(settings: Settings, host: PluginHost, entries: Sequence[str] | None = None) -> Chain:
    """The chain of the settings, or of `entries`; models load and sockets open on first use.

    A link whose plugin is broken is left out with a warning while another is left; a misspelt one is an error.
    """
    links: list[Backend] = []
    broken: list[PluginError] = []
    for entry in settings.chain if entries is None else entries:
        try:
            links.append(make_backend(entry, settings, host))
        except PluginError as error:
            broken.append(error)
    if not links and broken:
        raise broken[0]
    if broken:
        _warn_left_out(broken)
    return Chain(links, private=settings.rules.private)


def _warn_left_out(broken: Sequence[PluginError]) -> None:
    from pyagent.infrastructure.observability.logging import WarningScope, warn_once

    scope = WarningScope("chain")
    for error in broken:
        warn_once(scope, error.plugin, "a link of the chain is left out", reason=str(error))


def make_journal(settings: Settings) -> FileJournal:
    """The journal in the settings' data folder."""
    from pyagent.infrastructure.storage.journal import FileJournal

    return FileJournal(settings.paths.data / "journal")


class Fleet(orchestrator.Fleet):
    """A fleet with everything in place: `async with pyagent.Fleet() as fleet: async for event in fleet.run("...")`.

    Without arguments it reads `pyagent.toml` and uses the installed plugins. A backend given is the caller's to close.
    """

    def __init__(  # noqa: PLR0913 - each stands in for one thing the settings would bring
        self,
        settings: Settings | None = None,
        *,
        backend: Backend | None = None,
        agents: Iterable[Agent] | None = None,
        tools: Iterable[FleetTool] | None = None,
        journal: Journal | None = None,
        host: PluginHost | None = None,
    ) -> None:
        if settings is None:
            from pyagent.core.config import load_settings

            settings = load_settings().settings
        host = make_host(settings) if host is None else host
        self._is_backend_owned = backend is None
        limits = orchestrator.FleetLimits(
            run_tokens=settings.budget.run.tokens,
            run_seconds=settings.budget.run.seconds,
            max_concurrency=settings.fleet.max_concurrency,
        )
        super().__init__(
            make_chain(settings, host) if backend is None else backend,
            host.agents().values() if agents is None else agents,
            host.tools().values() if tools is None else tools,
            journal=make_journal(settings) if journal is None else journal,
            limits=limits,
        )
        self.settings = settings
        self.host = host

    async def close(self) -> None:
        """End the runs, close the agents, and the chain when it was made here."""
        await super().close()
        if self._is_backend_owned:
            await self.backend.close()
