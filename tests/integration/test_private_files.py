"""What people ask, and secrets, are files of one user of the machine, whatever its umask was, now or before."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command_line import COMMAND, fresh_environment

from pyagent.infrastructure.private_files import close_to_others, make_private_folder
from pyagent.infrastructure.storage.database import Database, Schema

LIMIT_SECONDS = 60.0
SETTINGS = '[paths]\ndata = "data"\n[webhooks]\nprivate = true\n'


def open_to_others(folder: Path) -> list[str]:
    """Return what below a folder others may use, and the folder; files that hold nothing are locks."""
    held = [(path, path.lstat()) for path in (folder, *sorted(folder.rglob("*")))]
    others = stat.S_IRWXG | stat.S_IRWXO
    return [str(path.relative_to(folder)) for path, found in held if found.st_size and found.st_mode & others]


def run_all(folder: Path, umask: int, *commands: Sequence[str]) -> str:
    """Run commands one after the other under a umask; return what they said on standard error."""
    told = ""
    for command in commands:
        done = subprocess.run(
            [*COMMAND, *command],
            check=True,
            cwd=folder,
            env=fresh_environment(folder),
            umask=umask,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        told += done.stderr
    return told


def test_data_is_closed_to_other_users(tmp_path: Path) -> None:
    """Journal, index, webhooks' secrets, replaced texts and exports are nobody else's to read, nor their folders."""
    (tmp_path / "pyagent.toml").write_text(SETTINGS)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the plan")
    run_all(
        tmp_path,
        0o000,
        ["webhooks", "add", "http://127.0.0.1:9/hook", "--events", "*"],
        ["agent", "math", "2+2"],
        ["search", "2"],
        ["search", "--files", "texts", "plan"],
        ["replace", "plan", "idea", "texts", "--yes"],
    )
    [run] = [line.split()[0] for line in _said(tmp_path, "runs", "list").splitlines() if line.startswith("r-")]
    run_all(tmp_path, 0o000, ["runs", "export", run, "run.jsonl"])
    kept = tmp_path / "data"
    assert {path.name for path in kept.iterdir()} >= {"journal", "changes"}
    assert open_to_others(kept) == ["."]  # others may pass, and add nothing
    assert stat.S_IMODE(kept.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600


def test_data_that_was_open_is_closed(tmp_path: Path) -> None:
    """A journal that an older umask or a copy left open, its log included, is closed when it is used; that is told."""
    (tmp_path / "pyagent.toml").write_text(SETTINGS)
    run_all(tmp_path, 0o022, ["agent", "math", "2+2"], ["search", "2"])
    journal = tmp_path / "data" / "journal"
    (journal / "runs.db-wal").touch()
    for path in (journal, *journal.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    told = run_all(tmp_path, 0o000, ["agent", "math", "2+3"], ["search", "3"])
    closed = ["journal", "writers", "search", "runs.db", "runs.db-wal", *(path.name for path in journal.glob("*/*.db"))]
    assert told.count("was open to other users of this machine") == len(closed)
    assert open_to_others(journal) == []
    assert "was open" not in run_all(tmp_path, 0o000, ["agent", "math", "2+4"], ["search", "4"])


def test_log_of_a_database_is_closed_with_it(tmp_path: Path) -> None:
    """SQLite's log and shared memory have the mode of their file while it is open."""
    path = tmp_path / "kept" / "file.db"
    database = Database(path, Schema(1, ("CREATE TABLE words (word TEXT)",)))
    before = os.umask(0)
    try:
        database.execute("INSERT INTO words VALUES ('secret')")
        assert {each.name for each in path.parent.iterdir()} == {"file.db", "file.db-wal", "file.db-shm"}
        assert open_to_others(path.parent) == []
    finally:
        os.umask(before)
        database.close()


def test_folder_that_all_share_stays_as_it_is(tmp_path: Path) -> None:
    """One with the sticky bit, as /tmp, is no folder of ours, whatever the settings name; a file is no folder."""
    shared, file = tmp_path / "shared", tmp_path / "file"
    shared.mkdir()
    shared.chmod(0o1777)
    file.touch(0o644)
    make_private_folder(shared)
    close_to_others(tmp_path / "none")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    with pytest.raises(FileExistsError):
        make_private_folder(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def _said(folder: Path, *command: str) -> str:
    env = fresh_environment(folder)
    done = subprocess.run([*COMMAND, *command], check=True, cwd=folder, env=env, capture_output=True, text=True)
    return done.stdout
