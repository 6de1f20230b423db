"""Chaos: three upstreams that fail, hang, drop streams and answer garbage at random, and a chain over them.

    python benchmarks/chaos.py [--minutes 10] [--clients 8] [--seed 1] [--timeout 2]

At any time one of the three is healthy, and which one changes every few seconds; the others fail most requests. Each
answer is compared with the one right answer. Streamed answers go on in the middle, whole ones begin anew. Ends with
status 1 when fewer than 99.9 % are right, when p99 takes a second longer than the links' timeout, when a tool call is
told twice, or when memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
import urllib.request
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chain_cost import start_upstream, stop
from fake_upstream import answer_to

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.messages import ChatRequest, FunctionDefinition, Message, Tool

TIMEOUT_SECONDS = 2.0
NUM_PIECES = 8
PART_FAULTY = 0.6
SWITCH_SECONDS = 2.0
TOOL = Tool(FunctionDefinition("pay"))


def settings_text(urls: list[str], timeout_seconds: float) -> str:
    """The chain as a user would write it."""
    table = '{{ use = "openai:{}#fake", timeout_seconds = {}, continues = true, concurrency = 64 }}'
    links = ", ".join(table.format(url, timeout_seconds) for url in urls)
    return f'chain = [{links}]\n[rules]\nretries = 4\ndeadline_seconds = 30\nafter_first_token = "continue"\n'


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@dataclass(slots=True)
class Outcome:
    """What came of the requests."""

    timeout_seconds: float = TIMEOUT_SECONDS
    times: array[float] = field(default_factory=lambda: array("d"))
    wrong: list[str] = field(default_factory=list[str])
    num_resumed: Counter[str] = field(default_factory=Counter[str])
    num_doubled_calls: int = 0
    memory_mb: list[float] = field(default_factory=list[float])
    until: float = 0.0
    num_requests: int = 0

    @property
    def is_over(self) -> bool:
        """Whether time is up, and there were as many requests as are wanted at least, one of them taken over."""
        has_enough = len(self.times) >= self.num_requests and (not self.num_requests or self.num_resumed["continue"])
        return time.monotonic() > self.until and bool(has_enough)

    @property
    def part_right(self) -> float:
        return 1 - len(self.wrong) / max(1, len(self.times))

    def percentile(self, part: float) -> float:
        times = sorted(self.times)
        return times[min(len(times) - 1, int(part * len(times)))] if times else 0.0


async def client(chain: Chain, outcome: Outcome, number: int, seed: int) -> None:
    """Asks one question after another, streamed or whole by turns, and compares."""
    draw, count = random.Random(seed * 1000 + number), 0
    while not outcome.is_over:
        count += 1
        question = f"question {number}.{count}"
        whole, tools = draw.random() < 0.3, [TOOL] if draw.random() < 0.2 else []
        request = ChatRequest(messages=[Message("user", question)], whole=whole, tools=tools)
        started = time.monotonic()
        try:
            answer = await collect(chain.chat(request))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        else:
            text = answer.text
            num_calls = sum(len(delta.tool_calls) for delta in answer.deltas)
            outcome.num_doubled_calls += num_calls > len(tools)
            text += "" if num_calls == len(tools) else f" with {num_calls} calls of {len(tools)}"
            outcome.num_resumed.update(delta.resumed.kind for delta in answer.deltas[:1] if delta.resumed)
        outcome.times.append(time.monotonic() - started)
        if text != "".join(answer_to(question, NUM_PIECES)):
            outcome.wrong.append(text[:300])


def set_faults(port: int, part: float) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/faults", data=str(part).encode(), method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        answer.read()


async def weather(ports: list[int], outcome: Outcome, seed: int) -> None:
    """Makes another upstream the healthy one every few seconds; the old one fails only when the new one is well."""
    draw, healthy = random.Random(seed), 0
    while not outcome.is_over:
        following = draw.choice([at for at in range(len(ports)) if at != healthy])
        await asyncio.to_thread(set_faults, ports[following], 0.0)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(set_faults, ports[healthy], PART_FAULTY)
        healthy = following
        gc.collect()
        outcome.memory_mb.append(resident_mb())
        await asyncio.sleep(min(SWITCH_SECONDS, max(0.1, outcome.until - time.monotonic())))


async def storm(ports: list[int], seconds: float, num_clients: int, seed: int, outcome: Outcome) -> Chain:
    """Clients and weather for so long; `outcome` is filled in."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pyagent.toml"
        file.write_text(
            settings_text([f"http://127.0.0.1:{port}/v1" for port in ports], outcome.timeout_seconds), encoding="utf-8"
        )
        settings = load_settings(file).settings
    chain = make_chain(settings, make_host(settings))
    outcome.until = time.monotonic() + seconds
    clients = [client(chain, outcome, number, seed) for number in range(num_clients)]
    try:
        await asyncio.gather(weather(ports, outcome, seed), *clients)
    finally:
        await chain.close()
    return chain


def run(
    seconds: float,
    num_clients: int = 8,
    seed: int = 1,
    timeout_seconds: float = TIMEOUT_SECONDS,
    num_requests: int = 0,
) -> tuple[Outcome, Chain]:
    """The whole, with upstreams of its own; it lasts until there were `num_requests` at least."""
    upstreams = [
        start_upstream("--pieces", str(NUM_PIECES), "--faults", str(part), "--seed", str(seed + at))
        for at, part in enumerate((0.0, PART_FAULTY, PART_FAULTY))
    ]
    try:
        outcome = Outcome(timeout_seconds, num_requests=num_requests)
        chain = asyncio.run(storm([port for _, port in upstreams], seconds, num_clients, seed, outcome))
        return outcome, chain
    finally:
        for process, _ in upstreams:
            stop(process)


def faults_of(outcome: Outcome, *, is_timed: bool = True) -> list[str]:
    """Return what of the claims does not hold; untimed, on a machine that may be busy, those of time are left out."""
    faults: list[str] = []
    if outcome.part_right < 0.999:
        faults.append(f"{outcome.part_right:.4%} were right; first wrong: {outcome.wrong[0]}")
    if is_timed and outcome.percentile(0.99) > outcome.timeout_seconds + 1:
        faults.append(f"p99 is {outcome.percentile(0.99):.2f} s, over a second more than {outcome.timeout_seconds:g} s")
    if outcome.num_doubled_calls:
        faults.append(f"{outcome.num_doubled_calls} answers had a tool call twice")
    memory = outcome.memory_mb
    settled = memory[len(memory) // 4 :]
    if len(settled) > 8 and settled[-1] > settled[0] + 8:
        faults.append(f"memory grew from {settled[0]:.0f} to {settled[-1]:.0f} MB")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds a link may be silent")
    asked = parser.parse_args()
    outcome, chain = run(asked.minutes * 60, asked.clients, asked.seed, asked.timeout)
    print(f"{len(outcome.times)} requests, {outcome.part_right:.4%} right, {dict(outcome.num_resumed)} taken over")
    parts = ", ".join(f"p{part * 100:g} {outcome.percentile(part):.3f} s" for part in (0.5, 0.95, 0.99, 0.999))
    print(f"{parts}; a link may be silent for {outcome.timeout_seconds:g} s")
    print(f"memory {outcome.memory_mb[0]:.0f} MB at first, {outcome.memory_mb[-1]:.0f} MB at last")
    for state in chain.link_states():
        print(f"{state.backend}: {state.num_answers} of {state.num_requests} answered; {state.failures}")
    faults = faults_of(outcome)
    print("\n".join(faults) or "all claims hold")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
