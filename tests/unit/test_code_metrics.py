"""Code metrics as Python sees them; how they are counted is tested in rust_core/text, next to the code."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyagent._rust import analyse_code

SOURCE = '''\
class Door:
    """A door."""

    def open(self, key):
        if key == self.key and not self.broken:  # the happy case
            return True
        for spare in self.spares:
            if spare == key:
                return True
        return False


async def main():
    pass
'''


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_metrics_of_a_file(tmp_path: Path) -> None:
    """A file has its maintainability, and each function its dotted name, line and complexity."""
    path = write(tmp_path, "door.py", SOURCE)
    [(found, maintainability, functions, error)] = analyse_code([path], 1)
    assert (found, error) == (path, None)
    assert functions == [("Door.open", 4, 4), ("main", 13, 1)]
    assert maintainability == pytest.approx(83.6608679445305, abs=1e-9)  # radon 6.0.1


def test_reports_keep_the_order_of_the_paths(tmp_path: Path) -> None:
    """Whatever the number of threads, reports come in the order of the paths."""
    paths = [write(tmp_path, f"{index}.py", f"def f{index}(): pass\n" * (index % 7)) for index in range(50)]
    expected = analyse_code(paths, 1)
    assert [row[0] for row in expected] == paths
    assert analyse_code(paths, 4) == expected
    assert analyse_code([], 2) == []


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("def f(:\n", "line 1, column 7"),
        (b"x = '\xff'\n", "declare one (PEP 263)"),
        (b"# coding: klingon\n", "klingon"),
        ("x = " + "(" * 100_000 + ")" * 100_000, "nested deeper than"),
        (b"\n" * (4 << 20) + b"\n", "larger than 4194304 bytes"),
    ],
)
def test_a_bad_file_is_one_entry(tmp_path: Path, content: str | bytes, error: str) -> None:
    """A file that cannot be analysed says why, and the others are analysed all the same."""
    bad, good = write(tmp_path, "bad.py", content), write(tmp_path, "good.py", SOURCE)
    reports = analyse_code([bad, str(tmp_path / "missing.py"), str(tmp_path), good], 2)
    assert [row[1] is None for row in reports] == [True, True, True, False]
    assert [row[3] is None for row in reports] == [False, False, False, True]
    assert error in str(reports[0][3])
    assert [row[2] for row in reports[:3]] == [[], [], []]


def test_a_name_that_is_not_text_is_analysed(tmp_path: Path) -> None:
    """A file name that is no UTF-8 comes back as Python spells it."""
    path = write(tmp_path, os.fsdecode(b"caf\xe9.py"), SOURCE)
    [(found, maintainability, _, error)] = analyse_code([path], 1)
    assert (found, error) == (path, None)
    assert maintainability is not None


def test_no_threads_is_refused() -> None:
    """Zero threads is an error that says what was expected."""
    with pytest.raises(ValueError, match="expected 1 or more"):
        analyse_code([], 0)


def test_other_threads_run_meanwhile(tmp_path: Path) -> None:
    """The GIL is free while files are analysed: another thread keeps counting."""
    path = write(tmp_path, "long.py", SOURCE * 5_000)
    ticks = 0
    is_done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not is_done.wait(0.001):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = ticks
        analyse_code([path] * 8, 1)
        counted = ticks - before
    finally:
        is_done.set()
        counter.join()
    assert counted >= 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.one_of(st.binary(max_size=300), st.text("abi f:=()[]{}'\"\\\n\t#;,.0", max_size=300).map(str.encode)))
def test_any_content_is_survived(tmp_path: Path, content: bytes) -> None:
    """Any bytes give metrics or an error, never both."""
    [(_, maintainability, functions, error)] = analyse_code([write(tmp_path, "any.py", content)], 1)
    assert (maintainability is None) == (error is not None)
    assert error is None or functions == []
