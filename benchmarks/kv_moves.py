"""A prompt computed on one node and asked on another: time to the first token when its KV is fetched, or computed.

    .venv/bin/python benchmarks/kv_moves.py [--prompts 5] [--words 1700] [--threads 1]

Starts two `pyagent node` on loopback: `far` computes prompts (`cluster.role = "prefill"`), `near` is asked. Each prompt
that `far` has computed is asked on `near`, beside one of the same length that nobody has; an answer over fetched KV is
compared with `far`'s own. Prints the times, and the rate of the moves. Exits with 1 when an answer differs, nothing was
fetched, or fetching is not sooner.

Expected before it was first run: 2,000 tokens of SmolLM2-135M are 46 MB of KV; at 0.4 GB/s end to end (the transport's
own 0.7 GB/s, and two copies beside it) they come in 0.12 s, computing them takes 2.5 s on one thread: 15 times sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from cluster_routing import COMMAND, MODEL, WORDS

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder

FIRST_PORT = 18440
ROLES = {"far": "prefill", "near": "both"}
PORTS = {name: FIRST_PORT + number for number, name in enumerate(ROLES)}


def start_nodes(folder: Path, threads: int) -> list[subprocess.Popen[bytes]]:
    state = None
    processes: list[subprocess.Popen[bytes]] = []
    for name, role in ROLES.items():
        home = folder / name
        file = ClusterFile(cluster_folder(home))
        file.folder.mkdir(parents=True)
        state = file.init("benchmark") if state is None else (file.join(state), state)[1]
        config = home / "pyagent.toml"
        config.write_text(
            f'[paths]\ndata = "{home}"\n[engine]\nthreads = {threads}\nmodels = ["{MODEL}"]\n'
            f'[cluster]\nmulticast = false\nbind = ["127.0.0.1"]\nname = "{name}"\nrole = "{role}"\n'
            f'port = {PORTS[name] + 10}\nseeds = ["127.0.0.1:{FIRST_PORT + 10}"]\n',
            encoding="utf-8",
        )
        flags = ["--chain", "native", "--port", str(PORTS[name]), "--config", str(config)]
        processes.append(subprocess.Popen([*COMMAND, "node", *flags], stdout=subprocess.DEVNULL, env=dict(os.environ)))
    return processes


def get(name: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[name]}{path}", timeout=30) as answer:
        return answer.read().decode()


def ask(name: str, text: str) -> tuple[float, str, int]:
    """Return the time to the first token, the answer and the prompt's tokens."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = f"http://127.0.0.1:{PORTS[name]}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
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


def wait_until_connected() -> None:
    """Wait until the nodes are peers, and both can move their model's KV."""
    end = time.monotonic() + 120
    for name in ROLES:
        while True:
            try:
                if any(peer["is_connected"] for peer in json.loads(get(name, "/pyagent/cluster"))["peers"]):
                    break
            except OSError:
                pass  # it does not listen yet
            if time.monotonic() > end:
                raise SystemExit("the nodes did not find each other")
            time.sleep(0.1)
    for name in ROLES:
        ask(name, "hello")
        while "kv_loads_total" not in get(name, "/metrics"):
            time.sleep(0.1)


def metric(name: str) -> float:
    found = re.search(rf"^pyagent_engine_{name}_total{{.*}} (\S+)$", get("near", "/metrics"), re.MULTILINE)
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
    with tempfile.TemporaryDirectory() as folder:
        processes = start_nodes(Path(folder), options.threads)
        try:
            wait_until_connected()
            ask("near", " ".join(rng.choices(WORDS, k=options.words)))  # measures how long computing takes
            for number in range(options.prompts):
                known, unknown = (f"{number} " + " ".join(rng.choices(WORDS, k=options.words)) for _ in range(2))
                _, expected, num_tokens = ask("far", known)
                time.sleep(0.6)  # two loads tell `near` of it
                seconds, said, _ = ask("near", known)
                num_wrong += said != expected
                fetched.append(seconds)
                computed.append(ask("near", unknown)[0])
            loads, seconds, num_bytes = metric("kv_loads"), metric("kv_load_seconds"), metric("kv_loaded_bytes")
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)
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
