"""What `return_entropy` adds to a decode step of the embedded engine: one greedy answer with and without, in turns.

    .venv/bin/python benchmarks/entropy_cost.py [--model smollm2:135m] [--tokens 128] [--rounds 20]

One request at a time, without end-of-text, its prompt in the prefix cache. A step's time is that from an answer's first
token to its last, over the steps between; its CPU time that of all threads. The rounds' order is shuffled; what is
compared are the medians, and pairs of one round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import time

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Backend
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.settings import Settings

PROMPT = Message("user", "Tell me a long story about a lighthouse.")
WAYS: dict[str, dict[str, object]] = {
    "no log probabilities": {},
    "log probabilities": {"top_logprobs": 0},
    "the same, and entropy": {"top_logprobs": 0, "return_entropy": True},
    "20 log probabilities": {"top_logprobs": 20},
    "the same 20, and entropy": {"top_logprobs": 20, "return_entropy": True},
}
PAIRS = (("log probabilities", "the same, and entropy"), ("20 log probabilities", "the same 20, and entropy"))


async def step_micros(chain: Backend, model: str, num_tokens: int, way: dict[str, object]) -> tuple[float, float]:
    """Return the microseconds of a step, and those of CPU time."""
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **way)  # type: ignore[arg-type]
    request = ChatRequest(model=model, messages=[PROMPT], sampling=sampling)
    times, usage = list[tuple[float, float]](), None
    async for delta in chain.chat(request):
        usage = delta.usage or usage
        if delta.content or delta.logprobs:
            times.append((time.perf_counter(), time.process_time()))
    assert usage is not None
    assert usage.completion_tokens == num_tokens
    wall, cpu = (1e6 * (last - first) / (num_tokens - 1) for first, last in zip(times[0], times[-1], strict=True))
    return wall, cpu


async def main(arguments: argparse.Namespace) -> None:
    """Print a line a way, and what entropy adds."""
    settings = Settings()
    chain = make_chain(settings, make_host(settings))
    way_to_micros: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    try:
        for number in range(arguments.rounds + 1):
            for way in random.Random(number).sample(list(WAYS), len(WAYS)):
                took = await step_micros(chain, arguments.model, arguments.tokens, WAYS[way])
                if number:  # the first is to warm up
                    way_to_micros[way].append(took)
    finally:
        await chain.close()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.model}")
    for place, kind in enumerate(("wall", "CPU")):
        micros = {way: [each[place] for each in taken] for way, taken in way_to_micros.items()}
        for way, taken in micros.items():
            least, *_, most = statistics.quantiles(taken, n=10)
            print(f"{kind:<5} {way:<26} {statistics.median(taken):>9.0f} us a step ({least:.0f} to {most:.0f})")
        for without, with_it in PAIRS:
            pairs = zip(micros[without], micros[with_it], strict=True)
            added = statistics.median(after - before for before, after in pairs)
            share = added / statistics.median(micros[without])
            print(f"{kind:<5} entropy beside {without:<22} {added:+.0f} us, {share:+.2%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args()))
