"""The `pyagent` command: runs what was asked for, and says errors in one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, Never, cast

from pyagent.cli.load_line import loads_on_terminal
from pyagent.core.errors import PyAgentError


def main() -> Never:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended."""
    arguments = sys.argv[1:]
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks is no reason to fail
    try:
        with loads_on_terminal():
            code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head -1` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what waits to be written would fail again
        sys.stderr.write(f"error: what is written has no room: {error.strerror}; make room on its disk\n")
        code = 1
    except PyAgentError as error:
        if "--debug" in arguments:
            raise
        code = fail(error)
    except KeyboardInterrupt:
        code = 130
    if "pyagent.cli.event_loop" in sys.modules:
        from pyagent.cli.event_loop import leave

        leave(code)
    sys.exit(code)


def _open_closed() -> None:
    """Have an output that was closed before the start (`>&-`, some supervisors) write nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def _run(arguments: list[str]) -> int:
    """`serve` at once where its flags are plain, all else by the parser."""
    if arguments[:1] == ["serve"]:
        from pyagent.cli.plain_flags import read_plain
        from pyagent.cli.serving import FLAGS, serve

        values = read_plain(arguments[1:], FLAGS)
        if values is not None:
            serve(**cast("dict[str, Any]", values))
            return 0

    from pyagent.cli.root import run

    return run(arguments)


def fail(error: PyAgentError) -> int:
    """Say what went wrong, in one line, and give the exit code."""
    from pyagent.core.one_line import printable

    sys.stderr.write(f"error: {printable(' '.join(str(error).split()))}\n")  # a server's own words may be in it
    return 1
