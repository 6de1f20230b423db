"""Drafts in models with recurrent layers: states go past accepted tokens alone, and answers are as without drafts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.draft_models import eagerly_drafted, with_draft_model
from support.drafts import Eager, drafting, same_answers
from support.kv_sequences import Memory, random_tokens
from support.native import at_once, chat, options, run, running
from support.requests_of_all_kinds import requests_of_all_kinds, told
from support.tiny_lfm3 import write_hybrid_of
from support.tiny_model import vocabulary

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

NUM_TOKENS = len(vocabulary()[0])
MOST_DRAFTS = 16


@pytest.fixture(
    scope="module",
    params=[
        *["lfm2", "lfm3", "qwen35", "granitehybrid", "jamba"],
        *(pytest.param(family, marks=pytest.mark.slow) for family in ("kimi-linear", "mamba", "mamba2", "minimax-01")),
    ],
)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with short convolutions, windows beside them, gated delta nets, or state spaces of both kinds."""
    return write_hybrid_of(request.param, tmp_path_factory.mktemp("hybrid"))


class Greedy:
    """A sequence that goes on with its likeliest tokens, beside a prompt of which each step computes a chunk."""

    def __init__(self, memory: Memory, tokens: list[int]) -> None:
        self.memory, self.tokens, self.sampler = memory, list(tokens), _rust.SamplerState(temperature=0.0)
        self.beside = random_tokens(77, 2000)
        memory.pool.add(1, tokens)
        memory.pool.add(2, self.beside)
        memory.compute((1, tokens[:-1]))

    def step(self, drafts: list[int], chunk: int = 0) -> list[int]:
        """Verify drafts; return what is sampled, which the log then has too."""
        pool, known = self.memory.pool, len(self.tokens)
        pool.reserve(1, known)
        pool.reserve(1, known + len(drafts))
        ids, lengths, log, outputs = [1], [1 + len(drafts)], [self.tokens[-1], *drafts], [1 + len(drafts)]
        if chunk:
            first = pool.num_tokens(2)
            pool.reserve(2, first + chunk)
            ids, lengths, outputs = [1, 2], [*lengths, chunk], [*outputs, 0]
            log += self.beside[first : first + chunk]
        sampled, _, errors, more, _ = self.memory.model.execute(
            pool, ids, lengths, log, [self.sampler], [0], num_outputs=outputs, num_drafts={0: len(drafts)}
        )
        assert not errors
        pool.check()
        found = [sampled[0], *(token for token, _ in more.get(0, ()))]
        self.tokens += found
        assert pool.num_tokens(1) == len(self.tokens) - 1
        return found


def test_states_go_past_accepted_drafts_alone(path: Path) -> None:
    """After any number of right and wrong drafts, at every place in a block, logits are those of a cold text.

    So are those of a fork, and of the sequence found in the cache again.
    """
    memory, start = Memory(path, threads=2), random_tokens(1, 37)
    plain = Greedy(memory, start)
    while len(plain.tokens) < 300:
        plain.step([])
    expected = plain.tokens
    for sequence in (1, 2):
        memory.pool.release(sequence)
    memory.pool.clear_index()
    drafted, draw = Greedy(memory, start), random.Random(5)
    while (known := len(drafted.tokens)) < 250:
        num_right, num_wrong = draw.choice([(0, 1), (3, 0), (2, 4), (1, 15), (9, 7), (16, 0), (15, 1)])
        right = expected[known : known + num_right]
        wrong = [(expected[known + num_right] + 1 + at) % NUM_TOKENS for at in range(num_wrong)]
        found = drafted.step(right + wrong, chunk=draw.choice([0, 5]))
        assert found == expected[known : known + num_right + 1]
    tokens, more = list(drafted.tokens), random_tokens(6, 20)
    memory.model.copy_pages(memory.pool.fork(1, 3))
    forked = memory.compute((3, [tokens[-1], *more]))
    memory.pool.release(3)
    drafted.step([(expected[len(tokens)] + 1) % NUM_TOKENS])
    memory.pool.release(1)
    turn = [*tokens, *random_tokens(7, 20)]
    num_cached = memory.add(4, turn)
    found_again = memory.compute((4, turn[num_cached:]))
    memory.pool.release(4)
    assert num_cached == len(tokens)
    assert forked == [memory.whole([*tokens, *more])]
    assert found_again == [memory.whole(turn)]


def test_more_drafts_than_states_are_kept_for_are_refused(path: Path) -> None:
    """A 17th draft ends the sequence's part in the step, by name; drafts without a token before them are no step."""
    greedy = Greedy(Memory(path), random_tokens(1, 20))
    pool, model = greedy.memory.pool, greedy.memory.model
    pool.reserve(1, 37)
    for drafts, text in ((17, "17 drafts of 18 tokens"), (16, "")):
        *_, errors, _, _ = model.execute(
            pool,
            [1],
            [1 + drafts],
            [greedy.tokens[-1], *range(3, 3 + drafts)],
            [greedy.sampler],
            [0],
            num_outputs=[1 + drafts],
            num_drafts={0: drafts},
        )
        assert text in errors.get(0, "")
        assert bool(errors) == bool(text)
    with pytest.raises(ValueError, match="segment 0 has 3 drafts, which need a row of logits each"):
        model.execute(pool, [1], [3], [3, 4, 5], [greedy.sampler], [0], num_outputs=[3], num_drafts={0: 3})


