"""A model divided among processes, over gloo: the same answers as one process gives, also when a rank is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.installed import install
from support.native import at_once, chat, cramped, engine_of, many_answers
from support.reference_decoder import write_family, write_safetensors
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import BackendError, ConfigError, ModelError, RunnerLostError
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.runners.torch.device import check_gpus
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.parallel.messages import RankReport
from pyagent.infrastructure.engine.runners.torch.parallel.reports import hanging_rank
from pyagent.infrastructure.observability.engine_metrics import collect_engines

pytestmark = pytest.mark.oracle

TORCH = TorchRunnerFactory()
KV_BYTES = 48 * 2 * 2 * 16 * 2 * 16 * 4


def ranks_of(pid: int) -> list[int]:
    """The processes that a process has started to be ranks, and that live."""
    children = [int(child) for of in Path(f"/proc/{pid}/task").glob("*/children") for child in of.read_text().split()]
    return [child for child in children if b"torch.parallel.worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def answers(path: Path, kv_bytes: int = KV_BYTES, **sizes: Any) -> list[list[str]]:
    """Greedy and seeded, in little memory: forks, shared beginnings, chunks, eviction and preemption."""
    backend = NativeBackend.of("tiny", lambda: path, cramped(TORCH, kv_bytes, dtype="f32", **sizes))
    try:
        prompts = [chat(f"{at} {'qu7 more, ' * 24}", max_tokens=4, temperature=0) for at in range(4)]
        return [*await many_answers(backend, 6), [answer.text for answer in await at_once(backend, prompts)]]
    finally:
        await backend.close()


@pytest.fixture(scope="module")
def expected(tiny_model_path: Path) -> list[list[str]]:
    return asyncio.run(answers(tiny_model_path))


def test_four_processes_say_what_one_says(tiny_model_path: Path, expected: list[list[str]]) -> None:
    """Two stages of two ranks each, long steps cut in pieces: all answers are equal, and no process is left."""
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert asyncio.run(answers(tiny_model_path, 2 * KV_BYTES, step_tokens=1024, **sizes)) == expected
    assert not ranks_of(os.getpid())


def ports_of(pid: int) -> list[int]:
    """The ports on which a process listens, all of them on loopback."""
    sockets: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
            sockets.add(os.readlink(link))
    ports: list[int] = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                address, _, port = local.partition(":")
                assert address in {"0100007F", "00000000000000000000000001000000"}, line
                ports.append(int(port, 16))
    return ports


def stranger_at(port: int) -> socket.socket:
    """A connection that says what a rank would not, and stays."""
    stranger = socket.create_connection(("127.0.0.1", port), 5)
    stranger.sendall(bytes(8) + os.urandom(4096))
    return stranger


async def check_told(backend: NativeBackend, process_ids: list[int]) -> None:
    """Each rank is told of, with its steps and memory, and measured."""
    state = await backend.engine_state()
    ranks = state.ranks["tiny"]
    assert [(rank.rank, rank.process_id) for rank in ranks] == list(enumerate(process_ids))
    assert all(rank.memory_bytes > 1 << 20 and rank.num_steps > 1 for rank in ranks), ranks
    rows = [row for metric in collect_engines([state]) for row in metric.samples if "_rank_step_seconds" in row.name]
    assert [(row.labels["rank"], row.value > 0) for row in rows] == [("0", True), ("1", True)]


@pytest.mark.slow
def test_two_processes_say_so_again_after_one_was_lost(
    tiny_model_path: Path, expected: list[list[str]], caplog: Any
) -> None:
    """A rank that is killed fails what runs, with its number and signal; the next request loads the model again.

    Ranks listen on loopback alone, and what a stranger sends there changes no answer.
    """

    async def work() -> None:
        backend = NativeBackend.of(
            "tiny", lambda: tiny_model_path, cramped(TORCH, KV_BYTES, dtype="f32", tensor_parallel_size=2)
        )
        try:
            assert await many_answers(backend, 6) == expected[:-1]
            (rank,) = ranks_of(os.getpid())
            await check_told(backend, [os.getpid(), rank])
            strangers = [stranger_at(port) for pid in (os.getpid(), rank) for port in ports_of(pid)]
            assert strangers, "gloo listens"
            assert await many_answers(backend, 6) == expected[:-1]
            for stranger in strangers:
                stranger.close()
            os.kill(rank, signal.SIGKILL)
            named = rf"rank 1's process {rank} ended \(signal SIGKILL\)"
            with pytest.raises(BackendError, match=named):
                await collect(backend.chat(chat("ab", max_tokens=100, temperature=0, ignore_eos=True)))
            assert await many_answers(backend, 6) == expected[:-1]
            assert ranks_of(os.getpid()) not in ([], [rank])
        finally:
            await backend.close()

    asyncio.run(work())
    assert "the model's 2 ranks are lost" in caplog.text
    assert not ranks_of(os.getpid())


@pytest.mark.slow
def test_answers_go_on_when_a_rank_is_killed_or_hangs(tiny_model_path: Path, capfd: Any) -> None:
    """As the engine has a process of its own then: another one takes over, and the rank is named.

    No rank outlives its engine's kill, not even one that is stopped.
    """
    request = chat("the user is", max_tokens=150, temperature=0, ignore_eos=True)
    settings = {
        "engine.runner": "torch",
        "engine.kv_dtype": "f32",
        "engine.dtype": "f32",
        "engine.pipeline_parallel_size": 2,
        "engine.hang_seconds": 8,
    }

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False, **settings) as backend:

            async def engine() -> int:
                return (await backend.engine.state()).process_id or 0

            async def told(number: signal.Signals | None = None) -> str:
                """The answer; in its midst, the engine's rank gets a signal."""
                pieces: list[str] = []
                async for delta in backend.chat(request):
                    pieces.append(delta.content)
                    if len(pieces) == 10 and number is not None:
                        os.kill(ranks_of(await engine())[0], number)
                return "".join(pieces)

            whole, engines = await told(), [await engine()]
            for number in (signal.SIGKILL, signal.SIGSTOP):
                assert await told(number) == whole
                engines.append(await engine())
            assert len({0, *engines}) == 4, "each ended with its rank"
            (rank,) = ranks_of(engines[-1])
            os.kill(rank, signal.SIGSTOP)
            os.kill(engines[-1], signal.SIGKILL)
            await until(lambda: has_ended(rank))

    asyncio.run(work())
    said = capfd.readouterr().err
    assert re.search(r"rank 1's process \d+ ended \(signal SIGKILL\): the model's 2 ranks are lost", said)
    assert re.search(r"rank 1's process \d+ has said nothing for [\d.]+ s: the model's 2 ranks are lost", said)


