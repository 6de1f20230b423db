"""The code-health agent beside radon and lizard as whole processes over one tree, in turns: seconds and ratios.

The seconds of the processor stand beside those that pass: on a machine that others use too, they tell more.

    .venv/bin/python benchmarks/code_health_programs.py [FOLDER] [--repeats 3] [--most-bytes 60000]

Without a folder it takes the standard library of the running Python without its tests. Files that this Python cannot
compile, and larger ones, are left out for all, as radon needs minutes for some of them. `pyagent agent code-health`
tells complexity, maintainability, copies and functions named nowhere; radon needs two processes for the first two;
lizard tells complexity. PyAgent's start-up and journal count, as a user has them. Needs `pip install radon lizard`.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import tokenize
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
PROGRAMS: dict[str, list[list[str]]] = {
    "pyagent agent code-health": [["pyagent", "agent", "code-health"]],
    "radon cc; radon mi": [["radon", "cc", "-s", "-a"], ["radon", "mi", "-s"]],
    "lizard": [["lizard", "-l", "python"]],
}


def copy_tree(folder: Path, target: Path, most_bytes: int) -> int:
    """Copy the files that all can read; return how many there are."""
    num_files = 0
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if {"site-packages", "test", "tests", "idle_test"} & set(parts) or path.stat().st_size > most_bytes:
            continue
        with suppress(SyntaxError, ValueError), tokenize.open(path) as file:
            compile(file.read(), str(path), "exec")
            copy = target.joinpath(*parts)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            num_files += 1
    return num_files


def run(commands: Sequence[Sequence[str]], tree: Path) -> tuple[float, float]:
    """Return the seconds that the processes take, one after the other, and those of the processor."""
    started, used = time.perf_counter(), _processor_seconds()
    for program, *arguments in commands:
        done = subprocess.run([BIN / program, *arguments, str(tree)], capture_output=True, check=False)
        if not done.stdout or done.returncode not in {0, 1}:  # lizard ends with 1 where it warns
            raise SystemExit(f"{program}: {done.stderr.decode()[-500:]}")
    return time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    """Return what the processes that have ended took of the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most-bytes", type=int, default=60_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    with tempfile.TemporaryDirectory() as made:
        tree = Path(made) / "tree"
        num_files = copy_tree(options.folder.resolve(), tree, options.most_bytes)
        num_lines = sum(path.read_bytes().count(b"\n") for path in tree.rglob("*.py"))
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        print(f"{num_files:,} files, {num_lines:,} lines; medians of {options.repeats} in turns\n")
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
        for _ in range(options.repeats):
            for name, commands in PROGRAMS.items():
                seconds[name].append(run(commands, tree))
    medians = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in seconds.items()}
    first = next(iter(medians.values()))
    for name, (passed, used) in medians.items():
        ratios = f"{passed / first[0]:6.1f} x {used / first[1]:6.1f} x"
        print(f"{name:<28} {passed:8.2f} s {used:8.2f} s of the processor  {ratios}", flush=True)


if __name__ == "__main__":
    main()
