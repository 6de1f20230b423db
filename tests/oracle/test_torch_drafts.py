"""The torch runner verifies drafts: answers are those without, in any batch, eager and from captured steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.captured_steps import Graphing
from support.draft_models import BY_MODEL, eagerly_drafted
from support.drafts import Eager, drafting
from support.native import assert_idle, at_once, chat, options, run, running
from support.reference_decoder import write_family
from support.requests_of_all_kinds import requests_of_all_kinds, told

from pyagent import _rust
from pyagent.core.errors import ConfigError
from pyagent.core.messages import ChatRequest
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import DeviceMemory, LargestStep, ModelNeeds, RunnerOptions
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.draft_loading import find_draft
from pyagent.infrastructure.engine.models.drafter_loading import FoundDrafter
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.torch.draft_rows import verified
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.fused_sampling import SampleRows
from pyagent.infrastructure.engine.runners.torch.kernels.sampling import sample
from pyagent.infrastructure.engine.runners.torch.launched import HostCopies, LaunchedStep
from pyagent.infrastructure.engine.runners.torch.parallel.pieces import pieces_of
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.runners.torch.sampler import Sampler
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

pytestmark = pytest.mark.oracle

STEP = LargestStep(256, 24)
EXACT = RunnerOptions(threads=1, kv_bytes=1 << 22, dtype="f32", kv_dtype="f32")
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # of the tiny model, in f32


def on_torch(factory: TorchRunnerFactory | None = None, *, blocks: int = 1000, **of_runner: Any) -> EngineOptions:
    """Options of an engine on the torch runner, batch-invariant unless they say otherwise."""
    chosen = options(max_num_batched_tokens=1024 if blocks == 1000 else 40)
    runner = replace(EXACT, **({"kv_bytes": blocks * BLOCK_BYTES, "batch_invariant": True} | of_runner))
    return replace(chosen, runner=runner, runners=RunnerChoice((factory or TorchRunnerFactory(),)))


async def same(
    path: Path, asked: list[ChatRequest], chosen: EngineOptions, warm_up: Sequence[ChatRequest] = ()
) -> Eager:
    """Ask without drafts, with drafts, and again, when earlier answers are proposed. With a warm-up, requests yield."""
    async with running(path, chosen) as backend:
        expected = [told(answer) for answer in await at_once(backend, asked)]
    async with drafting(path, chosen) as (backend, eager):
        await at_once(backend, list(warm_up))
        for _ in range(2):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
        await assert_idle(backend)
        model: Any = await backend.load()
        model.runner.pool.check()
        assert not warm_up or model.engine.scheduler.num_preemptions.total() > 0
    assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens > len(asked)
    return eager


@pytest.mark.parametrize("part", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheduling", ["off", "on"])
def test_answers_of_every_kind_are_the_same(tiny_model_path: Path, part: int, scheduling: Any) -> None:
    """To the last bit of a log probability: forms, penalties, DRY, beams, stop strings; steps launched ahead too."""
    asked = requests_of_all_kinds()[:: part if scheduling == "off" else 2 * part]
    run(_done(same(tiny_model_path, asked, replace(on_torch(), async_scheduling=scheduling))))


async def _done(work: Any) -> None:
    await work


@pytest.mark.parametrize("kv_dtype", [pytest.param("f32", marks=pytest.mark.slow), "fp8"])
def test_answers_are_the_same_with_windows(tiny_gemma_path: Path, kv_dtype: Any) -> None:
    """From which blocks slide while drafts are refused; keys and values in eight bits too."""
    asked = [chat("the user is", max_tokens=40, seed=at, ignore_eos=True, temperature=0.4) for at in range(2)]
    run(_done(same(tiny_gemma_path, asked, on_torch(kv_dtype=kv_dtype))))


@pytest.mark.slow
def test_answers_are_the_same_while_requests_are_preempted(tiny_model_path: Path) -> None:
    """With little KV memory, and short steps in which drafts stand beside no chunk."""
    asked = [chat("the user is", max_tokens=120, seed=at, ignore_eos=True, temperature=0.4) for at in range(8)]
    short = [chat("on", max_tokens=2, seed=number) for number in range(12)]  # so that little is expected of the others
    run(_done(same(tiny_model_path, asked, on_torch(blocks=28), short)))


class Keeping(Graphing):
    """A torch runner that keeps its last step's rows of logits; it captures steps where it is told to."""

    def __init__(self, path: Path, options: RunnerOptions, *, captures: bool = True) -> None:
        self.captures = captures
        super().__init__(path, options, STEP)

    def choose_capture(self, device: torch.device) -> Any:
        return super().choose_capture(device) if self.captures else None

    def logits(self, packed: PackedStep) -> torch.Tensor:
        self.packed, self.rows = packed, super().logits(packed)
        return self.rows


