"""`pyagent bench`: how fast the first link that answers is, in tokens a second, for prompts and for answers."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.output import write_json
from pyagent.cli.startup import fetch_first_model, read_settings

if TYPE_CHECKING:
    from pyagent.core.chain import Chain as BackendChain

app = typer.Typer(add_completion=False)

_WORDS = (
    *("river", "stone", "cloud", "music", "garden", "window", "paper"),
    *("silver", "number", "engine", "morning", "winter", "bridge", "letter"),
)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One request, measured by the client. Rates are None where there were too few tokens to measure.

    Of `draft_tokens`, which speculative decoding proposed and verified, `accepted_tokens` are in the answer.
    """

    backend: str
    prompt_tokens: int
    output_tokens: int
    ttft_seconds: float
    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    draft_tokens: int
    accepted_tokens: int


@app.command()
def bench(
    chain: Chain = None,
    model: Model = None,
    prompt_words: Annotated[int, typer.Option("--prompt-words", min=1, max=100_000, help="Words of a prompt.")] = 400,
    tokens: Annotated[int, typer.Option("--tokens", min=2, max=100_000, help="Most tokens of an answer.")] = 64,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Requests measured; the median counts.")] = 3,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Measure tokens per second of prefill and decode, one request at a time; no prompt begins as another did."""
    import asyncio

    from pyagent.assembly import make_chain, make_host

    settings = read_settings(config, chain, model)
    fetch_first_model(settings)

    async def work() -> list[Round]:
        made = make_chain(settings, make_host(settings))
        try:
            await _measured(made, 8, 2)  # loads the model
            return [await _measured(made, prompt_words, tokens) for _ in range(rounds)]
        finally:
            await made.close()

    measured = asyncio.run(work())
    if as_json:
        write_json(measured)
        return
    last, ttft = measured[-1], statistics.median(each.ttft_seconds for each in measured)
    prefill = _rate([each.prefill_tokens_per_second for each in measured])
    decode = _rate([each.decode_tokens_per_second for each in measured])
    sys.stdout.write(f"{last.backend}, median of {len(measured)}\n")
    sys.stdout.write(f"prefill  {prefill}  ({last.prompt_tokens:,} tokens, TTFT {ttft:.3f} s)\n")
    sys.stdout.write(f"decode   {decode}  ({last.output_tokens:,} tokens)\n")
    sys.stdout.write(drafts_line(measured))


def drafts_line(measured: Sequence[Round]) -> str:
    """Return a line of what speculative decoding gave; nothing where it verified no draft."""
    num_drafts, num_right, num_output = (
        sum(getattr(each, name) for each in measured) for name in ("draft_tokens", "accepted_tokens", "output_tokens")
    )
    if not num_drafts:
        return ""
    return f"drafts   {num_right:,} of {num_drafts:,} accepted, {num_right / max(1, num_output):.0%} of the tokens\n"


def _rate(rates: list[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return f"{statistics.median(known):>9,.1f} tok/s" if known else "too few tokens to measure"


async def _measured(backend: BackendChain, num_words: int, max_tokens: int) -> Round:
    """Send one prompt of random words, so that no prefix cache knows the prompt."""
    from pyagent.core.messages import ChatRequest, Message, SamplingParams

    words = " ".join(random.choices(_WORDS, k=num_words))  # noqa: S311 - words, not secrets
    prompt = f"{random.getrandbits(64):x} {words}\nWrite a long story with these words."
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    began = time.perf_counter()
    first = last = None
    name, usage = "", None
    stream = backend.chat(ChatRequest(messages=[Message("user", prompt)], sampling=sampling))
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            name, usage = delta.backend or name, delta.usage or usage
            if delta.content:
                last = time.perf_counter()
                first = first or last
    seconds = (first or time.perf_counter()) - began
    num_prompt = usage.prompt_tokens if usage else 0
    num_output = usage.completion_tokens if usage else 0
    num_right, num_wrong = (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) if usage else (0, 0)
    decode = (last - first) if first and last and last > first else None
    return Round(
        backend=name,
        prompt_tokens=num_prompt,
        output_tokens=num_output,
        ttft_seconds=seconds,
        prefill_tokens_per_second=num_prompt / seconds if num_prompt else None,
        decode_tokens_per_second=(num_output - 1) / decode if decode and num_output > 1 else None,
        draft_tokens=num_right + num_wrong,
        accepted_tokens=num_right,
    )
