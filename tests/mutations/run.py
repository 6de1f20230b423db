"""Put each fault of `faults` in, one at a time, in a copy of the tree, and say whether the tests beside it notice.

    python tests/mutations/run.py [NAME ...]

The exit status is 1 when a test passes with a fault in, hangs, or fails without one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fault import Fault
from faults import FAULTS

ROOT = Path(__file__).parents[2]
TEST_SECONDS, BUILD_SECONDS = 300, 3600
_SWITCH = "FAULT_PUT_IN"
_EXTENSION = "src/pyagent/_rust.abi3.so"
_FAILED = 1  # pytest's status for tests that fail; others are errors of their own


def main(names: Sequence[str]) -> int:
    """Try the faults of these names, or all."""
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(fault.name for fault in FAULTS)}")
        return 2
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    with tempfile.TemporaryDirectory(prefix="pyagent-faults-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if any(fault.is_rust for fault in chosen):
            build(tree, [fault for fault in chosen if fault.is_rust])
        sound = sound_tests(tree, list(dict.fromkeys(fault.tests for fault in chosen)))
        results = {fault.name: noticed(tree, fault, sound[fault.tests]) for fault in chosen}
    missed = [name for name, result in results.items() if result != "noticed"]
    print(f"{len(results) - len(missed)} of {len(results)} faults noticed")
    return 1 if missed else 0


def copy_tree(tree: Path) -> None:
    """Copy what git knows or would take, and the extension."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    shutil.copy2(ROOT / _EXTENSION, tree / _EXTENSION)


def put_in(tree: Path, fault: Fault) -> str:
    """Change the file of a fault; returns what it was. Raises `ValueError` unless it applies exactly once."""
    path = tree / fault.path
    before = path.read_text(encoding="utf-8")
    if before.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {fault.old!r} stands {before.count(fault.old)} times in {fault.path}")
    condition = f'std::env::var("{_SWITCH}").is_ok_and(|name| name == "{fault.name}")'
    new = fault.new.replace("FAULT", condition) if fault.is_rust else fault.new
    path.write_text(before.replace(fault.old, new), encoding="utf-8")
    return before


def build(tree: Path, faults: Sequence[Fault]) -> None:
    """Build the extension with all Rust faults in it, each behind its switch."""
    for fault in faults:
        put_in(tree, fault)
    started = time.monotonic()
    command = ["cargo", "build", "--release", "--quiet", "--package", "pyagent-python"]
    target = ROOT / "target" / "mutations"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    subprocess.run(command, cwd=tree, env=environment, check=True, timeout=BUILD_SECONDS)
    library = next(path for path in (target / "release").iterdir() if path.name in {"lib_rust.so", "lib_rust.dylib"})
    shutil.copy2(library, tree / _EXTENSION)
    print(f"built {len(faults)} faults into one extension in {time.monotonic() - started:.0f} s", flush=True)


def run_tests(tree: Path, tests: str, switch: str = "") -> int | None:
    """The status of pytest over these tests; None when they took too long."""
    sources = [tree / "src", *sorted(tree.glob("plugins/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources)), _SWITCH: switch}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *shlex.split(tests)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(TEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        if status != 0 and not switch:
            output.seek(0)
            print(f"{tests}: fails without a fault\n{output.read()[-2000:]}", flush=True)
        return status


def sound_tests(tree: Path, each: Sequence[str]) -> dict[str, int | None]:
    """Return the status of tests without a fault. Those named by their ids run together, as most of a run is its start.

    Where one of these fails each is run by itself.
    """
    together = [tests for tests in each if "::" in tests and "-k" not in tests]
    is_sound = bool(together) and run_tests(tree, " ".join(together)) == 0
    alone = [tests for tests in each if not is_sound or tests not in together]
    return dict.fromkeys(together, 0) | {tests: run_tests(tree, tests) for tests in alone}


def noticed(tree: Path, fault: Fault, sound: int | None) -> str:
    """Try one fault and say what came of it."""
    started = time.monotonic()
    if sound != 0:
        result = "its tests fail without it"
    else:
        before = "" if fault.is_rust else put_in(tree, fault)
        status = run_tests(tree, fault.tests, fault.name)
        if before:
            (tree / fault.path).write_text(before, encoding="utf-8")
        words = {_FAILED: "noticed", 0: "NOT NOTICED", None: "NOT NOTICED: the tests hang"}
        result = words.get(status, f"pytest ended with status {status}")
    print(f"{fault.name}: {result} ({time.monotonic() - started:.0f} s)", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
