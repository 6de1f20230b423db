"""A runner that computes nothing and checks everything, over the real block pool; and clients that know their answer.

A drawn token depends on all tokens before it, so that a text that is right was computed from the right tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyagent import _rust
from pyagent.core.messages import SamplingParams
from pyagent.infrastructure.engine.batch import PLAIN_KEY, Batch, Drawn, PrefixKey, StepOutput
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output, Request


@dataclass
class CountingRunner:
    """Draws a token that depends on all tokens before it, and checks that it was given them, each once."""

    num_blocks: int
    context_length: int = 10_000
    vocab_size: int = 1 << 20
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = _rust.BlockPool(self.num_blocks)

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> int:
        return self.pool.add(sequence_id, tokens, tenant=key.tenant)

    def stats(self) -> _rust.PoolStats:
        return self.pool.stats()

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        try:
            self.pool.reserve(sequence_id, num_tokens)
        except _rust.OutOfBlocks:
            return False
        return True

    def release(self, sequence_id: int) -> None:
        self.pool.release(sequence_id)

    def execute(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        drawn: list[Drawn] = []
        for segment in batch.segments:
            self.pool.commit(segment.sequence_id, segment.tokens)
            if segment.draw is not None:
                log = self.pool.tokens(segment.sequence_id)
                drawn.append(Drawn(next_token(log), None, []))
        self.pool.check()
        return StepOutput(drawn)


def next_token(log: list[int]) -> int:
    return (sum(token * (place + 1) for place, token in enumerate(log)) * 31 + len(log)) % 1009


class NoEnds:
    end_ids: frozenset[int] = frozenset()


class Numbers:
    """Shows tokens as numbers."""

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""


class Client:
    """A request and all that was said of it."""

    def __init__(self, number: int, tokens: list[int], max_tokens: int) -> None:
        self.news: list[Output] = []
        self.expected = list(tokens)
        for _ in range(max_tokens):
            self.expected.append(next_token(self.expected))
        self.request = Request(
            id=number,
            tokens=list(tokens),
            params=SamplingParams(),
            max_tokens=max_tokens,
            sampler=_rust.SamplerState(),
            tokenizer=NoEnds(),  # type: ignore[arg-type]
            detokenizer=Numbers(),  # type: ignore[arg-type]
            grammar=None,
            on_output=self.news.append,
        )

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.news)

    @property
    def is_well(self) -> bool:
        drawn = self.expected[self.request.num_prompt_tokens :]
        return self.text == "".join(f"{token} " for token in drawn) and self.news[-1].finish_reason == "length"


def run_to_end(engine: Engine) -> None:
    """Steps until nothing is left to do."""
    while engine.step():
        pass
