"""A patch is kept when it passes its checks in a copy; else the folder is byte for byte what it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from pyagent.cli.root import run
from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import FileAccess, grant
from pyagent.core.settings.tools import Tools
from pyagent.infrastructure.tools.built_in import CHANGES, built_in_tools
from pyagent.infrastructure.tools.change_check import Outcome, check
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.difference import difference
from pyagent.infrastructure.tools.patches import read_patch
from pyagent.infrastructure.tools.programs import ProgramLimits
from pyagent.infrastructure.tools.proposals import Proposal, read_proposal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and limits are those of Linux")
_TEST = "python3 -c 'from shop import price; assert price.total(2) == 4'"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "root" / "src" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "price.py").write_text("def total(n):\n    return n + n\n")
    (tmp_path / "root" / "notes.txt").write_bytes(b"one\r\ntwo\r\n")
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path: Path) -> ChangeStore:
    return ChangeStore(tmp_path / "data" / CHANGES)


def patch_of(root: Path, name: str, new: str) -> str:
    return difference(name, (root / name).read_bytes().decode(), new) + "\n"


def price(root: Path, new: str) -> str:
    return patch_of(root, "src/shop/price.py", new)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def checked(root: Path, patch: str, test: str = "", **limits: float) -> tuple[Proposal, list[Outcome]]:
    proposal = read_proposal(root, patch)
    return proposal, asyncio.run(check(proposal, ProgramLimits(**{"seconds": 30, **limits}), test))


def test_a_change_that_passes_is_kept_and_undone(root: Path, store: ChangeStore) -> None:
    """Files change, come and go at once, and the undo gives the old bytes; the copy's leavings are not kept."""
    before = contents(root)
    patch = price(root, "from shop.two import TWO\n\n\ndef total(n):\n    return n * TWO\n")
    patch += "--- /dev/null\n+++ b/src/shop/two.py\n@@ -0,0 +1 @@\n+TWO = 2\n"
    patch += "--- a/notes.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\r\n-two\r\n"
    proposal, outcomes = checked(root, patch, f"{_TEST} && echo x > src/shop/two.py && test ! -e notes.txt")
    assert [(each.check, each.passed) for each in outcomes] == [("compile", True), ("import", True), ("test", True)]
    assert contents(root) == before
    change = proposal.keep(store)
    assert contents(root).keys() == {"src/shop/__init__.py", "src/shop/price.py", "src/shop/two.py"}
    assert (root / "src/shop/two.py").read_text() == "TWO = 2\n"
    store.undo(change)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("new", "test", "failed", "told"),
    [
        ("def total(n:\n", "", "compile", "SyntaxError"),
        ("import shop.nowhere\n", "", "import", "No module named 'shop.nowhere'"),
        ("raise SystemExit(0)\n", "", "import", "ends the program"),
        ("def total(n):\n    return 5\n", _TEST, "test", "AssertionError"),
        ("while True: pass\n", "", "import", "its time was up"),
        ("x = 1\n", "head -c 100000 /dev/zero | tr '\\0' x; exit 3", "test", "exit code 3"),
    ],
)
def test_what_fails_is_told_and_leaves_the_folder(root: Path, new: str, test: str, failed: str, told: str) -> None:
    """The first check that fails ends them; what it wrote is told, bounded."""
    before = contents(root)
    _, outcomes = checked(root, price(root, new), test, seconds=2 if "while" in new else 30)
    assert [each.check for each in outcomes if not each.passed] == [failed]
    assert outcomes[-1].check == failed
    assert told in outcomes[-1].told
    assert len(outcomes[-1].told) < 5_000
    assert contents(root) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../outside.txt", "outside the folder"),
        ("/etc/outside.txt", "outside the folder"),
        ("pyagent.toml", "protected"),
        ("sub/PyAgent.toml", "protected"),
        (".git/hooks/pre-commit", "protected"),
        ("src/.GIT/config", "protected"),
        ("tests/deep/test_x.py", "protected"),
        ("link/new.txt", "links are not followed"),
        ("link.txt", "links are not followed"),
        ("src", "is not a file"),
        ("notes.txt", "is there already"),
    ],
)
def test_names_that_are_refused(root: Path, tmp_path: Path, name: str, told: str) -> None:
    """No proposal leaves the folder, follows a link, or changes what is protected."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "link.txt").symlink_to(outside / "new.txt")
    with pytest.raises(RequestError, match=told):
        read_proposal(root, f"--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+x\n", ["tests/"])
    assert list(outside.iterdir()) == []


def test_a_file_that_changed_meanwhile_is_not_lost(root: Path, store: ChangeStore) -> None:
    """What somebody wrote between the copy and the keep stays; nothing else is written, and no change is kept."""
    patch = price(root, "def total(n):\n    return 2 * n\n") + patch_of(root, "notes.txt", "three\n")
    proposal, outcomes = checked(root, patch, _TEST)
    assert all(each.passed for each in outcomes)
    (root / "notes.txt").write_text("mine\n")
    before = contents(root)
    with pytest.raises(RequestError, match=r"notes.txt changed while the patch was checked; nothing is written"):
        proposal.keep(store)
    assert contents(root) == before
    assert store.changes() == []


_DYING = """
    import os, signal, sys
    from pathlib import Path
    from pyagent.infrastructure.tools.changes import ChangeStore
    from pyagent.infrastructure.tools.proposals import read_proposal

    proposal = read_proposal(Path(sys.argv[1]), sys.stdin.read())
    rename = os.rename

    def dying(source, target, **options):
        rename(source, target, **options)
        if target == "price.py":
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = dying
    proposal.keep(ChangeStore(Path(sys.argv[2])))
