"""A folder of safetensors with made-up weights, and what the CPU runner makes of it by a description."""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pyagent import _rust
from pyagent.core.runners.architecture import BroughtArchitecture, DescribedArchitecture
from pyagent.infrastructure.engine.runners.family import Family

_SPREAD = 0.1


def made_up(name: str, shape: Sequence[int]) -> array[float]:
    """Return the same 32-bit numbers for the same name: around 1 where they are a norm's weights, else around 0."""
    numbers = Random(name)  # noqa: S311 - weights, no secrets
    centre = 1.0 if len(shape) == 1 and not name.endswith("bias") else 0.0
    return array("f", (numbers.gauss(centre, _SPREAD) for _ in range(math.prod(shape))))


def write_folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> None:
    """Write `config.json` and `model.safetensors`."""
    header: dict[str, object] = {}
    data = bytearray()
    for name, shape in tensors.items():
        start = len(data)
        data += made_up(name, shape).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (path / "config.json").write_text(json.dumps(dict(config)))


def cpu_logits(
    path: Path, architecture: DescribedArchitecture, tokens: Sequence[int], lengths: Sequence[int]
) -> list[array[float]]:
    """Return the logits after each token, computed in parts of such lengths, in 32-bit floats."""
    family = Family.of(path, {architecture.name: BroughtArchitecture(architecture, "under test")})
    assert family is not None, f"it is not asked for {architecture.name!r}"
    with family.named():
        inner = family.evaluated().inner
        model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22, kv_type="f32", family=inner)
    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    pool.add(0, list(tokens))
    rows: list[array[float]] = []
    done = 0
    for length in lengths:
        pool.reserve(0, done + length)
        model.execute(pool, [0], [length], list(tokens[done : done + length]), num_outputs=[length])
        logits = array("f", model.logits())
        rows += (logits[start : start + info["vocab_size"]] for start in range(0, len(logits), info["vocab_size"]))
        done += length
    return rows
