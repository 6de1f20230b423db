"""Every hook a plugin may fill, on one screen.

A plugin is a module (or object) named in the entry-point group ``pyagent`` as ``<plugin>.<noun> = "module"``, where the
noun is the last word of a hook below: ``haiku.agents = "pyagent_haiku"``. The names alone tell the host what a plugin
brings, so that it is imported only when that is needed. Hooks run at start-up and at the borders of a request, never
per token: the loop holds what they returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pyagent.core.backends import BackendFactory
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.tools import FleetTool

PROJECT_NAME = "pyagent"
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


class HookSpecs:
    """The hook specifications; `core.plugins` checks every implementation against them at registration."""

    @hookspec
    def pyagent_register_backends(self) -> Mapping[str, BackendFactory]:
        """Backends by scheme: `{"ollama": make_backend}`; the scheme is what a chain entry starts with."""
        ...

    @hookspec
    def pyagent_register_agents(self) -> Sequence[Agent]:
        """Specialist agents, ready to run; the router reads their descriptions."""
        ...

    @hookspec
    def pyagent_register_tools(self) -> Sequence[FleetTool]:
        """Tools that agents may call by name through their context."""
        ...
