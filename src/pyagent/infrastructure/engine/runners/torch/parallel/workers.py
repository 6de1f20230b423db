"""The processes of the ranks beside the engine's own: started, told what to do, noticed when they end.

A rank that ends takes its part of the model and of all keys and values with it, so the runner is lost: the other ranks
are ended too, and who waits for them is told which one it was.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess  # the command is this interpreter
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import zmq

from pyagent.core.errors import RunnerLostError
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch.attention.choice import told_of
from pyagent.infrastructure.engine.runners.torch.parallel.group import Group
from pyagent.infrastructure.engine.runners.torch.parallel.messages import (
    Allocate,
    Failed,
    StartRank,
    ToRank,
    from_rank,
    start_codec,
    to_rank,
    told_options,
)
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Shard
from pyagent.infrastructure.processes import describe_exit, socket_folder
from pyagent.infrastructure.wire.codec import MAX_FRAME_BYTES, with_length

logger = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-P", "-m", "pyagent.infrastructure.engine.runners.torch.parallel.worker")
_LOOK_MILLISECONDS = 100
_SEND_MILLISECONDS = 10_000
"""A rank that takes no message for so long has ended, or stopped."""


class Workers:
    """Ranks 1 and up of a model. Safe from any thread but for `num_pages` and `connect`, which load it."""

    def __init__(self, path: Path, options: RunnerOptions, step: LargestStep, shard: Shard, num_threads: int) -> None:
        """Start them; they begin to load."""
        self._shard = shard
        self._when_lost = options.when_lost
        self._lock = threading.Lock()
        self._folder = socket_folder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._group: Group | None = None
        self._is_serving = self._is_closed = False
        self.fault: str | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            for rank in range(1, shard.num_ranks):
                self._start(
                    StartRank(
                        rank=rank,
                        folder=str(self._folder),
                        endpoint=f"ipc://{self._folder}/{rank}",
                        log_level=logging.getLogger("pyagent").getEffectiveLevel(),
                        attention=told_of(options.attention),
                        path=str(path),
                        options=told_options(replace(options, threads=num_threads, when_lost=None)),
                        largest_step=(step.num_tokens, step.num_outputs, step.num_positions),
                    )
                )
        except BaseException:
            self.close()
            raise

    def _start(self, start: StartRank) -> None:
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.SNDTIMEO, _SEND_MILLISECONDS)
        self._sockets.append(socket)
        socket.bind(start.endpoint)
        # A group of its own: Ctrl+C in a terminal is for the engine, which ends the others in order.
        process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, process_group=0)  # noqa: S603
        self._processes.append(process)
        watch = threading.Thread(target=self._watch, args=(start.rank, process), name="pyagent-rank", daemon=True)
        watch.start()
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is noticed
            assert process.stdin
            process.stdin.write(with_length(start_codec.encode(start)))
            process.stdin.flush()

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

    def connect(self, num_pages: int, device: torch.device) -> Group:
        """Have all take memory for so many pages, and meet them."""
        self.tell(Allocate(num_pages))
        try:
            self._group = Group(self._folder, self._shard, device)
        except RuntimeError as error:
            raise self._lost_by(error) from error
        self._is_serving = True
        self.check()
        return self._group

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
                raise self._lost_by(error) from error

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
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0 / len(self._processes))
        return RunnerLostError(self.fault or f"rank 0 failed: {type(error).__name__}: {error}")

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._is_closed:
            self._lose(f"rank {rank}'s process {process.pid} ended ({describe_exit(code)})")

    def _lose(self, reason: str) -> None:
        """Note the first reason, and end the ranks that are left."""
        with self._lock:
            if self.fault is not None or self._is_closed:
                return
            self.fault = reason
        logger.error("%s: the model's %d ranks are lost, it is loaded again", reason, self._shard.num_ranks)
        if self._is_serving and self._when_lost is not None:
            self._when_lost(reason)
        self._end(self._processes)
        if self._group is not None:
            self._group.close()

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        with self._lock:
            self._is_closed = True
        self._end(self._processes)
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if self._group is not None:
            self._group.close()
            self._group = None
        with self._lock:
            for socket in self._sockets:
                socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
