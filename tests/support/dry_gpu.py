"""A GPU that is not there: Triton compiles for it to machine code, and what would be launched is counted instead.

Run as a program, it compiles the torch runner's kernels and prints what each takes of the device, as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

SHARED_BYTES = {80: 166_912, 86: 101_376, 90: 232_448}
"""The most shared memory of a program, by compute capability."""


class Compiled(NamedTuple):
    """One kernel as a device would get it. `matrix` is the matrix instruction that it multiplies with."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    matrix: str


class Launcher:
    """Launch nothing."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


class DryGpu:
    """Triton's driver for a device of a compute capability (90 is Hopper). It is also its own `utils`."""

    launcher_cls = Launcher

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.compiled: list[Compiled] = []
        self.utils = self

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        return self._measure

    def _measure(self, call: Callable[[], None], **options: Any) -> Sequence[float]:
        call()  # compiles
        return [1.0, 1.0, 1.0]

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES[self.capability]}

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: int) -> tuple[int, int, int, int, int]:
        registers, local_bytes = _resources(binary)
        code = _tool("nvdisasm", binary)
        matrix = next(
            (word for word in ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "FFMA") if f" {word}" in code), ""
        )
        self.compiled.append(Compiled(name, registers, local_bytes, shared_bytes, matrix))
        return 0, 0, registers, local_bytes, 1024


def _tool(name: str, binary: bytes, *options: str) -> str:
    """Return what a program of Triton's own says of machine code."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([program, *options, file.name], check=True, capture_output=True, text=True).stdout


def _resources(binary: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of its stack, where registers that are too many go."""
    usage = _tool("cuobjdump", binary, "-res-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return int(found[1]), int(found[2])


def compile_kernels(capability: int) -> list[Compiled]:
    """Compile every kernel as for a layer of a model: bfloat16, 32 query heads on 8 KV heads of 128."""
    import torch
    from support.paged_attention import Heads, in_fp8, make_inputs
    from triton.runtime.driver import driver

    gpu = DryGpu(capability)
    driver.set_active(gpu)  # type: ignore[arg-type]
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import FP8, PagedCache
    from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend, attend_invariant
    from pyagent.infrastructure.engine.runners.torch.kernels.gates import gate
    from pyagent.infrastructure.engine.runners.torch.kernels.norms import rms_norm
    from pyagent.infrastructure.engine.runners.torch.kernels.products import product
    from pyagent.infrastructure.engine.runners.torch.kernels.rotary import rotate_and_store
    from pyagent.infrastructure.engine.runners.torch.layers import ClampedSwiglu

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16)

    inputs = make_inputs([1, 40], [1030, 60], Heads(32, 8, 128), torch.bfloat16)
    attend(*inputs, 0.1, None, None)
    attend(*make_inputs([40], [60], Heads(32, 8, 128), torch.bfloat16), 0.1, 512, 50.0)
    shared = make_inputs([1] * 2, [1030] * 2, Heads(4, 1, 128), torch.bfloat16, num_shared=512)
    attend(*shared, 0.1, None, None)
    attend(*in_fp8(inputs), 0.1, None, None)
    for window in (None, 128):
        attend(*inputs, 0.1, window, None, torch.zeros(32))
    attend(*shared, 0.1, None, None, torch.zeros(4))
    rms_norm(numbers(2, 4096), numbers(4096), 1e-5, numbers(2, 4096))
    gate(numbers(2, 28_672), "silu")
    gate(numbers(2, 5760), ClampedSwiglu(1.702, 7.0))
    angles = torch.zeros((2, 64))
    heads = (numbers(2, 32, 128), numbers(2, 8, 128), numbers(2, 8, 128))
    cache = PagedCache(numbers(1, 16, 8, 128), numbers(1, 16, 8, 128))
    rotate_and_store(heads, angles, angles, torch.zeros(2, dtype=torch.int64), cache, is_interleaved=False)
    cache = PagedCache.made((1, 16, 8, 128), FP8, lambda shape, dtype: torch.zeros(shape).to(dtype))
    rotate_and_store(heads, angles, angles, torch.zeros(2, dtype=torch.int64), cache, is_interleaved=False)
    attend_invariant(*inputs, 0.1, None, None)
    for num_rows, is_wide in ((3, False), (300, True)):
        product(numbers(num_rows, 4096), numbers(4096, 4096), numbers(4096), is_wide=is_wide)
    compile_grouped(numbers)
    compile_experts(numbers)
    compile_folders(numbers, capability)
    compile_sampling()
    return gpu.compiled


