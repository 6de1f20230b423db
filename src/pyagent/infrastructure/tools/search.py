"""Tools that search what was said and done before, and the files of the tools' folder, by words and by meaning.

An agent finds the runs of its own tenant only, and not the run that it is in. A client of a server that has no key
shares its tenant with the person at the machine, so it finds none. What is found is data, and marked as such.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.search import SearchResult
from pyagent.infrastructure.storage.search.service import MAX_HITS, Search

_MAX_HIT_CHARACTERS = 1_200
Words = Annotated[str, msgspec.Meta(description="Words that what is looked for has, or that mean the like.")]
Limit = Annotated[int, msgspec.Meta(description="Passages to return, at most.", ge=1, le=MAX_HITS)]


def search_tools(search: Search, root: Path | None) -> list[FleetTool]:
    """Return the tools: for past runs, and for files where there is a folder that they may read."""

    @tool(effect="none")
    async def search_memory(query: Words, context: Context, limit: Limit = 5) -> str:
        """Find passages of past runs: their tasks, answers and results."""
        if current_access().is_limited and not context.tenant:
            text = "a client without a key has no past runs of its own to search; server.keys gives clients keys"
            raise RequestError(text, param="query")
        return _told(await search.runs(query, tenant=context.tenant, limit=limit, without=context.run.id))

    @tool(effect="none")
    async def find_passages(query: Words, limit: Limit = 5) -> str:
        """Find the passages of files that fit some words best; search_files finds lines letter by letter."""
        access = current_access()
        below = access.root if access.is_limited else root
        if below is None:
            raise RequestError(
                "agents of this run read no files; server.files_root names a folder for clients", param="path"
            )
        return _told(await search.files(query, below, limit=limit))

    return [search_memory, *([] if root is None else [find_passages])]


def _told(result: SearchResult) -> str:
    """Return what was found as data: a line about each passage, then its lines, each quoted."""
    if not result.hits:
        return f"[nothing found in {result.num_passages} passages]"
    parts: list[str] = []
    for hit in result.hits:
        lines = hit.text[:_MAX_HIT_CHARACTERS].strip().splitlines()
        parts.append("\n".join([f"{hit.source}:{hit.place}", *(f"> {line}" for line in lines)]))
    return "\n\n".join([*parts, *([f"[{result.note}]"] if result.note else [])])
