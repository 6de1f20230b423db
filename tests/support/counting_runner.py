"""A runner that computes nothing and checks everything, over the real block pool; and clients that know their answer.

A drawn token depends on all tokens before it, so that a text that is right was computed from the right tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pyagent import _rust
from pyagent.core.messages import SamplingParams
from pyagent.core.runners.batch import PLAIN_KEY, Batch, PrefixKey, StepOutput
from pyagent.core.runners.runner import StepMemoryError
from pyagent.infrastructure.engine.answer_text import AnswerText
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output, Request

NO_ENDS: frozenset[int] = frozenset()


@dataclass
class CountingRunner:
    """Draws a token that depends on all tokens before it, and checks that it was given them, each once."""

    num_blocks: int
    context_length: int = 10_000
    vocab_size: int = 1 << 20
    pages_per_block: int = 1
    can_swap: bool = False
    num_lost: int = 0
    num_lookahead_tokens: int = 0
    swapped: dict[int, list[int]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = _rust.BlockPool(self.num_blocks)

    def lookup(self, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> tuple[int, int]:
        return self.pool.lookup(tokens, tenant=key.tenant)

    def add(
        self,
        sequence_id: int,
        tokens: list[int],
        key: PrefixKey = PLAIN_KEY,
        *,
        is_resumed: bool = False,
        most_cached: int | None = None,
    ) -> int:
        return self.pool.add(sequence_id, tokens, tenant=key.tenant, count=not is_resumed)

    def fork(self, parent: int, child: int) -> bool:
        try:
            self.pool.fork(parent, child)
        except _rust.OutOfBlocks:
            return False
        return True

    def swap_seconds(self, num_tokens: int) -> float:
        return 0.0 if self.can_swap else math.inf

    def swap_out(self, sequence_id: int) -> bool:
        self.swapped[sequence_id] = self.pool.tokens(sequence_id)
        self.pool.release(sequence_id)
        return True

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        tokens = self.swapped[sequence_id]
        if self.num_lost > 0:
            self.num_lost -= 1
            raise OSError("the file is gone")
        try:
            num_cached, _ = self.pool.restore(sequence_id, tokens, tenant=key.tenant)
        except _rust.OutOfBlocks:
            return False
        self.pool.commit(sequence_id, tokens[num_cached:])
        del self.swapped[sequence_id]
        return True

    def drop_swapped(self, sequence_id: int) -> None:
        del self.swapped[sequence_id]

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

    @property
    def free_pages(self) -> int:
        return self.pool.stats().free

    def num_pages(self, num_tokens: int) -> int:
        return self.pool.most_pages(num_tokens, 1)

    def execute(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        assert len(set(batch.sequence_ids)) == len(batch.sequence_ids) == len(batch.lengths)
        output, start = StepOutput([]), 0
        for place, (sequence_id, length) in enumerate(zip(batch.sequence_ids, batch.lengths, strict=True)):
            self.pool.commit(sequence_id, batch.tokens[start : start + length])
            start += length
            if place < len(batch.samplers):
                output.tokens.append(next_token(self.pool.tokens(sequence_id)))
                if place < batch.num_decoding:
                    self._accept_more(place, sequence_id, output)
        assert start == len(batch.tokens)
        self.pool.check()
        return output

    def _accept_more(self, row: int, sequence_id: int, output: StepOutput) -> None:
        """As if a draft of up to `num_lookahead_tokens` had been verified: how many are right goes by the token."""
        num_right = output.tokens[row] % (self.num_lookahead_tokens + 1)
        for _ in range(num_right):
            last = output.more.get(row, output.tokens[row : row + 1])[-1]
            self.pool.commit(sequence_id, [last])
            output.more.setdefault(row, []).append(next_token(self.pool.tokens(sequence_id)))


@dataclass
class CrampedRunner(CountingRunner):
    """Lacks the memory for steps of more than `most_tokens` tokens."""

    most_tokens: int = 10
    num_refused: int = 0

    def execute(self, batch: Batch) -> StepOutput:
        self.find_room(batch)
        return super().execute(batch)

    def find_room(self, batch: Batch) -> None:
        if sum(batch.lengths) > self.most_tokens:
            self.num_refused += 1
            raise StepMemoryError(f"no room for {sum(batch.lengths)} tokens")


@dataclass
class LaunchingRunner(CrampedRunner):
    """Launches steps before the last one's tokens are known, as a device does; knows of tokens when asked for them."""

    launches_ahead = True
    most_tokens: int = 1 << 20
    num_ahead: int = 0
    num_launched: int = 0
    has_failed: bool = False
    last: dict[int, int] = field(default_factory=dict)

    def execute(self, batch: Batch) -> StepOutput:
        output = super().execute(batch)
        self.last |= dict(zip(batch.sequence_ids, output.tokens, strict=False))
        return output

    def launch(self, batch: Batch) -> Launched:
        if self.has_failed and not batch.tokens:
            raise RuntimeError("the step before this one failed")
        self.has_failed = True
        self.find_room(batch)
        self.has_failed = False
        self.num_launched += 1
        assert self.num_launched <= 2
        self.num_ahead += not batch.tokens
        return Launched(self, batch)


@dataclass
class Launched:
    """A step of it."""

    runner: LaunchingRunner
    batch: Batch

    def result(self) -> StepOutput:
        self.runner.num_launched -= 1
        if not self.batch.tokens:
            self.batch.tokens = [self.runner.last[sequence_id] for sequence_id in self.batch.sequence_ids]
        return self.runner.execute(self.batch)


def next_token(log: list[int]) -> int:
    return (sum(token * (place + 1) for place, token in enumerate(log)) * 31 + len(log)) % 1009


@dataclass
class Ends:
    """A tokenizer's part in the end of an answer."""

    end_ids: frozenset[int]


class Numbers:
    """Shows tokens as numbers."""

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> Numbers:
        return self


class Client:
    """A request and all that was said of it."""

    def __init__(self, number: int, tokens: list[int], max_tokens: int, end_ids: frozenset[int] = NO_ENDS) -> None:
        self.news: list[Output] = []
        self.expected = list(tokens)
        self.reason = "length"
        for _ in range(max_tokens):
            token = next_token(self.expected)
            if token in end_ids:
                self.reason = "stop"
                break
            self.expected.append(token)
        self.request = Request(
            id=number,
            tokens=list(tokens),
            params=SamplingParams(),
            max_tokens=max_tokens,
            sampler=_rust.SamplerState(),
            tokenizer=Ends(end_ids),  # type: ignore[arg-type]
            text=AnswerText(Numbers()),  # type: ignore[arg-type]
            grammar=None,
            on_output=self.news.append,
        )

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.news)

    @property
    def is_well(self) -> bool:
        drawn = self.expected[self.request.num_prompt_tokens :]
        return self.text == "".join(f"{token} " for token in drawn) and self.news[-1].finish_reason == self.reason


def run_to_end(engine: Engine) -> None:
    """Steps until nothing is left to do."""
    while engine.step():
        pass
