"""What idle plugins cost a start: a process that discovers plugins, with 0 and with 50 installed, in turns.

    .venv/bin/python benchmarks/plugin_start.py [--plugins 50] [--repeats 15]

Each plugin is a distribution of its own, with metadata, in a folder on `sys.path`; its module sleeps 200 ms, so that a
single import would show. The process discovers, asks for the tools (which none of the 50 brings) and ends. Fails when
the plugins add 150 ms or more.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_SECONDS = 0.150
START = """
from pyagent.core.plugins import PluginHost
from types import SimpleNamespace
host = PluginHost.discover(SimpleNamespace(disable=["math"], order=[], options={}, load_seconds=60))
host.tools()
states = [info.state for info in host.plugins() if info.name.startswith("bench")]
print(len(states), states.count("idle"))
"""


def install(folder: Path, num_plugins: int) -> None:
    for index in range(num_plugins):
        name = f"bench{index}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n" + "A plugin.\n" * 50)
        (info / "RECORD").write_text("")
        (info / "entry_points.txt").write_text(f"[pyagent]\n{name}.agents = {name}\n")
        (folder / f"{name}.py").write_text("import time\ntime.sleep(0.2)\n")


def start_seconds(folder: Path, num_plugins: int) -> float:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", START], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - started
    assert done.stdout.split() == [str(num_plugins)] * 2, f"all plugins should be found and idle: {done.stdout}"
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        without, with_plugins = Path(name) / "without", Path(name) / "with"
        install(without, 0)
        install(with_plugins, options.plugins)
        start_seconds(with_plugins, options.plugins)
        pairs = [
            (start_seconds(without, 0), start_seconds(with_plugins, options.plugins)) for _ in range(options.repeats)
        ]
    bare, loaded = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(after - before for before, after in pairs)
    machine = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    print(f"{machine}, median of {len(pairs)}")
    print(f"start with no plugins      {bare * 1000:7.1f} ms")
    print(f"start with {options.plugins:3} plugins     {loaded * 1000:7.1f} ms")
    print(f"added (median of pairs)    {added * 1000:7.1f} ms   limit {LIMIT_SECONDS * 1000:.0f} ms")
    return 0 if added < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
