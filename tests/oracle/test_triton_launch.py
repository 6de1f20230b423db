"""Which entry of its table a kernel is launched with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources

from pyagent.infrastructure.engine.runners.torch.kernels import unavailable_reason
from pyagent.infrastructure.engine.runners.torch.kernels.launch import ConfiguredKernel, next_power_of_2

pytestmark = pytest.mark.oracle

TABLE = [
    triton.Config({"BLOCK": block}, num_warps=4, num_stages=stages) for block, stages in ((64, 3), (64, 2), (16, 1))
]


class SmallDevice:
    """A kernel on a device with room for so many stages; keeps what it was launched with."""

    def __init__(self, most_stages: int) -> None:
        self.most_stages = most_stages
        self.launches: list[tuple[int, int]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch

    def launch(self, *tensors: Any, BLOCK: int, num_stages: int, **shape: Any) -> None:
        self.launches.append((BLOCK, num_stages))
        if num_stages > self.most_stages:
            raise OutOfResources(200, 100, "shared memory")


def fitting(shape: dict[str, Any]) -> list[triton.Config]:
    return [entry for entry in TABLE if entry.kwargs["BLOCK"] <= shape["SIZE"]]


def test_first_entry_that_fits_and_has_room_is_taken_and_remembered() -> None:
    """Entries too large for the device are tried once for a shape, those too large for a shape never."""
    device = SmallDevice(most_stages=2)
    kernel = ConfiguredKernel(device, fitting)
    for size in (64, 64, 16):
        kernel[1,](torch.empty(1), SIZE=size)
    assert device.launches == [(64, 3), (64, 2), (64, 2), (16, 1)]


def test_device_without_room_for_any_entry_is_an_error() -> None:
    """When the smallest entry does not fit either, Triton's error is told, again and again."""
    kernel = ConfiguredKernel(SmallDevice(most_stages=0), fitting)
    for _ in range(2):
        with pytest.raises(OutOfResources, match="shared memory"):
            kernel[1,](torch.empty(1), SIZE=64)


def test_powers_of_two() -> None:
    """The next power of two of a number is that number where it is one."""
    assert [next_power_of_2(number) for number in (1, 2, 3, 64, 65, 80)] == [1, 2, 4, 64, 128, 128]


def test_kernels_need_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU will do, and the interpreter where it is asked for; else the reason names the device."""
    assert unavailable_reason("cuda:0") is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert unavailable_reason("cpu") is None
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "this one is cpu" in str(unavailable_reason("cpu"))
