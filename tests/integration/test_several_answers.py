"""`n`, `best_of` and beams on the tiny model: the answers its seeds give alone, or a search of its logits finds."""

from __future__ import annotations

import asyncio
import math
from array import array
from pathlib import Path

import pytest
from support.tiny_model import CONTEXT

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import BeamSearch, ChatDelta, ChatRequest, Message, SamplingParams
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.runners.cpu import CpuRunner

KV_BYTES_A_BLOCK = 256 * 16  # of the tiny model, in f16
PROMPT = [Message("user", "the user is at ease, and there is more to say " * 2)]


def asked(seed: int = 5, **fields: object) -> ChatRequest:
    sampling = SamplingParams(max_tokens=40, seed=seed, temperature=1.0, ignore_eos=True, top_logprobs=0)
    return ChatRequest(messages=PROMPT, sampling=sampling, **fields)  # type: ignore[arg-type]


def options_with(blocks: int) -> EngineOptions:
    return EngineOptions(RunnerOptions(kv_bytes=blocks * KV_BYTES_A_BLOCK))


async def alone(path: Path, count: int) -> list[tuple[str, float]]:
    """The text each seed gives, and the log probability a token."""
    answers: list[tuple[str, float]] = []
    backend = NativeBackend.of("tiny", lambda: path)
    for index in range(count):
        answer = await collect(backend.chat(asked(5 + index)))
        logprobs = [logprob.logprob for delta in answer.deltas for logprob in delta.logprobs]
        answers.append((answer.text, sum(logprobs) / len(logprobs)))
    await backend.close()
    return answers


def texts(deltas: list[ChatDelta], count: int) -> list[str]:
    return ["".join(delta.content for delta in deltas if delta.index == index) for index in range(count)]


@pytest.mark.parametrize("blocks", [CONTEXT, 20])
def test_each_of_n_answers_is_the_one_its_seed_gives_alone(tiny_model_path: Path, blocks: int) -> None:
    """Forked or, in little memory, computed again: the i-th text is that of seed + i; the last delta has the usage."""

    async def main() -> None:
        expected = [text for text, _ in await alone(tiny_model_path, 4)]
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options_with(blocks))
        deltas = [delta async for delta in backend.chat(asked(n=4))]
        assert texts(deltas, 4) == expected
        assert [delta.usage for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.completion_tokens == 160
        await backend.close()

    asyncio.run(main())


def test_best_of_tells_the_likeliest_first(tiny_model_path: Path) -> None:
    """Of six answers the two with the highest log probability a token are told, whole, the likelier first."""

    async def main() -> None:
        ranked = sorted(await alone(tiny_model_path, 6), key=lambda answer: -answer[1])
        backend = NativeBackend.of("tiny", lambda: tiny_model_path)
        deltas = [delta async for delta in backend.chat(asked(n=2, best_of=6))]
        assert texts(deltas, 2) == [text for text, _ in ranked[:2]]
        assert [delta.finish_reason for delta in deltas] == ["length", "length"]
        await backend.close()

    asyncio.run(main())


def log_softmax(runner: CpuRunner, tokens: list[int]) -> list[float]:
    """The log probability of each next token, computed from nothing but these tokens."""
    runner.pool.clear_index()
    runner.add(1, tokens)
    assert runner.reserve(1, len(tokens))
    runner.execute(Batch([1], [len(tokens)], tokens, [_rust.SamplerState(temperature=0)], [0]))
    logits = array("f", runner.model.logits())
    runner.release(1)
    highest = max(logits)
    total = math.log(math.fsum(math.exp(logit - highest) for logit in logits)) + highest
    return [logit - total for logit in logits]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("blocks", [CONTEXT, 12])
def test_beams_are_those_a_search_of_the_logits_finds(
    tiny_model_path: Path, length_penalty: float, blocks: int
) -> None:
    """Three beams over the model give, in order, the texts that a search written down plainly finds in its logits."""
    beam = BeamSearch(width=3, length_penalty=length_penalty)

    async def main() -> None:
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options_with(blocks))
        model = await backend.load()
        sampling = SamplingParams(max_tokens=6)
        deltas = [
            delta async for delta in backend.chat(ChatRequest(messages=PROMPT, beam=beam, n=3, sampling=sampling))
        ]
        prompt = (await model.input_processor.process(asked(), lambda output: None)).tokens
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.prompt_tokens == len(prompt)
        runner = CpuRunner(tiny_model_path)
        beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        done: list[tuple[float, tuple[int, ...]]] = []
        for length in range(1, 7):
            found = [
                (before + more, (*tokens, token))
                for before, tokens in beams
                for token, more in enumerate(log_softmax(runner, [*prompt, *tokens]))
            ]
            found = sorted(found, reverse=True)[:6]
            ends = model.tokenizer.end_ids
            done += [(one[0] / length**length_penalty, one[1][:-1]) for one in found[:3] if one[1][-1] in ends]
            beams = [one for one in found if one[1][-1] not in ends][:3]
        done += [(logprob / 6**length_penalty, tokens) for logprob, tokens in beams]
        expected = [tokens for _, tokens in sorted(done, reverse=True)[:3]]
        detokenised = []
        for tokens in expected:
            detokenizer = model.tokenizer.detokenizer()
            detokenised.append("".join(map(detokenizer.push, tokens)) + detokenizer.flush())
        assert texts(deltas, 3) == detokenised
        await backend.close()

    asyncio.run(main())
