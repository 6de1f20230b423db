"""The torch runner on a GPU, or on torch's CPU device: beside the hardware's limits, and beside transformers.

    python benchmarks/gpu_engine.py [--seconds 450] [--kv-gib 70] [--no-transformers] [--write] [--tiny]

One command, under eight minutes, with torch, triton and PyAgent's wheel; transformers where it is installed. On a GPU
the model is Llama 3 8B in bfloat16, else SmolLM2 135M in float32: random weights of the real shapes, written to memory.
Limits (a large copy, a large product of matrices) are measured first, in the same run. "share" is of the limit, or of
the peer. Decoding takes the runner's whole step, sampling included; serving goes through the engine's scheduler. What
was not measured says why. `--write` puts the table into docs/reference/performance.md. `--tiny` runs every row on a
model of two small layers, to see that they run.

Aims on a H200: one sequence >= 85 % of memory's rate; batch 256 and a prefill of 8k tokens >= 70 % of their floors;
1,000 in and 1,000 out >= 60 % of 17,744 tokens/s (what TensorRT-LLM publishes for FP8); >= 3 and >= 15 times
transformers for 1 and 64 sequences. On the CPU >= 1 and >= 2 times for 1 and 16.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import platform
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from gpu_model import LLAMA_3_8B, SMOLLM2_135M, Shape, write
from plain_requests import make_request

from pyagent import _rust
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

if TYPE_CHECKING:
    import gpu_kernels

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "performance.md"
UNMEASURED = "GPUs"
"""The page's section while no GPU has been measured."""
TENSORRT_LLM = 17_744.0
"""Output tokens/s, Llama 3 8B, FP8, 1,000 tokens in and out, one H200: as published."""


class Setup(NamedTuple):
    """What is measured on a device."""

    shape: Shape
    dtype: torch.dtype
    batches: tuple[int, ...]
    decode_steps: int
    prompt: int
    served: tuple[int, int, int]
    """Requests, tokens in, tokens out."""
    peers: tuple[int, ...]
    """Batches that transformers decodes too."""
    aims: dict[str, str]


GPU = Setup(
    LLAMA_3_8B,
    torch.bfloat16,
    (1, 64, 256),
    64,
    8192,
    (512, 1000, 1000),
    (1, 64),
    {
        "decode, 1 sequence": ">= 0.85",
        "decode, 256 sequences": ">= 0.70",
        "prefill": ">= 0.70",
        "serving": ">= 0.60",
        "launches": "< 0.05",
        "transformers, 1": ">= 3",
        "transformers, 64": ">= 15",
    },
)
CPU = Setup(
    SMOLLM2_135M,
    torch.float32,
    (1, 16),
    32,
    512,
    (24, 100, 40),
    (1, 16),
    {"transformers, 1": ">= 1", "transformers, 16": ">= 2"},
)
TINY = CPU._replace(
    shape=Shape("a tiny Llama", 64, 128, 2, 4, 2, 512, 4096, is_tied=True),
    batches=(1, 3),
    decode_steps=6,
    prompt=32,
    served=(4, 20, 5),
    peers=(1, 3),
    aims={},
)


class Row(NamedTuple):
    """A line of the table."""

    name: str
    value: str
    beside: str = ""
    share: str = ""
    aim: str = ""


class Limits(NamedTuple):
    """What the device can do, as measured now."""

    bytes_per_second: float
    flops: float


