"""Forty requests that came to one of three nodes while the others took none: when is the last one answered?

    .venv/bin/python benchmarks/cluster_stealing.py [--requests 40] [--tokens 60] [--words 120] [--seqs 2]

Starts three `pyagent node` on loopback, each with one thread and `--seqs` places in its batch. Two drain while all
requests arrive at the first; then they take part again. Once with `cluster.steal = false`, once with `true`. Prints how
long all took, how many requests each node answered, and whether the texts are the same. Exits with 1 when a request
failed, was answered twice, or a text differs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
from cluster_fleet import NUM_NODES, WORDS, Tables, fleet, url, wait_until_connected


@dataclass
class Outcome:
    """What the clients of one way of doing it saw."""

    seconds: float = 0.0
    waits: list[float] = field(default_factory=list[float])
    texts: list[str] = field(default_factory=list[str])
    backends: Counter[str] = field(default_factory=Counter[str])


async def ask(http: httpx.AsyncClient, number: int, given: argparse.Namespace, outcome: Outcome) -> str:
    words = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(given.words))
    body = {
        "messages": [{"role": "user", "content": f"Question {number}: {words}"}],
        "max_tokens": given.tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    started = time.perf_counter()
    answer = await http.post(url(0, "/v1/chat/completions"), json=body)
    answer.raise_for_status()
    outcome.waits.append(time.perf_counter() - started)
    return answer.json()["choices"][0]["message"]["content"]


async def take_part(http: httpx.AsyncClient, *, is_on: bool) -> None:
    """Have the other nodes take requests of peers, or none, and wait until the first knows."""
    for number in range(1, NUM_NODES):
        body = {"grace_seconds": 0, "resume": is_on}
        await http.post(url(number, "/pyagent/cluster/drain"), json=body)
    while True:
        peers = (await http.get(url(0, "/pyagent/cluster"))).json()["peers"]
        if all(peer["is_draining"] is not is_on for peer in peers):
            return
        await asyncio.sleep(0.05)


async def measure(given: argparse.Namespace) -> Outcome:
    outcome = Outcome()
    async with httpx.AsyncClient(trust_env=False, timeout=120) as http:
        await take_part(http, is_on=False)
        started = time.perf_counter()
        asked = [asyncio.create_task(ask(http, number, given, outcome)) for number in range(given.requests)]
        await asyncio.sleep(1.0)
        await take_part(http, is_on=True)
        outcome.texts = list(await asyncio.gather(*asked))
        outcome.seconds = time.perf_counter() - started
        for link in (await http.get(url(0, "/pyagent/chain"))).json():
            outcome.backends[link["backend"]] = link["num_answers"]
    return outcome


def run(given: argparse.Namespace, *, steals: bool) -> Outcome:
    settings: Tables = {"engine": {"max_num_seqs": given.seqs}, "cluster": {"steal": steals}}
    with fleet([settings] * NUM_NODES):
        wait_until_connected()
        return asyncio.run(measure(given))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--seqs", type=int, default=2)
    given = parser.parse_args()
    outcomes = {steals: run(given, steals=steals) for steals in (False, True)}
    for steals, outcome in outcomes.items():
        nodes = ", ".join(f"{name} {count}" for name, count in outcome.backends.items())
        print(
            f"steal = {str(steals).lower():5}  all {given.requests} in {outcome.seconds:.2f} s, mean "
            f"{statistics.fmean(outcome.waits):.2f} s; {nodes}",
            flush=True,
        )
    print(f"{outcomes[False].seconds / outcomes[True].seconds:.2f} times as quick")
    is_same = outcomes[False].texts == outcomes[True].texts
    print(f"texts {'the same' if is_same else 'DIFFER'}")
    is_once = all(sum(one.backends.values()) >= given.requests for one in outcomes.values())
    return int(not is_same or not is_once)


if __name__ == "__main__":
    sys.exit(main())
