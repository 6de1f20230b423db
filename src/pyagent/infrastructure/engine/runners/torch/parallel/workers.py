"""The processes of the ranks beside the engine's own: started, told what to do, noticed when they end or hang.

A rank that ends takes its part of the model and of all keys and values with it, so the runner is lost: the other ranks
are ended too, and who waits for them is told which one it was.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace as with_options
from pathlib import Path

import torch
import zmq
from msgspec.structs import replace

from pyagent.core.errors import BackendError, PyAgentError, RunnerLostError
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.core.runners.rank_executor import RankExecutor, RankProcess
from pyagent.core.runners.runner import RankStats
from pyagent.infrastructure.engine.runners.torch.attention.choice import told_of
from pyagent.infrastructure.engine.runners.torch.parallel.group import Group
from pyagent.infrastructure.engine.runners.torch.parallel.messages import (
    Allocate,
    Failed,
    RankReport,
    StartRank,
    ToRank,
    from_rank,
    start_codec,
    to_rank,
    told_options,
)
from pyagent.infrastructure.engine.runners.torch.parallel.processes import ChildRanks
from pyagent.infrastructure.engine.runners.torch.parallel.pulse import StepClock
from pyagent.infrastructure.engine.runners.torch.parallel.reports import Reports
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Shard
from pyagent.infrastructure.processes import socket_folder
from pyagent.infrastructure.wire.codec import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

_LOOK_MILLISECONDS = 100
_SEND_MILLISECONDS = 10_000
"""A rank that takes no message for so long has ended, or stopped."""
_SHARE_OF_HANG = 0.9
"""Of the seconds of a hang: the supervisor of this process, which knows no ranks, waits for all of them."""


class Workers:
    """Ranks 1 and up of a model. Safe from any thread but for `num_pages` and `connect`, which load it."""

    def __init__(
        self,
        path: Path,
        options: RunnerOptions,
        step: LargestStep,
        shard: Shard,
        num_threads: int,
        device: torch.device,
    ) -> None:
        """Start them; they begin to load. `device` is that of rank 0."""
        self._shard = shard
        self._when_lost = options.when_lost
        self._lock = threading.Lock()
        self._folder = socket_folder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._group: Group | None = None
        self._is_serving = self._is_closed = False
        self.fault: str | None = None
        self.clock = StepClock(device)
        """Of rank 0's steps."""
        self._processes: dict[int, RankProcess] = {}
        self._sockets: list[zmq.Socket[bytes]] = []
        self._endpoint = f"ipc://{self._folder}"
        listener = self._context.socket(zmq.PULL)
        listener.bind(f"{self._endpoint}/reports")
        most = _SHARE_OF_HANG * (options.hang_seconds or math.inf)
        self._reports = Reports(listener, self._own_report, most, self._note_hanging)
        try:
            self._start(path, options, step, num_threads)
        except BaseException:
            self.close()
            raise

    def _start(self, path: Path, options: RunnerOptions, step: LargestStep, num_threads: int) -> None:
        executor = options.rank_executor or ChildRanks()
        told = told_options(with_options(options, threads=num_threads, when_lost=None))
        starts = [
            StartRank(
                rank=rank,
                device=self.clock.device.type,
                has_own_device=executor.gives_devices,
                engine_id=os.getpid(),
                folder=str(self._folder),
                endpoint=f"{self._endpoint}/{rank}",
                reports=f"{self._endpoint}/reports",
                log_level=logging.getLogger("pyagent").getEffectiveLevel(),
                attention=told_of(options.attention),
                path=str(path),
                options=told,
                largest_step=(step.num_tokens, step.num_outputs, step.num_positions),
            )
            for rank in range(1, self._shard.num_ranks)
        ]
        for start in starts:
            self._bind(start.endpoint)
        for rank, process in enumerate(_started(executor, [start_codec.encode(start) for start in starts]), 1):
            self._processes[rank] = process
            watch = threading.Thread(target=self._watch, args=(rank, process), name="pyagent-rank", daemon=True)
            watch.start()

    def _bind(self, endpoint: str) -> None:
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.SNDTIMEO, _SEND_MILLISECONDS)
        self._sockets.append(socket)
        socket.bind(endpoint)

    # -- loading ------------------------------------------------------------------------------------------------------

    def num_pages(self) -> int:
        """Wait until all have loaded; return for how many pages each has room.

        Raises what the first that failed says, or `RunnerLostError` when one ended.
        """
        return min(self._loaded(socket) for socket in self._sockets)

    def _loaded(self, socket: zmq.Socket[bytes]) -> int:
        while not socket.poll(_LOOK_MILLISECONDS):
            self.check()
        answer = from_rank.decode(socket.recv())
        if isinstance(answer, Failed):
            raise answer.fault.error("native")
        return answer.num_pages

    def connect(self, num_pages: int) -> Group:
        """Have all take memory for so many pages, and meet them."""
        self.tell(Allocate(num_pages))
        try:
            self._group = self._meet()
        except RuntimeError as error:
            raise self._lost_by(error) from error
        self._is_serving = True
        self.check()
        return self._group

    def _meet(self) -> Group:
        """Meet the others, in a thread: one that ends meanwhile would be waited for as long as all may take."""
        meeting: Future[Group] = Future()

        def meet() -> None:
            try:
                meeting.set_result(Group(self._folder, self._shard, self.clock.device))
            except BaseException as error:  # noqa: BLE001 - raised below, where it is still waited for
                meeting.set_exception(error)

        threading.Thread(target=meet, name="pyagent-meeting", daemon=True).start()
        while not wait([meeting], _LOOK_MILLISECONDS / 1000).done:
            self.check()
        return meeting.result()

    # -- steps --------------------------------------------------------------------------------------------------------

    def tell(self, message: ToRank) -> None:
        """Send all ranks a message. Raises `RunnerLostError`."""
        frame = to_rank.encode(message)
        with self._lock:
            self.check()
            try:
                for socket in self._sockets:
                    socket.send(frame)
            except zmq.ZMQError as error:
                failed = error
            else:
                return
        raise self._lost_by(failed) from failed

    def check(self) -> None:
        """Raise `RunnerLostError` when one has ended."""
        if self.fault is not None:
            raise RunnerLostError(self.fault)

    def fail(self, error: Exception) -> RunnerLostError:
        """End all, as rank 0 could not finish a step that the others are at; returns what that is for the engine."""
        lost = self._lost_by(error)
        self._lose(str(lost))
        return lost

    def _lost_by(self, error: Exception) -> RunnerLostError:
        """Return why, which may be that a rank has just ended: its connections close before its end is seen."""
        for process in self._processes.values():
            process.wait(1.0 / len(self._processes))
        return RunnerLostError(self.fault or f"rank 0 failed: {type(error).__name__}: {error}")

    # -- how they are -------------------------------------------------------------------------------------------------

    def stats(self) -> list[RankStats]:
        """Return how all ranks are, rank 0 first; those that have not said so yet are left out."""
        return [replace(one, process_id=self._process_id(one.rank)) for one in self._reports.stats()]

    def _process_id(self, rank: int) -> int | None:
        return self._processes[rank].process_id if rank in self._processes else os.getpid()

    def _own_report(self) -> RankReport:
        return self.clock.report(0, is_waiting=self._group is not None and self._group.is_waiting)

    def _note_hanging(self, rank: int, how: str) -> None:
        self._lose(f"rank {rank}'s process {self._process_id(rank)} {how}")

    def _watch(self, rank: int, process: RankProcess) -> None:
        how = process.wait()
        if not self._is_closed:
            self._lose(f"rank {rank}'s process {process.process_id} ended ({how})")

    def _lose(self, reason: str) -> None:
        """Note the first reason, and end the ranks that are left: one that is stopped would not end by itself."""
        with self._lock:
            if self.fault is not None or self._is_closed:
                return
            self.fault = reason
        logger.error("%s: the model's %d ranks are lost, it is loaded again", reason, self._shard.num_ranks)
        _end(self._processes.values())
        if self._is_serving and self._when_lost is not None:
            self._when_lost(reason)
        if self._group is not None:
            self._group.close()

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        with self._lock:
            self._is_closed = True
        _end(self._processes.values())
        for process in self._processes.values():
            process.wait()
        if self._group is not None:
            self._group.close()
            self._group = None
        self._reports.close()
        with self._lock:
            for socket in self._sockets:
                socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


def _started(executor: RankExecutor, told: Sequence[bytes]) -> Sequence[RankProcess]:
    """Return the processes. Raises `BackendError` where the executor, which may be a plugin's, gives none."""
    try:
        return executor.start(told)
    except PyAgentError:
        raise
    except Exception as error:
        text = f"engine.distributed_executor_backend cannot start ranks: {type(error).__name__}: {error}"
        raise BackendError(text, backend="native", retryable=False) from error


def _end(processes: Iterable[RankProcess]) -> None:
    for process in processes:
        process.kill()
