"""The tool `propose_change`: a patch that is kept when it passes its checks. Off unless the settings allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.tools.change_check import Outcome, check
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.programs import ProgramLimits
from pyagent.infrastructure.tools.proposals import Proposal, read_proposal


def propose_change_tool(
    root: Path, store: ChangeStore, limits: ProgramLimits, *, test: str, protected: Sequence[str]
) -> FleetTool:
    """Return the tool for a folder; the test is the settings', which a model cannot choose."""

    async def propose_change(
        patch: Annotated[str, msgspec.Meta(description="A unified diff: ---, +++, @@ and lines.", min_length=1)],
    ) -> str:
        """Change files by a patch, all or none: only where they compile, are imported and the tests pass."""
        if current_access().is_limited:
            raise RequestError("a client of a server may change no files", param="tool")
        proposal = await asyncio.to_thread(read_proposal, root, patch, protected)
        outcomes = await check(proposal, limits, test)
        if not all(outcome.passed for outcome in outcomes):
            return f"{told(proposal, outcomes)}\nnothing is changed"
        change = await asyncio.to_thread(proposal.keep, store)
        return f"{told(proposal, outcomes)}\nchanged {len(proposal.files)} files; undo_change takes {change} back"

    return tool(needs_approval=True)(propose_change)


def told(proposal: Proposal, outcomes: Sequence[Outcome]) -> str:
    """Return how each check ended, a line each, why the last did not pass, and what weakens the test."""
    lines = [f"{outcome.check}: {'passed' if outcome.passed else 'failed'}" for outcome in outcomes]
    if own := proposal.judges_itself():
        lines.append(f"the change may decide its own test: it changes {', '.join(own):.500}")
    return "\n".join([*(lines or ["nothing to check: no Python file, no test"]), *(o.told for o in outcomes if o.told)])
