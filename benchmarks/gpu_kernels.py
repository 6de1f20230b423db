"""The torch runner's Triton kernels on a GPU, each beside the least time that its bytes or operations can take.

    python benchmarks/gpu_kernels.py [--json FILE]

Shapes are one layer's of Llama 3 8B in bfloat16, numbers are random. Memory's and the matrix units' rates are measured
first, in the same run: a large copy, a large matrix product. Each kernel is called over several sets of inputs, more
than the device's caches hold, inside one CUDA graph, so that no launch is counted. "share" is the floor over the time:
1 is as quick as can be. Beside attention stands torch's own over keys and values that lie in one piece, which those of
a server do not. With `TRITON_CACHE_AUTOTUNING=1` every entry of each kernel's table is measured first, and the quickest
is kept for the servers of this machine; `TRITON_PRINT_AUTOTUNING=1` prints it. Without a GPU, `--tiny` runs every row
in Triton's interpreter, to see that they run; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

REPEATS = 20
FRESH_BYTES = 400_000_000
"""Inputs of one measurement, all sets together: several times what caches hold."""
MOST_SETS = 16


class Shapes(NamedTuple):
    """Sizes of what is measured."""

    heads: tuple[int, int, int] = (32, 8, 128)
    hidden: int = 4096
    gate: int = 14_336
    contexts: tuple[int, ...] = (8192, 16_384, 32_768, 65_536)
    batch: int = 256
    batch_context: int = 1024
    prompt: int = 8192
    agents: int = 100
    shared: int = 4096
    tokens: tuple[int, ...] = (1, 256, 8192)
    rows: tuple[int, ...] = (1, 64, 256)
    vocabulary: int = 128_256
    copy: int = 1 << 29
    product: int = 8192


TINY = Shapes((4, 2, 64), 256, 128, (40,), 3, 40, 40, 3, 64, (1, 3), (2,), 600, 1 << 10, 64)


class Row(NamedTuple):
    """One line of the table. `share` is of the floor that bytes or operations give."""

    name: str
    micros: float
    floor_micros: float

    @property
    def share(self) -> float:
        return self.floor_micros / self.micros


class Bench:
    """A device, and what it can do at most."""

    def __init__(self, shapes: Shapes) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.shapes = shapes
        self.rows: list[Row] = []
        numbers = self.random(shapes.copy)
        copies = torch.empty_like(numbers)
        self.bytes_per_second = 4 * shapes.copy / self.seconds([lambda: copies.copy_(numbers)])
        left, right = self.random(shapes.product, shapes.product), self.random(shapes.product, shapes.product)
        self.flops_per_second = 2 * shapes.product**3 / self.seconds([lambda: left @ right])

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=self.device)

    def seconds(self, calls: list[Callable[[], object]]) -> float:
        """Return the median seconds of a call, all of them one after the other."""
        if self.device.type == "cpu":
            start = time.perf_counter()
            for call in calls:
                call()
            return (time.perf_counter() - start) / len(calls)
        for call in calls:  # compiles and tunes
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times: list[float] = []
        for _ in range(REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / len(calls))
        return statistics.median(times)

    def measure(
        self, name: str, make: Callable[[], Callable[[], object]], *, num_bytes: float, flops: float = 0
    ) -> None:
        """Add a row: `make` returns a call over inputs of its own."""
        num_sets = 1 if self.device.type == "cpu" else int(min(MOST_SETS, 1 + FRESH_BYTES // num_bytes))
        floor = max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)
        micros = 1e6 * self.seconds([make() for _ in range(num_sets)])
        self.rows.append(Row(name, micros, 1e6 * floor))
        print(
            f"{name:58} {micros:12.1f} us  floor {1e6 * floor:10.1f} us  share {self.rows[-1].share:5.2f}", flush=True
        )


def attention(bench: Bench) -> None:
    """Decode at several contexts and prefill of one prompt, beside torch's attention."""
    shapes, (num_heads, num_kv_heads, dim) = bench.shapes, bench.shapes.heads
    kv_bytes = 2 * num_kv_heads * dim * 2

    def ours(
        num_queries: list[int], num_tokens: list[int], num_shared: int = 0, kv_dtype: torch.dtype = torch.bfloat16
    ) -> Callable[[], object]:
        from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend

        inputs = paged(bench, num_queries, num_tokens, num_shared, kv_dtype)
        return lambda: attend(*inputs, dim**-0.5, None, None)

    def theirs(num_queries: int, num_sequences: int, length: int) -> Callable[[], object]:
        q = bench.random(num_sequences, num_heads, num_queries, dim)
        k, v = (bench.random(num_sequences, num_kv_heads, length, dim) for _ in range(2))
        is_causal = num_queries > 1
        return lambda: scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

    fp8, fp8_bytes = torch.float8_e4m3fn, 2 * num_kv_heads * (dim + 1)

    def flex(num_queries: int, length: int) -> Callable[[], object]:
        from torch.nn.attention.flex_attention import create_block_mask

        from pyagent.infrastructure.engine.runners.torch.attention.flex import flex_attention_on

        q = bench.random(1, num_heads, num_queries, dim)
        k, v = (bench.random(1, num_kv_heads, length, dim) for _ in range(2))
        mask = None
        if num_queries > 1:
            causal = lambda batch, head, query, key: key <= query  # noqa: E731 - FlexAttention's form
            mask = create_block_mask(causal, None, None, num_queries, length, device=str(bench.device))
        function = flex_attention_on(bench.device.type)
        return lambda: function(q, k, v, block_mask=mask, enable_gqa=True)

    for length in shapes.contexts:
        num_bytes = length * kv_bytes
        bench.measure(f"decode, 1 sequence of {length}", lambda n=length: ours([1], [n]), num_bytes=num_bytes)
        bench.measure(f"  torch, in one piece, {length}", lambda n=length: theirs(1, 1, n), num_bytes=num_bytes)
        bench.measure(f"  FlexAttention, in one piece, {length}", lambda n=length: flex(1, n), num_bytes=num_bytes)
        name, num_bytes = f"decode, 1 sequence of {length}, FP8", length * fp8_bytes
        bench.measure(name, lambda n=length: ours([1], [n], 0, fp8), num_bytes=num_bytes)
    size, length = shapes.batch, shapes.batch_context
    num_bytes = size * length * kv_bytes
    bench.measure(
        f"decode, {size} sequences of {length}", lambda: ours([1] * size, [length] * size), num_bytes=num_bytes
    )
    bench.measure(f"  torch, in one piece, {size}", lambda: theirs(1, size, length), num_bytes=num_bytes)
    batch = ([1] * size, [length] * size)
    name, num_bytes = f"decode, {size} sequences of {length}, FP8", size * length * fp8_bytes
    bench.measure(name, lambda: ours(*batch, 0, fp8), num_bytes=num_bytes)
    length = shapes.prompt
    flops, num_bytes = 2 * length**2 * num_heads * dim, length * (kv_bytes + 4 * num_heads * dim)
    bench.measure(f"prefill of {length}", lambda: ours([length], [length]), num_bytes=num_bytes, flops=flops)
    bench.measure("  torch, in one piece, prefill", lambda: theirs(length, 1, length), num_bytes=num_bytes, flops=flops)
    bench.measure("  FlexAttention, prefill", lambda: flex(length, length), num_bytes=num_bytes, flops=flops)
    size, shared, own = shapes.agents, shapes.shared, shapes.shared // 16
    contexts = [shared + own] * size
    num_bytes = (shared + size * own) * kv_bytes
    bench.measure(f"decode, {size} on one {shared}", lambda: ours([1] * size, contexts, shared), num_bytes=num_bytes)
    bench.measure("  each reading its own", lambda: ours([1] * size, contexts), num_bytes=size * contexts[0] * kv_bytes)


