"""The CPU runner against llama.cpp on the same GGUF file: prefill, decode, batched decode.

    PEERS_HOME=... .venv/bin/python benchmarks/cpu_engine.py [--peer-only] [--model FILE] [--repeats 5]

Each sample is a process of its own that loads the model, warms up, measures once and prints tokens per second;
samples of the engines take turns, and the table shows medians. A sample during which other processes used more
than 0.15 core is taken again, at most twice; what stayed disturbed is counted in the table. llama.cpp runs with
flash attention off and on, and the better median of each figure is compared. It is looked for in
$PEERS_HOME/llama.cpp-build/bin (llama-bench, llama-batched-bench); without it only our own figures are printed.

Both engines do the same work: random tokens, no sampling; prefill starts from an empty cache and computes the
last token's logits; decode feeds one token a step and computes logits for each sequence. A batch has prompts of
16 tokens that are not part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NUM_THREADS = 2
QUIET_CORES = 0.15
QUIET_WAIT_SECONDS = 30.0
MAX_TRIES = 3
KV_BYTES = 256 << 20
BATCH_PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Figure:
    """One line of the table: prompts to compute, then tokens to decode; time counts for the one that is not zero."""

    name: str
    num_prompt: int
    num_new: int
    batch: int = 1


FIGURES = (
    Figure("prefill 512", 512, 0),
    Figure("decode 128", 0, 128),
    Figure("decode 128, batch 8", BATCH_PROMPT_TOKENS, 128, batch=8),
    Figure("decode 128, batch 16", BATCH_PROMPT_TOKENS, 128, batch=16),
)


@dataclass
class Samples:
    """Tokens per second of one engine for one figure."""

    values: list[float] = field(default_factory=list[float])
    num_disturbed: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        disturbed = f" ({self.num_disturbed} disturbed)" if self.num_disturbed else ""
        return f"{self.median:.1f} [{min(self.values):.1f}-{max(self.values):.1f}]{disturbed}"


# --- a quiet machine ---


def busy_seconds() -> float:
    """CPU time spent by everybody on the machine, time stolen by its host included."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def foreign_cores(work: Callable[[], float]) -> tuple[float, float]:
    """What `work` returned, and how many cores others used meanwhile (its finished children are not others)."""
    start, busy, own = time.perf_counter(), busy_seconds(), sum(os.times()[:4])
    value = work()
    seconds = time.perf_counter() - start
    return value, (busy_seconds() - busy - (sum(os.times()[:4]) - own)) / seconds


def wait_quiet() -> None:
    """Returns when others leave the machine alone for half a second, or after QUIET_WAIT_SECONDS."""

    def pause() -> float:
        time.sleep(0.5)
        return 0.0

    end = time.monotonic() + QUIET_WAIT_SECONDS
    while time.monotonic() < end and foreign_cores(pause)[1] > QUIET_CORES:
        pass


def take(samples: Samples, work: Callable[[], float]) -> str:
    """Adds one sample of `work`, the first quiet one or the least disturbed of MAX_TRIES, and describes it."""
    tries: list[tuple[float, float]] = []
    for _ in range(MAX_TRIES):
        wait_quiet()
        value, foreign = foreign_cores(work)
        tries.append((foreign, value))
        if foreign <= QUIET_CORES:
            break
    foreign, value = min(tries)
    samples.values.append(value)
    samples.num_disturbed += foreign > QUIET_CORES
    return f"{value:.1f} tok/s, others used {max(foreign, 0.0):.2f} cores, try {len(tries)}"


# --- the engines ---


def output_of(*command: str | Path) -> str:
    """Runs a program with the threads everybody gets; its error output is shown when it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS)}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def llamacpp_sample(programs: Path, model: Path, figure: Figure, *, flash: bool) -> float:
    """Tokens per second of one run of llama.cpp's own benchmarks, which warm up by themselves."""
    threads, prompt, new = str(NUM_THREADS), str(figure.num_prompt), str(figure.num_new)
    if figure.batch == 1:
        counts = ("-p", prompt, "-n", new, "-r", "1", "-fa", str(int(flash)))
        text = output_of(programs / "llama-bench", "-m", model, "-t", threads, *counts, "-o", "json")
        return float(json.loads(text)[0]["samples_ts"][0])
    context = ("-c", "8192", "-b", "2048", "-ub", "512", "-fa", "on" if flash else "off")
    counts = ("-npp", prompt, "-ntg", new, "-npl", str(figure.batch), "-t", threads, "-tb", threads)
    text = output_of(programs / "llama-batched-bench", "-m", model, *context, *counts, "--output-format", "jsonl")
    return float(next(json.loads(line) for line in text.splitlines() if line.startswith("{"))["speed_tg"])


def pyagent_sample(model: Path, figure: Figure) -> float:
    """Tokens per second of one run of this file with --sample, so that each sample has a process here too."""
    return float(output_of(sys.executable, __file__, "--model", model, "--sample", str(FIGURES.index(figure))))


