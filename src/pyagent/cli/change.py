"""`pyagent change`: check a patch in a copy, and keep it when it passes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal, write_json
from pyagent.cli.startup import read_settings
from pyagent.core.errors import RequestError

if TYPE_CHECKING:
    from pyagent.infrastructure.tools.change_check import Outcome
    from pyagent.infrastructure.tools.proposals import Proposal

app = typer.Typer(
    add_completion=False, help="Check a patch in a copy, and keep it when it passes.", no_args_is_help=True
)
_FAILED = 1


@app.callback()
def change() -> None:
    """Check a patch in a copy, and keep it when it passes."""


@app.command("check")
def check_patch(
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="A file with a unified diff.")],
    test: Annotated[
        str | None, typer.Option("--test", metavar="COMMAND", help="Has to pass; without it tools.change_test.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Keep what passes without asking.")] = False,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The folder that is changed, instead of tools.root.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Check a patch in a copy: its Python files compile, are imported, and a test passes. Kept when you say so."""
    from pyagent.infrastructure.tools.built_in import CHANGES
    from pyagent.infrastructure.tools.change_check import check
    from pyagent.infrastructure.tools.changes import ChangeStore
    from pyagent.infrastructure.tools.programs import ProgramLimits
    from pyagent.infrastructure.tools.proposals import read_proposal

    settings = read_settings(config)
    tools = settings.tools
    folder = (root or tools.root).expanduser().resolve()
    if not folder.is_dir():
        raise RequestError(f"there is no folder {str(folder)!r}", param="root")
    proposal = read_proposal(folder, _read(patch), tools.protect)
    if not as_json:
        sys.stdout.write(for_terminal(proposal.shown()) + "\n")
    limits = ProgramLimits(tools.seconds, tools.memory, uses_network=tools.network)
    outcomes = asyncio.run(check(proposal, limits, tools.change_test if test is None else test))
    passed = all(outcome.passed for outcome in outcomes)
    is_kept = passed and (yes or (not as_json and _is_wanted(proposal, outcomes)))
    change_id = proposal.keep(ChangeStore(settings.paths.data / CHANGES)) if is_kept else ""
    if as_json:
        files = [file.name for file in proposal.files]
        write_json({"passed": passed, "checks": outcomes, "files": files, "change": change_id})
    else:
        _tell(proposal, outcomes, change_id, is_told=passed and not yes)
    return 0 if passed else _FAILED


def _is_wanted(proposal: Proposal, outcomes: list[Outcome]) -> bool:
    """Tell what passed, and ask; where no terminal is, nothing is kept."""
    from pyagent.infrastructure.tools.propose_change import told

    sys.stderr.write(for_terminal(told(proposal, outcomes)) + "\n")
    return sys.stdin.isatty() and typer.confirm("keep the change?", err=True)


def _tell(proposal: Proposal, outcomes: list[Outcome], change_id: str, *, is_told: bool) -> None:
    from pyagent.infrastructure.tools.propose_change import told

    if not is_told:
        sys.stderr.write(for_terminal(told(proposal, outcomes)) + "\n")
    if change_id:
        sys.stdout.write(f"changed {len(proposal.files)} files\npyagent replace --undo {change_id}   takes it back\n")
    else:
        sys.stderr.write("nothing is changed\n" if not is_told else "nothing is changed; --yes keeps what passes\n")


def _read(patch: Path) -> str:
    from pyagent.infrastructure.tools.patches import MAX_PATCH_CHARACTERS

    try:
        with patch.expanduser().open("rb") as file:
            return file.read(4 * MAX_PATCH_CHARACTERS + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise RequestError(f"the patch {str(patch)!r} cannot be read: {told}", param="patch") from error
