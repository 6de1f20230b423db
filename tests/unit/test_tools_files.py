"""The tools for files: what they do, and a folder that nothing leads out of."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import FileAccess, grant
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.files import FileTools
from pyagent.infrastructure.tools.folder import Folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("one\ntwo\nthree\n")
    (root / "src" / "b.txt").write_text("Two here\n")
    (tmp_path / "secret.txt").write_text("secret")
    return root


def tools_of(root: Path) -> dict[str, FleetTool]:
    files = FileTools(root, ChangeStore(root.parent / "changes"))
    return {tool.name: tool for tool in [*files.reading(), *files.writing()]}


def call(root: Path | dict[str, FleetTool], name: str, **arguments: object) -> str:
    tools = tools_of(root) if isinstance(root, Path) else root
    return str(asyncio.run(tools[name].call(arguments)))


def test_files_are_read_listed_and_searched(root: Path) -> None:
    """Lines are numbered and bounded; lists and matches name files below the folder."""
    assert call(root, "read_file", path="src/a.py", first_line=2, num_lines=1) == "2\ttwo\n[1 more lines]"
    assert call(root, "list_files") == "src/a.py\nsrc/b.txt"
    assert call(root, "list_files", pattern="*.py") == "src/a.py"
    assert call(root, "search_files", text="two") == "src/a.py:2: two"
    assert call(root, "search_files", text="two", ignore_case=True).count("\n") == 1
    assert call(root, "search_files", text="nowhere") == "[no line has it]"


def test_files_are_written_edited_and_put_back(root: Path) -> None:
    """A write makes folders, an edit changes the one place, both are shown, keep the mode, and can be undone."""
    tools = tools_of(root)
    (root / "src" / "a.py").chmod(0o750)
    assert "changed 1 files; undo_change takes c1 back" in call(tools, "write_file", path="new/x.txt", content="hi\n")
    edited = call(tools, "edit_file", path="src/a.py", old="two", new="2")
    assert "-two\n+2" in edited
    assert (root / "src" / "a.py").read_text() == "one\n2\nthree\n"
    assert (root / "src" / "a.py").stat().st_mode & 0o777 == 0o750
    assert call(tools, "undo_change", change="c2") == "put back src/a.py"
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"
    call(tools, "undo_change", change="c1")
    assert not (root / "new" / "x.txt").exists()
    with pytest.raises(RequestError, match="no change 'c1'"):
        call(tools, "undo_change", change="c1")


def test_undo_loses_no_later_change(root: Path) -> None:
    """A change is not undone while a file is no longer as it left it."""
    tools = tools_of(root)
    call(tools, "edit_file", path="src/a.py", old="one", new="1")
    call(tools, "edit_file", path="src/a.py", old="two", new="2")
    with pytest.raises(RequestError, match="changed after c1"):
        call(tools, "undo_change", change="c1")
    call(tools, "undo_change", change="c2")
    call(tools, "undo_change", change="c1")
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"


def test_edit_that_is_not_plain_changes_nothing(root: Path) -> None:
    """A text that is not there, or there twice, is told with what to do."""
    (root / "src" / "a.py").write_text("x x")
    for old, told in (("y", "does not have"), ("x", "2 times")):
        with pytest.raises(RequestError, match=told):
            call(root, "edit_file", path="src/a.py", old=old, new="z")
    assert (root / "src" / "a.py").read_text() == "x x"
    call(root, "edit_file", path="src/a.py", old="x", new="z", replace_all=True)
    assert (root / "src" / "a.py").read_text() == "z z"


def test_replacing_in_many_files_is_previewed_and_undone(root: Path) -> None:
    """A preview writes nothing; the change is kept on the disk, and undone by other tools of the same folder alone."""
    (root / "src" / "c.py").write_text("one\n")
    shown = call(root, "replace_in_files", old="one", new="1", preview=True)
    assert shown.count("-one\n+1") == 2
    assert (root / "src" / "c.py").read_text() == "one\n"
    told = call(root, "replace_in_files", old="(o)ne", new="${1}1", regex=True, pattern="*.py")
    assert "src/c.py: 1" in told
    assert (root / "src" / "c.py").read_text() == "o1\n"
    change = told.split("undo_change takes ")[1].split()[0]
    other = FileTools(root / "src", ChangeStore(root.parent / "changes"))
    with pytest.raises(RequestError, match="no change"):
        asyncio.run(other.undo_change(change))
    assert call(root, "undo_change", change=change) == "put back 2 files"
    assert (root / "src" / "c.py").read_text() == "one\n"
    assert call(root, "replace_in_files", old="nowhere", new="x") == "[no file has it]"


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/passwd", "src/../../secret.txt", "link.txt", "out/secret.txt", "pipe", "a\0b", "."]
)
def test_nothing_leads_out_of_the_folder(root: Path, name: str) -> None:
    """Parents, absolute names, links, pipes and folders are refused, and the refusal does not say where the root is."""
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "out").symlink_to(root.parent)
    os.mkfifo(root / "pipe")
    for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("edit_file", {"old": "s", "new": "t"})):
        with pytest.raises(RequestError) as told:
            call(root, tool, path=name, **more)
        assert str(root.parent) not in str(told.value)
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert "secret" not in call(root, "list_files")
    assert "[no line" in call(root, "search_files", text="secret")


def test_folder_that_is_swapped_for_a_link_leads_nowhere(root: Path) -> None:
    """While another program swaps a folder for a link out, no read ever sees what is outside."""
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "f.txt").write_text("secret")
    (root / "d").mkdir()
    (root / "d" / "f.txt").write_text("inside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "d", root / "kept")
            os.symlink(root.parent / "outside", root / "d")
            os.unlink(root / "d")
            os.rename(root / "kept", root / "d")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[str] = set()
    try:
        for _ in range(2_000):
            try:
                seen.add(Folder(root).read("d/f.txt"))
            except RequestError:
                seen.add("refused")
    finally:
        stop.set()
        swapping.join()
    assert seen <= {"inside", "refused"}


def test_lists_have_a_file_a_line(root: Path) -> None:
    """A name that would look like something else is not told: of two lines, with escapes, turned, or not UTF-8."""
    for name in (b"a\n[allowed].txt", b"\x1b[2J.txt", b"\xc2\x9b2J", b"\xff.txt", "\u202etxt.exe".encode()):
        Path(os.fsdecode(os.fsencode(root / "src") + b"/" + name)).write_text("hit")
    (root / "src" / "\u5831\u3000\u544a \u200d.txt").write_text("hit")
    assert call(root, "list_files", pattern="*").splitlines() == [
        "src/a.py",
        "src/b.txt",
        "src/\u5831\u3000\u544a \u200d.txt",
    ]
    assert call(root, "search_files", text="hit") == "src/\u5831\u3000\u544a \u200d.txt:1: hit"


def test_folders_within_folders_without_end_are_listed(root: Path) -> None:
    """A walk into a thousand folders within each other ends, and what stands beside them is listed."""
    before = os.open(root, os.O_RDONLY)
    for _ in range(1_000):
        os.mkdir("deep", dir_fd=before)
        below = os.open("deep", os.O_RDONLY, dir_fd=before)
        os.close(before)
        before = below
    os.close(before)
    assert call(root, "list_files") == "src/a.py\nsrc/b.txt"
    for _ in range(999):  # shutil.rmtree, with which pytest clears up, gives up on this many within each other
        os.rename(root / "deep" / "deep", root / "next")
        os.rmdir(root / "deep")
        os.rename(root / "next", root / "deep")


def test_client_of_a_server_reads_its_folder_and_writes_nothing(root: Path, tmp_path: Path) -> None:
    """A run whose access is limited reads below its own root; without one it reads nothing; it changes no file."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "t.txt").write_text("theirs")
    tools = tools_of(root)

    async def limited(access: FileAccess, name: str, **arguments: object) -> object:
        grant(access)
        return await tools[name].call(arguments)

    def run(access: FileAccess, name: str, **arguments: object) -> Callable[[], object]:
        return lambda: asyncio.run(limited(access, name, **arguments))

    assert run(FileAccess.below(theirs), "list_files")() == "t.txt"
    for access, name, arguments in (
        (FileAccess.below(theirs), "write_file", {"path": "t.txt", "content": "x"}),
        (FileAccess.below(theirs), "replace_in_files", {"old": "theirs", "new": "x"}),
        (FileAccess.below(None), "read_file", {"path": "src/a.py"}),
    ):
        with pytest.raises(RequestError):
            run(access, name, **arguments)()
    assert (theirs / "t.txt").read_text() == "theirs"