def greedy_batch(segments: Sequence[tuple[int, list[int], int]], num_sampled: int | None = None) -> Batch:
    """A batch of sequences' tokens, of which so many are drafts."""
    samplers = [_rust.SamplerState(temperature=0.0) for _ in segments][:num_sampled]
    return Batch(
        [one for one, _, _ in segments],
        [len(tokens) for _, tokens, _ in segments],
        [token for _, tokens, _ in segments for token in tokens],
        samplers,
        [0] * len(samplers),
        num_decoding=len(samplers),
        num_drafts={row: drafts for row, (_, _, drafts) in enumerate(segments) if drafts},
    )


def texts_of(path: Path, number: int, length: int) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Greedy texts after random beginnings, and the logits after each token, computed one at a time, alone."""
    runner, draw = Keeping(path, replace(EXACT, batch_invariant=True), captures=False), random.Random(5)
    texts: list[list[int]] = []
    logits: list[torch.Tensor] = []
    for sequence in range(number):
        text, rows = [draw.randrange(90) for _ in range(3 + 2 * sequence)], list[torch.Tensor]()
        assert runner.add(sequence, text, most_cached=0) == 0
        runner.reserve(sequence, length)
        while len(rows) < length:
            token = runner.execute(greedy_batch([(sequence, text[len(rows) : len(rows) + 1], 0)])).tokens[0]
            rows.append(runner.rows[0].clone())
            text += [token] if len(rows) == len(text) else []
        texts.append(text)
        logits.append(torch.stack(rows))
    runner.close()
    return texts, logits


@pytest.mark.parametrize("family", ["gemma2", "qwen3"])
def test_rows_of_drafts_have_the_bits_of_steps_of_their_own(family: str, tmp_path: Path) -> None:
    """Right, wrong and cut drafts beside chunks of prompts, over blocks' borders, windows, releases and forks."""
    write_family(tmp_path, family)
    texts, logits = texts_of(tmp_path, 4, 70)
    runner, draw = Keeping(tmp_path, replace(EXACT, batch_invariant=True), captures=False), random.Random(3)
    num_rows = num_right = 0
    done: dict[int, int] = {}
    while num_rows < 400:
        for number in [one for one in done if draw.random() < 0.04 or done[one] > 66]:
            runner.release(number)
            del done[number]
        number = draw.randrange(len(texts))
        if number not in done:
            done[number] = runner.add(number, texts[number][:60])
        segments: list[tuple[int, list[int], int]] = []
        for number in draw.sample(sorted(done), draw.randint(1, len(done))):
            text, first = texts[number], done[number]
            num_prompt = 3 + 2 * number
            if first + 1 < num_prompt:
                segments.append((number, text[first:num_prompt], 0))
                continue
            tokens = text[first : first + draw.randint(1, 5)]
            if len(tokens) > 1 and draw.random() < 0.5:
                tokens[draw.randrange(1, len(tokens))] = draw.randrange(90)
            segments.append((number, tokens, len(tokens) - 1))
        for number, tokens, _ in segments:
            assert runner.reserve(number, done[number] + len(tokens))
        batch, row = greedy_batch(segments), 0
        output = runner.execute(batch)
        assert not output.errors
        for segment, (number, tokens, num_drafts) in enumerate(segments):
            expected, first = texts[number], done[number] + len(tokens) - num_drafts
            more = output.more.get(segment, [])
            wanted = next((at for at in range(num_drafts) if tokens[at + 1] != expected[first + at]), num_drafts)
            assert len(more) == wanted
            for place, token in enumerate([output.tokens[segment], *more]):
                assert torch.equal(runner.rows[row + place], logits[number][first + place - 1])
                assert token == logits[number][first + place - 1].argmax()
            row += 1 + num_drafts
            done[number] = first + len(more)
            assert runner.pool.num_tokens(number) == done[number]
            num_rows, num_right = num_rows + 1 + len(more), num_right + len(more)
    runner.pool.check()
    assert num_right > 60


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_drafts_are_verified_from_captured_steps(family: str, tmp_path: Path) -> None:
    """Replayed for so many rows, padding among them: tokens are those of steps without graphs or drafts."""
    write_family(tmp_path, family)
    texts, _ = texts_of(tmp_path, 4, 100)
    runner, draw = Keeping(tmp_path, EXACT), random.Random(4)
    done = dict.fromkeys(range(4), 0)
    for number, text in enumerate(texts):
        done[number] = 3 + 2 * number
        assert runner.add(number, text[: done[number]], most_cached=0) == 0
        runner.reserve(number, 110)
        runner.execute(greedy_batch([(number, text[: done[number]], 0)]))
    num_replayed = num_accepted = 0
    while min(done.values()) < 90:
        segments: list[tuple[int, list[int], int]] = []
        for number in draw.sample(range(4), draw.randint(1, 4)):
            if done[number] < 90:
                tokens = texts[number][done[number] : done[number] + draw.randint(1, 4)]
                tokens[-1] = tokens[-1] if draw.random() < 0.7 or len(tokens) == 1 else draw.randrange(90)
                segments.append((number, tokens, len(tokens) - 1))
        if not segments:
            continue
        assert runner.graphs is not None
        before = runner.graphs.num_replayed
        output = runner.execute(greedy_batch(segments))
        assert runner.packed.num_copied == sum(num_drafts for _, _, num_drafts in segments)
        if runner.packed.num_copied:
            num_replayed += runner.graphs.num_replayed - before
        for segment, (number, _, _) in enumerate(segments):
            found = [output.tokens[segment], *output.more.get(segment, [])]
            assert found == texts[number][done[number] + 1 : done[number] + 1 + len(found)]
            num_accepted += len(found) - 1
            done[number] += len(found)
        while runner.when_idle():
            pass
    assert num_accepted > 60
    assert num_replayed > 30


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 2.5, "top_k": 9, "top_p": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.7},
    {"temperature": 0.0, "frequency_penalty": -0.5, "num_logprobs": 3, "has_entropy": True},
    {"temperature": 4.0, "allowed_tokens": [2, 5, 7, 23], "num_logprobs": 6, "logit_bias": [(3, 4.5)]},
    {"temperature": 0.5, "repetition_penalty": 0.5, "num_logprobs": 1},
    # On the host.
    {"mirostat": 2},
    {"typical_p": 0.6, "num_logprobs": 1},
    {"presence_penalty": 1.0, "repeat_last_n": 4},
]
VOCABULARY, NUM_STEPS = 40, 30


