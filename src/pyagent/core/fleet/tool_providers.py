"""Tool providers: what brings a fleet tools only once it is open, such as the client of a tool server.

The fleet opens its providers on its first run, side by side and with a deadline, and closes them with itself. One that
fails, hangs or brings nonsense is named in a warning and left out; the fleet works with the tools of the others.
Invariants: each is opened once, none is opened after the close, and each that began to open is closed. Knows no agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context as ContextVariables
from typing import Protocol, cast

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.fleet.containment import Call, close_all
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.resilience.deadline import Deadline

logger = logging.getLogger(__name__)
OPEN_SECONDS = 10.0
"""How long a tool provider may take to open."""


class ToolProvider(Protocol):
    """Brings tools while it is open. `open` and `close` run in tasks of their own, on the fleet's event loop.

    What has to be entered and left in one task, as anyio's task groups, belongs in a task that `open` begins.
    """

    name: str

    async def open(self) -> Sequence[FleetTool]:
        """Connect, and return the tools there are. It is cancelled after ten seconds.

        A list that changes later is read again by each run that begins.
        """
        ...

    async def close(self) -> None:
        """Release everything, also what an `open` that failed left behind. It has five seconds."""
        ...


class OpenTools:
    """A fleet's tools: its own, and those of the providers once they are open."""

    def __init__(self, own: Mapping[str, FleetTool], providers: Iterable[ToolProvider]) -> None:
        self._own = dict(own)
        self._providers = list(providers)
        self._opening: asyncio.Task[list[Sequence[FleetTool]]] | None = None
        self._opened: list[ToolProvider] = []
        self._reading = asyncio.Lock()
        self._read: list[list[FleetTool]] | None = None
        self._tools: dict[str, FleetTool] = self._own

    async def get(self, deadline: Deadline) -> Mapping[str, FleetTool]:
        """Return the tools by name, after opening the providers. Raises `DeadlineError` when there is no time for it.

        A run that ends while it waits leaves the opening to the others.
        """
        if not self._providers:
            return self._own
        if self._opening is None or self._opening.cancelled():
            # In a context of its own: what providers begin outlives the run, and must not read files in its name.
            self._opening = asyncio.create_task(self._open_all(), name="tool providers", context=ContextVariables())
        brought = await deadline.bound(asyncio.shield(self._opening), "the tool providers")
        return await deadline.bound(self._current(brought), "the tools of the tool providers")

    def known(self) -> Mapping[str, FleetTool] | None:
        """Return the tools where that opens no provider; None where one was not opened, or brought nothing."""
        if self._providers and (self._read is None or not all(self._read)):
            return None
        return self._tools

    def replace_own(self, own: Mapping[str, FleetTool]) -> None:
        """Have runs that begin from now on use these in place of the fleet's own tools."""
        self._own = self._tools = dict(own)
        self._read = None

    async def close(self) -> None:
        """Close what was opened. A provider still opening is given up."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        opened, self._opened = self._opened, []
        await close_all({f"the tool provider {provider.name}": provider.close for provider in reversed(opened)})

    async def _open_all(self) -> list[Sequence[FleetTool]]:
        self._opened = list(self._providers)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_tools_of(provider)) for provider in self._providers]
        return [task.result() for task in tasks]

    async def _current(self, brought: list[Sequence[FleetTool]]) -> Mapping[str, FleetTool]:
        """Return the tools as they are now; they are checked again where a provider has changed its own."""
        async with self._reading:
            read = [list(tools) for tools in brought]
            if read != self._read:
                self._tools = await self._checked(read)
                self._read = read
            return self._tools

    async def _checked(self, brought: list[list[FleetTool]]) -> dict[str, FleetTool]:
        """Return all tools by name, without those whose schema is broken or whose name is taken."""
        tools = dict(self._own)
        for provider, own in zip(self._providers, brought, strict=True):
            faults = await asyncio.to_thread(_faults, own)
            for place, tool in enumerate(own):
                if place in faults:
                    logger.warning("the tool provider %s: %s; the tool is left out", provider.name, faults[place])
                elif tools.setdefault(tool.name, tool) is not tool:
                    text = "the tool provider %s brings a tool %r, whose name is taken; it is left out"
                    logger.warning(text, provider.name, tool.name)
        return tools


async def _tools_of(provider: ToolProvider) -> Sequence[FleetTool]:
    """Return what a provider brings; nothing, and a warning that names it, when it fails or is late."""
    what, deadline = f"the tool provider {provider.name}", Deadline.after(OPEN_SECONDS)
    try:
        return _fleet_tools(await Call(what, provider.open, PyAgentError, deadline).result())
    except Exception as error:  # noqa: BLE001 - other people's code; the fleet works without it
        kind = "" if isinstance(error, PyAgentError) else f"{type(error).__name__}: "
        logger.warning("%s is left out, the fleet works without its tools: %s%s", what, kind, error)
        return []


def _fleet_tools(opened: object) -> Sequence[FleetTool]:
    """Return the tools as they were given; raises `TypeError` when that is not what was given."""
    if not isinstance(opened, Sequence) or isinstance(opened, str | bytes):
        raise TypeError(f"it gave a {type(opened).__name__}, expected a sequence of FleetTools: {opened!r:.80}")
    for tool in cast("Sequence[object]", opened):
        if not isinstance(tool, FleetTool):
            raise TypeError(f"it gave a {type(tool).__name__} among its tools, expected FleetTools: {tool!r:.80}")
    return cast("Sequence[FleetTool]", opened)


def _faults(tools: Sequence[FleetTool]) -> dict[int, str]:
    """Return what is wrong with the schemas of tools, by their places."""
    faults: dict[int, str] = {}
    for place, tool in enumerate(tools):
        try:
            tool.check()
        except RequestError as error:
            faults[place] = str(error)
    return faults
