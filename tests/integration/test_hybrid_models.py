"""Models with recurrent layers: the same bits cold, warm, in chunks, in batches, forked, swapped and preempted."""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from support import hybrid_model
from support.command_line import COMMAND, fresh_environment
from support.gguf_writer import Blocks, Tensors
from support.hybrid_model import hybrid_tensors, write_hybrid
from support.kv_sequences import Memory, random_tokens
from support.native import alone, assert_idle, at_once, chat, mixed_requests, options, run, running
from support.tiny_lfm3 import write_hybrid_of

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

FAMILIES = (
    "lfm2",
    "lfm3",
    "qwen35",
    "granitehybrid",
    "jamba",
    "nemotron_h",
    *(pytest.param(family, marks=pytest.mark.slow) for family in ("kimi-linear", "mamba", "mamba2", "minimax-01")),
)
LITTLE = {"lfm2": 20, "lfm3": 40, "qwen35": 66, "granitehybrid": 66, "jamba": 66, "nemotron_h": 66} | dict.fromkeys(
    ("kimi-linear", "mamba", "mamba2", "minimax-01"), 66
)
"""Memory for one long sequence and a bit, in blocks of the tiny model: states of delta nets take more."""
FORMATS: dict[str, Callable[[int], EngineOptions]] = {
    "two threads": lambda _: options(threads=2),
    "seven tokens a step": lambda _: options(max_num_batched_tokens=7),
    "little memory": lambda blocks: options(blocks=blocks, max_num_batched_tokens=64),
    "plain": lambda _: options(isa="scalar"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small hybrid model."""
    return write_hybrid_of(request.param, tmp_path_factory.mktemp("hybrid"))


def test_states_are_a_group_of_pages(path: Path) -> None:
    """Beside the layers with attention, recurrent layers' states are a group whose blocks keep checkpoints."""
    groups = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22).info()["kv_groups"]
    windows = ["window"] if path.stem == "lfm3" else []
    assert [kind for kind, _, _ in groups] == [*windows, "full", "state"]
    *of_keys, (_, every, of_states) = groups
    of_size = -(-2 * of_states // sum(pages for _, _, pages in of_keys))
    assert every == (256 if path.stem in ("mamba", "mamba2") else of_size)
    assert groups == list(_rust.describe_model(path)["kv_groups"])


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_and_neighbours_change_no_bit(path: Path, threads: int) -> None:
    """A prompt in chunks of any length, beside sequences that decode or begin, has the bits of the prompt at once."""
    memory = Memory(path, threads=threads)
    draw = random.Random(3)
    for seed in range(4):
        tokens, other = random_tokens(seed, draw.randrange(40, 300)), random_tokens(seed + 50, 300)
        expected = memory.whole(tokens)
        assert Memory(path).whole(tokens) == expected
        memory.pool.add(1, tokens)
        memory.pool.add(2, other)
        start, steps = 0, 0
        while start < len(tokens):
            chunk = tokens[start : start + draw.choice([1, 1, 5, 16, 17, 70])]
            start, steps = start + len(chunk), steps + 1
            logits, _ = memory.compute((1, chunk), (2, other[steps : steps + 1]))
        assert logits == expected
        memory.pool.release(1)
        memory.pool.release(2)


def test_cached_turns_change_no_bit(path: Path) -> None:
    """From a checkpoint, the end of a turn, or where two prompts part: the bits are those of a cold prompt."""
    memory = Memory(path)
    first = random_tokens(1, 203)
    turn = [*first, *random_tokens(2, 90)]
    branch = [*first[:100], *random_tokens(3, 90)]
    again = [*first[:100], *random_tokens(4, 50)]
    expected = [memory.whole(tokens) for tokens in (first, turn, branch, again)]
    found: list[int] = []
    for number, (tokens, logits) in enumerate(zip((first, turn, branch, again), expected, strict=True)):
        found.append(memory.add(number, tokens))
        assert memory.compute((number, tokens[found[-1] :])) == [logits]
        memory.pool.release(number)
    assert found[0] == 0
    assert found[1] == 203
    assert found[2] <= 96
    assert found[3] == 96


def test_forked_and_swapped_sequences_go_on_with_the_same_bits(path: Path, tmp_path: Path) -> None:
    """Two forks go different ways; one is swapped out, its pages used by others, and goes on as if nothing was."""
    memory = Memory(path, tmp_path)
    tokens, ways = random_tokens(4, 150), (random_tokens(5, 30), random_tokens(6, 30))
    expected = [memory.whole([*tokens, *way]) for way in ways]
    memory.pool.add(1, tokens)
    memory.compute((1, tokens))
    memory.model.copy_pages(memory.pool.fork(1, 2))
    handle = memory.model.swap_out(memory.pool.pages_in_use(1))
    memory.pool.release(1)
    assert memory.compute((2, ways[1])) == [expected[1]]
    memory.pool.release(2)
    memory.pool.clear_index()
    memory.pool.set_limit(0)
    memory.model.give_back(memory.pool.take_freed())
    memory.pool.set_limit(memory.model.info()["num_pages"])
    memory.pool.add(3, random_tokens(7, 400))
    memory.compute((3, random_tokens(7, 400)))
    num_cached, places = memory.pool.restore(1, tokens)
    memory.model.swap_in(handle, places)
    memory.pool.commit(1, tokens[num_cached:])
    assert memory.compute((1, ways[0])) == [expected[0]]


@pytest.fixture(scope="module")
def expected(path: Path) -> list[str]:
    """What requests of all kinds are answered, each alone."""
    return asyncio.run(alone(path, mixed_requests(12)))


@pytest.mark.parametrize("variant", FORMATS)
def test_answers_in_a_batch_are_those_given_alone(path: Path, variant: str, expected: list[str]) -> None:
    """Twelve requests at once, twice, in chunks and preempted: each has the text that it is given alone."""

    async def work() -> None:
        requests = mixed_requests(12)
        async with running(path, FORMATS[variant](LITTLE[path.stem])) as backend:
            for _ in range(2):  # the second time prefixes are cached
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)
        assert len(set(expected)) > 7

    run(work())


@pytest.mark.parametrize("kind", ["recompute", pytest.param("swap", marks=pytest.mark.slow)])
def test_preempted_answers_are_unchanged(path: Path, kind: str) -> None:
    """Four long answers in memory for less: requests yield, and their texts are the same."""

    async def work() -> None:
        longer = dict.fromkeys(("qwen35", "jamba", "kimi-linear", "mamba", "mamba2", "minimax-01"), (900, 92))
        max_tokens, blocks = (longer | {"lfm2": (300, LITTLE["lfm2"])}).get(path.stem, (450, 92))
        sampling: dict[str, object] = {"ignore_eos": True, "max_tokens": max_tokens, "frequency_penalty": 1}
        seeded = [chat(f"{seed} the", seed=seed, **sampling) for seed in range(4)]
        texts = await alone(path, seeded)
        async with running(path, options(blocks=blocks)) as backend:
            await at_once(backend, [chat("the", max_tokens=1)] * 4)  # so that short answers are expected
            model = await backend.load()
            model.runner.swap_seconds = lambda num_tokens: 0.0 if kind == "swap" else math.inf
            assert [answer.text for answer in await at_once(backend, seeded)] == texts
            assert model.engine.scheduler.num_preemptions[kind] > 0
            await assert_idle(backend)

    run(work())


def conversation(texts: list[str], answers: list[str]) -> ChatRequest:
    messages = [Message("user", texts[0])]
    for text, answer in zip(texts[1:], answers, strict=True):
        messages += [Message("assistant", answer), Message("user", text)]
    return ChatRequest(messages=messages, sampling=SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))


