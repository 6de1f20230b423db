"""Code metrics against radon on the same files, in turns on one thread each: files per second and the ratio.

    .venv/bin/python benchmarks/code_health.py [FOLDER ...] [--files 300] [--repeats 3]

Without a folder it takes the standard library of the running Python. Both sides read each file and compute the
maintainability index; radon's complexity visitor runs on its side too, as ours counts functions in the same pass.
Radon needs minutes for all files, so both take the same random sample; our times for single files are over all.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sysconfig
import time
import tokenize
import warnings
from contextlib import suppress
from pathlib import Path

from pyagent._rust import analyse_code


def python_files(folders: list[Path]) -> list[str]:
    files = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(str(path) for path in files if "site-packages" not in path.parts)


def run_ours(paths: list[str], threads: int = 1) -> float:
    started = time.perf_counter()
    analyse_code(paths, threads)
    return time.perf_counter() - started


def run_radon(paths: list[str]) -> float:
    from radon.complexity import cc_visit
    from radon.metrics import mi_visit

    started = time.perf_counter()
    for path in paths:
        with tokenize.open(path) as file:
            source = file.read()
        # Identifiers that its tokenizer does not know end radon.
        with suppress(SyntaxError):
            mi_visit(source, multi=True)
            cc_visit(source)
    return time.perf_counter() - started


def readable_by_both(paths: list[str]) -> list[str]:
    """Leaves out what this Python cannot compile, which is quicker to find out than by radon."""
    readable: list[str] = []
    for path, maintainability, _, _ in analyse_code(paths, 2):
        if maintainability is not None and Path(path).stat().st_size < 60_000:
            with suppress(SyntaxError, ValueError), tokenize.open(path) as file:
                compile(file.read(), path, "exec")
                readable.append(path)
    return readable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(sysconfig.get_path("stdlib"))])
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    everything = python_files(options.folders)
    milliseconds = sorted(1_000 * min(run_ours([path]) for _ in range(options.repeats)) for path in everything)
    p95 = milliseconds[int(0.95 * (len(milliseconds) - 1))]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    mean, longest = statistics.mean(milliseconds), milliseconds[-1]
    print(f"{len(everything)} files, one at a time: mean {mean:.2f} ms, p95 {p95:.2f} ms, longest {longest:.1f} ms")

    candidates = readable_by_both(everything)
    sample = random.Random(0).sample(candidates, min(options.files, len(candidates)))
    ours: list[float] = []
    radons: list[float] = []
    for _ in range(options.repeats):
        ours.append(run_ours(sample))
        radons.append(run_radon(sample))
    rates = [len(sample) / statistics.median(seconds) for seconds in (ours, radons)]
    print(f"\n{len(sample)} files in turns, median of {options.repeats}")
    print(f"  pyagent  {rates[0]:10,.0f} files/s")
    print(f"  radon    {rates[1]:10,.0f} files/s")
    print(f"  ratio    {rates[0] / rates[1]:10,.0f}")


if __name__ == "__main__":
    main()
