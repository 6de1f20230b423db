"""What reading the weights alone would take: the rate of the memory now, and the bytes that a step has to read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pyagent import _rust

NUM_NUMBERS = 1 << 26
"""512 MiB of float64: no cache holds them."""


def reading_rate(threads: int, array: np.ndarray) -> float:
    """Bytes a second of threads that sum the parts of an array."""
    parts = np.array_split(array, threads)
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(np.sum, parts))
    return array.nbytes / (time.perf_counter() - start)


def bytes_read(path: Path, num_tokens: int = 1) -> float:
    """Bytes of a GGUF file's weights that a step of so many sequences reads, if routers are fair.

    All but tables from which single rows are taken; of experts those that the tokens have.
    """
    header = _rust.read_model_header(path)
    metadata, tensors = header["metadata"], {name: size for name, _, _, size in header["tensors"]}
    tables = {"per_layer_token_embd.weight"} | ({"token_embd.weight"} if "output.weight" in tensors else set())
    counts = [
        next((int(value) for key, value in metadata.items() if key.endswith(name)), 0)
        for name in (".expert_count", ".expert_used_count")
    ]
    share = 1 - (1 - counts[1] / counts[0]) ** num_tokens if counts[0] else 1.0
    return sum(size * (share if "_exps" in name else 1.0) for name, size in tensors.items() if name not in tables)
