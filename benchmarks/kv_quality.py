"""What each number format of the KV memory costs in quality: perplexity on a text kept in the tree.

    .venv/bin/python benchmarks/kv_quality.py [--model FILE ...] [--tokens 4000]

The text is read in windows of 1,000 tokens. Each token's keys and values are stored in the format and read from there
by the later tokens of its window; the perplexity is over all tokens but each window's first. Beside it: how often the
most likely next token is the one that f32 gives. Without --model: SmolLM2 135M and, where it has been fetched,
Gemma 3 270M.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyagent._rust import BlockPool, CpuModel, PromptScores
from pyagent.infrastructure.engine.tokens import ModelTokenizer

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "src/pyagent/cli/demo_text.txt"
CACHE = ROOT / ".cache/models"
KV_TYPES = ("f32", "f16", "bf16", "int8")
WINDOW = 1_000
KV_BYTES = 128 << 20
NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class Quality:
    """One format's figures; `same_best` compares with f32."""

    kv_type: str
    bytes_per_token: int
    perplexity: float
    same_best: float


def scores(model: CpuModel, tokens: list[int]) -> list[tuple[float, int]]:
    """The log probability of each token but the first after those before it, and the most likely token there."""
    info = model.info()
    pool = BlockPool(info["num_pages"], groups=info["kv_groups"])
    pool.add(1, tokens)
    pool.reserve(1, len(tokens))
    scores = PromptScores(tokens, 1)
    model.execute(pool, [1], [len(tokens) - 1], tokens[:-1], scores={0: scores})
    return [(logprob, top[0][0]) for logprob, _, top in scores.read(0, len(tokens))]


def windows(path: Path, num_tokens: int) -> list[list[int]]:
    """The text's tokens in windows."""
    tokenizer = ModelTokenizer.load(path, vocab_size=CpuModel.load(path, threads=1, kv_bytes=1).info()["vocab_size"])
    ids = tokenizer.encode_text(TEXT.read_text(encoding="utf-8"))[:num_tokens]
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - 1, WINDOW)]


def measure(path: Path, num_tokens: int) -> Iterator[Quality]:
    """The figures of every format, f32 first."""
    texts = windows(path, num_tokens)
    reference: list[int] = []
    for kv_type in KV_TYPES:
        model = CpuModel.load(path, threads=NUM_THREADS, kv_bytes=KV_BYTES, kv_type=kv_type)
        scored = [score for tokens in texts for score in scores(model, tokens)]
        best = [token for _, token in scored]
        reference = reference or best
        yield Quality(
            kv_type,
            model.info()["kv_bytes_per_token"],
            math.exp(-sum(log_probability for log_probability, _ in scored) / len(scored)),
            sum(map(int.__eq__, best, reference)) / len(best),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", help="a GGUF file; may be given several times")
    parser.add_argument("--tokens", type=int, default=4_000, help="tokens of the text")
    arguments = parser.parse_args()
    models = arguments.model or sorted(CACHE.glob("*/*.gguf"))
    if not models:
        from pyagent.core.settings import Settings
        from pyagent.infrastructure.models.store import ModelStore

        models = [ModelStore(Settings().paths.models).locate("smollm2:135m")]
    print("| model | KV format | bytes a token | perplexity | same best token as f32 |")
    print("|---|---|---|---|---|")
    for path in models:
        for q in measure(path, arguments.tokens):
            figures = f"{q.bytes_per_token:,} | {q.perplexity:.4f} | {q.same_best:.2%}"
            print(f"| {path.name} | {q.kv_type} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
