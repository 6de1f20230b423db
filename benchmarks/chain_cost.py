"""What the chain costs a request: CPU and time over bare httpx, beside LiteLLM's Router, on one fake upstream.

    python benchmarks/chain_cost.py [--seconds 5] [--streams 1000] [--rounds 3]

The upstream is a process of its own on loopback, and answers at once. Each client is a process of its own too, and asks
the same streamed chat request: one at a time for CPU and time a request, then 50 at once for requests a second. Then
servers take turns before that upstream, `pyagent serve --chain` and LiteLLM's proxy, each one process with a spare
link, asked over bare sockets; CPU is the server's. LiteLLM is looked for under $PEERS_HOME/litellm (an environment with
`litellm[proxy]`) and left out, with a word, when it is not there. At the end the chain reads many streams at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import Server, free_port, litellm_server
from quiet import machine, seconds_of

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).parent / "chain_cost_client.py"


def start_upstream(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A fake upstream and its port."""
    command = [sys.executable, str(ROOT / "benchmarks/fake_upstream.py"), "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().split()[1])


def stop(upstream: subprocess.Popen[str]) -> None:
    """End a fake upstream."""
    upstream.terminate()
    upstream.communicate()


def measure(client: str, python: str, url: str, seconds: float, streams: int) -> dict[str, float] | None:
    """One client's figures, or None when it cannot run."""
    arguments = [python, str(WORKER), client, url, str(seconds), str(streams)]
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        print(f"{client} is left out: {done.stderr.strip().splitlines()[-1]}")
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def pyagent_server(upstream: str) -> Server:
    """`pyagent serve` before the upstream."""
    port, chain = free_port(), f"openai:{upstream}#fake,openai:{upstream}#spare"
    words = [Path(sys.executable).parent / "pyagent", "serve", "--port", str(port), "--chain", chain]
    return Server(words, port, "/ready", {"PYTHONPATH": str(ROOT / "src")})


def ask_server(server: Server, model: str, seconds: float) -> dict[str, float]:
    """A server's figures; CPU is its own, over all requests."""
    before = seconds_of(server.process.pid)
    row = measure(f"sockets:{model}", sys.executable, f"{server.url}/v1", seconds, 0)
    if row is None:
        raise SystemExit("a server did not answer right")
    return row | {"cpu_ms": (seconds_of(server.process.pid) - before) / row["requests"] * 1000}


def compare_servers(upstream: str, litellm: Path, seconds: float, rounds: int) -> None:
    """The table of servers."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = {"pyagent serve": (stack.enter_context(pyagent_server(upstream)), "default")}
        if litellm.exists():
            models = {"main": [upstream], "spare": [upstream]}
            proxy = litellm_server(litellm, models, {"fallbacks": [{"main": ["spare"]}]}, Path(folder))
            servers["litellm proxy"] = (stack.enter_context(proxy), "main")
        bare = [measure("sockets:fake", sys.executable, upstream, seconds, 0) for _ in range(rounds)]
        rows = {"no server": [row for row in bare if row]} | {name: [] for name in servers}
        for _ in range(rounds):
            for name, (server, model) in servers.items():
                rows[name].append(ask_server(server, model, seconds))
    print(f"\nservers, medians of {rounds} rounds in turns")
    for name, samples in rows.items():
        print_row(name, {key: statistics.median(sample[key] for sample in samples) for key in samples[0]})
    if litellm.exists():
        pairs = zip(rows["pyagent serve"], rows["litellm proxy"], strict=True)
        ratios = [ours["rate"] / theirs["rate"] for ours, theirs in pairs]
        print(f"requests/s: {statistics.median(ratios):.1f} times LiteLLM's [{min(ratios):.1f}-{max(ratios):.1f}]")


def print_row(name: str, row: dict[str, float]) -> None:
    print(f"{name:<14}{row['cpu_ms']:>9.3f}{row['p50_ms']:>9.3f}{row['p99_ms']:>9.3f}{row['rate']:>18.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure of each client")
    parser.add_argument("--streams", type=int, default=1000, help="read at once at the end")
    parser.add_argument("--rounds", type=int, default=3, help="of the servers, in turns")
    asked = parser.parse_args()
    peer = Path(os.environ.get("PEERS_HOME", "/nonexistent")) / "litellm/bin/python"
    clients = [("httpx", sys.executable), ("backend", sys.executable), ("chain", sys.executable)]
    if peer.exists():
        clients.append(("litellm", str(peer)))
    else:
        print("litellm is left out: there is no $PEERS_HOME/litellm with it installed")
    upstream, port = start_upstream()
    try:
        url = f"http://127.0.0.1:{port}/v1"
        rows = {name: measure(name, python, url, asked.seconds, 0) for name, python in clients}
        print(f"{machine()}\n{'':<14}{'CPU ms':>9}{'p50 ms':>9}{'p99 ms':>9}{'requests/s at 50':>18}")
        for name, row in rows.items():
            if row:
                print_row(name, row)
        bare, ours, theirs = rows["backend"], rows["chain"], rows.get("litellm")
        if bare and ours:
            added = (ours["cpu_ms"] - bare["cpu_ms"], ours["p50_ms"] - bare["p50_ms"])
            print(f"the chain adds {added[0]:.3f} ms CPU and {added[1]:.3f} ms p50 to its backend")
        if ours and theirs:
            print(f"requests/s: {ours['rate'] / theirs['rate']:.1f} times LiteLLM's")
        compare_servers(url, peer, asked.seconds, asked.rounds)
        crowd = measure("chain", sys.executable, url, 0.0, asked.streams)
        if crowd:
            told = f"{crowd['right']:.0f} right, {crowd['wrong']:.0f} wrong, {crowd['seconds']:.1f} s"
            print(f"{asked.streams} streams at once through one process: {told}")
    finally:
        stop(upstream)


if __name__ == "__main__":
    main()
