"""A rank's process: `python -m pyagent.infrastructure.engine.runners.torch.parallel.worker`, started by `workers`.

Load the rank's part, meet the other ranks, then do what rank 0 says, in its order. What cannot be done ends the
process, which rank 0 notices. It ends with the process that started it.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch
import zmq

from pyagent.core.errors import ConfigError, PyAgentError, WireError
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch.attention.choice import choice_told
from pyagent.infrastructure.engine.runners.torch.device import target_of
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.parallel.group import Group
from pyagent.infrastructure.engine.runners.torch.parallel.messages import (
    RANK_0,
    Allocate,
    Compute,
    CopyPages,
    EmptyPages,
    Failed,
    Loaded,
    RankReport,
    StartRank,
    from_rank,
    options_told,
    start_codec,
    to_rank,
)
from pyagent.infrastructure.engine.runners.torch.parallel.pulse import StepClock, start_pulse
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Shard
from pyagent.infrastructure.engine.runners.torch.rank_model import RankModel
from pyagent.infrastructure.engine.runners.torch.stages import choose_stages
from pyagent.infrastructure.observability.logging import configure_logging
from pyagent.infrastructure.processes import end_with_parent
from pyagent.infrastructure.wire.codec import MAX_FRAME_BYTES, read_frame
from pyagent.infrastructure.wire.fault import Fault

logger = logging.getLogger(__name__)


def main() -> None:
    """Be one rank until rank 0 ends."""
    try:
        start = start_codec.decode(read_frame(sys.stdin.buffer.read, RANK_0))
    except WireError as error:
        sys.exit(str(error))
    end_with_parent()
    run(start)


def run(start: StartRank) -> None:
    """Be one rank until it fails; a process of its own does nothing else."""
    options = options_told(start.options)
    configure_logging()
    logging.getLogger("pyagent").setLevel(start.log_level)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.connect(start.endpoint)
    rank = _Rank(start, options)
    try:
        rank.load(context)
    except (PyAgentError, RuntimeError) as error:  # torch's own are of the second kind, out of memory too
        socket.send(from_rank.encode(Failed(Fault.of(error, f"rank {start.rank}"))))
        socket.recv()  # until rank 0 has read it, and ends this process
        return
    socket.send(from_rank.encode(Loaded(rank.model.num_pages(options.kv_bytes))))
    try:
        rank.serve(socket)
    except BaseException:
        logger.exception("rank %d failed", start.rank)
        logging.shutdown()
        os._exit(1)  # threads of torch may wait for other ranks


class _Rank:
    """The rank's part of the model, and how it is at it."""

    def __init__(self, start: StartRank, options: RunnerOptions) -> None:
        self._start = start
        self._options = options
        self._group: Group | None = None

    def load(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Load the part, and say from now on how it goes."""
        start, options = self._start, self._options
        sizes = options.tensor_parallel_size, options.pipeline_parallel_size
        target = target_of(options, 0 if start.has_own_device else start.rank, sees_one=start.has_own_device)
        if target.device.type != start.device:
            text = f"rank {start.rank} is on a {target.device.type} and rank 0 on a {start.device}: the processes of "
            raise ConfigError(f"{text}engine.distributed_executor_backend see other devices than the engine's")
        if target.is_gpu:
            torch.cuda.set_device(target.device)
        self._clock = StepClock(target.device)
        start_pulse(context, start.reports, self._report)
        step = LargestStep(*start.largest_step)
        model = open_model(Path(start.path), {}, step.num_positions)
        self.model = RankModel(model, target, Shard(start.rank, *sizes), step, options.threads)

    def _report(self) -> RankReport:
        return self._clock.report(self._start.rank, is_waiting=self._group is not None and self._group.is_waiting)

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Do what rank 0 says."""
        model, start = self.model, self._start
        while True:
            match to_rank.decode(socket.recv()):
                case Allocate(num_pages):
                    self._group = Group(Path(start.folder), model.part.shard, model.target.device)
                    model.allocate(num_pages, self._group, choice_told(start.attention), choose_stages)
                case Compute(step):
                    with self._clock.step():
                        model.compute(step)
                case CopyPages(pairs):
                    model.copy_pages(pairs)
                case EmptyPages(pages):
                    model.kv.empty_pages(pages)


if __name__ == "__main__":
    main()