def paged(
    bench: Bench, num_queries: list[int], num_tokens: list[int], num_shared: int, kv_dtype: torch.dtype
) -> tuple[object, ...]:
    """Return attention's first arguments; all tables hold different pages but for the shared ones."""
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

    num_heads, num_kv_heads, dim = bench.shapes.heads
    blocks = -(-max(num_tokens) // 16)
    order = torch.randperm(blocks * len(num_tokens), dtype=torch.int32, device=bench.device)
    tables = order.view(len(num_tokens), blocks).clone()
    tables[:, : num_shared // 16] = tables[0, : num_shared // 16]
    starts = torch.tensor([0, *num_queries], device=bench.device).cumsum(0).to(torch.int32)
    lengths = torch.tensor(num_tokens, dtype=torch.int32, device=bench.device)
    shape = (len(order), 16, num_kv_heads, dim)
    cache = PagedCache.made(shape, kv_dtype, lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=bench.device))
    rows = torch.arange(len(order) * 16, device=bench.device)
    for part in rows.split(1 << 16):
        cache.store(part, *(bench.random(len(part), num_kv_heads, dim) for _ in range(2)))
    batch = AttentionBatch(starts, lengths, tables, num_queries, num_tokens, num_shared)
    return bench.random(sum(num_queries), num_heads, dim), cache, batch


def stages(bench: Bench) -> None:
    """The small stages of a layer, for steps of several sizes."""
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
    from pyagent.infrastructure.engine.runners.torch.kernels.gates import gate
    from pyagent.infrastructure.engine.runners.torch.kernels.norms import rms_norm
    from pyagent.infrastructure.engine.runners.torch.kernels.rotary import rotate_and_store

    shapes, (num_heads, num_kv_heads, dim) = bench.shapes, bench.shapes.heads
    weight = bench.random(shapes.hidden)

    def norm(num_tokens: int) -> Callable[[], object]:
        x, residual = (bench.random(num_tokens, shapes.hidden) for _ in range(2))
        return lambda: rms_norm(x, weight, 1e-5, residual)

    def gated(num_tokens: int) -> Callable[[], object]:
        x = bench.random(num_tokens, 2 * shapes.gate)
        return lambda: gate(x, "silu")

    def rotation(num_tokens: int) -> Callable[[], object]:
        heads = tuple(bench.random(num_tokens, count, dim) for count in (num_heads, num_kv_heads, num_kv_heads))
        angles = torch.zeros((num_tokens, dim // 2), device=bench.device)
        rows = torch.randperm(num_tokens + 15, device=bench.device)[:num_tokens]
        cache = PagedCache(*(bench.random(-(-num_tokens // 16) + 1, 16, num_kv_heads, dim) for _ in range(2)))
        return lambda: rotate_and_store(heads, angles, angles, rows, cache, is_interleaved=False)

    for num in shapes.tokens:
        widths = {
            "norm with residual": (norm, 4 * shapes.hidden),
            "gate": (gated, 3 * shapes.gate),
            "rotary and KV write": (rotation, 2 * (num_heads + 2 * num_kv_heads) * dim),
        }
        for name, (make, width) in widths.items():
            bench.measure(f"{name}, {num} tokens", lambda make=make, num=num: make(num), num_bytes=2 * num * width)


def products(bench: Bench) -> None:
    """The gate's matrix as it is quantised in files, for a row and for many, beside the library's in bfloat16."""
    from pyagent.infrastructure.engine.runners.torch.kernels.grouped import product
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
    from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES
    from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8, Numbers
    from pyagent.infrastructure.engine.runners.torch.quantised.products import TritonProducts
    from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

    num_rows, num_columns = bench.shapes.gate, bench.shapes.hidden

    def quantised(kind: str, num_tokens: int) -> Callable[[], object]:
        about = BLOCK_TYPES[kind]
        shape = (num_rows, num_columns // about.columns, about.num_bytes)
        matrix = about.planes(torch.randint(0, 64, shape, dtype=torch.uint8, device=bench.device))
        x, out = bench.random(num_tokens, num_columns), bench.random(num_tokens, num_rows)
        return lambda: product(x, matrix, out)

    products_of = TritonProducts(torch.device(bench.device))

    def checkpoint(dtype: torch.dtype, group: int, inputs: Inputs, num_tokens: int) -> Callable[[], object]:
        values = torch.randint(0, 16, (num_rows, num_columns), device=bench.device).to(dtype)
        scales = torch.rand(num_rows, num_columns // group, device=bench.device).half()
        zeros = torch.full(scales.shape, 8, dtype=dtype, device=bench.device) if dtype == torch.uint8 else None
        scales = scales if zeros is not None else scales.float()
        matrix = Numbers(values, scales, zeros, group).planes(Span.whole(num_columns), group, inputs, 0.0)
        x, out = bench.random(num_tokens, num_columns), bench.random(num_tokens, num_rows)
        return lambda: products_of.multiply(x, matrix, out)

    checkpoints = {
        "INT4 of GPTQ": (4.19, torch.uint8, 128, Inputs.NONE),
        "INT8 W8A8": (8, torch.int8, num_columns, Inputs.DYNAMIC),
        "FP8 W8A8": (8, FLOAT8, num_columns, Inputs.DYNAMIC),
        "FP8 W8A8 in blocks": (8.25, FLOAT8, 128, Inputs.DYNAMIC),
    }

    def dense(num_tokens: int) -> Callable[[], object]:
        x, weight = bench.random(num_tokens, num_columns), bench.random(num_rows, num_columns)
        return lambda: x @ weight.t()

    bits = {"Q4_K": 4.625, "Q8_0": 8.5}
    for num in bench.shapes.tokens[:2]:
        flops, rows_bytes = 2.0 * num * num_rows * num_columns, 2 * num * (num_rows + num_columns)
        for kind, width in bits.items():
            name, num_bytes = f"product with {kind}, {num} tokens", rows_bytes + num_rows * num_columns * width / 8
            bench.measure(name, lambda k=kind, n=num: quantised(k, n), num_bytes=num_bytes, flops=flops)
        for kind, (width, *about) in checkpoints.items():
            name, num_bytes = f"product with {kind}, {num} tokens", rows_bytes + num_rows * num_columns * width / 8
            quick = flops if about[2] is Inputs.NONE else flops / 2  # units of 8 bits multiply twice as fast
            bench.measure(name, lambda a=about, n=num: checkpoint(*a, n), num_bytes=num_bytes, flops=quick)
        num_bytes = rows_bytes + 2 * num_rows * num_columns
        bench.measure(f"  in bfloat16, {num}", lambda n=num: dense(n), num_bytes=num_bytes, flops=flops)


def sampling(bench: Bench) -> None:
    """A token of each row of logits, beside torch's form of the same and a sort of the rows; the floor is one read."""
    from pyagent.infrastructure.engine.runners.torch.kernels.sampling import sample
    from pyagent.infrastructure.engine.runners.torch.sampling import Adjusting, Cuts, sample_unranked

    size = bench.shapes.vocabulary

    def logits(num_rows: int) -> torch.Tensor:
        return 3 * torch.randn((num_rows, size), device=bench.device)

    def limits(num_rows: int, temperature: float, top_p: float) -> tuple[Cuts, torch.Tensor]:
        like = {"device": bench.device}
        top_k = torch.full((num_rows,), 1 << 18, **like)
        parts = (torch.full((num_rows,), part, **like) for part in (temperature, top_p, 0.0))
        temperatures, top_ps, min_ps = parts
        uniform = torch.rand(num_rows, dtype=torch.float64, **like)
        return Cuts(temperatures, top_k, top_ps, min_ps), uniform

    def ours(num_rows: int, temperature: float, top_p: float) -> Callable[[], object]:
        given, cuts = logits(num_rows), limits(num_rows, temperature, top_p)
        none = torch.full((num_rows,), -1, dtype=torch.int32, device=bench.device)
        adjusting = Adjusting(
            torch.ones((num_rows, 3), device=bench.device), none, none[:0, None], none, none[:0, None]
        )
        return lambda: sample(given, adjusting, *cuts)

    def theirs(num_rows: int) -> Callable[[], object]:
        given, cuts = logits(num_rows), limits(num_rows, 1.0, 0.9)
        return lambda: sample_unranked(given, *cuts, has_top_k=False)

    def ranked(num_rows: int) -> Callable[[], object]:
        given = logits(num_rows)
        return lambda: given.sort(dim=1, descending=True, stable=True)

    for num in bench.shapes.rows:
        for name, temperature, top_p in (("top-p 0.9", 1.0, 0.9), ("all tokens", 1.0, 1.0), ("flat", 20.0, 0.9)):
            call = lambda num=num, cuts=(temperature, top_p): ours(num, *cuts)  # noqa: E731 - of this row
            bench.measure(f"sampling, {num} rows, {name}", call, num_bytes=4 * num * size)
        bench.measure(f"  torch's digits, {num}", lambda num=num: theirs(num), num_bytes=4 * num * size)
        bench.measure(f"  torch's sort alone, {num}", lambda num=num: ranked(num), num_bytes=4 * num * size)


def measured(shapes: Shapes) -> list[Row]:
    """Measure every row."""
    bench = Bench(shapes)
    print(f"{bench.bytes_per_second / 1e12:.2f} TB/s copied, {bench.flops_per_second / 1e12:.0f} TFLOP/s multiplied")
    attention(bench)
    stages(bench)
    products(bench)
    sampling(bench)
    return bench.rows


def main() -> None:
    """Measure every row; the last line is a JSON of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        if not options.tiny:
            sys.exit("no CUDA device: nothing to measure (--tiny runs every row in Triton's interpreter)")
        os.environ["TRITON_INTERPRET"] = "1"
    torch.manual_seed(0)
    table = measured(TINY if options.tiny else Shapes())
    if options.json:
        rows = [{"name": row.name, "micros": row.micros, "floor_micros": row.floor_micros} for row in table]
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