def test_memory_for_drafts_is_in_the_account(path: Path) -> None:
    """What is kept of the most drafts of a step is in what steps take at most, and grows with their number."""
    step = LargestStep(64, 17, 512)
    runner = CPU.load(path, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    chosen = DraftOptions(num_speculative_tokens=40).of(runner)
    assert chosen is not None
    assert chosen.num_speculative_tokens == MOST_DRAFTS
    assert not runner.computes_ahead
    of_outputs = runner.step_bytes(step) - runner.step_bytes(step._replace(num_outputs=1))
    # Logits and a sampler's numbers; then of 16 drafts, in two or three layers, 192 products or more.
    num_layers = 2 if path.stem == "lfm3" else 3
    assert of_outputs - 16 * 2 * NUM_TOKENS * 4 > 16 * num_layers * 192 * 4
    for asked in (step, LargestStep(300, 256, 512), LargestStep(1, 1, 16)):
        exact, most = runner.step_bytes(asked), _rust.most_step_bytes(path, 2, *asked)
        assert exact <= most < 2 * exact + 100_000, asked  # as the header alone foretells
    runner.close()
    greedy = Greedy(Memory(path, threads=2), random_tokens(1, 20))
    model = greedy.memory.model
    before = model.info()["workspace_bytes"]
    greedy.step(list(range(3, 19)))
    assert before < model.info()["workspace_bytes"] <= model.step_bytes(64, 17, 512)


@pytest.mark.parametrize("path", ["qwen35", pytest.param("granitehybrid", marks=pytest.mark.slow)], indirect=True)
def test_answers_of_every_kind_are_the_same(path: Path) -> None:
    """In a batch of all of them, with forms, penalties and several answers of one prompt, beside long prompts too."""
    run(_same(path, requests_of_all_kinds(), options(threads=2, max_num_batched_tokens=64)))


async def _same(
    path: Path, asked: list[ChatRequest], chosen: EngineOptions, warm_up: list[ChatRequest] | None = None
) -> None:
    speculation = await same_answers(path, asked, drafting(path, chosen), warm_up or [])
    assert speculation.counts.num_draft_tokens > speculation.counts.num_accepted_tokens > 100
    assert isinstance(speculation, Eager)
    assert (speculation.num_beside_prompts > 10 and speculation.num_put_off > 0) or warm_up


@pytest.mark.parametrize("path", ["lfm2"], indirect=True)
def test_answers_are_the_same_while_requests_are_preempted(path: Path) -> None:
    """With memory for one answer and a bit: requests yield, swapped or computed again, in the middle of drafts."""
    short = [chat("the", max_tokens=1)] * 4  # so that short answers are expected
    asked = [chat(f"{seed} the", max_tokens=150, seed=seed, ignore_eos=True, temperature=0.4) for seed in range(5)]
    run(_same(path, asked, options(blocks=20, max_num_batched_tokens=40), short))


def conversation(texts: list[str], answers: list[str]) -> ChatRequest:
    messages = [Message("user", texts[0])]
    for text, answer in zip(texts[1:], answers, strict=True):
        messages += [Message("assistant", answer), Message("user", text)]
    return ChatRequest(messages=messages, sampling=SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))


def test_a_conversation_goes_on_from_states_without_refused_drafts(path: Path) -> None:
    """Turn by turn, what is cached of answers that were drafted for gives the answers of an engine without drafts."""

    async def work() -> None:
        texts, answers = ["hello there, how are you?", "and what of the weather?", "thanks, and the time?"], []
        async with drafting(path) as (backend, eager), running(path) as plain:
            for count in range(1, 4):
                request = conversation(texts[:count], answers)
                (await plain.load()).runner.pool.clear_index()
                cold = await collect(plain.chat(request))
                for _ in range(2):  # the second time the first answer is proposed
                    warm = await collect(backend.chat(request))
                    assert warm.text == cold.text
                assert warm.usage.prompt_tokens_details.cached_tokens > 0
                answers.append(warm.text)
        assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens > 0

    run(work())


@pytest.mark.parametrize("path", ["qwen35"], indirect=True)
def test_a_draft_model_drafts_for_a_hybrid_and_is_none(path: Path, tiny_model_path: Path) -> None:
    """A model without states drafts for one that has some; the other way round a sentence says why it does not."""
    asked = requests_of_all_kinds()[:6]

    async def work() -> None:
        async with running(path) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        async with eagerly_drafted(path, tiny_model_path) as (backend, eager):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
            assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens
        async with with_draft_model(tiny_model_path, path) as backend:
            await backend.load()
            detail = (await backend.health()).detail
            assert "draft cannot draft on the cpu runner, as it cannot go back" in detail

    run(work())
