"""A stream whose node is killed in mid-answer: how long until its next piece, and is the text the same?

    .venv/bin/python benchmarks/cluster_failover.py [--tokens 250] [--kills 3]

Starts three `pyagent node` on loopback; the first computes nothing itself. Asks it at temperature 0, kills the node
that answers with `kill -9` after a quarter of the pieces, and compares with an undisturbed answer. Exits with 1 when a
gap is a second or longer, or a text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from itertools import pairwise

from cluster_fleet import MODEL, NUM_NODES, fleet, get, url, wait_until_connected

ELSEWHERE = "openai:http://127.0.0.1:9/v1#none"
"""The first node's chain: a link where nothing listens, so that peers answer."""


def pieces(number: int, max_tokens: int, *, private: bool = False):
    """Yield the pieces of one answer."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "private": private,
    }
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url(number, "/v1/chat/completions"), json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                told = json.loads(line[6:])
                if "error" in told:
                    raise SystemExit(f"the answer ended with an error: {told['error']}")
                if text := (told["choices"] or [{"delta": {}}])[0]["delta"].get("content"):
                    yield text


def kill_once(num_tokens: int) -> tuple[float, bool]:
    """Return the longest gap after a kill, and whether the text is that of an undisturbed answer."""
    with fleet([{}] * NUM_NODES, first_chain=ELSEWHERE) as processes:
        wait_until_connected(computing=range(1, NUM_NODES))
        whole = "".join(pieces(1, num_tokens, private=True))
        texts, times, killed = list[str](), list[float](), float("inf")
        for text in pieces(0, num_tokens):
            texts.append(text)
            times.append(time.monotonic())
            if len(texts) == num_tokens // 4:
                peers = json.loads(get(0, "/pyagent/cluster"))["peers"]
                busy = max(peers, key=lambda peer: (peer["num_answered"], peer["num_running"]))
                processes[int(str(busy["name"])[1:])].kill()
                killed = time.monotonic()
        after = [killed, *(at for at in times if at > killed)]
        return max(later - earlier for earlier, later in pairwise(after)), "".join(texts) == whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--kills", type=int, default=3)
    given = parser.parse_args()
    outcomes = [kill_once(given.tokens) for _ in range(given.kills)]
    for gap, is_same in outcomes:
        print(f"longest gap after kill -9: {gap * 1000:.0f} ms; text {'the same' if is_same else 'DIFFERS'}")
    return int(any(gap >= 1 or not is_same for gap, is_same in outcomes))


if __name__ == "__main__":
    sys.exit(main())
