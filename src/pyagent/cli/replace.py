"""`pyagent replace`: search and replace in many files; shown first, all or none, and taken back by its id."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal, write_json
from pyagent.cli.startup import read_settings
from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.infrastructure.tools.bulk_replace import Plan, Replacement
    from pyagent.infrastructure.tools.changes import ChangeStore

app = typer.Typer(add_completion=False)
_SHOWN = 20
_LEFT = 1
"""The exit code where files were left alone that hold something else by now."""


@app.command()
def replace(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN REPLACEMENT PATH...", help="What to replace, by what, in which files."),
    ] = None,
    regex: Annotated[
        bool, typer.Option("--regex", help="PATTERN is a regular expression; $1 or ${name} stands for a group.")
    ] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Upper and lower case are alike.")] = False,
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="GLOB", help="Only files like this. May be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="GLOB", help="No files or folders like this.")
    ] = None,
    encoding: Annotated[str | None, typer.Option("--encoding", help="Of files that are not Unicode.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change as a diff.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Replace without asking.")] = False,
    undo: Annotated[str | None, typer.Option("--undo", metavar="ID", help="Take a replacement back.")] = None,
    finish: Annotated[
        str | None, typer.Option("--continue", metavar="ID", help="Finish a replacement that was interrupted.")
    ] = None,
    leave_changed: Annotated[
        bool, typer.Option("--leave-changed", help="With --undo or --continue: leave files that changed since.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List replacements that can be taken back.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Replace a text in many files: all of them or none, each whole at any instant, and undone by an id."""
    from pyagent.infrastructure.tools.built_in import CHANGES
    from pyagent.infrastructure.tools.bulk_replace import Replacement
    from pyagent.infrastructure.tools.changes import ChangeStore

    store = ChangeStore(read_settings(config).paths.data / CHANGES)
    if list_all or undo or finish:
        if words:
            raise RequestError("--list, --undo and --continue take no pattern and no files", param="paths")
        return _list(store, as_json=as_json) if list_all else _become(store, undo, finish, leave_changed=leave_changed)
    if not words or len(words) < 3:
        text = "give a pattern, its replacement and files or folders: pyagent replace OLD NEW src"
        raise RequestError(text, param="paths")
    wanted = Replacement(
        pattern=words[0],
        replacement=words[1],
        is_regex=regex,
        ignore_case=ignore_case,
        include=include or (),
        exclude=exclude or (),
        encoding=encoding,
    )
    paths = [Path(word).expanduser() for word in words[2:]]
    return _show(wanted, paths) if dry_run else _replace(store, wanted, paths, is_allowed=yes, as_json=as_json)


def _show(wanted: Replacement, paths: list[Path]) -> int:
    from pyagent.infrastructure.tools.bulk_replace import preview, targets_of

    plan = preview(wanted, targets_of(paths), lambda text: sys.stdout.write(for_terminal(text) + "\n"))
    _tell(plan, is_listed=False)
    return 0


def _replace(store: ChangeStore, wanted: Replacement, paths: list[Path], *, is_allowed: bool, as_json: bool) -> int:
    from pyagent.infrastructure.tools.bulk_replace import prepare, targets_of

    if not (is_allowed or sys.stdin.isatty()):
        raise RequestError(
            "there is no terminal to ask at: --dry-run shows what would change, --yes replaces", param="yes"
        )
    plan = prepare(wanted, targets_of(paths), store)
    if not plan.change:
        _tell(plan, is_listed=False)
        return write_json(plan) or 0 if as_json else 0
    if not is_allowed:
        _tell(plan, is_listed=True)
        if not _is_confirmed(store, plan.change):
            sys.stderr.write("nothing is replaced\n")
            return _LEFT
    store.apply(plan.change)
    if as_json:
        write_json(plan)
        return 0
    if is_allowed:
        _tell(plan, is_listed=False)
    sys.stdout.write(f"pyagent replace --undo {plan.change}   takes it back\n")
    return 0


def _is_confirmed(store: ChangeStore, change: str) -> bool:
    is_confirmed = False
    try:
        is_confirmed = typer.confirm("replace?", err=True)
    finally:
        if not is_confirmed:
            store.discard(change)
    return is_confirmed


def _tell(plan: Plan, *, is_listed: bool) -> None:
    """Say on standard error what matches, and what is left alone."""
    write = sys.stderr.write
    for file in plan.files[:_SHOWN] if is_listed else [file for file in plan.files if file.note]:
        write(f"{file.num_matches:6}  {printable(file.path)}{f'  {file.note}' if file.note else ''}\n")
    if is_listed and len(plan.files) > _SHOWN:
        write(f"        and {len(plan.files) - _SHOWN} more files; --dry-run shows all\n")
    for skipped in plan.skipped[:_SHOWN]:
        write(f"left alone: {printable(skipped.path)}: {skipped.reason}\n")
    if len(plan.skipped) > _SHOWN:
        write(f"left alone: {len(plan.skipped) - _SHOWN} more files\n")
    write(f"{plan.num_matches} matches in {len(plan.files)} of {plan.num_read} files\n")


def _become(store: ChangeStore, undo: str | None, finish: str | None, *, leave_changed: bool) -> int:
    if undo and finish:
        raise RequestError("--undo takes back what --continue finishes; give one of them", param="change")
    change = store.change(undo or finish or "")
    left = (store.undo if undo else store.finish)(change.id, leaves_others=leave_changed)
    for path in left:
        sys.stderr.write(f"left alone: {printable(path)}: it changed since\n")
    done = "taken back" if undo else "done"
    sys.stdout.write(f"{change.id} is {done}: {len(change.files) - len(left)} files\n")
    return _LEFT if left else 0


def _list(store: ChangeStore, *, as_json: bool) -> int:
    rows = [
        {"id": change.id, "state": state, "at": change.at, "title": change.title, "num_files": len(change.files)}
        for change, state in store.changes()
    ]
    if as_json:
        write_json(rows)
        return 0
    for change, state in store.changes():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(change.at))
        told = "interrupted; --continue finishes it" if state == "prepared" else state
        sys.stdout.write(f"{change.id}  {when}  {len(change.files):>6} files  {printable(change.title)}  ({told})\n")
    if not rows:
        sys.stdout.write("no replacements are kept\n")
    return 0
