"""Ranks of a model divided among GPUs as actors, in a placement group on the engine's own machine.

The engine's process is rank 0, with the first GPU that it sees. Ray counts a CPU and a GPU for each other rank and
shows it that GPU alone; the ranks then speak with the engine as its child processes would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from pyagent.plugin import BackendError, RankProcess
from pyagent_ray.connection import connect_blocking, disconnect_blocking, rays_failures
from pyagent_ray.lazily import module
from pyagent_ray.options import Options

_NAME = "ray"
_HERE = 0.001
"""Of a node's own resource, which it has one of: what takes some of it is on that machine."""


class RankActor:
    """Ray's actor of one rank."""

    def process_id(self) -> int:
        """Return its process."""
        return os.getpid()

    def run(self, told: bytes) -> None:
        """Be the rank until the engine ends."""
        from pyagent.plugin import run_rank

        run_rank(told)


class RayRanks:
    """Starts ranks on Ray."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def gives_devices(self) -> bool:
        """As `RankExecutor.gives_devices`."""
        return True

    def start(self, told: Sequence[bytes]) -> Sequence[RankProcess]:
        """As `RankExecutor.start`."""
        ray = connect_blocking(self._options)
        group = _RankGroup(len(told), self._options)
        try:
            with rays_failures(_NAME):
                group.reserve(ray)
                return [group.begin(ray, number, one) for number, one in enumerate(told)]
        except BaseException:
            group.release()
            raise


class _RankGroup:
    """The placement group of a model's ranks; given back when all have ended."""

    def __init__(self, num_ranks: int, options: Options) -> None:
        self._options = options
        self._group: Any = None
        self._actors: list[Any] = []
        self._left = num_ranks
        self._lock = threading.Lock()

    def reserve(self, ray: Any) -> None:
        """Wait for room on this machine."""
        options = self._options
        takes = {"CPU": options.rank_cpus, "GPU": options.rank_gpus, f"node:{ray.util.get_node_ip_address()}": _HERE}
        bundle = {kind: amount for kind, amount in takes.items() if amount}
        groups = module("ray.util.placement_group")
        self._group = groups.placement_group([bundle] * self._left, strategy="PACK")
        if not self._group.wait(options.start_seconds):
            text = (
                f"ray: this machine has no room in the Ray cluster for {self._left} ranks with {options.rank_cpus:g} "
                f"CPUs and {options.rank_gpus:g} GPUs each (plugins.ray.rank_cpus, rank_gpus); "
                f"it was asked for {options.start_seconds:g} s"
            )
            raise BackendError(text, backend=_NAME)

    def begin(self, ray: Any, number: int, told: bytes) -> RankProcess:
        """Start a rank in its part of the group."""
        options = self._options
        strategies = module("ray.util.scheduling_strategies")
        made = ray.remote(RankActor).options(
            num_cpus=options.rank_cpus,
            num_gpus=options.rank_gpus,
            max_restarts=0,
            max_concurrency=2,  # it is asked for its process while it runs
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(self._group, number),
        )
        actor = made.remote()
        self._actors.append(actor)
        process_id = ray.get(actor.process_id.remote(), timeout=options.start_seconds)
        return _RayRank(ray, actor, actor.run.remote(told), process_id, self)

    def ended(self) -> None:
        """Note that a rank has; with the last one, release."""
        with self._lock:
            self._left -= 1
        if self._left == 0:
            self.release()

    def release(self) -> None:
        """End what is left, and give the group and the connection back."""
        for actor in self._actors:
            module().kill(actor)
        if self._group is not None:
            module("ray.util.placement_group").remove_placement_group(self._group)
        disconnect_blocking()


class _RayRank:
    """A rank's actor, as the engine sees its process."""

    def __init__(self, ray: Any, actor: Any, running: Any, process_id: int, of: _RankGroup) -> None:
        self.process_id = process_id
        self._ray = ray
        self._actor = actor
        self._running = running
        self._of = of
        self._how: str | None = None
        self._lock = threading.Lock()

    def wait(self, seconds: float | None = None) -> str | None:
        """As `RankProcess.wait`."""
        if self._how is None:
            done, _ = self._ray.wait([self._running], timeout=seconds)
            if done:
                self._note_end()
        return self._how

    def _note_end(self) -> None:
        with self._lock:
            if self._how is not None:
                return
            self._how = self._end()
        self._of.ended()

    def _end(self) -> str:
        try:
            self._ray.get(self._running)
        except Exception as error:  # noqa: BLE001 - an actor's death, or what it raised
            said = str(error).strip().splitlines() or [""]
            return f"Ray: {type(error).__name__}: {said[0][:200]}"
        return "its work is over"

    def kill(self) -> None:
        """As `RankProcess.kill`. By its number too: Ray asks the process itself, which may be stopped."""
        if self._how is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGKILL)
            self._ray.kill(self._actor)
