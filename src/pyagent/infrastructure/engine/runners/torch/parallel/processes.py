"""Ranks as child processes of the engine's (the executor `mp`), and as what other executors start."""

from __future__ import annotations

import contextlib
import subprocess  # the command is this interpreter
import sys
from collections.abc import Sequence

from pyagent.infrastructure.processes import describe_exit, end_with
from pyagent.infrastructure.wire.codec import with_length

_COMMAND = (sys.executable, "-P", "-m", "pyagent.infrastructure.engine.runners.torch.parallel.worker")


def run_rank(told: bytes) -> None:
    """Be the rank that the engine's process told of, in a process of its own, until that ends or this rank fails."""
    from pyagent.infrastructure.engine.runners.torch.parallel.messages import start_codec
    from pyagent.infrastructure.engine.runners.torch.parallel.worker import run

    start = start_codec.decode(told)
    end_with(start.engine_id)
    run(start)


class ChildRanks:
    """Starts them."""

    gives_devices = False

    def start(self, told: Sequence[bytes]) -> list[ChildRank]:
        """As `RankExecutor.start`."""
        return [ChildRank(one) for one in told]


class ChildRank:
    """A rank's process, whose standard input tells it what to be, and by its end that this process has ended."""

    def __init__(self, told: bytes) -> None:
        # A group of its own: Ctrl+C in a terminal is for the engine, which ends the others in order.
        self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, process_group=0)  # noqa: S603
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is noticed
            assert self._process.stdin
            self._process.stdin.write(with_length(told))
            self._process.stdin.flush()

    @property
    def process_id(self) -> int:
        """As `RankProcess.process_id`."""
        return self._process.pid

    def wait(self, seconds: float | None = None) -> str | None:
        """As `RankProcess.wait`."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        return describe_exit(code)

    def kill(self) -> None:
        """As `RankProcess.kill`."""
        self._process.kill()