@pytest.mark.parametrize(
    ("busy_seconds", "others", "hanging"),
    [
        (3.0, [(0.2, 7, True), (0.1, 7, True)], None),
        (3.0, [(14.0, 7, False), (0.1, 7, True)], None),
        (0.0, [(0.1, 7, True), (16.0, 7, False)], (2, "has said nothing for 16.0 s")),
        (60.0, [(0.1, 7, True), (5.0, 7, True)], (2, "has said nothing for 5.0 s")),
        (60.0, [(0.1, 7, True), (0.1, 6, False)], (2, "is at a step for 60.0 s (engine.hang_seconds)")),
        (60.0, [(0.1, 6, False), (0.1, 7, True)], (1, "is at a step for 60.0 s (engine.hang_seconds)")),
        (60.0, [(0.1, 7, True), (0.1, 7, True)], (0, "is at a step for 60.0 s (engine.hang_seconds)")),
    ],
)
def test_rank_that_hangs_is_found(
    busy_seconds: float, others: list[tuple[float, int, bool]], hanging: tuple[int, str] | None
) -> None:
    """It is the one that is silent, sooner in a step that is late; else of those that wait for no other the slowest."""

    def report(rank: int, num_steps: int, *, is_waiting: bool) -> RankReport:
        about = {"step_seconds": 0.1, "busy_seconds": busy_seconds, "memory_bytes": 0}
        return RankReport(rank=rank, num_steps=num_steps, is_waiting=is_waiting, **about)  # type: ignore[arg-type]

    heard = [(silent, report(rank, num, is_waiting=waits)) for rank, (silent, num, waits) in enumerate(others, 1)]
    own = report(0, 7, is_waiting=all(waits for _, _, waits in others) is False)
    assert hanging_rank(heard, own, 54.0) == hanging


EXECUTOR = """
import subprocess
import sys

from pyagent.plugin import hookimpl

CODE = "import sys; from pyagent.plugin import run_rank; run_rank(bytes.fromhex(sys.argv[1])) # torch.parallel.worker"


class Child:
    def __init__(self, told):
        self._process = subprocess.Popen([sys.executable, "-c", CODE, told.hex()], process_group=0)
        self.process_id = self._process.pid

    def wait(self, seconds=None):
        try:
            return f"code {self._process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        self._process.kill()


class Children:
    gives_devices = False

    def start(self, told):
        return [Child(one) for one in told]


@hookimpl
def pyagent_register_rank_executors():
    return {"mine": lambda settings: Children()}
"""


