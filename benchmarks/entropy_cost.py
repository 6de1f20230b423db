"""What `return_entropy` adds to a decode step of the embedded engine: sampling with it and without, in turns.

    .venv/bin/python benchmarks/entropy_cost.py [--model smollm2:135m] [--vocab 49152] [--rounds 400]

What is added is some microseconds of a step of milliseconds: less than what two whole answers differ by on a machine
that does anything else. So sampling alone is timed, of a row of logits, by pairs; and the CPU time of a decode step of
all threads by whole answers, from the first token to the last. Figures are lower quartiles, and of pairs the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import time
from array import array

from pyagent import _rust
from pyagent.assembly import make_chain, make_host
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.settings import Settings

PROMPT = Message("user", "Tell me a long story about a lighthouse.")
NUM_ANSWERS, NUM_TOKENS = 4, 64


def sampling_micros(vocab: int, num_logprobs: int, rounds: int) -> tuple[float, float]:
    """Return the microseconds of a row without the entropy, and what it adds."""
    source = random.Random(1)
    row = array("f", (source.gauss(0, 3) for _ in range(vocab)))
    plain, with_it = (
        _rust.SamplerState(temperature=0.0, num_logprobs=num_logprobs, has_entropy=has) for has in (False, True)
    )
    without, added = list[float](), list[float]()
    for _ in range(rounds):
        taken: list[float] = []
        for sampler in (plain, with_it):
            started = time.process_time_ns()
            _rust.sample_logits(row, [sampler], [0])
            taken.append((time.process_time_ns() - started) / 1_000)
        without.append(taken[0])
        added.append(taken[1] - taken[0])
    return statistics.quantiles(without, n=4)[0], statistics.median(added)


async def step_micros(model: str) -> float:
    """Return the microseconds of CPU time of a decode step with log probabilities."""
    settings = Settings()
    chain = make_chain(settings, make_host(settings))
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, top_logprobs=0)
    steps: list[float] = []
    try:
        for _ in range(NUM_ANSWERS + 1):
            request = ChatRequest(model=model, messages=[PROMPT], sampling=sampling)
            times = [time.process_time_ns() async for delta in chain.chat(request) if delta.logprobs]
            steps.append((times[-1] - times[0]) / (NUM_TOKENS - 1) / 1_000)
    finally:
        await chain.close()
    return statistics.quantiles(steps[1:], n=4)[0]  # the first is to warm up


def main(arguments: argparse.Namespace) -> None:
    """Print a line for each number of log probabilities."""
    step = asyncio.run(step_micros(arguments.model))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"a decode step of {arguments.model}: {step:,.0f} us of CPU")
    for num_logprobs in (1, 20):
        without, added = sampling_micros(arguments.vocab, num_logprobs, arguments.rounds)
        told = f"{without:.1f} us, and entropy {added:+.1f} us: {added / step:.2%} of the step"
        print(f"sampling of {arguments.vocab:,} tokens with {num_logprobs} log probabilities: {told}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--rounds", type=int, default=400)
    main(parser.parse_args())
