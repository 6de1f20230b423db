"""Steps with adapters beside steps without: the same model, in turns; what adapters add, foretold and measured.

    .venv/bin/python benchmarks/adapters.py [--model FILE] [--threads 2] [--rank 16] [--rounds 40]

The adapters are of random weights, for all seven matrices of each layer. A decode step adds reading `A` and `B`,
`rank * (in + out)` numbers of 32 bits for each matrix and adapter, to reading the weights: `foretold` is one over the
other. Kinds of steps take turns, round by round; what is told is each one's median.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from array import array
from pathlib import Path

from pyagent import _rust
from pyagent.infrastructure.models.store import ModelStore

CONTEXT = 128
"""Tokens of each sequence before it is decoded."""


def matrices(config: _rust.ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of what adapters add to, by peft's names."""
    hidden, ffn = config.hidden_size, config.ffn_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }


def write_adapter(folder: Path, config: _rust.ModelConfig, rank: int, seed: int) -> int:
    """Write an adapter of random weights; return how many numbers it has."""
    folder.mkdir()
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    draw = random.Random(seed)
    header: dict[str, object] = {}
    parts: list[bytes] = []
    end = 0
    for layer in range(config.num_layers):
        for name, (rows, cols) in matrices(config).items():
            for role, shape in (("A", (rank, cols)), ("B", (rows, rank))):
                data = array("f", (draw.uniform(-0.02, 0.02) for _ in range(shape[0] * shape[1]))).tobytes()
                start, end = end, end + len(data)
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{role}.weight"
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
                parts.append(data)
    encoded = json.dumps(header).encode()
    weights = len(encoded).to_bytes(8, "little") + encoded + b"".join(parts)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return end // 4


class Batch:
    """Sequences that are decoded together, a token each in a step."""

    def __init__(self, model: _rust.CpuModel, adapter_ids: list[int]) -> None:
        info = model.info()
        self.model, self.ids = model, list(range(len(adapter_ids)))
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        prompt = [(7 * place + place * place) % info["vocab_size"] for place in range(CONTEXT)]
        for sequence, adapter_id in enumerate(adapter_ids):
            self.pool.add(sequence, prompt, adapter_id=adapter_id)
            self.pool.reserve(sequence, 2 * CONTEXT)
            model.execute(self.pool, [sequence], [CONTEXT], prompt, num_outputs=[1])
        self.seconds: list[float] = []

    def step(self, seconds: list[float]) -> None:
        """Compute a step, and note how long it took."""
        count = len(self.ids)
        start = time.perf_counter()
        self.model.execute(self.pool, self.ids, [1] * count, [5] * count, num_outputs=[1] * count)
        seconds.append(time.perf_counter() - start)


def main() -> None:
    """Print a table of step times."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", type=Path)
    arguments.add_argument("--threads", type=int, default=_rust.available_cores())
    arguments.add_argument("--rank", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=40)
    given = arguments.parse_args()
    path = given.model or ModelStore(Path("~/.local/share/pyagent/models").expanduser()).locate("smollm2:135m")
    model = _rust.CpuModel.load(path, threads=given.threads, kv_bytes=1 << 28)
    weight_bytes = model.info()["weight_bytes"]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, 5):
            adapter = Path(folder) / str(seed)
            numbers = write_adapter(adapter, _rust.ModelFile(path).config, given.rank, seed)
            start = time.perf_counter()
            _rust.AdapterFile.open(model, adapter).load(model, seed)
            load_seconds = time.perf_counter() - start
    print(
        f"{path.name}: {weight_bytes / 1e6:.0f} MB; an adapter of rank {given.rank}: {4 * numbers / 1e6:.1f} MB, ",
        end="",
    )
    print(f"loaded in {load_seconds:.2f} s; {given.threads} threads")
    added = 4 * numbers / weight_bytes
    kinds = {
        "1 request, bare model": ([0], 0.0),
        "1 request, an adapter": ([1], added),
        "8 requests, bare model": ([0] * 8, 0.0),
        "8 requests, 1 adapter": ([1] * 8, added),
        "8 requests, 4 adapters": ([1, 2, 3, 4] * 2, 4 * added),
    }
    batches = {kind: Batch(model, ids) for kind, (ids, _) in kinds.items()}
    for batch in batches.values():
        batch.step([])
    for _ in range(given.rounds):
        for batch in batches.values():
            batch.step(batch.seconds)
    print(f"{'':24}{'ms a step':>10}{'tokens/s':>10}{'added':>8}{'foretold':>10}")
    bare = {len(ids): statistics.median(batches[kind].seconds) for kind, (ids, more) in kinds.items() if not more}
    for kind, (ids, more) in kinds.items():
        seconds = statistics.median(batches[kind].seconds)
        print(f"{kind:24}{seconds * 1e3:10.2f}{len(ids) / seconds:10.0f}", end="")
        print(f"{seconds / bare[len(ids)] - 1:8.1%}{more:10.1%}" if more else "")


if __name__ == "__main__":
    main()
