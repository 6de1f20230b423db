"""A prompt computed on one node and asked on another: time to the first token when its KV is fetched, or computed.

    .venv/bin/python benchmarks/kv_moves.py [--prompts 5] [--words 1700] [--threads 1]

Starts two `pyagent node` on loopback: `far` computes prompts (`cluster.role = "prefill"`), `near` is asked. Each prompt
that `far` has computed is asked on `near`, beside one of the same length that nobody has. Both are asked by name
(`peer:NAME`), as any node, a prefill node too, gives its own clients' requests to whom answers soonest. An answer over
fetched KV is compared with `far`'s own. Prints the times, and the rate of the moves. Exits with 1 when an answer
differs, nothing was fetched, or fetching is not sooner.

Expected before it was first run: 2,000 tokens of SmolLM2-135M are 46 MB of KV; at 0.4 GB/s end to end (the transport's
own 0.7 GB/s, and two copies beside it) they come in 0.12 s, computing them takes 2.5 s on one thread: 15 times sooner.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
import urllib.request

from cluster_fleet import WORDS, Tables, fleet, get, url, wait_until_connected

FAR, NEAR = range(2)
ROLES = ("prefill", "both")


def ask(number: int, text: str) -> tuple[float, str, int]:
    """Ask a node itself; return the time to the first token, the answer and the prompt's tokens."""
    body = {
        "model": f"peer:n{number}",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url(number, "/v1/chat/completions"), json.dumps(body).encode(), headers)
    started, first, said, num_tokens = time.perf_counter(), 0.0, "", 0
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            told = json.loads(line[6:])
            num_tokens = (told.get("usage") or {}).get("prompt_tokens", num_tokens)
            for choice in told.get("choices", []):
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - started
                    said += piece
    return first, said, num_tokens


def wait_until_ready() -> None:
    """Wait until the nodes are peers, and both can move their model's KV."""
    wait_until_connected(len(ROLES), computing=())
    for number in range(len(ROLES)):
        ask(number, "hello")
        while b"kv_loads_total" not in get(number, "/metrics"):
            time.sleep(0.1)


def metric(name: str) -> float:
    found = re.search(rf"^pyagent_engine_{name}_total{{.*}} (\S+)$", get(NEAR, "/metrics").decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--words", type=int, default=1700)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(3)
    fetched: list[float] = []
    computed: list[float] = []
    num_wrong = num_tokens = 0
    each: list[Tables] = [{"engine": {"threads": options.threads}, "cluster": {"role": role}} for role in ROLES]
    with fleet(each):
        wait_until_ready()
        ask(NEAR, " ".join(rng.choices(WORDS, k=options.words)))  # measures how long computing takes
        for number in range(options.prompts):
            known, unknown = (f"{number} " + " ".join(rng.choices(WORDS, k=options.words)) for _ in range(2))
            _, expected, num_tokens = ask(FAR, known)
            time.sleep(0.6)  # two loads tell the near one of it
            seconds, said, _ = ask(NEAR, known)
            num_wrong += said != expected
            fetched.append(seconds)
            computed.append(ask(NEAR, unknown)[0])
        loads, seconds, num_bytes = metric("kv_loads"), metric("kv_load_seconds"), metric("kv_loaded_bytes")
    mean_fetched, mean_computed = statistics.fmean(fetched), statistics.fmean(computed)
    print(f"{options.prompts} prompts of {num_tokens} tokens, {loads:g} fetched, {num_wrong} answers differ")
    print(f"time to first token: fetched {mean_fetched:.3f} s, computed {mean_computed:.3f} s")
    print(f"  {mean_computed / mean_fetched:.1f} times as soon (each: {[round(one, 3) for one in fetched]})")
    if seconds:
        print(
            f"moves: {num_bytes / loads / 1e6:.1f} MB in {seconds / loads:.3f} s, {num_bytes / seconds / 1e6:.0f} MB/s"
        )
    return int(bool(num_wrong) or not loads or mean_fetched >= mean_computed)


if __name__ == "__main__":
    sys.exit(main())