class Sampling:
    """Samples random logits by all parameters; masks leave some of the third and the seventh a part of the tokens."""

    def __init__(self, kernel: SampleRows | None, num_params: int) -> None:
        self.sampler = Sampler(VOCABULARY, torch.device("cpu"), kernel)
        self.states = [_rust.SamplerState(**one, seed=row) for row, one in enumerate(PARAMS[:num_params])]
        self.rows = np.random.default_rng(3).standard_normal((NUM_STEPS, num_params, VOCABULARY)).astype(np.float32)
        self.rows = np.round(8 * self.rows) / 4
        for one in self.states:
            one.observe_prompt([1, 2, 3, 3])

    def step(self, asked: Sequence[tuple[int, int, list[int]]], process: Any = None) -> StepOutput:
        """Sample (row, step, drafts); `process` is for the first one's logits."""
        masks = {
            place: b"".join(self.mask(step + at) for at in range(len(drafts) + 1))
            for place, (row, step, drafts) in enumerate(asked)
            if row in {2, 6}
        }
        batch = Batch(
            [row for row, _, _ in asked],
            [1 + len(drafts) for _, _, drafts in asked],
            [token for _, _, drafts in asked for token in (0, *drafts)],
            [self.states[row] for row, _, _ in asked],
            [step for _, step, _ in asked],
            masks,
            num_drafts={place: len(drafts) for place, (_, _, drafts) in enumerate(asked) if drafts},
        )
        if process is not None:
            batch.process, batch.processed = process, frozenset({0})
        logits = np.stack([self.rows[step + at, row] for row, step, drafts in asked for at in range(len(drafts) + 1)])
        with torch.inference_mode():
            sampled = self.sampler.sample(torch.from_numpy(logits), batch)
            found = LaunchedStep(sampled, HostCopies(torch.device("cpu")), lambda output: output).result()
        output = verified(batch, found)
        assert not output.errors
        for place in sampled.counting:
            batch.samplers[place].observe([output.tokens[place], *output.more.get(place, ())])
        return output

    def mask(self, step: int) -> bytes:
        return np.random.default_rng(step).integers(0, 256, 8, np.uint8).tobytes()