class Bench:
    """A loaded model and the clock of the whole run."""

    def __init__(self, setup: Setup, device: torch.device, folder: Path, seconds: float, kv_bytes: int) -> None:
        self.setup, self.device, self.folder = setup, device, folder
        self.deadline = time.monotonic() + seconds
        self.draw = random.Random(1234)
        self.limits = Limits(self._copy_rate(), self._product_rate())
        write(folder, setup.shape, setup.dtype, device)
        kv_dtype = {torch.float32: "f32", torch.bfloat16: "bf16"}[setup.dtype]
        self.options = RunnerOptions(threads=torch.get_num_threads(), kv_bytes=kv_bytes, kv_dtype=kv_dtype)
        most_tokens = max(setup.prompt, 2048)
        self.step = LargestStep(most_tokens, max(setup.batches), num_positions=setup.prompt + 2048)
        started = time.perf_counter()
        self.runner = TorchRunner(folder, self.options, self.step)
        self.load_seconds = time.perf_counter() - started

    def wait(self) -> None:
        """Wait for what was launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def median_seconds(self, call: Callable[[], object], repeats: int = 7) -> float:
        """After two calls that do not count."""
        times: list[float] = []
        for _ in range(repeats + 2):
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[2:])

    def _copy_rate(self) -> float:
        source = torch.ones(1 << (30 if self.device.type == "cuda" else 26), device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.median_seconds(lambda: target.copy_(source))

    def _product_rate(self) -> float:
        size = 8192 if self.device.type == "cuda" else 1536
        left, right = (torch.randn(size, size, device=self.device).to(self.setup.dtype) for _ in range(2))
        return 2 * size**3 / self.median_seconds(lambda: left @ right)

    # --- what the runner is asked ---

    def random_tokens(self, num: int) -> list[int]:
        return [self.draw.randrange(3, self.setup.shape.vocab) for _ in range(num)]

    def start(self, batch: int, num_prompt: int, num_new: int) -> list[int]:
        """Compute prompts of so many sequences, in steps as large as they may be; returns their first tokens."""
        tokens: list[int] = []
        at_once = max(1, self.step.num_tokens // num_prompt)
        for first in range(0, batch, at_once):
            ids = list(range(first, min(first + at_once, batch)))
            prompts = [self.random_tokens(num_prompt) for _ in ids]
            for one, prompt in zip(ids, prompts, strict=True):
                self.runner.add(one, prompt, most_cached=0)
                if not self.runner.reserve(one, num_prompt + num_new + 1):
                    raise SystemExit("too little KV memory: give more by --kv-gib")
            tokens += self.execute(ids, [token for prompt in prompts for token in prompt], [num_prompt] * len(ids))
        return tokens

    def execute(self, ids: Sequence[int], tokens: list[int], lengths: list[int]) -> list[int]:
        """One step of the runner, sampled greedily."""
        samplers = [_rust.SamplerState(temperature=0.0) for _ in ids]
        return self.runner.execute(Batch(list(ids), lengths, tokens, samplers, [0] * len(ids))).tokens

    def decode(self, batch: int, num_prompt: int, num_steps: int) -> float:
        """Return the median seconds of a step of so many sequences."""
        tokens, ids, ones = self.start(batch, num_prompt, num_steps), list(range(batch)), [1] * batch
        times: list[float] = []
        for _ in range(num_steps):
            started = time.perf_counter()
            tokens = self.execute(ids, tokens, ones)
            times.append(time.perf_counter() - started)
        for one in ids:
            self.runner.release(one)
        return statistics.median(times[min(4, num_steps - 1) :])


# --- rows ---


def rows_of_limits(bench: Bench) -> list[Row]:
    weights = _weight_bytes(bench)
    return [
        Row("limit: a large copy", f"{bench.limits.bytes_per_second / 1e9:,.0f} GB/s"),
        Row("limit: a large product", f"{bench.limits.flops / 1e12:,.2f} TFLOP/s"),
        Row("load", f"{bench.load_seconds:.1f} s", f"{weights / bench.load_seconds / 1e9:.1f} GB/s from memory"),
    ]


def rows_of_decoding(bench: Bench) -> list[Row]:
    setup, num_prompt = bench.setup, 128
    rows: list[Row] = []
    for batch in setup.batches:
        seconds = bench.decode(batch, num_prompt, setup.decode_steps)
        num_kv = batch * (num_prompt + setup.decode_steps // 2) * setup.shape.kv_bytes(setup.dtype.itemsize)
        by_memory = (_weight_bytes(bench) + num_kv) / bench.limits.bytes_per_second
        by_products = 2 * batch * (setup.shape.num_products + setup.shape.num_output) / bench.limits.flops
        name = f"decode, {batch} sequence{'s' * (batch > 1)}"
        rows.append(_timed(name, batch / seconds, batch / max(by_memory, by_products), setup.aims))
    return rows


def rows_of_prefill(bench: Bench) -> list[Row]:
    setup = bench.setup
    seconds = _prefill_seconds(bench)
    attention = 2 * setup.shape.num_layers * setup.shape.hidden * setup.prompt**2
    floor = (2 * setup.prompt * setup.shape.num_products + attention) / bench.limits.flops
    row = _timed("prefill", setup.prompt / seconds, setup.prompt / floor, setup.aims)
    return [row._replace(name=f"prefill of {setup.prompt:,} tokens")]


def _prefill_seconds(bench: Bench) -> float:
    def once() -> None:
        bench.start(1, bench.setup.prompt, 0)
        bench.runner.release(0)

    return bench.median_seconds(once, 3)


def rows_of_invariance(bench: Bench) -> list[Row]:
    """What `engine.batch_invariant` costs."""
    return _beside_usual(bench, "batch-invariant", dataclasses.replace(bench.options, batch_invariant=True))


def rows_of_compile(bench: Bench) -> list[Row]:
    """What `engine.compile` gains."""
    with tempfile.TemporaryDirectory() as folder:
        return _beside_usual(bench, "compiled", dataclasses.replace(bench.options, compile_folder=folder))


def _beside_usual(bench: Bench, what: str, options: RunnerOptions) -> list[Row]:
    """Rates with other options, by another runner on the same weights, in turns with the usual one."""
    setup = bench.setup
    num_tokens = max(setup.prompt, max(setup.batches) * (128 + setup.decode_steps + 16))
    kv_bytes = 2 * num_tokens * setup.shape.kv_bytes(setup.dtype.itemsize)
    usual = bench.runner
    other = TorchRunner(bench.folder, dataclasses.replace(options, kv_bytes=kv_bytes), bench.step)
    measures: dict[str, Callable[[], float]] = {
        f"decode, {batch}": partial(bench.decode, batch, 128, setup.decode_steps) for batch in setup.batches
    }
    measures[f"prefill of {setup.prompt:,} tokens"] = partial(_prefill_seconds, bench)
    rows: list[Row] = []
    try:
        for name, seconds in measures.items():
            took: dict[TorchRunner, list[float]] = {usual: [], other: []}
            for bench.runner in (usual, other) * 3:
                took[bench.runner].append(seconds())
            share = statistics.median(took[usual]) / statistics.median(took[other])
            rows.append(Row(f"{what}: {name}", f"{share:.2f} of the usual rate", share=f"{share:.2f}"))
    finally:
        bench.runner = usual
        other.close()
    return rows


def rows_of_serving(bench: Bench) -> list[Row]:
    num_requests, num_in, num_out = bench.setup.served
    engine = Engine(bench.runner, SchedulerLimits(bench.step.num_outputs, bench.step.num_tokens))
    told: list[Output] = []
    for number in range(num_requests):
        engine.scheduler.add(make_request(number, bench.random_tokens(num_in), num_out, told.append))
    started = time.perf_counter()
    while engine.step():
        if time.monotonic() > bench.deadline:
            return [Row("serving", "not measured: out of time")]
    rate = num_requests * num_out / (time.perf_counter() - started)
    name = f"serving {num_requests} requests, {num_in:,} tokens in, {num_out:,} out"
    if bench.device.type == "cpu":
        return [Row(name, f"{rate:,.0f} tokens/s")]
    peer = f"TensorRT-LLM, FP8, as published: {TENSORRT_LLM:,.0f}"
    return [Row(name, f"{rate:,.0f} tokens/s", peer, f"{rate / TENSORRT_LLM:.2f}", bench.setup.aims.get("serving", ""))]


def rows_of_launches(bench: Bench) -> list[Row]:
    """The part of a step in which the device idles."""
    if bench.device.type == "cpu":
        return []
    from torch.profiler import ProfilerActivity, profile

    num_steps = 32
    seconds = bench.decode(1, 128, num_steps)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        bench.decode(1, 128, num_steps)
    on_device = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6
    idle = max(0.0, 1 - on_device / (num_steps + 1) / seconds)
    return [
        Row("a decode step's time in which the device idles", f"{idle:.2f}", aim=bench.setup.aims.get("launches", ""))
    ]


def rows_of_transformers(bench: Bench) -> list[Row]:
    if find_spec("transformers") is None:
        return [Row("beside transformers", "not measured: it is not installed")]
    from transformers import AutoModelForCausalLM

    setup = bench.setup
    model = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=setup.dtype, attn_implementation="sdpa")
    model = model.to(bench.device).eval()
    rows: list[Row] = []
    for batch in setup.peers:
        if time.monotonic() > bench.deadline:
            rows.append(Row(f"beside transformers, {batch}", "not measured: out of time"))
            continue
        caches = ("dynamic", "static") if bench.device.type == "cuda" else ("dynamic",)
        ours: list[float] = []
        theirs: dict[str, list[float]] = {cache: [] for cache in caches}
        for _ in range(3):  # in turns
            ours.append(batch / bench.decode(batch, 128, setup.decode_steps))
            for cache in caches:
                theirs[cache].append(_generate(bench, model, batch, 128, setup.decode_steps, cache))
        best = max(caches, key=lambda cache: statistics.median(theirs[cache]))
        mine, peer = statistics.median(ours), statistics.median(theirs[best])
        name = f"decode beside transformers {version('transformers')}, {batch}"
        aim = setup.aims.get(f"transformers, {batch}", "")
        rows.append(Row(name, f"{mine:,.0f} tokens/s", f"{peer:,.0f} ({best} cache)", f"{mine / peer:.2f}", aim))
    return rows


def _generate(bench: Bench, model: torch.nn.Module, batch: int, num_prompt: int, num_new: int, cache: str) -> float:
    """Return transformers' tokens/s of decoding: an answer's time less that of its first token."""
    ids = torch.randint(3, bench.setup.shape.vocab, (batch, num_prompt), device=bench.device)
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    if cache == "static":  # transformers compiles decoding with it
        options["cache_implementation"] = "static"
    times: list[float] = []
    for num in (1, num_new + 1):
        bench.wait()
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, max_new_tokens=num, min_new_tokens=num, **options)  # type: ignore[operator]
        bench.wait()
        times.append(time.perf_counter() - started)
    return batch * num_new / (times[1] - times[0])


def rows_of_kernels(bench: Bench) -> list[Row]:
    if bench.device.type == "cpu":
        return []
    import gpu_kernels

    return kernel_rows(gpu_kernels.measured(gpu_kernels.Shapes()))


def kernel_rows(table: list[gpu_kernels.Row]) -> list[Row]:
    """Return the rows of benchmarks/gpu_kernels.py as rows of this table."""
    return [Row(row.name, f"{row.micros:,.0f} us", f"{row.floor_micros:,.0f} us", f"{row.share:.2f}") for row in table]


def _timed(name: str, rate: float, limit: float, aims: dict[str, str]) -> Row:
    return Row(name, f"{rate:,.0f} tokens/s", f"{limit:,.0f} by the limits", f"{rate / limit:.2f}", aims.get(name, ""))


def _weight_bytes(bench: Bench) -> int:
    """Bytes that a step of one token reads of the weights: the embedding's are one row, unless it is the output."""
    shape = bench.setup.shape
    return (shape.num_products + shape.num_output) * bench.setup.dtype.itemsize


