"""Copies of an engine with a thread each against one engine with all threads: throughput and latency.

    .venv/bin/python benchmarks/data_parallel.py [--model smollm2:135m] [--copies 2] [--repeats 5] [--tokens 96]

Three engines with the same model and as many threads together: in this process, in a process of its own, and copies.
All are loaded at the start and take turns; an engine at rest computes nothing. The table shows medians. Throughput is
of so many requests at once, each with a prompt of its own of 40 words. Before that, each engine answers the same
eight requests: exits with 1 where a text differs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from quiet import machine

from pyagent import Engine, SamplingParams

WORDS = ("review", "contracts", "needs", "care", "about", "dates", "parties", "money", "risk", "law", "notice", "the")


def prompt(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


async def throughput(engine: Engine, rng: random.Random, num_requests: int, num_tokens: int) -> float:
    """Return output tokens a second of so many requests at once."""
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    asked = [prompt(rng, 40) for _ in range(num_requests)]
    start = time.perf_counter()
    answers = await engine.chat_all(asked, sampling)
    return sum(answer.usage.completion_tokens for answer in answers) / (time.perf_counter() - start)


async def first_token(engine: Engine, rng: random.Random) -> float:
    """Return the seconds until the first token of a cold prompt of 400 words."""
    start = time.perf_counter()
    stream = engine.stream(prompt(rng, 400), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    async for _ in stream:
        break
    seconds = time.perf_counter() - start
    await stream.aclose()  # type: ignore[attr-defined]
    return seconds


FIGURES = ("1 sequence, tokens/s", "8 sequences, tokens/s", "32 sequences, tokens/s", "first token of 400 words, s")


async def measure(engine: Engine, rng: random.Random, figure: str, num_tokens: int) -> float:
    if figure.startswith("first"):
        return await first_token(engine, rng)
    return await throughput(engine, rng, int(figure.split(maxsplit=1)[0]), num_tokens)


def memory(engine_pids: list[int | None]) -> str:
    """Return the memory of processes: resident, and with what they share counted once (MiB)."""
    totals = {"Rss": 0, "Pss": 0}
    for pid in engine_pids:
        for line in Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text().splitlines()[1:]:
            name, size, *_ = line.replace(":", " ").split()
            if name in totals:
                totals[name] += int(size) // 1024
    return f"{totals['Rss']} MiB resident, {totals['Pss']} with what is shared counted once"


async def run(model: str, num_copies: int, repeats: int, num_tokens: int) -> int:
    threads = len(os.sched_getaffinity(0))
    layouts = {
        f"in-process, {threads} threads": {},
        f"process, {threads} threads": {"process": True},
        f"{num_copies} copies, {max(1, threads // num_copies)} each": {"data_parallel": num_copies},
    }
    print(machine())
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(Engine(model, threads=threads, memory="3GB", **options))
            for name, options in layouts.items()
        }
        greedy = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
        asked = [prompt(random.Random(1), 30 + number) for number in range(8)]
        texts: set[tuple[str, ...]] = set()
        for engine in engines.values():
            await engine.load()
            texts.add(tuple(answer.text for answer in await engine.chat_all(asked, greedy)))
        values: dict[tuple[str, str], list[float]] = {}
        for repeat in range(repeats):
            for figure in FIGURES:
                for name, engine in engines.items():
                    rng = random.Random(f"{repeat} {figure}")
                    values.setdefault((figure, name), []).append(await measure(engine, rng, figure, num_tokens))
        print(f"| | {' | '.join(layouts)} |\n|---|{'---|' * len(layouts)}")
        for figure in FIGURES:
            cells = []
            for name in layouts:
                found = values[figure, name]
                digits = 2 if figure.startswith("first") else 0
                cells.append(f"{statistics.median(found):.{digits}f} [{min(found):.{digits}f}-{max(found):.{digits}f}]")
            print(f"| {figure} | {' | '.join(cells)} |")
        for name, engine in engines.items():
            [link] = engine.backend.links
            state = await link.engine_state()  # type: ignore[attr-defined]
            print(f"{name}: {memory([copy.process_id for copy in state.copies or [state]])}")
        print("texts are equal" if len(texts) == 1 else "TEXTS DIFFER")
        return len(texts) != 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    sys.exit(asyncio.run(run(args.model, args.copies, args.repeats, args.tokens)))


if __name__ == "__main__":
    main()