@pytest.mark.parametrize(
    ("kernel", "num_params"),
    [(None, len(PARAMS)), pytest.param(sample, 4, marks=pytest.mark.slow)],
    ids=["torch", "triton"],
)
def test_rows_after_drafts_are_sampled_as_in_steps_of_their_own(kernel: SampleRows | None, num_params: int) -> None:
    """Counts of penalties, masks, random numbers, log probabilities; samplers of the host take in no wrong draft."""
    plain = Sampling(kernel, num_params)
    expected = [plain.step([(row, step, []) for row in range(num_params)]) for step in range(NUM_STEPS)]
    drafted, draw, done = Sampling(kernel, num_params), random.Random(2), [0] * num_params
    num_right = num_same = 0
    while min(done) < NUM_STEPS:
        asked: list[tuple[int, int, list[int]]] = []
        for row in (row for row in range(num_params) if done[row] < NUM_STEPS and draw.random() < 0.9):
            num_drafts = draw.randrange(min(5, NUM_STEPS - done[row]))
            tokens = [expected[done[row] + at].tokens[row] for at in range(num_drafts)]
            if tokens and draw.random() < 0.3:
                tokens[draw.randrange(num_drafts)] = draw.choice([*tokens, draw.randrange(VOCABULARY)])
            asked.append((row, done[row], tokens))
            num_same += len(set(tokens)) < len(tokens)
        output = drafted.step(asked) if asked else StepOutput([])
        for place, (row, step, drafts) in enumerate(asked):
            found = [output.tokens[place], *output.more.get(place, ())]
            likelihoods = [
                output.likelihoods.get(place),
                *output.more_likelihoods.get(place, [None] * (len(found) - 1)),
            ]
            for at, (token, likelihood) in enumerate(zip(found, likelihoods, strict=True)):
                assert token == expected[step + at].tokens[row], (row, step, at, drafts)
                assert likelihood == expected[step + at].likelihoods.get(row)
            done[row] += len(found)
            num_right += len(found) - 1
    assert num_right > 10 * num_params
    assert num_same > 0


