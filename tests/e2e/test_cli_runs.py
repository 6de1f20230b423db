"""Past runs on the command line: what is kept of them, how it is shown, and how it goes away."""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from support.command_line import COMMAND, pyagent

from pyagent.core.fleet.steps import RunSpec
from pyagent.infrastructure.storage.journal import SqliteJournal

NOWHERE = ["--chain", "openai:http://127.0.0.1:9/v1"]


def _run(env: dict[str, str], *arguments: str) -> str:
    done = pyagent(*arguments, *NOWHERE, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _listed(env: dict[str, str]) -> list[dict[str, object]]:
    return json.loads(pyagent("runs", "list", "--json", env=env).stdout)


def test_runs_are_listed_with_their_arguments(environment: dict[str, str]) -> None:
    """A task given as options has them as its title; `runs show` without an id shows the newest run."""
    _run(environment, "agent", "math", "--action", "evaluate", "--expression", "2*3")
    assert "expression=2*3" in str(_listed(environment)[0]["task"])
    assert "expression=2*3" in pyagent("runs", "list", env=environment).stdout
    assert "run_finished" in pyagent("runs", "show", "--events", env=environment).stdout


def test_private_runs_leave_no_trace(environment: dict[str, str], tmp_path: Path) -> None:
    """Nothing of a `--private` run is on the disk, and its last line says so."""
    shown = _run(environment, "run", "2+40", "--private")
    assert "not kept: it is private" in shown
    assert _listed(environment) == []
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"2+40" in file.read_bytes()]


def test_runs_are_removed_pruned_and_exported(environment: dict[str, str], tmp_path: Path) -> None:
    """A run can be written to a file, deleted by its id, and old ones by number."""
    for number in range(3):
        _run(environment, "run", f"{number}+1")
    newest, second, _ = [str(run["run"]) for run in _listed(environment)]
    assert pyagent("runs", "export", newest, "run.jsonl", env=environment).returncode == 0
    exported = (tmp_path / "run.jsonl").read_text()
    head, *records = [json.loads(line) for line in exported.splitlines()]
    assert (head["summary"]["task"], head["spec"]["steps"][0]["task"]["text"]) == ("2+1", "2+1")
    assert [record["number"] for record in records] == list(range(len(records)))
    assert pyagent("runs", "export", newest, env=environment).stdout == exported
    assert pyagent("runs", "rm", second, env=environment).stdout == f"deleted {second}\n"
    assert pyagent("runs", "prune", "--keep", "1", env=environment).stdout == "deleted 1 runs\n"
    assert [run["run"] for run in _listed(environment)] == [newest]


def test_a_wrong_id_is_told_the_nearest(environment: dict[str, str], tmp_path: Path) -> None:
    """Among many runs a wrong id is answered with the nearest, or with a few and how many more there are."""
    journal = SqliteJournal(tmp_path / "data" / "journal")
    runs = [journal.open_run(RunSpec(steps=())) for _ in range(40)]
    journal.close()
    near = pyagent("runs", "show", f"{runs[0]}0", env=environment).stderr
    assert "did you mean 'r-" in near
    far = pyagent("runs", "show", "wrong", env=environment).stderr
    assert "and 28 more" in far
    assert len(far) < 300


def test_damage_is_shown(environment: dict[str, str], tmp_path: Path) -> None:
    """`runs show` says that a record is lost, and with --events where, and shows those before and after it."""
    _run(environment, "run", "2+2")
    with closing(sqlite3.connect(tmp_path / "data" / "journal" / "runs.db")) as database, database:
        database.execute("UPDATE records SET body = CAST(body || 'x' AS BLOB) WHERE id % 4294967296 = 2")
    done = pyagent("runs", "show", "--events", env=environment)
    assert "1 records are damaged" in done.stdout
    assert "run_finished" in done.stdout
    assert "1 records are lost" in done.stderr
    tree = pyagent("runs", "show", env=environment)
    assert "2+2" in tree.stdout
    assert "1 records are lost" in tree.stderr


def test_a_file_that_is_no_journal_is_told_of(environment: dict[str, str], tmp_path: Path) -> None:
    """Where the journal is something else, a run goes on unkept, and looking at runs is one line of error."""
    folder = tmp_path / "data" / "journal"
    folder.mkdir(parents=True)
    (folder / "runs.db").write_bytes(b"not a database" * 1000)
    done = pyagent("run", "17*23", *NOWHERE, env=environment)
    assert (done.returncode, "391" in done.stdout) == (0, True), done.stderr
    assert "file is not a database" in done.stdout
    listed = pyagent("runs", "list", env=environment)
    assert listed.returncode != 0
    assert "cannot be used: file is not a database" in listed.stderr
    assert "Traceback" not in listed.stderr


def test_a_full_disk_stops_no_run(environment: dict[str, str]) -> None:
    """Where nothing can be written the result comes all the same, and no journal is promised."""

    def nothing_to_write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [*COMMAND, "run", "17*23", *NOWHERE],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=nothing_to_write,
    )
    assert (done.returncode, "391" in done.stdout) == (0, True), done.stderr
    assert "not kept: " in done.stdout
    assert "is not kept: " in done.stderr
    assert _listed(environment) == []


def test_a_read_only_folder_stops_no_run(environment: dict[str, str], tmp_path: Path) -> None:
    """Where the data folder cannot be made, runs go on, and say which setting to change."""
    (tmp_path / "data").write_text("")
    done = pyagent("run", "17*23", *NOWHERE, env=environment)
    assert (done.returncode, "391" in done.stdout) == (0, True)
    assert "set paths.data" in done.stdout
