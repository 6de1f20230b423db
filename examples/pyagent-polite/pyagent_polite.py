"""A PyAgent plugin with an executor of ranks: they run with a lower priority, so that the machine stays usable."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

from pyagent.plugin import BackendError, RankExecutor, RankExecutorFactory, RankProcess, Settings, hookimpl

RANK = "import os, sys; from pyagent.plugin import run_rank; os.nice(10); run_rank(sys.stdin.buffer.read())"


class PoliteRank:
    """A rank's process."""

    def __init__(self, told: bytes) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", RANK], stdin=pipe, stderr=subprocess.DEVNULL)  # noqa: S603
        assert self.process.stdin
        try:
            self.process.stdin.write(told)
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, which `wait` tells

    @property
    def process_id(self) -> int:
        return self.process.pid

    def wait(self, seconds: float | None = None) -> str | None:
        try:
            return f"it ended with status {self.process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self.process.kill()


class PoliteRanks:
    gives_devices = False  # all see the same GPUs, and each takes its rank's

    def start(self, told: Sequence[bytes]) -> Sequence[RankProcess]:
        started: list[RankProcess] = []
        try:
            started.extend(PoliteRank(one) for one in told)
        except OSError as error:
            for rank in started:
                rank.kill()
            raise BackendError(f"the ranks cannot be started: {error}", backend="polite") from error
        return started


def make_ranks(settings: Settings) -> RankExecutor:
    return PoliteRanks()


@hookimpl
def pyagent_register_rank_executors() -> Mapping[str, RankExecutorFactory]:
    return {"polite": make_ranks}
