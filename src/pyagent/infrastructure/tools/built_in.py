"""The built-in tools that the settings allow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.files import FileTools
from pyagent.infrastructure.tools.memory import memory_tools

if TYPE_CHECKING:
    from pyagent.core.settings import Tools
    from pyagent.infrastructure.storage.search.service import Search
    from pyagent.infrastructure.tools.programs import ProgramLimits


CHANGES = "changes"
"""The folder below `paths.data` that keeps what changes of many files replaced."""


def built_in_tools(settings: Tools, data: Path, search: Search | None = None) -> list[FleetTool]:
    """Return the tools for files, programs, pages and past runs, as far as the settings allow them.

    `data` is `paths.data`.
    """
    root = Path(settings.root).expanduser().resolve()
    store = ChangeStore(data / CHANGES)
    files = FileTools(root, store)
    tools = [] if settings.files == "off" else files.reading()
    if settings.files == "write":
        tools += files.writing()
    has_changes = settings.changes and settings.files == "write"
    if settings.shell or settings.python or has_changes:
        from pyagent.infrastructure.tools.programs import ProgramLimits, python_tool, shell_tool

        limits = ProgramLimits(settings.seconds, settings.memory, uses_network=settings.network)
        tools += [_propose_change(root, store, limits, settings)] if has_changes else []
        tools += [shell_tool(root, limits)] if settings.shell else []
        tools += [python_tool(limits)] if settings.python else []
    if settings.http_hosts:
        from pyagent.infrastructure.tools.http import http_tool

        tools.append(http_tool(settings.http_hosts, allows_private=settings.http_private))
    tools += memory_tools()
    if search is not None:
        from pyagent.infrastructure.tools.search import search_tools

        tools += search_tools(search, None if settings.files == "off" else root)
    return tools


def _propose_change(root: Path, store: ChangeStore, limits: ProgramLimits, settings: Tools) -> FleetTool:
    from pyagent.infrastructure.tools.propose_change import propose_change_tool

    return propose_change_tool(root, store, limits, test=settings.change_test, protected=settings.protect)