@pytest.mark.slow
def test_plugin_starts_ranks(tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that a plugin's executor starts answer, and end with the engine's process, though no child of it."""
    install(monkeypatch, tmp_path, "mine", EXECUTOR, "rank_executors")
    settings = {
        "engine.runner": "torch",
        "engine.kv_dtype": "f32",
        "engine.dtype": "f32",
        "engine.tensor_parallel_size": 2,
        "engine.distributed_executor_backend": "mine",
    }
    request = chat("the user is", max_tokens=20, temperature=0, ignore_eos=True)

    async def work() -> None:
        async with engine_of(tiny_model_path, **settings) as backend:
            assert (await collect(backend.chat(request))).last.usage.completion_tokens == 20
            engine = (await backend.engine.state()).process_id or 0
            (rank,) = ranks_of(engine)
            os.kill(engine, signal.SIGKILL)
            await until(lambda: has_ended(rank))
        with pytest.raises(ConfigError, match=r"no distributed_executor_backend 'min'; did you mean 'mine'"):
            async with engine_of(tiny_model_path, **{**settings, "engine.distributed_executor_backend": "min"}):
                pass

    asyncio.run(work())


@pytest.mark.slow
def test_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    """A layer that only the other rank reads lacks a tensor: a `ModelError` that names it, and no process is left."""
    config, tensors = write_family(tmp_path, "llama")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    write_safetensors(tmp_path, config, tensors)
    with pytest.raises(ModelError, match=r"no tensor 'blk\.0\.ffn_up\.weight'"):
        TORCH.load(tmp_path, RunnerOptions(threads=1, pipeline_parallel_size=2), LargestStep(64, 4), None)
    assert not ranks_of(os.getpid())


DESERTER = """
import sys

import msgspec
import zmq

told = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]))
rank_0 = zmq.Context().socket(zmq.PAIR)
rank_0.connect(told["endpoint"])
rank_0.send(msgspec.msgpack.encode({"type": "Loaded", "num_pages": 48}))
rank_0.recv()
sys.exit(7)
"""


class Deserter:
    """A rank that ends when it is to meet the others."""

    def __init__(self, told: bytes) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", DESERTER, told.hex()])
        self.process_id = self._process.pid

    def wait(self, seconds: float | None = None) -> str:
        return f"code {self._process.wait(seconds)}"

    def kill(self) -> None:
        self._process.kill()


class Deserters:
    gives_devices = False

    def start(self, told: Sequence[bytes]) -> list[Deserter]:
        return [Deserter(one) for one in told]


def test_rank_that_ends_before_it_meets_the_others_is_noticed(tiny_model_path: Path) -> None:
    """Nobody waits for it as long as meeting may take, which is two minutes."""
    options = RunnerOptions(threads=1, tensor_parallel_size=2, rank_executor=Deserters())
    start = time.monotonic()
    with pytest.raises(RunnerLostError, match=r"rank 1's process \d+ ended \(code 7\)"):
        TORCH.load(tiny_model_path, options, LargestStep(64, 4), None)
    assert time.monotonic() - start < 100


@pytest.mark.parametrize(
    ("num_sharing", "sizes", "num_gpus", "key", "said"),
    [
        (1, (2, 2), 4, None, ""),
        (1, (2, 2), 3, "tensor_parallel_size", "is 4, a GPU for each, but torch sees 3"),
        (2, (2, 1), 3, "data_parallel", r"is 2 and .* 2: 4 GPUs, and torch sees 3; take fewer copies"),
        (2, (1, 1), 8, "data_parallel", "2 GPUs, and torch sees 8; tell them apart by .*CUDA_VISIBLE_DEVICES"),
    ],
)
def test_too_few_gpus_are_refused(
    num_sharing: int, sizes: tuple[int, int], num_gpus: int, key: str | None, said: str
) -> None:
    """Each rank of each copy has a GPU to itself, or the setting is named with the numbers."""
    options = RunnerOptions(tensor_parallel_size=sizes[0], pipeline_parallel_size=sizes[1], num_sharing=num_sharing)
    if key is None:
        check_gpus(options, num_gpus)
        return
    with pytest.raises(ConfigError, match=said) as caught:
        check_gpus(options, num_gpus)
    assert caught.value.key == f"engine.{key}"