def measure(path: Path, figure: Figure) -> float:
    """Loads the model here, warms up with a small run of the same kind, and measures one figure."""
    from pyagent._rust import BlockPool, CpuModel

    model = CpuModel.load(path, threads=NUM_THREADS, kv_bytes=KV_BYTES)
    info = model.info()
    vocab_size = info["vocab_size"]
    pool = BlockPool(info["num_pages"], groups=info["kv_groups"])
    draw = random.Random(1234)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(300, vocab_size) for _ in range(count)]

    def run(num_prompt: int, num_new: int) -> float:
        sequences = list(range(figure.batch))
        for seq in sequences:
            pool.add(seq, tokens(1))  # nothing is cached of a prompt of one token
            pool.reserve(seq, num_prompt + num_new)
        start = time.perf_counter()
        if num_prompt:
            model.execute(pool, [(seq, tokens(num_prompt), 1) for seq in sequences], [])
        if num_new:
            start = time.perf_counter()
        for _ in range(num_new):
            model.execute(pool, [(seq, tokens(1), 1) for seq in sequences], [])
        seconds = time.perf_counter() - start
        for seq in sequences:
            pool.release(seq)
        return (num_new or num_prompt) * figure.batch / seconds

    run(figure.num_prompt, min(figure.num_new, 8))
    return run(figure.num_prompt, figure.num_new)


def llamacpp_programs() -> Path | None:
    """Where llama.cpp's benchmarks are, if they are anywhere."""
    home = os.environ.get("PEERS_HOME")
    if home is None:
        print("llama.cpp is left out: PEERS_HOME is not set")
        return None
    programs = Path(home) / "llama.cpp-build" / "bin"
    missing = [name for name in ("llama-bench", "llama-batched-bench") if not (programs / name).is_file()]
    if missing:
        print(f"llama.cpp is left out: no {' or '.join(missing)} in {programs}")
        return None
    return programs


# --- the run and its table ---


def machine() -> str:
    """This machine in words: processor, cores, and the instruction sets that matter here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    facts = dict(line.replace("\t", "").split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    flags = set(facts.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    sets = " ".join(name for name in wanted if name in flags)
    name = f"{facts.get('model name', '?').strip()} family {facts.get('cpu family', '?').strip()}"
    return f"{name}, {os.cpu_count()} cores, {sets}"


def table(figure_to_samples: dict[Figure, dict[str, Samples]]) -> Iterator[str]:
    """The lines of the report; `ratio` is ours over the better setting of llama.cpp."""
    yield "| figure, tok/s: median [min-max] | pyagent | llama.cpp fa off | llama.cpp fa on | ratio |"
    yield "|---|---|---|---|---|"
    for figure, engine_to_samples in figure_to_samples.items():
        cells = [str(engine_to_samples.get(engine, "-")) for engine in ("pyagent", "fa off", "fa on")]
        ours = engine_to_samples.get("pyagent")
        peers = [samples.median for engine, samples in engine_to_samples.items() if engine != "pyagent"]
        ratio = f"{ours.median / max(peers):.2f}" if ours and peers else "-"
        yield f"| {figure.name} | {' | '.join(cells)} | {ratio} |"


def engines(arguments: argparse.Namespace) -> dict[str, Callable[[Figure], float]]:
    """What is compared: a name and how to take one sample."""
    model = arguments.model
    found: dict[str, Callable[[Figure], float]] = {}
    if not arguments.peer_only:
        found["pyagent"] = lambda figure: pyagent_sample(model, figure)
    programs = llamacpp_programs()
    if programs is not None:
        found["fa off"] = lambda figure: llamacpp_sample(programs, model, figure, flash=False)
        found["fa on"] = lambda figure: llamacpp_sample(programs, model, figure, flash=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="a GGUF file both engines read; the default model of the store without one"
    )
    parser.add_argument("--repeats", type=int, default=5, help="samples of each engine for each figure")
    parser.add_argument("--peer-only", action="store_true", help="measure llama.cpp alone")
    parser.add_argument("--sample", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is None:
        from pyagent.core.settings import Settings
        from pyagent.infrastructure.models.store import ModelStore

        arguments.model = ModelStore(Settings().paths.models).locate("smollm2:135m")
    if not arguments.model.is_file():
        raise SystemExit(f"no model at {arguments.model}; name a GGUF file with --model")
    if arguments.sample is not None:
        print(measure(arguments.model, FIGURES[arguments.sample]))
        return
    figure_to_samples: dict[Figure, dict[str, Samples]] = {figure: {} for figure in FIGURES}
    compared = engines(arguments)
    for _ in range(arguments.repeats):
        for figure, engine_to_samples in figure_to_samples.items():
            for name, sample in compared.items():
                samples = engine_to_samples.setdefault(name, Samples())
                taken = take(samples, lambda sample=sample, figure=figure: sample(figure))
                print(f"{figure.name}, {name}: {taken}", file=sys.stderr)
    print(f"{arguments.model.name}, {NUM_THREADS} threads, median of {arguments.repeats}; {machine()}")
    print("\n".join(table(figure_to_samples)))


if __name__ == "__main__":
    main()
