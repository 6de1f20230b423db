"""Kill `pyagent replace` with -9 at random moments over CPython's library; each time every file has to be whole.

Each round starts a replacement, kills it, compares each file with what it was and what it was to be, and then takes the
change back, or finishes it and takes it back. Every file has to be the original, and nothing may be left beside them.

    python benchmarks/replace_kills.py              100 deaths
    python benchmarks/replace_kills.py --kills 20
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyagent.infrastructure.tools.bulk_replace import Replacement, prepare, targets_of
from pyagent.infrastructure.tools.changes import ChangeStore

_WANTED = Replacement(pattern=r"\bself\b", replacement="this_object", is_regex=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _work(*(Path(path) for path in options.work))
        return
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder), options.kills, random.Random(options.seed))


def _work(tree: Path, changes: Path) -> None:
    """What dies: write the change down, then make it."""
    store = ChangeStore(changes)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    change = prepare(_WANTED, targets_of([tree]), store).change
    sys.stdout.write("prepared\n")
    sys.stdout.flush()
    store.apply(change)


def library(folder: Path) -> Path:
    """Copy the Python files of the interpreter's library, without installed packages."""
    ignored = shutil.ignore_patterns("__pycache__", "site-packages", "*.so", "*.a")
    return Path(shutil.copytree(sysconfig.get_path("stdlib"), folder / "Lib", ignore=ignored))


def _read(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def _run(folder: Path, num_kills: int, generator: random.Random) -> None:
    tree, changes = library(folder), folder / "changes"
    old, store = _read(tree), ChangeStore(changes)
    begun = time.perf_counter()
    plan = prepare(_WANTED, targets_of([tree]), store)
    prepared = time.perf_counter() - begun
    store.apply(plan.change)
    whole_seconds = time.perf_counter() - begun
    new = _read(tree)
    store.undo(plan.change)
    assert _read(tree) == old
    print(f"{len(old)} files, {len(plan.files)} change; {prepared:.2f} s to write down, {whole_seconds:.2f} s in all")
    deaths: Counter[str] = Counter()
    num_new = 0
    while sum(deaths.values()) - deaths["had ended"] < num_kills:
        is_late = generator.random() < 0.7
        done = _one_death(tree, changes, generator.uniform(0, whole_seconds - prepared), is_late=is_late)
        now = _read(tree)
        torn = [name for name in old if now.get(name) not in {old[name], new[name]}]
        assert not torn, f"neither old nor new: {torn[:5]}"
        some = sum(now[name] == new[name] != old[name] for name in old)
        num_new += some
        moment = "had ended" if done else "among the files" if some else "before the first file"
        deaths[moment if some < len(plan.files) or done else "after the last file"] += 1
        _settle(store, tree, old, new, generator)
    print(f"{dict(deaths)}; every file whole each time, {num_new} files were new at a death")
    print("every undo gave the original bytes, and left nothing beside them")


def _one_death(tree: Path, changes: Path, seconds: float, *, is_late: bool) -> bool:
    """Kill a replacement so long after it begins, or has written down what it will do; return whether it had ended."""
    program = [sys.executable, __file__, "--work", str(tree), str(changes)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if is_late:
            process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return process.wait() != -signal.SIGKILL


def _settle(
    store: ChangeStore, tree: Path, old: dict[str, bytes], new: dict[str, bytes], generator: random.Random
) -> None:
    """Finish or take back what was written down; the files are the old ones in the end."""
    for change, state in store.changes()[:1]:
        if state == "undone":
            continue
        if generator.random() < 0.5:
            store.finish(change.id)
            assert _read(tree) == new
        store.undo(change.id)
    assert _read(tree) == old
    for change, _ in store.changes():
        store.discard(change.id)


if __name__ == "__main__":
    main()
