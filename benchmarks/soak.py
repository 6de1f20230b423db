"""Random work for half an hour: is every block back, is memory what the ledger says, are texts the same?

    .venv/bin/python benchmarks/soak.py [--minutes 30] [--memory 320MB]

Requests of random size, priority, class, seed and number of answers arrive at random; one in six is broken off at a
random moment; some must follow a grammar, some stop at a text, some go on with a conversation. One in twenty is a
probe: a fixed prompt and seed whose text must always be that of the first time. Memory is short, so requests wait, and
those that outgrow what was expected of them yield: in the last quarter of each minute many requests come at once, whose
answers are all longer than those before. The time is shared between three engines, one after the other: in this
process, with int8 KV memory, and in a process of its own.

Twice a second the engine's resident memory is compared with the sum of its ledger. It may never be more than 5 % above.
Its median in the last quarter of the time under full load (when the ledger is nine tenths full), and its value at the
end, may not be 5 % off either way; before, what is reserved may not have been used yet. What is above the ledger may
not grow by 2 % of it from the second quarter to the last, unless that lasts less than two minutes. At the end the pool
must be full and its own check pass.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

from pyagent.assembly import make_chain, make_host
from pyagent.core.chain import Chain
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatRequest, Message, ResponseFormat, SamplingParams
from pyagent.core.setting_kinds import parse_size
from pyagent.core.settings import Engine, RequestClass, Settings
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import EngineState, LocalEngine
from pyagent.infrastructure.engine.memory.process import resident_bytes

MAX_AT_ONCE = 40
ARRIVALS_PER_SECOND = 6.0
SURGE_ARRIVALS_PER_SECOND, SURGE_TOKENS = 30.0, 320
WORDS = ("river", "stone", "letter", "garden", "window", "number", "winter", "bridge", "silver", "paper", "music")
TOLERANCE, GROWTH, SETTLED = 0.05, 0.02, 60
PHASES: dict[str, dict[str, Any]] = {
    "in this process": {},
    "int8 KV memory": {"kv_dtype": "int8"},
    "a process of its own": {"process": True},
}


@dataclass
class Tally:
    """What became of the requests. Conversations go on from their messages."""

    ends: Counter[str] = field(default_factory=Counter[str])
    num_tokens: int = 0
    faults: list[str] = field(default_factory=list[str])
    probe_texts: dict[int, str] = field(default_factory=dict[int, str])
    conversations: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])


@dataclass(frozen=True)
class Sample:
    """An engine's resident memory and its ledger at one moment, in bytes."""

    resident: int
    accounts: dict[str, int]
    total: int

    @classmethod
    async def of(cls, native: NativeBackend) -> Sample:
        """Of an engine wherever it runs."""
        state = await native.engine_state()
        status = Path(f"/proc/{state.process_id or 'self'}/status")
        return cls(resident_bytes(status), state.memory, state.memory_bytes)

    @property
    def ledger(self) -> int:
        """The sum of all accounts."""
        return sum(self.accounts.values())

    @property
    def ratio(self) -> float:
        """Resident memory by what the ledger says."""
        return self.resident / max(1, self.ledger)


def is_surge(seconds: float) -> bool:
    """Whether so long after the start long answers are asked for."""
    return seconds % 60 >= 45


def long_request(draw: random.Random) -> ChatRequest:
    """An answer longer than those that expectations come from."""
    sampling = SamplingParams(max_tokens=SURGE_TOKENS, ignore_eos=True, seed=draw.getrandbits(32))
    return ChatRequest(messages=[Message("user", f"Tell all of the {draw.choice(WORDS)}.")], sampling=sampling)


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
            stream = chain.chat(request)
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


async def run_turn(chain: Chain, draw: random.Random, tally: Tally) -> None:
    """Go on with a conversation, or begin one."""
    name = f"talk-{draw.randrange(8)}"
    messages = tally.conversations.pop(name, [Message("system", "You help.")])  # nobody else goes on with it meanwhile
    messages = [*messages, Message("user", f"What of the {draw.choice(WORDS)}?")]
    sampling = SamplingParams(max_tokens=32, seed=draw.getrandbits(32))
    session = name if draw.random() < 0.5 else None
    text = await run_one(chain, ChatRequest(messages=messages, sampling=sampling, session=session), None, tally)
    if len(messages) < 20:
        tally.conversations[name] = [*messages, Message("assistant", text)]


def random_work(chain: Chain, draw: random.Random, tally: Tally, *, is_long: bool) -> Coroutine[object, object, object]:
    """A probe, a turn of a conversation, or a random request that may be broken off."""
    choice = draw.random()
    if choice < 1 / 20:
        return run_probe(chain, draw.randrange(3), tally)
    if is_long:
        return run_one(chain, long_request(draw), None, tally)
    if choice < 1 / 5:
        return run_turn(chain, draw, tally)
    broken_after = draw.uniform(0, 5) if draw.random() < 1 / 6 else None
    return run_one(chain, random_request(draw), broken_after, tally)


