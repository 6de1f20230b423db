"""Prefix-aware routing against round robin: agents that share system prompts, asked through one node of three.

    .venv/bin/python benchmarks/cluster_routing.py [--agents 100] [--prefixes 10] [--words 700] [--clients 3]

Starts three `pyagent node` on loopback for each policy, cold, each with one thread and the default model. Each agent
asks once, in an order drawn by lot that is the same for all policies; so many ask at once. Prints the mean and p95 time
to the first token, how many prompt tokens were cached, and how many requests each node answered. Exits with 1 when
`prefix` is not twice as quick as `round_robin` in the mean, or a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import httpx

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder

NUM_NODES, FIRST_PORT, MODEL = 3, 18400, "smollm2:135m"
COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()"]
WORDS = (
    "the",
    "review",
    "of",
    "contracts",
    "needs",
    "care",
    "about",
    "dates",
    "parties",
    "money",
    "risk",
    "law",
    "notice",
)


@dataclass
class Outcome:
    """What the clients saw."""

    first_tokens: list[float] = field(default_factory=list[float])
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    backends: Counter[str] = field(default_factory=Counter[str])
    refused: list[str] = field(default_factory=list[str])

    @property
    def mean(self) -> float:
        return statistics.fmean(self.first_tokens)

    @property
    def p95(self) -> float:
        return sorted(self.first_tokens)[int(0.95 * (len(self.first_tokens) - 1))]


def start_nodes(
    folder: Path, policy: str, first_chain: str = "native", more: Mapping[str, str] = MappingProxyType({})
) -> list[subprocess.Popen[bytes]]:
    """Start the nodes of a new cluster; `first_chain` is what the first of them answers with itself.

    `more` are lines of settings by table, `engine` or `cluster`.
    """
    state = None
    processes: list[subprocess.Popen[bytes]] = []
    for number in range(NUM_NODES):
        home = folder / f"n{number}"
        file = ClusterFile(cluster_folder(home))
        file.folder.mkdir(parents=True)
        state = file.init("benchmark") if state is None else (file.join(state), state)[1]
        config = home / "pyagent.toml"
        config.write_text(
            f'[paths]\ndata = "{home}"\n[engine]\nthreads = 1\nmodels = ["{MODEL}"]\n'
            f"{more.get('engine', '')}"
            f'[cluster]\nrouting = "{policy}"\nmulticast = false\nbind = ["127.0.0.1"]\nname = "n{number}"\n'
            f"{more.get('cluster', '')}"
            f'port = {FIRST_PORT + 10 + number}\nseeds = ["127.0.0.1:{FIRST_PORT + 10}"]\n',
            encoding="utf-8",
        )
        chain = "native" if number else first_chain
        flags = ["--chain", chain, "--port", str(FIRST_PORT + number), "--config", str(config)]
        processes.append(subprocess.Popen([*COMMAND, "node", *flags], stdout=subprocess.DEVNULL, env=dict(os.environ)))
    return processes


async def until_connected(http: httpx.AsyncClient) -> None:
    """Wait until the first node has all others, and each has its model in memory."""
    async with asyncio.timeout(120):
        for number in range(NUM_NODES):
            url = f"http://127.0.0.1:{FIRST_PORT + number}"
            while True:
                with contextlib.suppress(httpx.HTTPError, KeyError):
                    peers = (await http.get(f"{url}/pyagent/cluster")).json()["peers"]
                    if [peer["is_connected"] for peer in peers].count(True) == NUM_NODES - 1:
                        break
                await asyncio.sleep(0.1)
        for number in range(NUM_NODES):  # each on its own: a private request stays where it is
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "private": True}
            await http.post(f"http://127.0.0.1:{FIRST_PORT + number}/v1/chat/completions", json=body)


def prompts(num_agents: int, num_prefixes: int, num_words: int) -> list[tuple[str, str]]:
    """Return a system prompt and a question for each agent."""
    rng = random.Random(5)
    systems = [f"Rule book {number}. " + " ".join(rng.choices(WORDS, k=num_words)) for number in range(num_prefixes)]
    asked = [(systems[agent % num_prefixes], f"Agent {agent}: what matters most?") for agent in range(num_agents)]
    rng.shuffle(asked)
    return asked


async def ask(http: httpx.AsyncClient, system: str, question: str, outcome: Outcome) -> None:
    body = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first = time.perf_counter(), None
    async with http.stream("POST", f"http://127.0.0.1:{FIRST_PORT}/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            outcome.refused.append((await answer.aread()).decode()[:200])
            return
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            told = json.loads(line[6:])
            if first is None and any(choice["delta"].get("content") for choice in told.get("choices", [])):
                first = time.perf_counter() - started
            if usage := told.get("usage"):
                outcome.num_prompt_tokens += usage["prompt_tokens"]
                outcome.num_cached_tokens += usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    outcome.first_tokens.append(first if first is not None else time.perf_counter() - started)


async def measure(asked: Sequence[tuple[str, str]], num_clients: int) -> Outcome:
    outcome, waiting = Outcome(), list(asked)
    async with client() as http:
        await until_connected(http)

        async def work() -> None:
            while waiting:
                await ask(http, *waiting.pop(), outcome)

        await asyncio.gather(*(work() for _ in range(num_clients)))
        for link in (await http.get(f"http://127.0.0.1:{FIRST_PORT}/pyagent/chain")).json():
            outcome.backends[link["backend"]] = link["num_answers"]
    return outcome


@contextlib.asynccontextmanager
async def client() -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=120) as http:
        yield http


def run(policy: str, asked: Sequence[tuple[str, str]], num_clients: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        processes = start_nodes(Path(folder), policy)
        try:
            return asyncio.run(measure(asked, num_clients))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--prefixes", type=int, default=10)
    parser.add_argument("--words", type=int, default=700)
    parser.add_argument("--clients", type=int, default=3)
    given = parser.parse_args()
    asked = prompts(given.agents, given.prefixes, given.words)
    outcomes: dict[str, Outcome] = {}
    for policy in ("round_robin", "least_requests", "prefix"):
        outcomes[policy] = outcome = run(policy, asked, given.clients)
        cached = outcome.num_cached_tokens / max(1, outcome.num_prompt_tokens)
        nodes = ", ".join(f"{name} {count}" for name, count in outcome.backends.items())
        print(
            f"{policy:15} first token mean {outcome.mean:.3f} s, p95 {outcome.p95:.3f} s; {cached:.0%} of "
            f"{outcome.num_prompt_tokens} prompt tokens cached; {nodes}; {len(outcome.refused)} refused",
            flush=True,
        )
    ratio = outcomes["round_robin"].mean / outcomes["prefix"].mean
    print(f"prefix is {ratio:.2f} times as quick to the first token as round_robin")
    return int(ratio < 2 or any(outcome.refused for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
