"""Search and replace in many files: what is changed, what is left alone, and what a death in the middle leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pyagent.core.errors import RequestError
from pyagent.infrastructure.tools import changes
from pyagent.infrastructure.tools.bulk_replace import Plan, Replacement, prepare, preview, targets_of
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.folder import Folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(20):
        (root / f"f{number:02}.txt").write_bytes(f"old {number}\r\nolder\r\n".encode())
    return root


@pytest.fixture
def store(tmp_path: Path) -> ChangeStore:
    return ChangeStore(tmp_path / "changes")


def replaced(store: ChangeStore, wanted: Replacement, *paths: Path) -> Plan:
    plan = prepare(wanted, targets_of(paths), store)
    if plan.change:
        store.apply(plan.change)
    return plan


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


def test_files_are_replaced_and_put_back_byte_for_byte(root: Path, store: ChangeStore) -> None:
    """Line ends stay, every match counts, and the undone files are the old bytes."""
    before = contents(root)
    plan = replaced(store, Replacement(pattern="old", replacement="new"), root)
    assert (len(plan.files), plan.num_matches, plan.num_read) == (20, 40, 20)
    assert (root / "f03.txt").read_bytes() == b"new 3\r\nnewer\r\n"
    assert [(change.id, state) for change, state in store.changes()] == [(plan.change, "done")]
    store.undo(plan.change)
    assert contents(root) == before
    assert store.changes()[0][1] == "undone"


def test_regular_expressions_have_groups_and_lines(root: Path, store: ChangeStore) -> None:
    """`$` matches before a carriage return; a group that is not there and a pattern that is none are told."""
    wanted = Replacement(pattern=r"^(\w+) (\d+)$", replacement="$2 $1", is_regex=True, include=["f0*"])
    assert len(replaced(store, wanted, root).files) == 10
    assert (root / "f07.txt").read_bytes() == b"7 old\r\nolder\r\n"
    for pattern, replacement, told in (("(", "", "unclosed group"), ("a", "$1", "group 1"), ("", "x", "is empty")):
        with pytest.raises(RequestError, match=told):
            prepare(Replacement(pattern=pattern, replacement=replacement, is_regex=True), [], store)


def test_what_is_no_text_is_left_alone_and_told(root: Path, store: ChangeStore, tmp_path: Path) -> None:
    """Binary files, other encodings, links and files that would grow too long stay as they are."""
    (root / "a.bin").write_bytes(b"old\0old")
    (root / "latin.txt").write_bytes("old é".encode("latin-1"))
    (root / "link.txt").symlink_to(root / "f00.txt")
    plan = replaced(store, Replacement(pattern="old", replacement="new"), root, root / "link.txt")
    told = {Path(skipped.path).name: skipped.reason for skipped in plan.skipped}
    assert told == {
        "a.bin": "binary",
        "latin.txt": "not text in utf-8",
        "link.txt": "a link; name what it leads to",
    }
    assert (root / "a.bin").read_bytes() == b"old\0old"
    assert (root / "link.txt").is_symlink()
    grows = replaced(store, Replacement(pattern="e|w", replacement="x" * 9_000_000, is_regex=True), root / "f00.txt")
    assert "grow over" in grows.skipped[0].reason
    with pytest.raises(RequestError, match="no file or folder"):
        prepare(Replacement(pattern="old", replacement="new"), targets_of([tmp_path / "gone"]), store)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252"])
def test_encodings_and_byte_order_marks_are_kept(store: ChangeStore, tmp_path: Path, encoding: str) -> None:
    """What is not matched is the same bytes after it, in each encoding."""
    file = tmp_path / "file.txt"
    file.write_bytes("é old\n".encode(encoding))
    given = encoding if encoding in {"latin-1", "cp1252"} else None
    replaced(store, Replacement(pattern="^é old", replacement="é new", is_regex=True, encoding=given), file)
    assert file.read_bytes() == "é new\n".encode(encoding)


def test_a_letter_that_the_encoding_lacks_leaves_the_file(store: ChangeStore, tmp_path: Path) -> None:
    """No file is written with a question mark in it; an encoding that is none is refused."""
    file = tmp_path / "file.txt"
    file.write_bytes("é old".encode("latin-1"))
    plan = replaced(store, Replacement(pattern="old", replacement="→", encoding="latin-1"), file)
    assert "cannot be written in its encoding" in plan.skipped[0].reason
    assert file.read_bytes() == "é old".encode("latin-1")
    for wrong in ("hex", "nope", "rot13"):
        with pytest.raises(RequestError, match="no encoding"):
            prepare(Replacement(pattern="a", replacement="b", encoding=wrong), targets_of([file]), store)


def test_mode_attributes_and_hard_links(store: ChangeStore, root: Path) -> None:
    """The new file has the old one's mode and attributes; another name of it keeps the old text, which is told."""
    file = root / "f00.txt"
    file.chmod(0o766)
    try:
        os.setxattr(file, "user.note", b"mine")
        has_attributes = True
    except OSError:
        has_attributes = False
    os.link(file, root / "z.txt")
    plan = replaced(store, Replacement(pattern="old", replacement="new"), file)
    assert "2 names" in plan.files[0].note
    assert file.stat().st_mode & 0o777 == 0o766
    assert not has_attributes or os.getxattr(file, "user.note") == b"mine"
    assert (root / "z.txt").read_bytes().startswith(b"old")