async def soak(chain: Chain, seconds: float, seed: int) -> Tally:
    """Random requests for so long, and the end of all of them."""
    draw, tally = random.Random(seed), Tally()
    for number in range(3):
        await run_probe(chain, number, tally)
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks: set[asyncio.Task[object]] = set()
        while (now := time.monotonic() - start) < seconds:
            tasks = {task for task in tasks if not task.done()}
            is_long = is_surge(now)
            if len(tasks) < MAX_AT_ONCE:
                tasks.add(group.create_task(random_work(chain, draw, tally, is_long=is_long)))
            await asyncio.sleep(draw.expovariate(SURGE_ARRIVALS_PER_SECOND if is_long else ARRIVALS_PER_SECOND))
    return tally


async def watch(native: NativeBackend, samples: list[Sample]) -> None:
    """Take samples until cancelled, from when a model is loaded."""
    shown = time.monotonic()
    while True:
        sample = await Sample.of(native)
        if any(account.startswith("workspace:") for account in sample.accounts):
            samples.append(sample)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(f"  {sample.resident / 1e6:.0f} MB of {sample.ledger / 1e6:.0f} MB", file=sys.stderr)
        await asyncio.sleep(0.5)


def memory_faults(samples: Sequence[Sample], rest: Sample) -> list[str]:
    """Where memory was not what the ledger said; prints what it was."""
    ratios = [sample.ratio for sample in samples]
    loaded = [sample for sample in samples if sample.ledger > 0.9 * sample.total] or [rest]
    # Below the ledger it grows for a good reason: what was reserved is used for the first time.
    beside = [max(0, sample.resident - sample.ledger) for sample in loaded]
    quarter = len(loaded) // 4
    settled = [sample.ratio for sample in loaded[-max(1, quarter) :]]
    growth = median(beside[-quarter:]) - median(beside[quarter : 2 * quarter]) if quarter > SETTLED else 0.0
    accounts = ", ".join(f"{name.split(':')[0]} {size / 1e6:.1f}" for name, size in rest.accounts.items())
    print(f"  at rest {rest.resident / 1e6:.1f} MB resident, the ledger counts {rest.ledger / 1e6:.1f} MB: {accounts}")
    print(
        f"  resident by ledger: min {min(ratios):.3f}, median {median(ratios):.3f}, max {max(ratios):.3f}; "
        f"under full load ({len(loaded)} samples) median of the last quarter {median(settled):.3f}; "
        f"at rest {rest.ratio:.3f}; "
        f"under full load it rose above the ledger by {growth / 1e6:.1f} MB from the second quarter to the last"
    )
    faults: list[str] = []
    if max(ratios) > 1 + TOLERANCE:
        worst = max(samples, key=lambda sample: sample.ratio)
        faults.append(f"resident memory was {worst.resident}, the ledger {worst.ledger}: {worst.accounts}")
    for when, ratio in (("under full load", median(settled)), ("at rest", rest.ratio)):
        if abs(ratio - 1) > TOLERANCE:
            faults.append(f"{when} resident memory is {ratio:.3f} of the ledger")
    if growth > GROWTH * rest.ledger:
        faults.append(f"resident memory grew by {growth} bytes that are in no account")
    return faults


def pool_faults(native: NativeBackend, state: EngineState) -> list[str]:
    """Pages still held when nothing runs; prints how often requests yielded."""
    for stats in state.stats.values():
        print(f"  {stats.num_steps} steps; yielded: {stats.preemptions}; finished: {stats.finished}")
    if isinstance(native.engine, LocalEngine):
        for model in native.engine.models.loaded().values():
            model.runner.pool.check()
    held = {name: stats.pool.active for name, stats in state.stats.items() if stats.pool.active}
    left = {name: size for name, size in state.swap_bytes.items() if size}
    return [f"{name}: {pages} pages are still held" for name, pages in held.items()] + [
        f"{name}: {size} bytes are still swapped" for name, size in left.items()
    ]


async def run_phase(name: str, options: dict[str, Any], minutes: float, memory: int, seed: int) -> list[str]:
    """Soak one engine; returns what was wrong."""
    queues = {"batch": RequestClass(policy="fair", share=0.5)}
    engine = Engine(memory=memory, max_num_seqs=MAX_AT_ONCE, queues=queues, **options)
    settings = Settings(chain=["native"], engine=engine)
    chain = make_chain(settings, make_host(settings))
    native, samples = cast("NativeBackend", chain.links[0]), list[Sample]()
    watching = asyncio.create_task(watch(native, samples))
    try:
        tally = await soak(chain, minutes * 60, seed)
        await asyncio.sleep(1)
        print(f"{name}: {dict(tally.ends)}, {tally.num_tokens} tokens, {len(tally.conversations)} conversations")
        faults = pool_faults(native, await native.engine_state())
        return tally.faults + faults + memory_faults(samples, await Sample.of(native))
    finally:
        watching.cancel()
        await chain.close()


async def run(minutes: float, memory: int, seed: int) -> int:
    num_faults = 0
    print(f"seed {seed}")
    for name, options in PHASES.items():
        faults = await run_phase(name, options, minutes / len(PHASES), memory, seed)
        num_faults += len(faults)
        for fault in faults[:20]:
            print(f"- {fault}")
    print(f"{num_faults} faults")
    return 1 if num_faults else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--memory", type=parse_size, default=parse_size("320MB"))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.minutes, arguments.memory, arguments.seed)))


if __name__ == "__main__":
    main()
