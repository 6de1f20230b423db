"""Heads that draft further tokens: answers are those without, and drafts after any history are those of a cold text."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from support.draft_models import EagerlyDrafted
from support.drafts import drafting, same_answers
from support.headed_models import FAMILIES, HEAD, headed_tensors, write_headed, write_headless
from support.hybrid_model import mtp_tensors, right_mtp_tensors, write_hybrid, write_mtp
from support.kv_sequences import Memory, random_tokens
from support.mtp_drafts import eagerly_headed
from support.native import at_once, chat, options, run, running
from support.quantizing import quantized
from support.requests_of_all_kinds import requests_of_all_kinds, told
from support.tiny_adapter import write_adapter
from support.tiny_model import vocabulary

from pyagent import _rust
from pyagent.core.messages import ChatRequest
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

NUM_TOKENS = len(vocabulary()[0])


@pytest.fixture(scope="module", params=[*FAMILIES, "eagle3"])
def headed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of random weights with a head, which is usually wrong; of each family."""
    return write_headed(tmp_path_factory.mktemp("headed") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen 3.5 of random weights with a head, which is usually wrong."""
    return write_mtp(tmp_path_factory.mktemp("mtp") / "mtp.gguf")


def chain(memory: Memory, sequence: int, token: int, length: int = 3) -> list[bytes]:
    """Return the logits of so many drafts after a sequence's next token, each after the likeliest of the last."""
    known, logits, before = memory.pool.num_tokens(sequence), list[bytes](), None
    memory.pool.reserve(sequence, known + length)
    for ahead in range(length):
        ((token, logprob),), errors = memory.model.draft(memory.pool, [sequence], [token], [ahead], [before])
        assert not errors
        assert logprob <= 0.0
        logits.append(memory.model.logits())
        before = 0
    return logits


def cold(memory: Memory, tokens: list[int], token: int) -> list[bytes]:
    """Return those of a text that is computed at once, from nothing."""
    memory.pool.clear_index()
    memory.pool.add(99, tokens)
    memory.compute((99, tokens))
    logits = chain(memory, 99, token)
    memory.pool.release(99)
    memory.pool.clear_index()
    return logits


def swapped_out_and_in(memory: Memory, log: list[int]) -> list[bytes]:
    """Return what is drafted for a sequence whose pages others have used meanwhile."""
    memory.pool.clear_index()
    memory.pool.add(1, log)
    memory.compute((1, log[:-1]))
    handle = memory.model.swap_out(memory.pool.pages_in_use(1))
    memory.pool.release(1)
    memory.pool.clear_index()
    memory.pool.add(5, random_tokens(8, 300))
    memory.compute((5, random_tokens(8, 300)))
    memory.pool.release(5)
    memory.pool.clear_index()
    num_cached, places = memory.pool.restore(1, log[:-1])
    memory.model.swap_in(handle, places)
    memory.pool.commit(1, log[num_cached:-1])
    logits = chain(memory, 1, log[-1])
    memory.pool.release(1)
    return logits


class Verifying:
    """A sequence that verifies drafts, right ones and wrong ones, beside a prompt of which steps compute chunks."""

    def __init__(self, memory: Memory, tokens: list[int]) -> None:
        self.memory, self.tokens = memory, list(tokens)
        self.sampler, self.beside = _rust.SamplerState(temperature=0.0), random_tokens(77, 2000)
        memory.pool.add(1, tokens)
        memory.pool.add(2, self.beside)
        memory.compute((1, tokens[:-1]))

    def step(self, drafts: list[int], chunk: int) -> None:
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
        self.tokens += [sampled[0], *(token for token, _ in more.get(0, ()))]


def test_drafts_after_any_history_are_those_of_a_cold_text(headed: Path, tmp_path: Path) -> None:
    """After right and wrong drafts at every place in a block, in forks, after swaps and from the cache: bit for bit."""
    memory, draw = Memory(headed, tmp_path, threads=2), random.Random(5)
    plain = Verifying(memory, random_tokens(1, 37))
    while len(plain.tokens) < 200:
        plain.step([], 0)
    expected = plain.tokens
    for sequence in (1, 2):
        memory.pool.release(sequence)
    memory.pool.clear_index()
    drafted = Verifying(memory, expected[:37])
    histories: list[tuple[list[int], list[bytes]]] = []
    while (known := len(drafted.tokens)) < 180:
        num_right, num_wrong = draw.choice([(0, 0), (0, 1), (3, 0), (2, 4), (9, 7), (16, 0), (15, 1)])
        right = expected[known : known + num_right]
        wrong = [(expected[known + num_right] + 1 + at) % NUM_TOKENS for at in range(num_wrong)]
        drafted.step(right + wrong, draw.choice([0, 5]))
        assert drafted.tokens == expected[: len(drafted.tokens)]
        assert len(drafted.tokens) == known + num_right + 1
        histories.append((list(drafted.tokens), chain(memory, 1, drafted.tokens[-1])))
    tokens = list(drafted.tokens)
    memory.model.copy_pages(memory.pool.fork(1, 3))
    forked = chain(memory, 3, tokens[-1])
    memory.pool.release(3)
    memory.pool.release(1)
    turn = [*tokens[:-1], *random_tokens(7, 20)]
    num_cached = memory.add(4, turn)
    assert num_cached == len(tokens) - 1
    memory.compute((4, turn[num_cached:-1]))
    found_again = chain(memory, 4, turn[-1])
    memory.pool.release(4)
    swapped = swapped_out_and_in(memory, tokens)
    assert found_again == cold(memory, turn[:-1], turn[-1])
    assert forked == swapped == cold(memory, tokens[:-1], tokens[-1])
    for log, logits in histories:
        assert logits == cold(memory, log[:-1], log[-1]), len(log)


def test_right_drafts_of_several_sequences_leave_records_of_each(headed: Path) -> None:
    """Verified in one step, of two sequences: what is drafted after each is a cold text's."""
    memory = Memory(headed, threads=2)
    logs = {sequence: random_tokens(sequence, 20 + 9 * sequence) for sequence in (1, 2)}

    def step(num_drafts: int) -> dict[int, list[int]]:
        for sequence, log in logs.items():
            memory.pool.reserve(sequence, len(log) - num_drafts)
            memory.pool.reserve(sequence, len(log))
        tokens = {sequence: log[memory.pool.num_tokens(sequence) :] for sequence, log in logs.items()}
        lengths = [len(one) for one in tokens.values()]
        samplers = [_rust.SamplerState(temperature=0.0) for _ in logs]
        drafts = dict.fromkeys(range(len(logs)), num_drafts) if num_drafts else {}
        sampled, _, errors, more, _ = memory.model.execute(
            memory.pool,
            [*logs],
            lengths,
            [*tokens[1], *tokens[2]],
            samplers,
            [0, 0],
            num_outputs=[num_drafts + 1] * 2,
            num_drafts=drafts,
        )
        assert not errors
        return {at + 1: [sampled[at], *(token for token, _ in more.get(at, ()))] for at in range(2)}

    prompts = {sequence: list(log) for sequence, log in logs.items()}
    for sequence, log in logs.items():
        memory.pool.add(sequence, log)
    for _ in range(6):
        for sequence, sampled in step(0).items():
            logs[sequence] += sampled
    for sequence, prompt in prompts.items():
        memory.pool.release(sequence)
        memory.pool.clear_index()
        memory.pool.add(sequence, prompt)
        memory.compute((sequence, prompt[:-1]))
    logs = {sequence: log[: len(prompts[sequence]) + 5] for sequence, log in logs.items()}
    for sequence, sampled in step(5).items():
        assert len(sampled) == 6
        logs[sequence].append(sampled[-1])
    found = {sequence: chain(memory, sequence, log[-1]) for sequence, log in logs.items()}
    for sequence, log in logs.items():
        memory.pool.release(sequence)
        assert found[sequence] == cold(memory, log[:-1], log[-1])


@pytest.mark.parametrize(("end", "cached", "cached_with_states"), [(270, 269, 256), (273, 272, 256), (300, 298, 288)])
def test_a_prefix_that_ends_within_what_one_step_computed_has_its_record(
    headed: Path, end: int, cached: int, cached_with_states: int
) -> None:
    """A prompt that parts from another, or is the same, whose tokens one step computed with those behind them.

    Where layers have states it goes on from the block of one. Else from a part of a block, whose record is of a later
    token: the last token in common is computed once more.
    """
    memory, tokens = Memory(headed, threads=2), random_tokens(1, 300)
    memory.pool.add(1, tokens)
    memory.compute((1, tokens))
    memory.pool.release(1)
    other = [*tokens[:end], *random_tokens(2, 300 - end)]
    num_cached = memory.add(2, other)
    assert num_cached == (cached_with_states if headed.stem == "qwen35" else cached)
    memory.compute((2, other[num_cached:-1]))
    warm = chain(memory, 2, other[-1])
    memory.pool.release(2)
    assert warm == cold(memory, other[:-1], other[-1])


@pytest.mark.parametrize("headed", ["glm4moe", "deepseek2"], indirect=True)
def test_pages_that_move_to_another_engine_have_their_records(headed: Path) -> None:
    """A page moves as a whole, so another engine drafts what this one does."""
    here, there, tokens = Memory(headed), Memory(headed), random_tokens(1, 40)
    here.pool.add(1, tokens)
    here.compute((1, tokens[:-1]))
    count = here.model.info()["layers_per_page"]
    data = here.model.read_layers(here.pool.pages_in_use(1), 0, count)
    _, places = there.pool.restore(1, tokens[:-1])
    there.model.write_layers(places, 0, count, data)
    there.pool.commit(1, tokens[:-1])
    assert chain(there, 1, tokens[-1]) == chain(here, 1, tokens[-1]) == cold(here, tokens[:-1], tokens[-1])


def test_a_batch_drafts_what_each_sequence_drafts_alone(headed: Path) -> None:
    """Whatever stands beside a sequence, and however many threads compute."""
    logs = [random_tokens(seed, 20 + 13 * seed) for seed in range(6)]
    alone = [cold(Memory(headed), log[:-1], log[-1])[:2] for log in logs]
    memory = Memory(headed, threads=2)
    for sequence, log in enumerate(logs):
        memory.pool.add(sequence, log)
        memory.compute((sequence, log[:-1]))
        memory.pool.reserve(sequence, len(log) + 3)
    ids, tokens = list(range(len(logs))), [log[-1] for log in logs]
    first, errors = memory.model.draft(memory.pool, ids, tokens, [0] * 6, [None] * 6)
    assert not errors
    size = len(alone[0][0])
    logits = memory.model.logits()
    assert [logits[at * size : (at + 1) * size] for at in range(6)] == [one[0] for one in alone]
    kept = [4, 1, 3]  # the second drafts of some, in another order
    _, errors = memory.model.draft(memory.pool, kept, [first[at][0] for at in kept], [1] * 3, list(kept))
    assert not errors
    logits = memory.model.logits()
    assert [logits[at * size : (at + 1) * size] for at in range(3)] == [alone[at][1] for at in kept]


def test_logits_with_a_head_are_those_without(headed: Path) -> None:
    """A head changes no bit of its decoder's logits, few rows or many; without it, pages are as small as ever."""
    tokens = random_tokens(3, 90)
    plain = _rust.CpuModel.load(headed, threads=2, kv_bytes=8 << 20, mtp=False).info()
    headless = write_headless(headed.parent / "without.gguf", headed.stem)
    assert not plain["has_mtp"]
    assert plain["page_bytes"] == Memory(headless).model.info()["page_bytes"]
    assert Memory(headed).model.info()["page_bytes"] > plain["page_bytes"]
    logits = []
    for file in (headed, headless):
        memory = Memory(file, threads=2)
        memory.pool.add(1, tokens)
        rows = [*memory.compute((1, tokens[:60])), *memory.compute((1, tokens[60:63]))]
        logits.append([*rows, *memory.compute((1, tokens[63:64])), *memory.compute((1, tokens[64:]))])
    assert logits[0] == logits[1]


async def same(path: Path, asked: list[ChatRequest], chosen: EngineOptions, warm_up: list[ChatRequest]) -> None:
    eager = await same_answers(path, asked, eagerly_headed(path, chosen), warm_up)
    assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens > 20
    assert eager.model is not None
    assert eager.model.model.num_tokens > 100
    assert isinstance(eager, EagerlyDrafted)
    assert eager.num_beside_prompts > 0 or warm_up


@pytest.mark.parametrize("headed", ["qwen35", "deepseek2"], indirect=True)
def test_answers_of_every_kind_are_the_same(headed: Path) -> None:
    """In a batch of all of them, with log probabilities, forms, penalties and several answers of one prompt."""
    run(same(headed, requests_of_all_kinds(), options(threads=2, max_num_batched_tokens=64), []))


def test_answers_are_the_same_while_requests_are_preempted(path: Path) -> None:
    """With memory for one answer and a bit: requests yield, swapped or computed again, in the middle of drafts."""
    short = [chat("the", max_tokens=1)] * 4  # so that short answers are expected
    asked = [chat(f"{seed} the", max_tokens=250, seed=seed, ignore_eos=True, temperature=0.4) for seed in range(4)]
    run(same(path, asked, options(blocks=99, max_num_batched_tokens=40), short))


def test_a_head_that_is_right_has_no_draft_refused(tmp_path: Path) -> None:
    """Its drafts are all accepted, in a greedy batch and after preemptions, and the answers are those without it."""
    path = write_mtp(tmp_path / "right.gguf", right_mtp_tensors())
    asked = [chat(f"{seed} the", max_tokens=60, ignore_eos=True, temperature=0.0) for seed in range(3)]

    async def work() -> None:
        async with running(path) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        async with eagerly_headed(path, copies=0.0) as (backend, eager):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
        assert eager.counts.num_accepted_tokens == eager.counts.num_draft_tokens > 60

    run(work())


def test_a_head_drafts_of_itself_where_it_is_right(tmp_path: Path) -> None:
    """With the settings as they come, the choice by cost asks it; where it is turned off, there is none."""
    path = write_mtp(tmp_path / "right.gguf", right_mtp_tensors())

    async def work() -> None:
        chosen = replace(options(), drafts=DraftOptions())
        async with running(path, chosen) as backend:
            model = await backend.load()
            assert isinstance(model.engine.speculation.model.model, MtpHead)
            await at_once(backend, [chat("a the", max_tokens=300, ignore_eos=True, temperature=1.5, seed=3)])
            assert model.engine.speculation.model.model.num_tokens > 0
        async with running(path, replace(chosen, drafts=DraftOptions(uses_mtp=False))) as backend:
            assert (await backend.load()).engine.speculation.model is None

    run(work())


def test_drafts_that_cannot_be_are_refused_by_row(path: Path) -> None:
    """A row's fault is its own; columns that do not fit, and models without a head, are refused."""
    memory = Memory(path)
    tokens = random_tokens(1, 30)
    for sequence in (1, 2, 3):
        memory.pool.add(sequence, tokens[:20] if sequence < 3 else tokens[:1])
    memory.compute((1, tokens[:20]), (2, tokens[:20]))
    memory.pool.reserve(1, 40)
    right, errors = memory.model.draft(memory.pool, [1], [5], [0], [None])
    assert not errors
    ids, log = [7, 1, 2, 3, 1, 1], [5, NUM_TOKENS, 5, 5, 5, 5]
    found, errors = memory.model.draft(memory.pool, ids, log, [0, 0, 12, 0, 0, 0], [None, None, None, None, 9, None])
    texts = [errors[row] for row in range(5)]
    for text, part in zip(
        texts,
        ("7", "is not in the vocabulary", "no room for position 32", "no draft after position 0", "row 9 of 1"),
        strict=True,
    ):
        assert part in text
    assert found[5] == right[0]
    _, errors = memory.model.draft(memory.pool, [1], [5], [1], [0])
    assert not errors
    memory.compute((1, tokens[20:21]))
    _, errors = memory.model.draft(memory.pool, [1], [5], [1], [0])
    assert "row 0 of 0" in errors[0]  # a step came between
    with pytest.raises(ValueError, match=r"1 sequences, and columns of \[1, 2, 1\]"):
        memory.model.draft(memory.pool, [1], [5], [0, 0], [None])
    assert memory.model.draft(memory.pool, [], [], [], []) == ([], {})
    short = Memory(write_mtp(path.parent / "short.gguf", qwen35__context_length=20))
    short.pool.add(1, tokens)
    short.compute((1, tokens[:19]))
    assert not short.model.draft(short.pool, [1], [5], [0], [None])[1]
    short.compute((1, tokens[19:20]))
    short.pool.reserve(1, 21)
    assert "no draft after position 20 in a context of 20" in short.model.draft(short.pool, [1], [5], [0], [None])[1][0]
    without = Memory(write_hybrid(path.parent / "bare.gguf", "qwen35"))
    without.pool.add(1, tokens)
    without.compute((1, tokens[:20]))
    assert "no head" in without.model.draft(without.pool, [1], [5], [0], [None])[1][0]


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("qwen35", "nextn.hnorm.weight"),
        ("qwen35", "attn_k.weight"),
        ("qwen35", "ffn_up.weight"),
        ("qwen35", "nextn.eh_proj.weight"),
        ("glm4moe", "nextn.eh_proj.weight"),
        ("glm4moe", "exp_probs_b.bias"),
        ("deepseek2", "nextn.shared_head_norm.weight"),
        ("deepseek2", "attn_kv_a_mqa.weight"),
        ("deepseek2", "attn_k_b.weight"),
    ],
)
def test_a_part_of_a_head_is_refused_by_name(family: str, lost: str, tmp_path: Path) -> None:
    """A tensor that is missing, before memory is taken."""
    tensors = {name: one for name, one in headed_tensors(family).items() if name != f"{HEAD}{lost}"}
    with pytest.raises(_rust.ModelFileError) as caught:
        Memory(write_headed(tmp_path / "model.gguf", family, tensors))
    assert f"{HEAD}{lost}" in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_another_size_is_refused_and_one_that_was_stripped_is_none(family: str, tmp_path: Path) -> None:
    """The matrix that joins must be twice as wide as the stream; without any tensor the model runs as it is."""
    tensors = dict(headed_tensors(family))
    dims, values = tensors["blk.4.nextn.eh_proj.weight"]
    assert isinstance(values, array)
    halved = tensors | {"blk.4.nextn.eh_proj.weight": ((dims[0] // 2, dims[1]), values[: len(values) // 2])}
    with pytest.raises(_rust.ModelFileError, match=r"blk\.4\.nextn\.eh_proj\.weight' is 64 x 64; expected 64 x 128"):
        Memory(write_headed(tmp_path / "model.gguf", family, halved))
    stripped = {name: one for name, one in tensors.items() if not name.startswith(HEAD)}
    assert not Memory(write_headed(tmp_path / "stripped.gguf", family, stripped)).model.info()["has_mtp"]


def test_a_head_with_an_embedding_of_its_own_is_left_alone_where_its_family_has_none(tmp_path: Path) -> None:
    """Qwen's; in GLM's and DeepSeek's files it is the decoder's once more, and not read."""
    tensors = mtp_tensors()
    own = tensors | {"blk.4.nextn.embed_tokens.weight": tensors["token_embd.weight"]}
    assert not Memory(write_mtp(tmp_path / "own.gguf", own)).model.info()["has_mtp"]
    second = {name.replace(HEAD, "blk.5."): one for name, one in tensors.items() if name.startswith(HEAD)}
    two = write_mtp(tmp_path / "two.gguf", tensors | second, qwen35__block_count=6, qwen35__nextn_predict_layers=2)
    assert not Memory(two).model.info()["has_mtp"]
    with_copies = dict(headed_tensors("glm4moe"))
    without = {name: one for name, one in with_copies.items() if "embed_tokens" not in name and "head_head" not in name}
    assert len(without) == len(with_copies) - 2
    log = random_tokens(1, 20)
    logits = [
        cold(Memory(write_headed(tmp_path / "glm.gguf", "glm4moe", given)), log[:-1], log[-1])
        for given in (with_copies, without)
    ]
    assert logits[0] == logits[1]


@pytest.mark.parametrize("headed", FAMILIES, indirect=True)
def test_memory_of_a_head_is_in_the_account(headed: Path) -> None:
    """What a head's steps take is in what all steps take at most, as told before it is loaded."""
    step = LargestStep(64, 17, 512)
    with_head = CPU.load(headed, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    without = CPU.load(headed, RunnerOptions(threads=2, kv_bytes=1 << 22, mtp=False), step, None)
    assert with_head.info.weight_bytes > without.info.weight_bytes
    for asked in (step, LargestStep(300, 256, 512), LargestStep(1, 1, 16)):
        exact, most = with_head.step_bytes(asked), _rust.most_step_bytes(headed, 2, *asked)
        assert without.step_bytes(asked) < exact <= most < 2 * exact + 100_000, asked
        assert without.step_bytes(asked) <= _rust.most_step_bytes(headed, 2, *asked, mtp=False) < most
    needs = CPU.estimate(headed, RunnerOptions(threads=2), step)
    assert (needs.page_bytes, needs.kv_groups) == (with_head.info.page_bytes, with_head.info.kv_groups)
    assert with_head.info.kv_groups[0][0] == "recorded"
    memory = Memory(headed, threads=2)
    tokens = random_tokens(1, 64)
    memory.pool.add(1, tokens)
    memory.compute((1, tokens))
    chain(memory, 1, 5)
    assert memory.model.info()["workspace_bytes"] <= memory.model.step_bytes(64, 17, 512)
    for runner in (with_head, without):
        runner.close()


def test_a_sequence_with_an_adapter_is_drafted_for_by_the_bare_head(path: Path, tmp_path: Path) -> None:
    """The adapter changes what its decoder gives, the head goes on from that; others beside it draft as ever."""
    draw, block = random.Random(3), "base_model.model.model.layers.3"
    sizes = {"mlp.gate_proj": (96, 64), "mlp.down_proj": (64, 96)}
    given = {
        f"{block}.{name}.lora_{end}.weight": (shape, array("f", [draw.gauss(0, 0.5) for _ in range(math.prod(shape))]))
        for name, (rows, cols) in sizes.items()
        for end, shape in (("A", (4, cols)), ("B", (rows, 4)))
    }
    adapter = write_adapter(tmp_path / "adapter", given=given)
    log = random_tokens(4, 40)
    found: list[list[bytes]] = []
    for file in (path, write_hybrid(tmp_path / "without.gguf", "qwen35")):
        memory = Memory(file, threads=2)
        _rust.AdapterFile.open(memory.model, adapter).load(memory.model, 7)
        memory.pool.add(1, log, adapter_id=7)
        memory.pool.add(2, log)
        found.append([*memory.compute((1, log[:30]), (2, log[:30])), *memory.compute((1, log[30:-1]), (2, log[30:-1]))])
        if file == path:
            adapted, bare = chain(memory, 1, log[-1]), chain(memory, 2, log[-1])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert adapted != bare == cold(Memory(path), log[:-1], log[-1])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_quantised_head_drafts_the_same_warm_and_cold(kind: str, path: Path, tmp_path: Path) -> None:
    """What `models quantize` writes has the head; with few bits it drafts mostly what it drafted before."""
    quantized(path, tmp_path / "small.gguf", kind)
    memory, whole, num_same = Memory(tmp_path / "small.gguf", threads=2), Memory(path), 0
    for seed in range(20):
        log = random_tokens(seed, 40)
        memory.pool.add(1, log)
        for start in range(0, 39, 13):
            memory.compute((1, log[start : min(start + 13, 39)]))
        logits = chain(memory, 1, log[-1])
        memory.pool.release(1)
        assert logits == cold(memory, log[:-1], log[-1])
        num_same += argmax(logits[0]) == argmax(cold(whole, log[:-1], log[-1])[0])
    assert num_same > (17 if kind == "Q8_0" else 4)


def argmax(logits: bytes) -> int:
    values = array("f", logits)
    return values.index(max(values))


def test_copies_of_texts_are_verified_beside_a_head(path: Path) -> None:
    """With a head loaded and never asked, drafts of texts give the answers of an engine without either."""
    asked = requests_of_all_kinds()[:6]

    async def work() -> None:
        async with running(path, options(threads=2)) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        async with drafting(path, options(threads=2)) as (backend, _):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected

    run(work())


@pytest.mark.parametrize("name", ["blk.3.attn_q_norm.weight", "blk.3.attn_k_norm.weight", "blk.4.attn_k_norm.weight"])
def test_a_norm_of_queries_or_keys_that_is_missing_is_refused(name: str, tmp_path: Path) -> None:
    """In the decoder and in its head: without it the numbers would be others."""
    tensors = {key: value for key, value in mtp_tensors().items() if key != name}
    with pytest.raises(_rust.ModelFileError, match=f'"{name}" is missing'):
        _rust.CpuModel.load(write_mtp(tmp_path / "m.gguf", tensors), threads=1, kv_bytes=8 << 20)
