"""Requests that decode while long prompts are computed: their tokens a second, and what the prompts wait.

    .venv/bin/python benchmarks/drafts_beside_prompts.py [--model FILE] [--threads 2] [--rounds 3] [--batch 1]
                                                         [--prompts 3] [--prompt-tokens 2000] [--latency SECONDS]

Answers are recorded edits of this repository's files, replayed as in `drafts.py`, so that the lengths accepted are
those of real texts. When each has begun, prompts of random tokens come one after the other, and the tokens that are
decoded until the last one's first token are counted. Three engines take turns: one without drafts, one that verifies
them in decode-only steps alone, one that does beside prompts too. What is told is the median of the rounds. On a busy
machine, one thread's processor time says more than the clock: `--threads 1 --latency 60`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from drafts import MOST_PROMPT, Recorded, Replay, backend_of, edits, renumbered
from quiet import machine

from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Origin, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.scheduler.prefill_budget import StepCosts
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.store import ModelStore

_BEGUN = 24
"""Tokens of each answer before the first prompt comes, so that decode-only steps are measured."""


class Told(NamedTuple):
    """Of a round: an answer's tokens a second, a prompt's seconds to its first token, by clock and of the processor;
    an answer's tokens a step.
    """

    rate: float
    seconds: float
    busy: float
    per_step: float
    drafted: int
    accepted: int


def asked(one: Recorded, tenant: str) -> ChatRequest:
    sampling = SamplingParams(temperature=0, max_tokens=len(one.answer), ignore_eos=True)
    return ChatRequest(prompt_token_ids=tuple(one.prompt), sampling=sampling, origin=Origin(tenant=tenant))


async def play(backend: NativeBackend, answers: list[Recorded], prompts: list[Recorded], tag: str) -> Told:
    """Have the answers decoded while the prompts are computed."""
    engine = (await backend.load()).engine
    before = engine.counts.generation_tokens
    decoding = [asyncio.create_task(collect(backend.chat(asked(one, f"{tag} {at}")))) for at, one in enumerate(answers)]
    while engine.counts.generation_tokens - before < _BEGUN * len(answers):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    counts = None if engine.speculation is None else engine.speculation.counts
    drafted, accepted = (counts.num_draft_tokens, counts.num_accepted_tokens) if counts else (0, 0)
    steps, tokens, start = engine.counts.num_steps, engine.counts.generation_tokens, time.perf_counter()
    busy = time.process_time()
    waits: list[float] = []
    for at, one in enumerate(prompts):
        begun = time.perf_counter()
        await collect(backend.chat(asked(one, f"{tag} prompt {at}")))
        waits.append(time.perf_counter() - begun)
    seconds, busy = time.perf_counter() - start, (time.process_time() - busy) / len(prompts)
    tokens, steps = engine.counts.generation_tokens - tokens - len(prompts), engine.counts.num_steps - steps
    assert not any(task.done() for task in decoding), "the answers are too short"
    now = (counts.num_draft_tokens - drafted, counts.num_accepted_tokens - accepted) if counts else (0, 0)
    for task in decoding:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    while engine.scheduler.num_running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    each = tokens / len(answers)
    return Told(each / seconds, median(waits), busy, each / steps, *now)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", default="smollm2:135m", help="a model in whose tokens the texts are")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--latency", type=float, help="`engine.decode_latency_ms`, in seconds")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=2_000)
    chosen = parser.parse_args()
    store = ModelStore(Path.home() / ".local/share/pyagent/models")
    speaks = store.locate(chosen.tokens)
    path = chosen.model or speaks
    tokenizer = ModelTokenizer.load(speaks, vocab_size=describe_model(speaks).vocab_size)
    answers: list[Recorded] = []
    for subject, old, new, _ in islice(edits(chosen.batch), chosen.batch):
        prompt = tokenizer.encode_text(f"{old}\n\n{subject}. Write the whole file.\n\n")
        answers.append(Recorded("edit", prompt[-MOST_PROMPT:], tokenizer.encode_text(new)))
    draw = random.Random(7)
    prompts = [
        Recorded("prompt", draw.choices(range(1_000, 2_000), k=chosen.prompt_tokens), [5])
        for _ in range(chosen.prompts)
    ]
    if describe_model(path).vocab_size < tokenizer.vocab_size:
        answers = renumbered(answers)
    Replay.answers = {tuple(one.prompt): one.answer for one in [*answers, *prompts]}
    engines = {
        "none": backend_of(path, None, None, chosen.threads),
        "not beside prompts": backend_of(path, None, DraftOptions(), chosen.threads),
        "beside prompts too": backend_of(path, None, DraftOptions(), chosen.threads),
    }
    without = (await engines["not beside prompts"].load()).engine.speculation
    assert without is not None
    without.lengths_beside_prompts = lambda proposals, plan: {}  # type: ignore[method-assign]
    for one in engines.values():
        (await one.load()).engine.scheduler.costs = StepCosts(chosen.latency)
    told: dict[str, list[Told]] = {name: [] for name in engines}
    for turn in range(chosen.rounds):
        for name in sorted(engines, reverse=turn % 2 == 0):
            told[name].append(await play(engines[name], answers, prompts, f"{turn}"))
            print(turn, name, *told[name][-1], sep=", ", file=sys.stderr, flush=True)
    print(f"{path.name}, {chosen.threads} threads, {chosen.batch} answers beside prompts; {machine()}")
    print(
        "| drafts | tok/s of an answer | tokens a step | TTFT of a prompt, s | processor s | accepted |\n|" + "---|" * 6
    )
    for name, rounds in told.items():
        rate, seconds, busy, per_step = (median(one[place] for one in rounds) for place in range(4))
        share = f"{sum(one.accepted for one in rounds)} of {sum(one.drafted for one in rounds)}"
        print(f"| {name} | {rate:.1f} | {per_step:.2f} | {seconds:.2f} | {busy:.2f} | {share} |")
    for engine in engines.values():
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
