"""Search and replace over CPython's library: ours beside `sed -i` and a plain loop in Python.

Ours writes down what it replaces, writes each file whole, and waits until both are on the disk; the others do none of
that. Medians over rounds that take turns.

    python benchmarks/bulk_replace.py
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from replace_kills import library

from pyagent.infrastructure.tools.bulk_replace import Replacement, prepare, preview, targets_of
from pyagent.infrastructure.tools.changes import ChangeStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for word, other in (("self", "this"), ("OrderedDict", "SortedDict"), ("nowhere_at_all", "x")):
        print(f"{word!r} by {other!r}:")
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for name, way in _WAYS.items():
                with tempfile.TemporaryDirectory() as folder:
                    tree = library(Path(folder))
                    begun = time.perf_counter()
                    told = way(tree, Path(folder), word, other)
                    seconds[name].append(time.perf_counter() - begun)
        for name, times in seconds.items():
            print(f"  {name:22} {statistics.median(times):6.2f} s  (of {rounds}: {min(times):.2f} to {max(times):.2f})")
        print(f"  {told}")


def _ours(tree: Path, folder: Path, word: str, other: str) -> str:
    store = ChangeStore(folder / "changes")
    plan = prepare(Replacement(pattern=rf"\b{word}\b", replacement=other, is_regex=True), targets_of([tree]), store)
    if plan.change:
        store.apply(plan.change)
    return f"{plan.num_matches} matches in {len(plan.files)} of {plan.num_read} files"


def _shown(tree: Path, folder: Path, word: str, other: str) -> str:
    wanted = Replacement(pattern=rf"\b{word}\b", replacement=other, is_regex=True)
    return str(preview(wanted, targets_of([tree]), lambda text: None).num_matches)


def _sed(tree: Path, folder: Path, word: str, other: str) -> str:
    find = ["find", str(tree), "-type", "f", "-print0"]
    with subprocess.Popen(find, stdout=subprocess.PIPE) as found:
        replace = ["xargs", "-0", "sed", "-i", rf"s/\b{word}\b/{other}/g"]
        subprocess.run(replace, stdin=found.stdout, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    return ""


def _loop(tree: Path, folder: Path, word: str, other: str) -> str:
    pattern = re.compile(rf"\b{word}\b".encode())
    for path in tree.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            replaced = pattern.sub(other.encode(), data)
            if replaced != data:
                path.write_bytes(replaced)
    return ""


_WAYS: dict[str, Callable[[Path, Path, str, str], str]] = {
    "a loop in Python": _loop,
    "sed -i": _sed,
    "ours, --dry-run": _shown,
    "ours": _ours,
}


if __name__ == "__main__":
    main()
