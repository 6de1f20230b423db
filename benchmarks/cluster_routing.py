"""Prefix-aware routing against round robin: agents that share system prompts, asked through one node of three.

    .venv/bin/python benchmarks/cluster_routing.py [--agents 100] [--prefixes 10] [--clients 3]
        [--words 1500 ...] [--ways prefix,...] [--peer PYTHON]

For each way three nodes, or servers, start cold on loopback, each with one thread and SmolLM2-135M. Each agent asks
once, in an order drawn by lot that is the same for all ways; so many ask at once. Prints the mean and p95 time to the
first token, how many prompt tokens were cached, and how many requests each node answered.

The ways:
- `round_robin`: in turns, without KV moves, as a gateway before servers does it;
- `round_robin+kv`: in turns, but nodes fetch KV from each other;
- `prefix`: PyAgent as it is, by the estimated time to the first token, with KV moves;
- `prefix-kv`: the same without KV moves;
- `litellm simple-shuffle` (its default) and `litellm least-busy`: llama.cpp's servers, with its prompt cache and four
  slots each, behind litellm's proxy. For these `--peer` names a Python with xllamacpp and litellm (`make peers`).

1,500 words are 1,505 tokens: as much as agents have of system prompt and descriptions of tools, within SmolLM2's
context of 2,048. `--words 1500 700` does all for both lengths. What routing can save grows with the length: with P
seconds for such a prompt and h for a question after it, ten prompts on three nodes and a hundred questions cost
30 P + 70 h in turns and 10 P + 90 h by prefix. That is never 3 times as quick, and twice only where P is above 11 h.

Exits with 1 when `prefix` is not twice as quick as `round_robin` in the mean, or a request was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cluster_fleet import HELLO, MODEL, NUM_NODES, WORDS, Tables, fleet, url, wait_until_connected
from peers import litellm_server, llama_cpp_server, post
from tool_templates import template_of

from pyagent import load_settings
from pyagent.infrastructure.models.store import ModelStore

ROOT = Path(__file__).parents[1]
OURS: dict[str, Tables] = {
    "round_robin": {"cluster": {"routing": "round_robin"}, "engine": {"kv_connector": "none"}},
    "round_robin+kv": {"cluster": {"routing": "round_robin"}},
    "prefix-kv": {"engine": {"kv_connector": "none"}},
    "prefix": {},
}
THEIRS = {"litellm simple-shuffle": "simple-shuffle", "litellm least-busy": "least-busy"}
SLOTS, CONTEXT = 4, 2048


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

    def __str__(self) -> str:
        p95 = sorted(self.first_tokens)[int(0.95 * (len(self.first_tokens) - 1))]
        cached = self.num_cached_tokens / max(1, self.num_prompt_tokens)
        nodes = "".join(f"; {name} {count}" for name, count in self.backends.items())
        return (
            f"first token mean {self.mean:.3f} s, p95 {p95:.3f} s; {cached:.0%} of {self.num_prompt_tokens} prompt "
            f"tokens cached{nodes}; {len(self.refused)} refused"
        )


def prompts(num_agents: int, num_prefixes: int, num_words: int) -> list[tuple[str, str]]:
    """Return a system prompt and a question for each agent."""
    rng = random.Random(5)
    systems = [f"Rule book {number}. " + " ".join(rng.choices(WORDS, k=num_words)) for number in range(num_prefixes)]
    asked = [(systems[agent % num_prefixes], f"Agent {agent}: what matters most?") for agent in range(num_agents)]
    rng.shuffle(asked)
    return asked


async def ask(http: httpx.AsyncClient, base: str, system: str, question: str, outcome: Outcome) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first = time.perf_counter(), None
    async with http.stream("POST", f"{base}/v1/chat/completions", json=body) as answer:
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
                outcome.num_cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    outcome.first_tokens.append(first if first is not None else time.perf_counter() - started)


async def measure(base: str, asked: Sequence[tuple[str, str]], num_clients: int) -> Outcome:
    outcome, waiting = Outcome(), list(asked)
    async with httpx.AsyncClient(trust_env=False, timeout=600) as http:

        async def work() -> None:
            while waiting:
                await ask(http, base, *waiting.pop(), outcome)

        await asyncio.gather(*(work() for _ in range(num_clients)))
        chain = await http.get(f"{base}/pyagent/chain")
        if chain.status_code == 200:
            outcome.backends.update({link["backend"]: link["num_answers"] for link in chain.json()})
    return outcome


@contextlib.contextmanager
def nodes(settings: Tables) -> Generator[str]:
    """Run our nodes; give the first one's address."""
    with fleet([settings] * NUM_NODES):
        wait_until_connected()
        yield url(0)


@contextlib.contextmanager
def gateway(python: Path, strategy: str) -> Generator[str]:
    """Run llama.cpp's servers behind litellm's proxy; give its address."""
    model = ModelStore(load_settings().settings.paths.models).locate(MODEL)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        template = folder / "template.jinja"
        template.write_text(template_of(model) or "", encoding="utf-8")
        servers = [
            stack.enter_context(llama_cpp_server(python, model, template, context=CONTEXT, slots=SLOTS, threads=1))
            for _ in range(NUM_NODES)
        ]
        urls = [f"{server.url}/v1" for server in servers]
        proxy = stack.enter_context(litellm_server(python, {MODEL: urls}, {"routing_strategy": strategy}, folder))
        for server in (*servers, proxy):
            post(f"{server.url}/v1/chat/completions", HELLO)  # as ours were asked before the first agent
        yield proxy.url


def run(way: str, asked: Sequence[tuple[str, str]], num_clients: int, peer: Path) -> Outcome:
    with nodes(OURS[way]) if way in OURS else gateway(peer, THEIRS[way]) as base:
        return asyncio.run(measure(base, asked, num_clients))


def compare(given: argparse.Namespace, ways: Sequence[str], num_words: int) -> int:
    """Print what clients see each way; return the exit status."""
    print(f"{given.agents} agents, {given.prefixes} system prompts of {num_words} words, {given.clients} at once")
    asked = prompts(given.agents, given.prefixes, num_words)
    outcomes: dict[str, Outcome] = {}
    for way in ways:
        if way in THEIRS and not given.peer.exists():
            print(f"{way:22} is left out: {given.peer} is not there", flush=True)
            continue
        outcomes[way] = run(way, asked, given.clients, given.peer)
        print(f"{way:22} {outcomes[way]}", flush=True)
    if "prefix" not in outcomes:
        return int(any(outcome.refused for outcome in outcomes.values()))
    ratios = {way: outcome.mean / outcomes["prefix"].mean for way, outcome in outcomes.items() if way != "prefix"}
    for way, ratio in ratios.items():
        print(f"prefix is {ratio:.2f} times as quick to the first token as {way}")
    return int(ratios.get("round_robin", 2) < 2 or any(outcome.refused for outcome in outcomes.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--prefixes", type=int, default=10)
    parser.add_argument("--words", type=int, nargs="+", default=[1500])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--ways", default=",".join([*OURS, *THEIRS]), help="some of them, by commas")
    parser.add_argument(
        "--peer", type=Path, default=ROOT / ".peers/bin/python", help="a Python with xllamacpp, litellm"
    )
    given = parser.parse_args()
    ways = given.ways.split(",")
    if unknown := [way for way in ways if way not in OURS and way not in THEIRS]:
        parser.error(f"there is no way {unknown[0]!r}; the ways are {', '.join([*OURS, *THEIRS])}")
    return max([compare(given, ways, num_words) for num_words in given.words])


if __name__ == "__main__":
    sys.exit(main())