def test_logits_processors_see_a_step_with_drafts_once() -> None:
    """Rows after drafts, which are sampled when those before them are, have none."""
    plain, drafted, calls = Sampling(None, 2), Sampling(None, 2), list[object]()
    expected = [plain.step([(0, step, []), (1, step, [])]).tokens for step in range(3)]

    def process(rows: object) -> dict[int, str]:
        calls.append(rows)
        return {}

    output = drafted.step([(0, 0, []), (1, 0, [expected[0][1], expected[1][1]])], process)
    assert len(calls) == 1
    assert output.tokens == expected[0]
    assert output.more == {1: [expected[1][1], expected[2][1]]}


def test_a_draft_models_steps_ahead_are_those_of_a_cold_one(tiny_model_path: Path) -> None:
    """A greedy target drafted for by its own copy, both on torch: no draft is refused, after copies of text neither."""

    async def work() -> None:
        chosen = on_torch()
        asked = [chat("the user is " * at, max_tokens=50, ignore_eos=True, temperature=0) for at in range(1, 5)]
        async with running(tiny_model_path, chosen) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        for copies in (0.0, 0.5):
            async with eagerly_drafted(tiny_model_path, tiny_model_path, chosen, copies) as (backend, eager):
                assert [told(answer) for answer in await at_once(backend, asked)] == expected
                counts = eager.counts
                assert counts.accepted_from["model"] == counts.drafted_from["model"] > 60
                eager.model.model.runner.pool.check()  # type: ignore[union-attr]
                assert isinstance(eager.model.model.runner, TorchRunner)  # type: ignore[union-attr]

    run(work())


class OnDevice(TorchRunnerFactory):
    """Says that a model would lie in a GPU's memory."""

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        return replace(super().estimate(path, options, step), device=DeviceMemory("cuda:0", 1 << 34))


def test_what_cannot_draft_for_the_torch_runner_is_named(tiny_model_path: Path) -> None:
    """A draft model in a GPU's memory, and an assistant or a head: with what may be done instead."""
    chosen = replace(on_torch(OnDevice()), drafts=BY_MODEL)
    with pytest.raises(ConfigError, match=r"draft would draft in the memory of cuda:0.*method = suffix"):
        find_draft("tiny", chosen, lambda _: tiny_model_path)
    found = FoundDrafter("head", "tiny", tiny_model_path, 1 << 10, 1 << 10)
    memory = found.reserve(Ledger(1 << 20).reserve, lambda num_bytes: None)
    runner: ModelRunner = TorchRunner(tiny_model_path, EXACT, STEP)
    with pytest.raises(ConfigError, match=r"head drafts on the cpu runner only.*set engine\.runner to cpu"):
        found.load(runner, chosen, memory)


def test_pieces_of_a_long_step_copy_the_pages_of_drafts_once(tmp_path: Path) -> None:
    """Of a step that is cut for the stages of a pipeline, the first piece has what is written and copied."""
    write_family(tmp_path, "llama")
    runner = Keeping(tmp_path, EXACT, captures=False)
    for sequence in range(3):
        runner.add(sequence, [1 + sequence] * 30)
        runner.reserve(sequence, 64)
    kind: Literal[0] = 0
    runner.execute(greedy_batch([(sequence, [1 + sequence] * 30, kind) for sequence in range(2)]))
    runner.execute(greedy_batch([(0, [5, 6, 7], 2), (1, [5, 6], 1), (2, [3] * 30, 0)], num_sampled=2))
    whole = runner.packed
    assert (whole.num_copied, whole.num_outputs, whole.num_queries) == (3, 5, [1, 1, 1, 1, 1, 30])
    first, *others = pieces_of(whole, 2, least_tokens=9)
    assert (first.num_written, first.num_copied) == (whole.num_written, 3)
    assert not any(one.num_written or one.num_copied for one in others)
    written = 4 * 2 * (whole.num_written + 3)
    assert first.numbers[:written] == whole.numbers[:written]