def compile_sampling() -> None:
    """Compile what draws tokens of a vocabulary of 128k."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.kernels.sampling import sample
    from pyagent.infrastructure.engine.runners.torch.sampling import Adjusting, Cuts

    def integers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    seen, words = integers(1, 128_256), integers(1, 4008)
    cuts = Cuts(torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(2), torch.zeros(2))
    adjusting = Adjusting(torch.zeros((2, 3)), integers(2), seen, integers(2), words)
    sample(torch.zeros((2, 128_256)), adjusting, cuts, torch.zeros(2, dtype=torch.float64))


def compile_grouped(numbers: Callable[..., torch.Tensor]) -> None:
    """Compile the products with weights that stay quantised: of one row, of few, of many."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.kernels.grouped import dequantise, product
    from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES

    for kind, lengths in (("Q4_K", (1, 256)), ("Q6_K", (1, 16)), ("Q8_0", ())):
        about = BLOCK_TYPES[kind]
        matrix = about.planes(torch.zeros((1024, 4096 // about.columns, about.num_bytes), dtype=torch.uint8))
        for num_tokens in lengths:
            product(numbers(num_tokens, 4096), matrix, numbers(num_tokens, 1024))
        if not lengths:
            dequantise(matrix, numbers(1024, 4096))


def compile_experts(numbers: Callable[..., torch.Tensor]) -> None:
    """Compile the product of rows with gpt-oss's experts."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.kernels.expert_rows import expert_rows
    from pyagent.infrastructure.engine.runners.torch.quantised import mxfp4

    matrices = mxfp4.empty((2, 5760, 2880), torch.device("cpu"))
    expert_rows(numbers(4, 2880), matrices, numbers(2, 5760), torch.zeros(4, dtype=torch.int64))


def compile_folders(numbers: Callable[..., torch.Tensor], capability: int) -> None:
    """Compile the products with weights of checkpoints: zero points, FP8, and inputs of 8 bits."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.kernels import grouped, scaled
    from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
    from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

    def planes(dtype: torch.dtype, group: int, inputs: Inputs) -> GroupedMatrix:
        scales, values = torch.zeros(1024, 4096 // group), torch.zeros(1024, 4096).to(dtype)
        if dtype != torch.uint8:
            return GroupedMatrix(8, 4096, group, values, scales, inputs=inputs)
        zeros = torch.zeros(scales.shape, dtype=torch.uint8)
        return GroupedMatrix(4, 4096, group, values[:, :2048].contiguous(), scales.half(), minimums=zeros)

    grouped.product(numbers(1, 4096), planes(torch.uint8, 128, Inputs.NONE), numbers(1, 1024))
    grouped.product(numbers(256, 4096), planes(torch.float8_e4m3fn, 128, Inputs.NONE), numbers(256, 1024))
    if capability < 89:  # there are no products of FP8
        return
    for dtype, group in ((torch.int8, 4096), (torch.float8_e4m3fn, 4096), (torch.float8_e4m3fn, 128)):
        matrix = planes(dtype, group, Inputs.DYNAMIC)
        values, scales = scaled.quantised_rows(numbers(256, 4096), matrix)
        scaled.product(values, scales, matrix, numbers(256, 1024))


def main() -> None:
    """Print each kernel's `Compiled` as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, default=90, choices=sorted(SHARED_BYTES))
    parser.add_argument("--all", action="store_true", help="every entry of each table, not the first alone")
    options = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as folder:
        if options.all:
            os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
        os.environ["TRITON_CACHE_DIR"] = folder  # what was not measured must not be found as measured
        for compiled in compile_kernels(options.capability):
            print(json.dumps(compiled._asdict()))


if __name__ == "__main__":
    main()
