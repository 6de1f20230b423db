"""The CPU engine beside programs that never rest: how much of its quiet speed is left, and how much of llama.cpp's.

    [PEERS_HOME=...] .venv/bin/python benchmarks/busy_machine.py [--model FILE] [--repeats 3] [--loops 0 1 2]

Measures on the machine as it is, then beside one and two processes of `while True: pass` at normal priority, all in one
session, in turns: each repeat goes through all conditions, and in each condition all engines run after each other. The
table shows medians and, below each, the share of the engine's own quiet median. Peers are those built under PEERS_HOME:
llama.cpp and ik_llama.cpp, by their `llama-bench`. Nothing else should run: the load before each repeat is printed.
Takes under six minutes on two cores.

Throughput: random tokens, no sampling, a process for each sample that loads the model, warms up and measures once;
`prefill` is four prompts of 512 tokens one after the other of ours, one of theirs; their batches are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cpu_engine import BATCH_PROMPT_TOKENS, Figure, measure
from peers import NUM_THREADS, output_of
from quiet import Samples, machine

PREFILL, DECODE, BATCH = "prefill 512", "decode", "decode, batch of 8"
FIGURES = {
    PREFILL: Figure(PREFILL, num_prompt=512),
    DECODE: Figure(DECODE, num_new=256),
    BATCH: Figure(BATCH, num_prompt=BATCH_PROMPT_TOKENS, num_new=48, batch=8),
}
NUM_PROMPTS = 4
PEER_NEW_TOKENS = 32
"""Few: beside a loop they write four tokens a second."""
LOOP = "while True: pass"

Results = dict[tuple[str, str, int], Samples]
"""Of an engine, a figure and a number of loops."""


@contextmanager
def loops(count: int) -> Iterator[None]:
    """So many processes that never rest."""
    processes = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def sample(model: Path, name: str) -> float:
    """Tokens a second of ours, measured in this process."""
    figure = FIGURES[name]
    if name != PREFILL:
        return measure(model, figure, None)
    return NUM_PROMPTS / sum(1 / measure(model, figure, None) for _ in range(NUM_PROMPTS))


def ours(model: Path) -> dict[str, float]:
    """Tokens a second of each figure, a process for each."""
    run = lambda name: output_of(sys.executable, __file__, "--model", model, "--sample", name)  # noqa: E731
    return {name: float(run(name)) for name in FIGURES}


def peer(program: Path, model: Path) -> dict[str, float]:
    """What a `llama-bench` says."""
    counts = ("-p", "512", "-n", str(PEER_NEW_TOKENS), "-r", "1", "-fa", "1", "-t", str(NUM_THREADS))
    tests = json.loads(output_of(program, "-m", model, *counts, "-o", "json"))
    return {DECODE if test["n_gen"] else PREFILL: float(test["avg_ts"]) for test in tests}


def find_peers() -> dict[str, Path]:
    """The peers that are built, by name."""
    home = os.environ.get("PEERS_HOME")
    programs = {
        name: Path(home or "") / f"{name}-build" / "bin" / "llama-bench" for name in ("llama.cpp", "ik_llama.cpp")
    }
    found = {name: program for name, program in programs.items() if home and program.is_file()}
    for name in programs.keys() - found.keys():
        print(f"{name} is left out: {'not built' if home else 'PEERS_HOME is not set'}", file=sys.stderr)
    return found


def run(arguments: argparse.Namespace) -> Results:
    """All samples, in turns."""
    results: Results = {}
    peers = find_peers()
    for repeat in range(arguments.repeats):
        print(f"repeat {repeat + 1}, load {os.getloadavg()[0]:.2f}", file=sys.stderr)
        for count in arguments.loops:
            for engine in ("pyagent", *peers):
                with loops(count):
                    rates = peer(peers[engine], arguments.model) if engine in peers else ours(arguments.model)
                for name, rate in rates.items():
                    results.setdefault((engine, name, count), Samples()).values.append(rate)
                    print(f"{count} loops, {engine}, {name}: {rate:.1f}", file=sys.stderr)
    return results


def table(results: Results, counts: list[int]) -> Iterator[str]:
    """The lines of the report."""
    yield f"| tok/s, median [min-max] | {' | '.join(f'{count} loops' for count in counts)} |"
    yield "|---" * (len(counts) + 1) + "|"
    for name in FIGURES:
        for engine in dict.fromkeys(engine for engine, figure, _ in results if figure == name):
            of = {count: results[engine, name, count] for count in counts}
            yield f"| {name}, {engine} | {' | '.join(str(samples) for samples in of.values())} |"
            shares = [f"{samples.median / of[counts[0]].median:.2f}" for samples in of.values()]
            yield f"| of its own first | {' | '.join(shares)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file; without one, the default model of the store")
    parser.add_argument("--repeats", type=int, default=3, help="how often all conditions are gone through")
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2], help="how many loops run beside the engines")
    parser.add_argument("--sample", choices=FIGURES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is None:
        from pyagent.core.settings import Settings
        from pyagent.infrastructure.models.store import ModelStore

        arguments.model = ModelStore(Settings().paths.models).locate("smollm2:135m")
    if arguments.sample:
        print(sample(arguments.model, arguments.sample))
        return
    results = run(arguments)
    print(f"{arguments.model.name}, {NUM_THREADS} threads, median of {arguments.repeats}; {machine()}")
    print("\n".join(table(results, arguments.loops)))


if __name__ == "__main__":
    main()
