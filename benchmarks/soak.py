"""Random work for half an hour, and then: is every block back, is memory what the ledger says, are texts the same?

    .venv/bin/python benchmarks/soak.py [--minutes 30] [--memory 400MB]

Requests of random size, priority, class, seed and number of answers arrive at random; one in six is broken off at a
random moment; some must follow a grammar, some stop at a text. One in twenty is a probe: a fixed prompt and seed whose
text must always be that of the first time. Memory is short, so requests wait and yield. At the end the pool must be
full, its own check must pass, and the process may hold 5 % more than before loading and what the ledger counts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pyagent.assembly import make_chain, make_host
from pyagent.core.chain import Chain
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.core.settings import Engine, RequestClass, Settings, parse_size
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine

MAX_AT_ONCE = 40
ARRIVALS_PER_SECOND = 6.0
WORDS = ("river", "stone", "letter", "garden", "window", "number", "winter", "bridge", "silver", "paper", "music")


@dataclass
class Tally:
    """What became of the requests."""

    ends: Counter[str] = field(default_factory=Counter[str])
    num_tokens: int = 0
    faults: list[str] = field(default_factory=list[str])
    probe_texts: dict[int, str] = field(default_factory=dict[int, str])


def resident_bytes() -> int:
    """Memory this process holds now."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def random_request(draw: random.Random) -> ChatRequest:
    """Anything a client may ask."""
    size = int(draw.paretovariate(1.2) * 8)
    text = " ".join(draw.choice(WORDS) for _ in range(min(size, 1200)))
    form = ResponseFormat(type="choice", choice=["yes", "no", "perhaps"]) if draw.random() < 0.1 else None
    sampling = SamplingParams(
        max_tokens=draw.choice((1, 8, 32, 128)),
        temperature=draw.choice((0.0, 0.7, 1.3)),
        top_p=draw.choice((1.0, 0.9)),
        repetition_penalty=draw.choice((1.0, 1.1)),
        seed=draw.getrandbits(32),
        stop=("the",) if draw.random() < 0.1 else (),
    )
    return ChatRequest(
        messages=[Message("system", "You help."), Message("user", text)],
        sampling=sampling,
        response_format=form,
        n=2 if form is None and draw.random() < 0.1 else 1,
        priority=draw.randint(-2, 2),
        request_class=draw.choice(("", "batch")),
    )


def probe(number: int) -> ChatRequest:
    """One of three requests that never change."""
    sampling = SamplingParams(max_tokens=48, temperature=(0.0, 0.8, 1.2)[number], seed=number)
    return ChatRequest(messages=[Message("user", f"Tell me of the {WORDS[number]}.")], sampling=sampling)


async def run_one(chain: Chain, request: ChatRequest, broken_after: float | None, tally: Tally) -> str:
    """Ask, and perhaps leave before the end; returns the text."""
    text = ""
    try:
        async with asyncio.timeout(broken_after):
            stream = cast("AsyncGenerator[ChatDelta, None]", chain.chat(request))
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    text += delta.content
                    if delta.usage:
                        tally.num_tokens += delta.usage.completion_tokens
        tally.ends["whole"] += 1
    except TimeoutError:
        tally.ends["broken off"] += 1
    except PyAgentError as error:
        tally.ends[type(error).__name__] += 1
        tally.faults.append(str(error))
    return text


async def run_probe(chain: Chain, number: int, tally: Tally) -> None:
    """Ask what was asked before; another text is a fault."""
    text = await run_one(chain, probe(number), None, tally)
    if text != tally.probe_texts.setdefault(number, text):
        tally.faults.append(f"probe {number} said {text!r}, before {tally.probe_texts[number]!r}")


def random_work(chain: Chain, draw: random.Random, tally: Tally) -> Coroutine[object, object, object]:
    """A probe, or a random request that may be broken off."""
    if draw.random() < 1 / 20:
        return run_probe(chain, draw.randrange(3), tally)
    broken_after = draw.uniform(0, 5) if draw.random() < 1 / 6 else None
    return run_one(chain, random_request(draw), broken_after, tally)


async def soak(chain: Chain, seconds: float, seed: int) -> Tally:
    """Random requests for so long, and the end of all of them."""
    draw, tally = random.Random(seed), Tally()
    for number in range(3):
        await run_probe(chain, number, tally)
    start = shown = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks: set[asyncio.Task[object]] = set()
        while (now := time.monotonic()) - start < seconds:
            tasks = {task for task in tasks if not task.done()}
            if len(tasks) < MAX_AT_ONCE:
                tasks.add(group.create_task(random_work(chain, draw, tally)))
            if now - shown > 30:
                shown = now
                held = resident_bytes() / 1e6
                done = f"{dict(tally.ends)}, {tally.num_tokens} tokens"
                print(f"{now - start:.0f} s: {done}, {held:.0f} MB", file=sys.stderr)
            await asyncio.sleep(draw.expovariate(ARRIVALS_PER_SECOND))
    return tally


def faults_at_rest(engine: LocalEngine, before_bytes: int) -> list[str]:
    """What is not as it should be once nothing runs."""
    faults: list[str] = []
    for name, model in engine.models.loaded().items():
        stats = model.runner.pool.stats()
        model.runner.pool.check()
        if stats.active:
            faults.append(f"{name}: {stats.active} of {stats.num_blocks} pages are still held")
    held, counted = resident_bytes() - before_bytes, sum(engine.models.ledger.accounts().values())
    print(f"the process grew by {held / 1e6:.1f} MB, the ledger counts {counted / 1e6:.1f} MB", file=sys.stderr)
    if held > 1.05 * counted:
        faults.append(f"the process grew by {held} bytes, 5 % more than the {counted} of the ledger")
    return faults


async def run(minutes: float, memory: int, seed: int) -> int:
    engine = Engine(memory=memory, max_num_seqs=24, queues={"batch": RequestClass(policy="fair", share=0.5)})
    settings = Settings(engine=engine)
    before_bytes = resident_bytes()
    chain = make_chain(settings, make_host(settings))
    try:
        tally = await soak(chain, minutes * 60, seed)
        await asyncio.sleep(1)
        native = cast("NativeBackend", chain.links[0])
        faults = tally.faults + faults_at_rest(cast("LocalEngine", native.engine), before_bytes)
    finally:
        await chain.close()
    print(f"seed {seed}: {dict(tally.ends)}, {tally.num_tokens} tokens; {len(faults)} faults")
    for fault in faults[:20]:
        print(f"- {fault}")
    return 1 if faults else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--memory", type=parse_size, default=parse_size("400MB"))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.minutes, arguments.memory, arguments.seed)))


if __name__ == "__main__":
    main()