def test_a_conversation_is_answered_as_by_an_engine_that_has_seen_nothing(path: Path) -> None:
    """Turn by turn, and two ways from its middle, a conversation has the answers of one that is replayed cold."""

    async def work() -> None:
        texts, answers = ["hello there, how are you?", "and what of the weather?", "thanks, and the time?"], []
        async with running(path) as backend, running(path) as cold:
            for count in range(1, 4):
                request = conversation(texts[:count], answers)
                warm = await collect(backend.chat(request))
                (await cold.load()).runner.pool.clear_index()
                assert warm.text == (await collect(cold.chat(request))).text
                assert (warm.usage.prompt_tokens_details.cached_tokens > 0) == (count > 1)
                answers.append(warm.text)
            several = replace_n(conversation([*texts[:1], "another way"], answers[:1]))
            (await cold.load()).runner.pool.clear_index()
            replies = [await collect(one.chat(several)) for one in (backend, cold)]
            assert replies[0].text == replies[1].text
            await assert_idle(backend)

    run(work())


def replace_n(request: ChatRequest) -> ChatRequest:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=5, ignore_eos=True)
    return ChatRequest(messages=request.messages, sampling=sampling, n=2)


def changed(architecture: str, change: Callable[[dict[str, object]], object]) -> Tensors:
    tensors = hybrid_tensors(architecture)
    change(tensors)  # type: ignore[arg-type]
    return tensors


