"""Plugins loaded anew in a running server: the host first, then the chain's links, then the fleet.

Requests and runs under way end with what they began with; those that begin get the new plugin. Of what an engine is
made of, the next start takes the new one. What is no longer used is closed when nothing runs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyagent.assembly import make_link
from pyagent.core.errors import PluginError, PyAgentError
from pyagent.core.fleet.containment import close_all
from pyagent.core.guarded_backend import GuardedBackend
from pyagent.infrastructure.backends.found import FoundLink
from pyagent.infrastructure.server.plugin_routes import PluginChange

if TYPE_CHECKING:
    from pyagent.core.backends import Backend
    from pyagent.core.chain.chain import Chain
    from pyagent.core.chain.settings import LinkSettings
    from pyagent.core.found_plugin import PluginInfo
    from pyagent.core.plugins import PluginHost
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.server.agents import AgentBackend

_RUNS, _REQUESTS, _START = "runs that begin from now on", "requests that begin from now on", "the next start"
_SINCE: Mapping[str, str] = {
    "agents": _RUNS,
    "tools": _RUNS,
    "tool_providers": _RUNS,
    "guardrails": _RUNS,
    "backends": _REQUESTS,
    "commands": "the next command",
}
_LOOK_SECONDS = 0.5


class PluginReloader:
    """Loads plugins of a running server anew, one at a time."""

    def __init__(self, settings: Settings, host: PluginHost, chain: Chain, agents: AgentBackend) -> None:
        self._settings = settings
        self._host = host
        self._chain = chain
        self._agents = agents
        self._lock = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    def plugins(self) -> list[PluginInfo]:
        """Return the plugins as this server has them."""
        return self._host.plugins()

    async def reload(self, name: str) -> PluginChange:
        """Load a plugin anew. Raises `PluginError`: the one before is then used on."""
        async with self._lock:
            schemes = self._schemes_of(name)
            info = await asyncio.to_thread(self._host.reload, name)
            problem = self._renew_links(name, {*schemes, *info.provides.get("backends", ())})
            await self._renew_fleet()
            if problem is not None:
                text = f"the plugin {name!r} is loaded, but its links stay as they were: {problem}"
                raise PluginError(text, plugin=name)
            return PluginChange(plugin=info, used_by={noun: _SINCE.get(noun, _START) for noun in info.provides})

    async def unload(self, name: str) -> PluginChange:
        """Take a plugin out of use. Raises `PluginError` for one that a link of the chain is of."""
        async with self._lock:
            for scheme in self._schemes_of(name):
                if names := [link.name for link in self._chain.links if link.name.partition(":")[0] == scheme]:
                    text = f"the plugin {name!r} is used by the link {names[0]}; take it out of `chain` and start anew"
                    raise PluginError(text, plugin=name)
            info = await asyncio.to_thread(self._host.unload, name)
            await self._renew_fleet()
            return PluginChange(plugin=info, used_by={})

    async def close(self) -> None:
        """Close what is no longer used, without waiting for what runs on it."""
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def _schemes_of(self, name: str) -> tuple[str, ...]:
        infos = [info for info in self._host.plugins() if info.name == name]
        return infos[0].provides.get("backends", ()) if infos else ()

    def _renew_links(self, name: str, schemes: Iterable[str]) -> PyAgentError | None:
        """Make the links of these schemes anew; return what went wrong."""

        def make(before: Backend, link: LinkSettings) -> Backend:
            if isinstance(before, FoundLink):
                return before.anew()
            backend = make_link(link, self._settings, self._host)
            if backend.name != before.name:
                raise PluginError(f"its link {before.name} would now be called {backend.name}", plugin=name)
            return backend

        for scheme in sorted(schemes):
            try:
                before = self._chain.renew(scheme, make)
            except PyAgentError as error:
                return error
            for backend in before:
                self._retire(backend)
        return None

    async def _renew_fleet(self) -> None:
        from pyagent.fleet import Fleet

        fleet = self._agents.current
        if isinstance(fleet, Fleet):
            await fleet.renew()

    def _retire(self, backend: Backend) -> None:
        task = asyncio.create_task(_close_when_idle(backend), name=f"close {backend.name}, which was replaced")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


async def _close_when_idle(backend: Backend) -> None:
    """Close a backend when nothing is asked of it any more; at once when cancelled.

    A call that was about to be made when the backend was replaced is under way at the first look.
    """
    made = backend.made if isinstance(backend, FoundLink) else backend
    try:
        await asyncio.sleep(_LOOK_SECONDS)
        while isinstance(made, GuardedBackend) and made.num_running:  # noqa: ASYNC110 - looked at rarely, for minutes
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await close_all({f"the backend {backend.name} before": backend.close})
