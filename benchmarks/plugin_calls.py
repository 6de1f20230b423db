"""What it costs to ask the host for what plugins bring, once they are loaded.

    .venv/bin/python benchmarks/plugin_calls.py [--plugins 50] [--repeats 20000]

Asks a host of the installed plugins and of 50 more for its executors (which none of these brings: an empty hook)
and for its tools; the least of ten rounds counts. Fails when an empty hook takes 2 microseconds or more.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import timeit
from collections.abc import Callable

from pyagent.core.hooks import hookimpl
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins

LIMIT_MICROSECONDS = 2.0


class Idle:
    """A plugin that fills one hook and brings nothing."""

    @hookimpl
    def pyagent_register_tools(self) -> list[object]:
        return []


def microseconds(ask: Callable[[], object], repeats: int) -> float:
    return min(timeit.repeat(ask, number=repeats, repeat=10)) / repeats * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=20_000)
    options = parser.parse_args()
    host = PluginHost.discover(Plugins())
    for index in range(options.plugins):
        host.register(Idle(), f"bench{index}")
    num_tools = len(host.tools())
    empty = microseconds(host.executors, options.repeats)
    tools = microseconds(host.tools, options.repeats)
    machine = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    print(f"{machine}, {len(host.plugins())} plugins, least of ten rounds")
    print(f"an empty hook (executors)    {empty:6.2f} us   limit {LIMIT_MICROSECONDS:g} us")
    print(f"{num_tools} tools                      {tools:6.2f} us")
    return 0 if empty < LIMIT_MICROSECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