"""


def test_a_keep_that_was_killed_is_finished_or_taken_back(root: Path, store: ChangeStore, tmp_path: Path) -> None:
    """After kill -9 among the files each is whole, and the change can be taken back, and made."""
    before = contents(root)
    patch = price(root, "new = 1\n") + patch_of(root, "notes.txt", "new\n")
    program = [sys.executable, "-c", textwrap.dedent(_DYING), str(root), str(tmp_path / "data" / CHANGES)]
    assert subprocess.run(program, input=patch, text=True, check=False).returncode == -signal.SIGKILL
    [(change, state)] = store.changes()
    assert state == "prepared"
    assert (root / "src/shop/price.py").read_text() == "new = 1\n"
    store.undo(change.id)
    assert contents(root) == before
    store.finish(change.id)
    assert contents(root) == before | {"src/shop/price.py": b"new = 1\n", "notes.txt": b"new\n"}


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ("", "has no file"),
        ("--- a\n+++ a\n@@ -1,2 +1 @@\n-x\n", "its @@ says 2, 1"),
        ("--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n+z\n", "more lines than its @@ says"),
        ("--- a/a\n+++ b/c\n@@ -1 +1 @@\n-x\n+y\n", "not renamed"),
        ("diff --git a/a b/c\nrename from a\nrename to c\n", "more than a change of lines"),
        ("diff --git a/a b/a\nnew file mode 120000\n", "more than a change of lines"),
        ("--- a\n+++ a\n", "expected a hunk"),
    ],
)
def test_patches_that_are_none(patch: str, told: str) -> None:
    """What is not understood whole is refused, and nothing of it is done."""
    with pytest.raises(RequestError, match=told):
        read_patch(patch)


def test_hunks_stand_where_they_say_or_in_one_other_place(root: Path) -> None:
    """Lines that moved are found when they stand once; those that stand twice or never are refused."""
    wrong = "--- a/notes.txt\n+++ b/notes.txt\n@@ -40 +40 @@\n-two\r\n+2\r\n"
    assert read_proposal(root, wrong).files[0].new == b"one\r\n2\r\n"
    (root / "notes.txt").write_bytes(b"two\r\ntwo\r\n")
    with pytest.raises(RequestError, match="do not stand"):
        read_proposal(root, wrong)


def test_the_tool_is_off_asks_and_is_for_people(root: Path, tmp_path: Path) -> None:
    """It is there when the settings allow it, needs approval, keeps what passes and tells what fails."""
    settings = Tools(root=root, changes=True, change_test=_TEST, protect=["notes.txt"])
    assert "propose_change" not in {tool.name for tool in built_in_tools(Tools(root=root), tmp_path)}
    readable = msgspec.structs.replace(settings, files="read")
    assert "propose_change" not in {tool.name for tool in built_in_tools(readable, tmp_path)}
    name_to_tool = {tool.name: tool for tool in built_in_tools(settings, tmp_path)}
    propose, undo = name_to_tool["propose_change"], name_to_tool["undo_change"]
    assert propose.needs_approval
    failed = str(asyncio.run(propose.call({"patch": price(root, "def total(n):\n    return 5\n")})))
    assert "test: failed" in failed
    assert failed.endswith("nothing is changed")
    with pytest.raises(RequestError, match="protected"):
        asyncio.run(propose.call({"patch": patch_of(root, "notes.txt", "x\n")}))
    kept = str(asyncio.run(propose.call({"patch": price(root, "def total(n):\n    return 2 * n\n")})))
    assert "2 * n" in (root / "src/shop/price.py").read_text()
    asyncio.run(undo.call({"change": kept.split()[-2]}))
    assert "n + n" in (root / "src/shop/price.py").read_text()

    assert "own test" not in kept
    conftest = "--- /dev/null\n+++ b/tests/conftest.py\n@@ -0,0 +1 @@\n+x = 1\n"
    own = str(asyncio.run(propose.call({"patch": conftest})))
    assert "the change may decide its own test: it changes tests/conftest.py\nchanged 1 files" in own

    async def by_client() -> None:
        grant(FileAccess.below(root))
        await propose.call({"patch": price(root, "x = 1\n")})

    with pytest.raises(RequestError, match="a client of a server"):
        asyncio.run(by_client())


def test_the_command_shows_checks_and_keeps(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --yes and a terminal nothing is kept; with it the change is, and `pyagent replace` takes it back."""
    config = tmp_path / "pyagent.toml"
    config.write_text(f'[paths]\ndata = "{tmp_path / "data"}"\n')
    patch, flags = tmp_path / "p.diff", ["--root", str(root), "--config", str(config)]
    patch.write_text(price(root, "def total(n):\n    return 2 * n\n"))
    command, before = ["change", "check", str(patch), *flags], contents(root)
    assert run([*command, "--test", "exit 1", "--yes"]) == 1
    assert "nothing is changed" in capsys.readouterr().err
    assert run([*command, "--test", _TEST]) == 0
    shown = capsys.readouterr()
    assert "+    return 2 * n" in shown.out
    assert "--yes keeps what passes" in shown.err
    assert contents(root) == before
    assert run([*command, "--test", _TEST, "--yes", "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["passed"]
    assert contents(root) != before
    assert run(["replace", "--undo", told["change"], "--config", str(config)]) == 0
    assert contents(root) == before
    with pytest.raises(RequestError, match="cannot be read"):
        run(["change", "check", os.devnull + "/x", *flags])