PARTS = (
    rows_of_limits,
    rows_of_decoding,
    rows_of_prefill,
    rows_of_launches,
    rows_of_invariance,
    rows_of_compile,
    rows_of_serving,
    rows_of_kernels,
    rows_of_transformers,
)


def table(rows: Sequence[Row]) -> str:
    lines = ["| | PyAgent | beside | share | aim |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpus.read_text()) if cpus.exists() else None
    return f"{found[1] if found else platform.processor()}, {torch.get_num_threads()} threads"


def write_page(text: str, device: torch.device) -> None:
    """Put a device's table below its name; other devices' stay."""
    intro, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    kept = {section.partition("\n")[0]: section for section in sections}
    if device.type == "cuda":
        kept.pop(UNMEASURED, None)
    name = device_name(device)
    kept[name] = f"{name}\n\n{text}\n"
    PAGE.write_text("\n## ".join([intro, *kept.values()]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--kv-gib", type=float)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: that every row runs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/performance.md")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    setup = TINY if options.tiny else GPU if device.type == "cuda" else CPU
    kv_gib = options.kv_gib or (70 if setup is GPU else 0.25 if setup is TINY else 2)
    shared = Path("/dev/shm")
    needed = 3 * (setup.shape.num_products + 2 * setup.shape.num_output) * setup.dtype.itemsize // 2
    parent = shared if shared.exists() and shutil.disk_usage(shared).free > needed else None
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        bench = Bench(setup, device, Path(folder), options.seconds, int(kv_gib * (1 << 30)))
        for part in PARTS:
            if part is rows_of_transformers and options.no_transformers:
                continue
            name = part.__name__.removeprefix("rows_of_")
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                late = time.monotonic() > bench.deadline
                rows += [Row(name, "not measured: out of time")] if late else part(bench)
            except Exception as error:  # the other rows are worth having
                rows.append(Row(name, f"not measured: {type(error).__name__}: {str(error).splitlines()[0][:120]}"))
    triton = f", triton {version('triton')}" if find_spec("triton") else ""
    name = f"{setup.shape.name}, {str(setup.dtype).removeprefix('torch.')}"
    about = f"{datetime.date.today()}, torch {torch.__version__}{triton}, {name}: `python benchmarks/gpu_engine.py`."
    text = f"{about}\n\n{table(rows)}"
    print(text)
    if options.write:
        write_page(text, device)


if __name__ == "__main__":
    main()
