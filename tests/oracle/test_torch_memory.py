"""The torch runner's memory as on a device of its own: a ledger for it, KV memory that goes whole and comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.native import chat
from support.tiny_model import write_tiny_model

from pyagent.core.backends import collect
from pyagent.core.errors import BackendError, CapacityError, ModelError
from pyagent.core.runners.factory import DeviceMemory, KvReservation, LargestStep, ModelNeeds, RunnerOptions
from pyagent.core.runners.runner import ModelRunner, RunnerInfo
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes

pytestmark = pytest.mark.oracle

KV_BYTES = 1 << 20
OPTIONS = EngineOptions(RunnerOptions(threads=1, kv_bytes=KV_BYTES, dtype="f32"))


class DeviceRunner(TorchRunner):
    """A torch runner on a device of its own, as a GPU is: KV memory is there whole, or not at all."""

    is_full = False

    def _load(self, *told: Any) -> RunnerInfo:
        info = super()._load(*told)
        self.is_kv_whole = True
        kv = self._model.kv
        kv.slots = [PagedCache(*(None if part is None else part.clone() for part in slot)) for slot in kv.slots]
        self.tensors = [tensor for slot in kv.slots for tensor in slot.tensors]
        RUNNERS.append(weakref.ref(self))
        return info

    def allocate_kv(self) -> None:
        if DeviceRunner.is_full:
            raise self._short_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
        super().allocate_kv()

    @property
    def num_kv_bytes(self) -> int:
        """Bytes of the tensors' memory now."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)


RUNNERS: list[weakref.ref[DeviceRunner]] = []


class DeviceFactory(TorchRunnerFactory):
    """Its factory, with a device that has room for so many bytes."""

    name = "device"

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.total_bytes = total_bytes

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        return dataclasses.replace(super().estimate(path, options, step), device=DeviceMemory("gpu", self.total_bytes))

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        return DeviceRunner(path, options, step, kv)


@asynccontextmanager
async def serving(folder: Path, names: Sequence[str], factory: TorchRunnerFactory) -> AsyncGenerator[NativeBackend]:
    RUNNERS.clear()
    options = dataclasses.replace(OPTIONS, runners=RunnerChoice((factory,)))
    pool = ModelPool(lambda name: folder / f"{name}.gguf", options, Ledger(1 << 30))
    backend = NativeBackend(list(names), LocalEngine(pool), look=lambda _: "")
    try:
        yield backend
    finally:
        await backend.close()


async def say(backend: NativeBackend, model: str) -> str:
    request = chat("the user", temperature=0, max_tokens=12, ignore_eos=True)
    return (await collect(backend.chat(msgspec.structs.replace(request, model=model)))).text


async def held(backend: NativeBackend) -> dict[str, int]:
    """What is held of the device."""
    memory = (await backend.engine_state()).memory
    return {name.removeprefix("gpu/"): size for name, size in memory.items() if name.startswith("gpu/")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that say different things."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        write_tiny_model(folder / f"{name}.gguf", seed)
    return folder


def texts(folder: Path) -> dict[str, str]:
    """What the models say on a runner of this machine's memory."""

    async def work() -> dict[str, str]:
        async with serving(folder, "ab", TorchRunnerFactory()) as backend:
            return {name: await say(backend, name) for name in "ab"}

    return asyncio.run(work())


def test_a_second_model_gets_the_kv_memory_of_an_idle_one(folder: Path) -> None:
    """A device with room for both models' weights and one's KV: they take turns, and say what they say alone."""

    async def work() -> None:
        needs = DeviceFactory().estimate(folder / "a.gguf", OPTIONS.runner, OPTIONS.largest_step)
        room = 2 * (needs.weight_bytes + needs.workspace_bytes) + KV_BYTES * 5 // 4
        async with serving(folder, "ab", DeviceFactory(room)) as backend:
            for name, other in ("ab", "ba", "ab"):
                assert await say(backend, name) == expected[name]
                accounts = await held(backend)
                assert accounts[f"kv:{name}"] > KV_BYTES / 2
                assert f"kv:{other}" not in accounts
                kept = [runner.num_kv_bytes for one in RUNNERS if (runner := one())]
                assert sum(size > 0 for size in kept) == 1
            assert len(RUNNERS) == 2  # each was loaded once
            assert {"weights:a", "weights:b", "workspace:a"} <= accounts.keys()

    expected = texts(folder)
    asyncio.run(work())


def test_sleep_gives_the_device_back_and_waking_says_the_same(folder: Path) -> None:
    """Level 1 frees the KV memory, level 2 the weights too; the next request finds what it needs again."""

    async def work() -> None:
        async with serving(folder, "a", DeviceFactory()) as backend:
            first = await say(backend, "a")
            before = await held(backend)
            await backend.sleep(1)
            runner = RUNNERS[0]()
            assert runner is not None
            assert runner.num_kv_bytes == 0
            assert (await held(backend)).keys() == before.keys() - {"kv:a"}
            assert await say(backend, "a") == first == expected["a"]
            assert runner.num_kv_bytes > KV_BYTES / 2
            assert await held(backend) == before
            del runner
            await backend.sleep(2)
            gc.collect()
            assert await held(backend) == {}
            assert RUNNERS[0]() is None
            assert await say(backend, "a") == first

    expected = texts(folder)
    asyncio.run(work())


def test_attention_is_not_changed_while_kv_memory_is_given_back(folder: Path) -> None:
    """Graphs are captured over KV memory: while an engine sleeps the change is refused, and done once it is awake."""
    runner = DeviceRunner(folder / "a.gguf", OPTIONS.runner, LargestStep(64, 8))
    runner.drop_kv()
    with pytest.raises(CapacityError, match="wake the model first"):
        runner.use_attention("torch")
    runner.allocate_kv()
    runner.use_attention("torch")
    assert runner.attention == "torch"
    runner.close()


def test_memory_that_another_program_took_meanwhile_is_said(folder: Path) -> None:
    """After a sleep the device may be full: the request ends with a reason, and a later one goes on."""

    async def work() -> None:
        async with serving(folder, "a", DeviceFactory()) as backend:
            first = await say(backend, "a")
            await backend.sleep(1)
            DeviceRunner.is_full = True
            try:
                with pytest.raises(BackendError, match=r"; raise engine\.kv_cache_memory_bytes or engine\.gpu_mem"):
                    await say(backend, "a")
                assert "kv:a" not in await held(backend)
            finally:
                DeviceRunner.is_full = False
            assert await say(backend, "a") == first

    asyncio.run(work())


class Full(Target):
    """A GPU of 100 MB, of which others have some."""

    share_bytes = 90_000_000
    capacity_bytes = 50_000_000


def test_what_never_fits_and_what_does_not_fit_now_are_told_apart(tmp_path: Path) -> None:
    """Beside a server that runs, a model has no room now: a reason to wait, and no fault of the model."""
    target = Full(torch.device("cpu"), torch.float32, torch.float32)
    Sizes(40_000_000, 1_000_000, 4096, 1).check_fit(target, tmp_path)
    with pytest.raises(CapacityError, match="can be had now: other programs"):
        Sizes(60_000_000, 1_000_000, 4096, 1).check_fit(target, tmp_path)
    with pytest.raises(ModelError, match="of which the engine may have"):
        Sizes(95_000_000, 1_000_000, 4096, 1).check_fit(target, tmp_path)
