"""A thousand texts of mixed length embedded by MiniLM: the embedded engine beside sentence-transformers, in turns.

    .oracle/bin/python benchmarks/embeddings.py [--texts 1000] [--repeats 3] [--threads 2] [--onnx MODEL.onnx]

Peers are those that this Python has: sentence-transformers (`encode`, batches of 32, sorted by length, as it is), else
transformers with the same batches; and with `--onnx` ONNX Runtime on an export of the model, batched and pooled as
fastembed does. Each turn takes the same texts, cut at 256 tokens; the ratio is that of the medians. Ours goes the way
of a user: `Engine.embed`, tokenising and packing included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyagent

ROOT = Path(__file__).parents[1]
MODEL = "all-minilm:l6-v2"
_NUM_WORDS = (3, 6, 12, 25, 50, 100, 180)
_BATCH = 32
_LONGEST = 256
Vectors = Sequence[Sequence[float]]


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--onnx", type=Path)
    given = parser.parse_args()
    texts = mixed_texts(given.texts)
    folder = store_folder()
    with pyagent.Engine(str(folder), threads=given.threads) as engine:
        ways: dict[str, Callable[[list[str]], Vectors]] = {
            "pyagent": lambda some: engine.embed(some, truncate=True),
            **peer(folder, given.threads),
            **({"onnxruntime": onnx_peer(folder, given.onnx, given.threads)} if given.onnx else {}),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        vectors = {name: embed(texts[:64]) for name, embed in ways.items()}  # and everything is warm
        for _ in range(given.repeats):
            for name, embed in ways.items():
                started = time.perf_counter()
                embed(texts)
                seconds[name].append(time.perf_counter() - started)
    own = statistics.median(seconds["pyagent"])
    print(f"{len(texts)} texts, {given.threads} threads, {given.repeats} turns")
    print(f"{'':24} {'texts/s':>8} [least-most]   pyagent's ratio   greatest difference")
    for name, each in seconds.items():
        rates = sorted(len(texts) / one for one in each)
        ratio = statistics.median(each) / own
        apart = max(
            abs(a - b)
            for ours, theirs in zip(vectors["pyagent"], vectors[name], strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
        print(
            f"{name:24} {len(texts) / statistics.median(each):8.1f} [{rates[0]:.1f}-{rates[-1]:.1f}]"
            f"   {ratio:15.2f}   {apart:.1e}"
        )


def mixed_texts(count: int) -> list[str]:
    """Return pieces of this repository's prose, of three to a hundred and eighty words."""
    words = (ROOT / "docs/explanation/log.md").read_text(encoding="utf-8").split()
    rand = random.Random(1)
    lengths = [rand.choice(_NUM_WORDS) for _ in range(count)]
    begins = [rand.randrange(len(words) - max(_NUM_WORDS)) for _ in lengths]
    return [" ".join(words[begin : begin + length]) for begin, length in zip(begins, lengths, strict=True)]


def store_folder() -> Path:
    """Return the model's folder, fetched where it is not here."""
    from pyagent.infrastructure.models.store import ModelStore

    return ModelStore(ROOT / ".cache" / "models").locate(MODEL)


def peer(folder: Path, threads: int) -> dict[str, Callable[[list[str]], Vectors]]:
    """sentence-transformers where it is installed, else transformers in the same batches."""
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    try:
        package: Any = import_module("sentence_transformers")
    except ImportError:
        return {"transformers": _batched(folder, _torch_model(folder))}
    model: Any = package.SentenceTransformer(str(folder), device="cpu")
    return {"sentence-transformers": lambda texts: model.encode(texts, batch_size=_BATCH).tolist()}


def _torch_model(folder: Path) -> Callable[[Any], Any]:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def states(batch: Any) -> Any:
        with torch.inference_mode():
            return model(**batch).last_hidden_state.numpy()

    return states


def onnx_peer(folder: Path, model: Path, threads: int) -> Callable[[list[str]], Vectors]:
    """ONNX Runtime with all of its optimisations."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}

    def states(batch: Any) -> Any:
        return session.run(None, {name: value.numpy() for name, value in batch.items() if name in names})[0]

    return _batched(folder, states)


def _batched(folder: Path, states: Callable[[Any], Any]) -> Callable[[list[str]], Vectors]:
    """Sort by length, pad in batches, take means, and scale to length 1."""
    linalg: Any = import_module("numpy.linalg")
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found: list[Any] = [None] * len(texts)
        for first in range(0, len(order), _BATCH):
            part = order[first : first + _BATCH]
            some = [texts[at] for at in part]
            batch = tokenizer(some, padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt")
            mask = batch["attention_mask"].numpy()[:, :, None]
            sums = (states(batch) * mask).sum(1) / mask.sum(1)
            for at, vector in zip(part, sums / linalg.norm(sums, axis=1, keepdims=True), strict=True):
                found[at] = vector.tolist()
        return found

    return embed


if __name__ == "__main__":
    main()
