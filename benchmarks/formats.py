"""The CPU engine beside each peer's best setting, format by format: what a user would pick, not what flatters us.

    PEERS_HOME=... .venv/bin/python benchmarks/formats.py FILE.gguf [FILE.gguf ...] [--repeats 3]

Engines and settings take turns in each repeat. A peer's figure is its best setting's median: llama.cpp with and
without flash attention, ik_llama.cpp with and without repacking at load. Make formats of one model by
`llama-quantize --allow-requantize in.gguf out.gguf Q4_0`. The last rows compare the best format of each engine. Nothing
else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from busy_machine import find_peers
from cpu_engine import Figure, measure
from peers import NUM_THREADS, output_of
from quiet import Samples, machine

FIGURES = {
    "prefill 512": Figure("prefill 512", num_prompt=512),
    "decode 128": Figure("decode 128", num_new=128),
}
SETTINGS = {
    "llama.cpp": (("-fa", "0"), ("-fa", "1")),
    "ik_llama.cpp": (("-fa", "1", "-rtr", "0"), ("-fa", "1", "-rtr", "1")),
}
OURS = "pyagent"

Results = dict[tuple[Path, str, str, tuple[str, ...]], Samples]
"""Of a file, a figure, an engine and its setting."""


def ours(model: Path) -> dict[str, float]:
    """Tokens a second of each figure, a process for each."""
    run = lambda name: output_of(sys.executable, __file__, model, "--sample", name)  # noqa: E731
    return {name: float(run(name)) for name in FIGURES}


def peer(program: Path, model: Path, setting: tuple[str, ...]) -> dict[str, float]:
    """What a `llama-bench` says."""
    counts = ("-p", "512", "-n", "128", "-r", "1", "-t", str(NUM_THREADS))
    tests = json.loads(output_of(program, "-m", model, *counts, *setting, "-o", "json"))
    return {list(FIGURES)[test["n_gen"] > 0]: float(test["avg_ts"]) for test in tests}


def run(models: list[Path], repeats: int) -> Results:
    """All samples, in turns."""
    results: Results = {}
    peers = find_peers()
    for repeat in range(repeats):
        print(f"repeat {repeat + 1}, load {os.getloadavg()[0]:.2f}", file=sys.stderr)
        for model in models:
            rates = {(OURS, ()): ours(model)}
            for name, program in peers.items():
                rates |= {(name, setting): peer(program, model, setting) for setting in SETTINGS[name]}
            for (engine, setting), found in rates.items():
                for figure, rate in found.items():
                    results.setdefault((model, figure, engine, setting), Samples()).values.append(rate)
    return results


def best(results: Results, figure: str, engine: str, models: list[Path]) -> Samples | None:
    """The samples of an engine's best setting over these files."""
    found = [
        samples
        for (model, name, one, _), samples in results.items()
        if (name, one) == (figure, engine) and model in models
    ]
    return max(found, key=lambda samples: samples.median, default=None)


def table(results: Results, models: list[Path]) -> Iterator[str]:
    """The lines of the report; a ratio is ours to the best peer."""
    engines = list(dict.fromkeys(engine for _, _, engine, _ in results))
    yield f"| file | figure, tok/s | {' | '.join(engines)} | ratio |"
    yield "|---" * (len(engines) + 3) + "|"
    rows = [(model.name, [model]) for model in models] + ([("best format of each", models)] if len(models) > 1 else [])
    for label, chosen in rows:
        for figure in FIGURES:
            samples = {engine: best(results, figure, engine, chosen) for engine in engines}
            peers = [found.median for engine, found in samples.items() if engine != OURS and found is not None]
            mine = samples[OURS]
            ratio = f"{mine.median / max(peers):.2f}" if peers and mine is not None else "-"
            yield f"| {label} | {figure} | {' | '.join(map(str, samples.values()))} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sample", choices=FIGURES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        print(measure(arguments.models[0], FIGURES[arguments.sample], None))
        return
    results = run(arguments.models, arguments.repeats)
    print(f"{NUM_THREADS} threads, median [least-most] of {arguments.repeats}; {machine()}")
    print("\n".join(table(results, arguments.models)))


if __name__ == "__main__":
    main()
