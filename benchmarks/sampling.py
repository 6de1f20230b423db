"""What the samplers take for a token, beside those of llama.cpp and numpy on the same logits, in turns.

    .venv/bin/python benchmarks/sampling.py [--vocab 128000] [--repeats 200]

The usual mix: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, repetition and presence penalties over 1,000 tokens.
Ours is the Rust example `sampling_speed`, and `_rust.sample_logits` with what Python adds. llama.cpp's samplers are
called in `$PEERS_HOME/llama.cpp-build/bin/libllama.so`, without the time its caller takes to make the array of
candidates; numpy partitions, sorts what is left and draws. Each figure is the least of many, which other programs on
the machine disturb least.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import random
import subprocess
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyagent import _rust

ROOT = Path(__file__).parent.parent
SEEN = [token * 7 for token in range(1000)]


def logits(vocab: int) -> array[float]:
    """Logits with a tail like a language model's."""
    source = random.Random(1)
    return array("f", (source.expovariate(0.4) for _ in range(vocab)))


def least_microseconds(act: Callable[[], object], prepare: Callable[[], object], repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        prepare()
        started = time.perf_counter()
        act()
        least = min(least, time.perf_counter() - started)
    return least * 1e6


def ours(row: array[float], repeats: int) -> float:
    mix = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    sampler = _rust.SamplerState(**mix, repetition_penalty=1.1, presence_penalty=0.5, seed=1)
    sampler.observe_prompt(SEEN[:500])
    sampler.observe(SEEN[500:])
    return least_microseconds(lambda: _rust.sample_logits(row, [sampler], [0]), lambda: None, repeats)


class Candidate(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class Candidates(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(Candidate)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class ChainParams(ctypes.Structure):
    _fields_ = (("no_perf", ctypes.c_bool),)


def llama_cpp(library: Path, row: array[float], repeats: int) -> float:
    """The same mix in llama.cpp's own order."""
    llama: Any = ctypes.CDLL(str(library))
    for name in ("chain_init", "init_penalties", "init_top_k", "init_top_p", "init_min_p", "init_temp", "init_dist"):
        getattr(llama, f"llama_sampler_{name}").restype = ctypes.c_void_p
    chain = ctypes.c_void_p(llama.llama_sampler_chain_init(ChainParams(no_perf=True)))
    real = ctypes.c_float
    penalties = llama.llama_sampler_init_penalties(ctypes.c_int32(1000), real(1.1), real(0.0), real(0.5))
    for sampler in (
        penalties,
        llama.llama_sampler_init_top_k(ctypes.c_int32(40)),
        llama.llama_sampler_init_top_p(real(0.95), ctypes.c_size_t(1)),
        llama.llama_sampler_init_min_p(real(0.05), ctypes.c_size_t(1)),
        llama.llama_sampler_init_temp(real(0.8)),
        llama.llama_sampler_init_dist(ctypes.c_uint32(1)),
    ):
        llama.llama_sampler_chain_add(chain, ctypes.c_void_p(sampler))
    for token in SEEN:
        llama.llama_sampler_accept(chain, ctypes.c_int32(token))
    template = (Candidate * len(row))(*((token, logit, 0.0) for token, logit in enumerate(row)))
    data = (Candidate * len(row))()
    candidates = Candidates()

    def prepare() -> None:
        ctypes.memmove(data, template, ctypes.sizeof(template))
        candidates.data = ctypes.cast(data, ctypes.POINTER(Candidate))
        candidates.size, candidates.selected, candidates.sorted = len(row), -1, False

    return least_microseconds(lambda: llama.llama_sampler_apply(chain, ctypes.byref(candidates)), prepare, repeats)


def with_numpy(row: array[float], repeats: int) -> float:
    import numpy as np

    plain = np.array(row, dtype=np.float32)
    seen, output = np.array(SEEN), np.array(SEEN[500:])
    source = np.random.default_rng(1)

    def act() -> int:
        x = plain.copy()
        x[seen] = np.where(x[seen] > 0, x[seen] / 1.1, x[seen] * 1.1)
        x[output] -= 0.5
        best = np.argpartition(x, -40)[-40:]
        best = best[np.argsort(-x[best])]
        p = np.exp((x[best] - x[best[0]]) / 0.8)
        p /= p.sum()
        keep = (np.cumsum(p) - p < 0.95) & (p >= 0.05 * p[0])
        return int(source.choice(best[keep], p=p[keep] / p[keep].sum()))

    return least_microseconds(act, lambda: None, repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    row = logits(options.vocab)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {_rust.cpu_features()['isa']}")
    command = ["cargo", "run", "--release", "-q", "-p", "pyagent-kernels", "--example", "sampling_speed", "--"]
    done = subprocess.run([*command, str(options.vocab)], cwd=ROOT, capture_output=True, text=True, check=True)
    print(done.stdout)
    print(f"the usual mix on {options.vocab} logits, us a row")
    figure = ours(row, options.repeats)
    print(f"  {'pyagent, from Python':24} {figure:8.1f}")
    library = Path(os.environ.get("PEERS_HOME", "")) / "llama.cpp-build" / "bin" / "libllama.so"
    if library.exists():
        print(f"  {'llama.cpp':24} {llama_cpp(library, row, options.repeats):8.1f}")
    try:
        print(f"  {'numpy':24} {with_numpy(row, options.repeats):8.1f}")
    except ImportError:
        print("  numpy is not installed: left out")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
