"""A hundred assistants with tools and one system prompt: our engine, and the same fleet on llama.cpp's server.

    .venv/bin/python benchmarks/fleet_agents.py [--peer PYTHON] [--model FILE] [--peer-model FILE ...] [--repeats 2]

The work is `fleet_agents_work.py`'s: each agent has three turns of exactly 32 tokens, greedy, with a call of a tool and
its result between them, after a system prompt and tools of about 1,000 tokens that all share. Both sides run the same
fleet in a new process, with its journal on the disk. Ours has the engine in that process; llama.cpp's server (the wheel
xllamacpp, in the Python `--peer`) has 16 slots of one shared KV memory, its prompt cache, continuous batching and the
kind of attention that `--peer-attention` lists. `--peer-model` are further files of the same weights, for the format
that llama.cpp does best. Both have two threads. Samples are taken in turns, also on a busy machine: beside wall time
stands the processor time of all processes of a side, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from peers import NUM_THREADS, llama_cpp_server
from quiet import Samples, machine, seconds_of
from tool_templates import template_of

from pyagent.core.settings import Settings
from pyagent.infrastructure.models.store import ModelStore

ROOT = Path(__file__).parents[1]
CONTEXT = 2048
SLOTS = 16
ATTENTION = {"on": 1, "off": 0}


@dataclass
class Side:
    """One contestant: how its work is measured once, and what was measured."""

    name: str
    measure: Callable[[], dict[str, float]]
    wall: Samples = field(default_factory=Samples)
    cpu: Samples = field(default_factory=Samples)
    counts: dict[str, float] = field(default_factory=dict[str, float])

    def sample(self) -> None:
        """Measure once more."""
        self.counts = self.measure()
        self.wall.values.append(self.counts["seconds"])
        self.cpu.values.append(self.counts["cpu_seconds"])
        load = os.getloadavg()[0]
        print(f"{self.name}: {self.wall.values[-1]:.1f} s, {self.cpu.values[-1]:.1f} s of CPU, load {load:.1f}",
              file=sys.stderr, flush=True)  # fmt: skip

    def row(self, ours: Side) -> str:
        """The side's line of the table."""
        counts = self.counts
        computed = counts["prompt_tokens"] - counts["cached_tokens"]
        tokens = f"{computed:,.0f} | {counts['cached_tokens']:,.0f} | {counts['output_tokens']:,.0f}"
        ratios = f"{self.wall.median / ours.wall.median:.2f} | {self.cpu.median / ours.cpu.median:.2f}"
        return f"| {self.name} | {self.wall} | {self.cpu} | {tokens} | {ratios} |"


def work(arguments: argparse.Namespace, chain: str, *settings: str) -> dict[str, float]:
    """Run the agents over a backend, in a new process; return what they used."""
    counts = [f"--{name}={getattr(arguments, name)}" for name in ("agents", "turns", "tokens")]
    script = str(Path(__file__).with_name("fleet_agents_work.py"))
    done = subprocess.run(
        [sys.executable, script, chain, *settings, *counts], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the agents over {chain} failed")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def over_engine(arguments: argparse.Namespace) -> dict[str, float]:
    """Our engine, in the fleet's process."""
    settings = (f"engine.models={json.dumps([str(arguments.model)])}", f"engine.threads={arguments.threads}")
    return work(arguments, "native", *settings, *arguments.set)


def over_llama(arguments: argparse.Namespace, model: Path, attention: str) -> dict[str, float]:
    """llama.cpp's server in its own process, whose processor time is added."""
    options = {"flash_attn_type": ATTENTION[attention], "kv_unified": True}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.jinja"
        template.write_text(template_of(model) or "")
        with llama_cpp_server(
            arguments.peer, model, template, context=CONTEXT, slots=SLOTS, threads=arguments.threads, options=options
        ) as server:
            before = seconds_of(server.process.pid)
            counts = work(arguments, f"openai:{server.url}/v1", "backends.timeout_seconds=7200")
            return counts | {"cpu_seconds": counts["cpu_seconds"] + seconds_of(server.process.pid) - before}


def sides(arguments: argparse.Namespace) -> list[Side]:
    """Ours first, then llama.cpp in each of its ways."""
    found = [Side(f"pyagent, {arguments.model.stem.rpartition('.')[2]}", partial(over_engine, arguments))]
    if not arguments.peer.exists():
        print(f"llama.cpp is left out: {arguments.peer} is not there", file=sys.stderr)
        return found
    for model in arguments.peer_model or [arguments.model]:
        for attention in arguments.peer_attention:
            name = f"llama.cpp, {model.stem.rpartition('.')[2]}, flash attention {attention}"
            found.append(Side(name, partial(over_llama, arguments, model, attention)))
    return found


def main() -> None:
    """Measure the sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file; without one, the default model of the store")
    parser.add_argument("--peer-model", type=Path, nargs="*", help="files for llama.cpp; the same without it")
    parser.add_argument("--peer-attention", nargs="+", choices=ATTENTION, default=["on", "off"])
    parser.add_argument("--peer", type=Path, default=ROOT / ".peers/bin/python", help="a Python with xllamacpp")
    parser.add_argument("--set", nargs="*", default=[], help="settings of ours, such as engine.max_num_seqs=100")
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=NUM_THREADS, help="of both; 1 where others use the machine")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    arguments.model = arguments.model or ModelStore(Settings().paths.models).locate("smollm2:135m")
    contestants = sides(arguments)
    for turn in range(arguments.repeats):
        for side in contestants if turn % 2 == 0 else reversed(contestants):
            side.sample()
    shape = f"{arguments.agents} agents, {arguments.turns} turns of {arguments.tokens} tokens"
    prompt = f"first prompt {contestants[0].counts['first_prompt']:.0f} tokens"
    print(f"{shape}, {prompt}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}; {machine()}")
    print("| | wall, s | CPU, s | prompt tokens computed | cached | generated | wall of ours | CPU of ours |")
    print("|---|---|---|---|---|---|---|---|")
    for side in contestants:
        print(side.row(contestants[0]))


if __name__ == "__main__":
    main()