def test_files_are_chosen_once_each(root: Path, store: ChangeStore) -> None:
    """Patterns include and exclude by path, name and folder; a file that is named twice is changed once."""
    (root / "build").mkdir()
    (root / "build" / "x.txt").write_text("old")
    wanted = Replacement(pattern="old", replacement="new old", include=["*.txt"], exclude=["build", "f1*"])
    plan = replaced(store, wanted, root, root / "f00.txt")
    assert [Path(file.path).name for file in plan.files] == [f"f{number:02}.txt" for number in range(10)]
    assert (root / "f00.txt").read_bytes() == b"new old 0\r\nnew older\r\n"


def test_a_preview_is_a_diff_and_writes_nothing(root: Path, store: ChangeStore) -> None:
    """`patch` would make of the old file what the replacement makes of it."""
    before, shown = contents(root), list[str]()
    preview(Replacement(pattern="older", replacement="x\ny"), targets_of([root / "f00.txt"]), shown.append)
    assert contents(root) == before
    assert "-older\r\n+x\n+y\r" in shown[0]
    assert store.changes() == []


def test_a_failure_takes_back_what_was_done(root: Path, store: ChangeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one file cannot be written all are as they were, and nothing is left beside them."""
    before, written = contents(root), list[str]()
    write = Folder.write_bytes

    def failing(self: Folder, name: str, data: bytes, mark: str, **options: bool) -> None:
        written.append(name)
        if name == "f11.txt" and b"new" in data:
            raise RequestError("the disk is full", param="path")
        write(self, name, data, mark, **options)

    monkeypatch.setattr(Folder, "write_bytes", failing)
    with pytest.raises(RequestError, match="disk is full"):
        replaced(store, Replacement(pattern="old", replacement="new"), root)
    assert len(written) > 10
    assert contents(root) == before


def test_later_changes_are_not_lost(root: Path, store: ChangeStore) -> None:
    """An undo touches nothing when a file has changed since, or leaves that file when it is told to."""
    plan = replaced(store, Replacement(pattern="old", replacement="new"), root)
    (root / "f05.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"f05.txt changed after"):
        store.undo(plan.change)
    assert (root / "f00.txt").read_bytes().startswith(b"new")
    assert store.undo(plan.change, leaves_others=True) == [str(root / "f05.txt")]
    assert (root / "f00.txt").read_bytes().startswith(b"old")
    assert (root / "f05.txt").read_text() == "mine"


_DYING = """
    import os, signal, sys, threading
    from pathlib import Path
    from pyagent.infrastructure.tools import whole_file
    from pyagent.infrastructure.tools.changes import ChangeStore

    left = int(sys.argv[3])
    rename = os.rename
    in_turn = threading.Lock()

    def counted(*arguments, **options):
        global left
        with in_turn:  # files are written by several threads
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(*arguments, **options)

    os.rename = counted
    ChangeStore(Path(sys.argv[1])).apply(sys.argv[2])
"""


@pytest.mark.parametrize("num_written", [0, 7])
def test_a_change_that_was_killed_is_finished_or_taken_back(
    root: Path, store: ChangeStore, tmp_path: Path, num_written: int
) -> None:
    """After a death in the middle each file is whole; the change is finished, then undone, and nothing is left over."""
    before = contents(root)
    plan = prepare(Replacement(pattern="old", replacement="new"), targets_of([root]), store)
    program = [sys.executable, "-c", textwrap.dedent(_DYING), str(tmp_path / "changes"), plan.change, str(num_written)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    new = {name: data.replace(b"old", b"new") for name, data in before.items()}
    now = contents(root)
    assert all(now[name] in {before[name], new[name]} for name in before)
    assert sum(now[name] == new[name] for name in before) == num_written
    assert any(name.endswith(plan.change) for name in now)
    assert store.changes()[0][1] == "prepared"
    store.undo(plan.change)
    assert contents(root) == before
    store.finish(plan.change)
    assert contents(root) == new
    store.undo(plan.change)
    assert contents(root) == before


def test_what_is_kept_is_bounded_private_and_checked(
    root: Path, store: ChangeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old changes go, others' eyes stay out, a damaged text is not written, and an id leads nowhere else."""
    monkeypatch.setattr(changes, "MAX_KEPT", 3)
    for number in range(5):
        plan = replaced(store, Replacement(pattern=r"\A\w+", replacement=f"w{number}", is_regex=True), root)
    assert len(store.changes()) == 3
    folder = tmp_path / "changes"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / plan.change / "texts").write_bytes(b"x" * (folder / plan.change / "texts").stat().st_size)
    with pytest.raises(RequestError, match="damaged"):
        store.undo(plan.change)
    assert (root / "f00.txt").read_bytes().startswith(b"w4")
    for wrong in ("../x", "", "r0", "é"):
        with pytest.raises(RequestError, match="no change"):
            store.change(wrong)