@pytest.mark.parametrize(
    ("architecture", "change", "metadata", "text"),
    [
        ("lfm2", lambda t: t.pop("blk.3.shortconv.conv.weight"), {}, "blk.3.shortconv.conv.weight"),
        ("lfm2", lambda t: t.pop("blk.1.shortconv.in_proj.weight"), {}, "blk.1.shortconv.in_proj.weight"),
        ("lfm2", lambda t: None, {"lfm2.shortconv.l_cache": 4}, "shortconv.conv.weight' is 64 x 3; expected 64 x 4"),
        ("lfm2", lambda t: None, {"lfm2.shortconv.l_cache": 9}, "taps of the convolution is 9; expected 2 to 8"),
        ("lfm2", lambda t: None, {"lfm2.attention.head_count_kv": [0, 0, 0, 0]}, "key/value heads is 0"),
        ("lfm2", lambda t: None, {"lfm2.attention.head_count_kv": [0, 0, 1]}, "the kinds of 3 layers are told, of 4"),
        ("lfm2", lambda t: None, {"lfm2.attention.head_count_kv": [2, 0, 1, 0]}, "differs between layers"),
        ("qwen35", lambda t: t.pop("blk.2.ssm_a"), {}, "blk.2.ssm_a"),
        ("qwen35", lambda t: t.pop("blk.0.ssm_out.weight"), {}, "blk.0.ssm_out.weight"),
        ("qwen35", lambda t: None, {"qwen35.ssm.state_size": 32}, "attn_qkv.weight' is 192 x 64; expected 256 x 64"),
        (
            "qwen35",
            lambda t: None,
            {"qwen35.ssm.group_count": 3},
            "value heads is 4; expected 1 to 1024, a multiple of 3",
        ),
        ("qwen35", lambda t: None, {"qwen35.ssm.group_count": 0}, "key heads is 0"),
        ("qwen35", lambda t: None, {"qwen35.ssm.time_step_rank": 8}, "value head size is 16; expected 32 to 1024"),
        ("qwen35", lambda t: None, {"qwen35.nextn_predict_layers": 1}, "3 of 3 layers are recurrent"),
        (
            "qwen35",
            lambda t: None,
            {"qwen35.attention.recurrent_layers": [True, True]},
            "'qwen35.attention.recurrent_layers' must be a truth for each of the 4 layers",
        ),
        ("granitehybrid", lambda t: t.pop("blk.0.ssm_d"), {}, "blk.0.ssm_d"),
        ("granitehybrid", lambda t: t.pop("blk.1.ssm_in.weight"), {}, "blk.1.ssm_in.weight"),
        ("granitehybrid", lambda t: t.pop("blk.3.ffn_up_exps.weight"), {}, "blk.3.ffn_up_exps.weight"),
        (
            "granitehybrid",
            lambda t: None,
            {"granitehybrid.ssm.state_size": 32},
            "ssm_in.weight' is 324 x 64; expected 388 x 64",
        ),
        (
            "granitehybrid",
            lambda t: None,
            {"granitehybrid.ssm.state_size": 24},
            "state size is 24; expected 16 to 1024, a multiple of 16",
        ),
        ("granitehybrid", lambda t: None, {"granitehybrid.ssm.group_count": 3}, "heads is 4; expected 1 to 1024, a"),
        ("granitehybrid", lambda t: None, {"granitehybrid.ssm.group_count": 0}, "groups is 0"),
        (
            "granitehybrid",
            lambda t: None,
            {"granitehybrid.ssm.time_step_rank": 3},
            "inner_size' 128 is not whole heads",
        ),
        ("granitehybrid", lambda t: None, {"granitehybrid.ssm.time_step_rank": 16}, "head size is 8; expected 16"),
        ("granitehybrid", lambda t: None, {"granitehybrid.logit_scale": -1.0}, "is not a number above 0"),
        (
            "granitehybrid",
            lambda t: None,
            {"granitehybrid.attention.head_count_kv": [0, 0, 0, 0]},
            "key/value heads is 0",
        ),
        ("jamba", lambda t: t.pop("blk.0.ssm_x.weight"), {}, "blk.0.ssm_x.weight"),
        ("jamba", lambda t: t.pop("blk.3.ssm_dt.bias"), {}, "blk.3.ssm_dt.bias"),
        ("jamba", lambda t: t.pop("blk.1.ssm_b_norm.weight"), {}, "blk.1.ssm_b_norm.weight"),
        ("jamba", lambda t: t.pop("blk.1.ffn_gate_inp.weight"), {}, "blk.1.ffn_gate.weight"),
        ("jamba", lambda t: None, {"jamba.ssm.state_size": 8}, "ssm_x.weight' is 44 x 128; expected 28 x 128"),
        ("jamba", lambda t: None, {"jamba.ssm.inner_size": 96}, "ssm_in.weight' is 256 x 64; expected 192 x 64"),
        ("jamba", lambda t: None, {"jamba.ssm.time_step_rank": 0}, "step rank is 0; expected 1 to"),
        ("jamba", lambda t: None, {"jamba.attention.head_count_kv": [0, 0, 0, 0]}, "key/value heads is 0"),
        ("mamba", lambda t: t.pop("blk.2.ssm_a"), {}, "blk.2.ssm_a"),
        ("mamba", lambda t: t.pop("blk.1.attn_norm.weight"), {}, "blk.1.attn_norm.weight"),
        ("mamba", lambda t: None, {"mamba.ssm.conv_kernel": 5}, "ssm_conv1d.weight' is 128 x 4; expected 128 x 5"),
        ("mamba", lambda t: None, {"mamba.block_count": 2}, "of a later layer"),
        ("kimi-linear", lambda t: t.pop("blk.0.ssm_f_b.weight"), {}, "blk.0.ssm_f_b.weight"),
        ("kimi-linear", lambda t: t.pop("blk.1.ssm_conv1d_k.weight"), {}, "blk.1.ssm_conv1d_k.weight"),
        ("kimi-linear", lambda t: t.pop("blk.2.attn_v_b.weight"), {}, "blk.2.attn_v_b.weight"),
        (
            "kimi-linear",
            lambda t: None,
            {"kimi-linear.kda.head_dim": 64},
            "ssm_f_b.weight' is 64 x 32; expected 128 x 64",
        ),
        (
            "kimi-linear",
            lambda t: None,
            {"kimi-linear.kda.head_dim": 48},
            "head size is 48; expected 32 to 1024, a mul",
        ),
        ("kimi-linear", lambda t: None, {"kimi-linear.kda.safe_gate": True}, "'kimi-linear.kda.safe_gate' is not impl"),
        ("mamba2", lambda t: t.pop("blk.2.ssm_norm.weight"), {}, "blk.2.ssm_norm.weight"),
        ("mamba2", lambda t: None, {"mamba2.ssm.state_size": 32}, "ssm_in.weight' is 324 x 64; expected 388 x 64"),
        ("mamba2", lambda t: None, {"mamba2.ssm.dt_b_c_rms": True}, "'mamba2.ssm.dt_b_c_rms' is not implemented"),
        ("minimax-01", lambda t: t.pop("blk.0.attn_gate.weight"), {}, "blk.0.attn_gate.weight"),
        ("minimax-01", lambda t: t.pop("blk.1.attn_norm_2.weight"), {}, "blk.1.attn_norm_2.weight"),
        ("minimax-01", lambda t: t.pop("blk.3.attn_v.weight"), {}, "blk.3.attn_v.weight"),
        ("minimax-01", lambda t: None, {"minimax-01.full_attention_interval": 2}, "blk.1.attn_q.weight"),
        ("minimax-01", lambda t: None, {"minimax-01.full_attention_interval": 0}, "4 of 4 layers are recurrent"),
        (
            "minimax-01",
            lambda t: None,
            {"minimax-01.attention.recurrent_layers": [True]},
            "recurrent_layers' must be a truth for each of the 4 layers",
        ),
        (
            "minimax-01",
            lambda t: None,
            {"minimax-01.attention.head_count": 4},
            "qkv.weight' is 192 x 64; expected 384 x 64",
        ),
        (
            "minimax-01",
            lambda t: None,
            {"minimax-01.residual_scale": math.nan},
            "a factor on embeddings, scores, blocks or",
        ),
        (
            "minimax-01",
            lambda t: None,
            {"minimax-01.ssm.conv_kernel": 4},
            "'minimax-01.ssm.conv_kernel' is not implemented",
        ),
        ("nemotron_h", lambda t: t.pop("blk.0.ssm_d"), {}, "blk.0.ssm_d"),
        ("nemotron_h", lambda t: t.pop("blk.1.ffn_up_exps.weight"), {}, "blk.1.ffn_up_exps.weight"),
        ("nemotron_h", lambda t: t.pop("blk.1.exp_probs_b.bias"), {}, "blk.1.exp_probs_b.bias"),
        ("nemotron_h", lambda t: t.pop("blk.2.attn_v.weight"), {}, "blk.2.attn_v.weight"),
        ("nemotron_h", lambda t: t.pop("blk.5.ffn_down_shexp.weight"), {}, "blk.5.ffn_down_shexp.weight"),
        ("nemotron_h", lambda t: None, {"nemotron_h.ssm.group_count": 3}, "heads is 4; expected 1 to 1024, a"),
        ("nemotron_h", lambda t: None, {"nemotron_h.moe_latent_size": 32}, "'nemotron_h.moe_latent_size' is not impl"),
        ("nemotron_h", lambda t: None, {"nemotron_h.feed_forward_length": [0, 32, 0]}, "3 layers are told, of 6"),
        (
            "nemotron_h",
            lambda t: None,
            {"nemotron_h.feed_forward_length": [0, 32, 0, 0, 0, 64]},
            "feed_forward_length' differs between layers",
        ),
        (
            "nemotron_h",
            lambda t: None,
            {"nemotron_h.feed_forward_length": [0, 32, 32, 0, 0, 32]},
            "both say that layer 2 is theirs",
        ),
        (
            "nemotron_h",
            lambda t: None,
            {"nemotron_h.attention.head_count_kv": [0, 0, 0, 0, 0, 0]},
            "key/value heads is 0",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(
    tmp_path: Path,
    architecture: str,
    change: Callable[[dict[str, object]], object],
    metadata: dict[str, object],
    text: str,
) -> None:
    """A tensor that is missing or of another size, a state that no kernel computes: one line that names it."""
    path = write_hybrid(tmp_path / "bad.gguf", architecture, tensors=changed(architecture, change), **metadata)
    with pytest.raises(_rust.ModelFileError) as refused:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_may_list_its_recurrent_layers(tmp_path: Path) -> None:
    """As llama.cpp's converter does, in place of a period: a list that says otherwise asks for other tensors."""
    listed: dict[str, object] = {
        "qwen35.attention.recurrent_layers": [True, True, True, False],
        "qwen35.full_attention_interval": None,
    }
    _rust.CpuModel.load(write_hybrid(tmp_path / "same.gguf", "qwen35", **listed), threads=1, kv_bytes=1 << 22)
    other = {"qwen35.attention.recurrent_layers": [False, True, True, False]}
    with pytest.raises(_rust.ModelFileError, match=r"blk\.0\.attn_q"):
        _rust.CpuModel.load(write_hybrid(tmp_path / "other.gguf", "qwen35", **other), threads=1, kv_bytes=1 << 22)


def test_estimate_holds_what_is_loaded(path: Path) -> None:
    """Before anything is loaded, pages, groups and step memory are known; steps take no more."""
    step = LargestStep(64, 8, 512)
    needs = CPU.estimate(path, RunnerOptions(threads=2), step)
    runner = CPU.load(path, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
    assert runner.step_bytes(step) <= needs.workspace_bytes
    runner.close()


def test_estimate_holds_what_channels_select(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Mamba whose states are wide beside all else, where no other buffer's slack has room for them."""
    monkeypatch.setattr(hybrid_model, "STATE_SIZE", 512)
    path, step = write_hybrid(tmp_path / "wide.gguf", "mamba"), LargestStep(256, 1, 256)
    needs = CPU.estimate(path, RunnerOptions(threads=1), step)
    runner = CPU.load(path, RunnerOptions(threads=1, kv_bytes=1 << 22), step, None)
    selected = 4 * step.num_tokens * 2 * 512
    assert runner.step_bytes(step) <= needs.workspace_bytes < runner.step_bytes(step) + selected
    runner.close()


@pytest.mark.parametrize(
    ("family", "sizes", "bytes_per_token"),
    [("kimi-linear", {"NUM_HEADS": 1, "DELTA_HEAD": 512}, 7 * 2 * 512), ("minimax-01", {"HEAD_DIM": 256}, 4 * 8 * 256)],
)
def test_estimate_counts_what_a_step_hands_on(
    family: str, sizes: dict[str, int], bytes_per_token: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Kimi's decays and gates are made of, lightning attention's projections: less would be too little."""
    for name, size in sizes.items():
        monkeypatch.setattr(hybrid_model, name, size)
    tensors = hybrid_tensors(family)
    for name in ("blk.0.ssm_f_b.weight", "blk.0.ssm_g_b.weight"):
        if name in tensors:  # so that inputs are there in both forms, as the estimate counts them
            dims, values = tensors[name]
            assert isinstance(values, array)
            tensors[name] = (dims, Blocks(8, _rust.quantise("Q8_0", values, 1)))
    path, step = write_hybrid(tmp_path / "wide.gguf", family, tensors=tensors), LargestStep(256, 1, 256)
    needs = CPU.estimate(path, RunnerOptions(threads=1), step)
    runner = CPU.load(path, RunnerOptions(threads=1, kv_bytes=1 << 23), step, None)
    of_stage = step.num_tokens * bytes_per_token
    assert runner.step_bytes(step) <= needs.workspace_bytes < runner.step_bytes(step) + of_stage
    runner.close()


def test_lightning_states_change_no_bit(tmp_path: Path) -> None:
    """In chunks beside another sequence, and from a cached turn's end, the bits are those of a cold prompt."""
    memory = Memory(write_hybrid(tmp_path / "lightning.gguf", "minimax-01"), threads=2)
    first, other = random_tokens(1, 203), random_tokens(2, 60)
    turn = [*first, *random_tokens(3, 40)]
    expected = [memory.whole(tokens) for tokens in (first, turn)]
    memory.pool.clear_index()
    memory.pool.add(1, first)
    memory.pool.add(2, other)
    for start, end, beside in ((0, 100, 7), (100, 101, 1), (101, 118, 16), (118, 203, 1)):
        logits, _ = memory.compute((1, first[start:end]), (2, other[start // 4 : start // 4 + beside]))
    assert logits == expected[0]
    memory.pool.release(1)
    assert memory.add(3, turn) == len(first)
    assert memory.compute((3, turn[len(first) :])) == [expected[1]]


@pytest.mark.parametrize("family", ["qwen35", "mamba"])
def test_a_process_shows_a_hybrid_and_scores_by_it(family: str, tmp_path: Path) -> None:
    """`pyagent models show`, which tells the kinds of layers, and `pyagent score`, as a user runs them."""
    path = write_hybrid(tmp_path / "hybrid.gguf", family)
    text = tmp_path / "text.txt"
    text.write_text("the user is here and the system is at ease\n" * 9)

    def told(*words: object) -> str:
        command = [*COMMAND, *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=fresh_environment(tmp_path), timeout=60
        ).stdout

    kinds = "3 layers (3 of Mamba)" if family == "mamba" else "4 layers (3 of gated delta nets, 1 of attention)"
    assert f"{family}, {kinds}" in told("models", "show", path)
    scored = json.loads(told("score", text, "--model", path, "--json", "--chain", "native"))
    assert scored["num_tokens"] > 100
    assert math.isfinite(scored["perplexity"])
    assert scored["perplexity"] > 1
