"""The error of our quantisers over that of llama.cpp's, type by type: below 1, ours lose less.

    PEERS_HOME=... .oracle/bin/python benchmarks/quantise_error.py

Root mean squared errors, of normal numbers and of numbers with heavy tails (Student's t, 4 degrees of freedom), plain
and weighted nearly as ggml weighs: by a number's size and the root mean square of its row. llama.cpp's are of
`ggml_quantize_chunk` in libggml, without an importance matrix; the package gguf reads both.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from pathlib import Path

import gguf
import numpy as np

from pyagent import _rust

ROWS, COLS = 512, 1024
TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def of_ggml(library: ctypes.CDLL, name: str, values: np.ndarray) -> bytes:
    """What llama.cpp makes of the numbers."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = ctypes.create_string_buffer(values.size // block * size)
    rows, cols = (ctypes.c_int64(number) for number in values.shape)
    library.ggml_quantize_chunk(
        int(kind), values.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_int64(0), rows, cols, None
    )
    return out.raw


def errors(name: str, data: bytes, values: np.ndarray) -> tuple[float, float]:
    """Plain and weighted."""
    kind = gguf.GGMLQuantizationType[name]
    read = gguf.dequantize(np.frombuffer(data, dtype=np.uint8).reshape(len(values), -1), kind)
    squares = (read.astype(np.float64) - values) ** 2
    weights = np.sqrt(np.mean(values.astype(np.float64) ** 2, axis=1, keepdims=True)) + np.abs(values)
    return float(np.sqrt(squares.mean())), float(np.sqrt((weights * squares).sum() / weights.sum()))


def main() -> None:
    library = ctypes.CDLL(str(Path(os.environ["PEERS_HOME"]) / "llama.cpp-build" / "bin" / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    draw = np.random.default_rng(1234)
    kinds = {"normal": draw.standard_normal((ROWS, COLS)), "heavy tails": draw.standard_t(4, (ROWS, COLS))}
    print("| type | normal | weighted | heavy tails | weighted |\n|---|---|---|---|---|")
    for name in TYPES:
        cells: list[str] = []
        for values in (np.ascontiguousarray(numbers, dtype=np.float32) for numbers in kinds.values()):
            ours = bytes(_rust.quantise(name, array("f", values.tobytes()), 2))
            pairs = zip(errors(name, ours, values), errors(name, of_ggml(library, name, values), values), strict=True)
            cells += [f"{one / other:.3f}" for one, other in pairs]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
