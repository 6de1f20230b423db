"""Steps of the CPU runner: columns in, tokens out; what is wrong with one segment is that segment's alone."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.quantised_model import write_quantised_experts
from support.reference_decoder import write_family
from support.tiny_model import split_tiny_model, vocabulary, write_tiny_model
from support.tiny_sparse import FAMILIES as SPARSE
from support.tiny_sparse import write_sparse

from pyagent import _rust

NUM_TOKENS = len(vocabulary()[0])
QUANTISED = ("Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "MXFP4")
"""Types of experts."""


class Decoder:
    """A model, its pool, and greedy decoding of several sequences."""

    def __init__(self, path: Path, kv_bytes: int = 8 << 20, threads: int = 1) -> None:
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=kv_bytes)
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])

    def step(self, segments: list[tuple[int, list[int]]], step: int = 0) -> tuple[list[int], dict[int, str]]:
        """Computes (sequence, tokens) and draws greedily from each."""
        for sequence, tokens in segments:
            self.pool.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        return self.execute(segments, step)

    def execute(self, segments: list[tuple[int, list[int]]], step: int = 0) -> tuple[list[int], dict[int, str]]:
        tokens, _, errors, *_ = self.model.execute(
            self.pool,
            [sequence for sequence, _ in segments],
            [len(tokens) for _, tokens in segments],
            [token for _, tokens in segments for token in tokens],
            [_rust.SamplerState(temperature=0) for _ in segments],
            [step] * len(segments),
        )
        return tokens, errors

    def greedy(self, sequence: int, prompt: list[int], count: int) -> list[int]:
        """What a sequence alone writes after a prompt."""
        self.pool.add(sequence, prompt)
        (token,), _ = self.step([(sequence, prompt[self.pool.num_tokens(sequence) :])])
        drawn = [token]
        while len(drawn) < count:
            (token,), _ = self.step([(sequence, [token])])
            drawn.append(token)
        self.pool.release(sequence)
        return drawn


def test_split_model_writes_what_the_whole_one_does(tmp_path: Path) -> None:
    """A model in three files, opened by any of them, is the model in one."""
    whole = Decoder(write_tiny_model(tmp_path / "whole.gguf")).greedy(0, [5, 6, 7], 12)
    assert [Decoder(path).greedy(0, [5, 6, 7], 12) for path in split_tiny_model(tmp_path)] == [whole] * 3


def prompt(seed: int, count: int = 20) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, NUM_TOKENS) for _ in range(count)]


def test_segments_that_cannot_be_computed_are_left_out(tiny_model_path: Path) -> None:
    """A sequence that is gone, one without room and a token that is none: each is named, the fourth is computed."""
    expected = Decoder(tiny_model_path).greedy(0, prompt(1), 1)
    decoder = Decoder(tiny_model_path)
    for sequence in (1, 2, 3):
        decoder.pool.add(sequence, prompt(sequence))
    decoder.pool.reserve(1, 20)
    decoder.pool.reserve(3, 20)
    tokens, errors = decoder.execute([(9, [5]), (2, prompt(2)), (3, [NUM_TOKENS]), (1, prompt(1))])
    assert tokens[3] == expected[0]
    assert set(errors) == {0, 1, 2}
    for text, reason in zip(errors.values(), ("sequence 9", "cover position 19", "vocabulary"), strict=False):
        assert any(reason in error for error in errors.values()), text
    assert [decoder.pool.num_tokens(sequence) for sequence in (1, 2, 3)] == [20, 0, 0]
    decoder.pool.check()


def test_columns_that_do_not_fit_are_refused(tiny_model_path: Path) -> None:
    """Wrong lengths, a sequence or sampler given twice, a short mask: `ValueError`, and nothing is computed."""
    decoder = Decoder(tiny_model_path)
    for sequence in (1, 2):
        decoder.pool.add(sequence, prompt(sequence))
        decoder.pool.reserve(sequence, 20)
    sampler = _rust.SamplerState(temperature=0)
    execute, pool = decoder.model.execute, decoder.pool
    for refused, text in (
        (lambda: execute(pool, [1, 2], [1], [5]), "do not fit"),
        (lambda: execute(pool, [1, 2], [1, 1], [5]), "do not fit"),
        (
            lambda: execute(
                pool,
                [1],
                [
                    2**63,
                ],
                [5],
            ),
            "do not fit",
        ),
        (lambda: execute(pool, [1, 1], [1, 1], [5, 5]), "twice in one step"),
        (lambda: execute(pool, [1, 2], [1, 1], [5, 5], [sampler] * 2, [0, 0]), "twice in one step"),
        (lambda: execute(pool, [1], [1], [5], [sampler], []), "one step for each sampler"),
        (lambda: execute(pool, [1], [1], [5], [sampler] * 2, [0, 0]), "2 samples from 1 segments"),
        (lambda: execute(pool, [1], [1], [5], [sampler], [0], {0: b"\xff"}), "a mask of 32 bits"),
    ):
        with pytest.raises(ValueError, match=text):
            refused()
    assert [pool.num_tokens(sequence) for sequence in (1, 2)] == [0, 0]


def test_logits_that_are_not_numbers_end_their_request_alone(tmp_path: Path) -> None:
    """A model file with a NaN in one token's embedding fails who uses it; neighbours write what they do alone."""
    path = write_tiny_model(tmp_path / "nan.gguf", damaged_token=7)
    good = [token for token in prompt(1) if token != 7]
    expected = Decoder(path).greedy(0, good, 1)
    decoder = Decoder(path, threads=2)
    bad = [*good[:5], 7, *good[5:]]
    for sequence, tokens in ((1, good), (2, bad), (3, good[::-1])):
        decoder.pool.add(sequence, tokens)
    tokens, errors = decoder.step([(2, bad), (1, good), (3, good[::-1])])
    assert tokens[1] == expected[0]
    assert list(errors) == [0]
    assert "NaN" in errors[0]


def test_a_sequence_released_while_it_is_computed_leaves_nothing_wrong_behind(tiny_model_path: Path) -> None:
    """Sequences that end and begin again during a step are not credited with what it computed."""
    tokens = prompt(3, 400)
    decoder = Decoder(tiny_model_path)
    expected = decoder.greedy(0, tokens, 4)
    ended = {0: "sequence 1 ended while it was computed"}
    seen: list[dict[int, str]] = []
    for turn in range(300):
        if turn >= 20 and ended in seen:
            break
        decoder.pool.clear_index()
        for sequence in (1, 2):
            decoder.pool.add(sequence, tokens)
            decoder.pool.reserve(sequence, 400)
        results: list[dict[int, str]] = []
        step = threading.Thread(
            target=lambda r=results: r.append(decoder.execute([(1, tokens), (2, prompt(4, 400))])[1])
        )
        step.start()
        time.sleep(turn % 20 * 0.001)
        decoder.pool.release(1)
        decoder.pool.add(1, tokens)
        decoder.pool.reserve(1, 400)
        step.join()
        assert results[0] in ({}, ended)
        seen += results
        decoder.pool.check()
        for sequence in (1, 2):
            decoder.pool.release(sequence)
        assert decoder.greedy(5, tokens, 4) == expected
    assert ended in seen, "no sequence ended while it was computed, in 300 tries"


def test_models_that_compute_at_once_take_turns(tiny_model_path: Path) -> None:
    """Three models on the same threads, each stepped by a caller of its own, write what each writes alone."""
    tokens = prompt(5, 450)  # steps so long that a busy machine changes callers within one
    expected = Decoder(tiny_model_path).greedy(0, tokens, 20)
    decoders = [Decoder(tiny_model_path, threads=2) for _ in range(3)]
    with ThreadPoolExecutor(len(decoders)) as callers:
        runs = [[callers.submit(decoder.greedy, n, tokens, 20) for decoder in decoders] for n in range(3)]
        assert [run.result(60) for row in runs for run in row] == [expected] * len(decoders) * 3


def bookkeeping_seconds(path: Path, num_tokens: int) -> float:
    """What the quickest of 90 steps of 256 sequences that long takes besides the computing."""
    decoder = Decoder(path, kv_bytes=256 * 640 * 4096)
    for sequence in range(256):
        decoder.pool.add(sequence, [5])
        decoder.pool.reserve(sequence, num_tokens + 100)
        decoder.pool.commit(sequence, (prompt(sequence, 100) * 80)[:num_tokens])
    ids, samplers = list(range(256)), [_rust.SamplerState(temperature=0) for _ in range(256)]
    lengths, tokens, steps = [1] * 256, [5] * 256, [0] * 256
    seconds: list[float] = []
    for _ in range(90):
        start = time.perf_counter()
        _, _, errors, *_ = decoder.model.execute(decoder.pool, ids, lengths, tokens, samplers, steps)
        seconds.append(time.perf_counter() - start - decoder.model.compute_seconds())
        assert not errors
    return min(seconds)


def test_bookkeeping_of_a_step_does_not_grow_with_the_context(tmp_path: Path) -> None:
    """Besides the computing, a step at 8,000 tokens costs what it does at 200 (well under a millisecond)."""
    # A window of 16 tokens keeps the computing short; the tables are as long as without one.
    path = write_tiny_model(tmp_path / "m.gguf", llama__context_length=16_384, llama__attention__sliding_window=16)
    short, long = bookkeeping_seconds(path, 200), bookkeeping_seconds(path, 8_000)
    print(f"bookkeeping: {short * 1e6:.0f} us at 200 tokens, {long * 1e6:.0f} us at 8,000")
    assert long < 3 * short + 0.001


def last_logits(path: Path, tokens: list[int], threads: int, pieces: list[int], num_others: int) -> bytes:
    """Logits after a prompt computed in pieces, beside sequences that decode."""
    decoder = Decoder(path, kv_bytes=64 << 20, threads=threads)
    decoder.pool.add(0, tokens)
    vocab_size = decoder.model.info()["vocab_size"]
    for other in range(1, num_others + 1):
        others = [token % vocab_size for token in prompt(4 + other, 400 + other)]
        decoder.pool.add(other, others)
        decoder.step([(other, others)])
    start = 0
    for piece in pieces:
        segments = [(0, tokens[start : start + piece]), *((other, [5]) for other in range(1, num_others + 1))]
        for sequence, more in segments:
            decoder.pool.reserve(sequence, decoder.pool.num_tokens(sequence) + len(more))
        ids, lengths = [sequence for sequence, _ in segments], [len(more) for _, more in segments]
        rows = [token for _, more in segments for token in more]
        decoder.model.execute(decoder.pool, ids, lengths, rows, num_outputs=[1] + [0] * num_others)
        start += piece
    return decoder.model.logits()


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_logits_of_a_long_context_do_not_depend_on_how_it_is_split(tmp_path: Path, architecture: str) -> None:
    """On 1, 2 or 5 threads, alone or beside others, in any pieces, with or without windows: the same bits."""
    changes: dict[str, object] = {f"{architecture}__context_length": 4096}
    if architecture == "gemma3":
        changes |= {"gemma3__block_count": 12, "gemma3__attention__sliding_window": 300}
    path = write_tiny_model(tmp_path / "model.gguf", architecture=architecture, **changes)
    tokens = prompt(4, 1000)
    expected = last_logits(path, tokens, 1, [1000], 0)
    for threads in (1, 2, 5):
        for pieces in ([1000], [997, 1, 1, 1], [300, 650, 20, 20, 7, 3]):
            for num_others in (0, 9):
                found = last_logits(path, tokens, threads, pieces, num_others)
                assert found == expected, (threads, pieces, num_others)


@pytest.mark.parametrize("name", ["olmo2", "mixtral", "qwen3_moe", "olmoe", *QUANTISED, *SPARSE])
def test_experts_and_norms_over_all_heads_give_the_same_bits_however_computed(tmp_path: Path, name: str) -> None:
    """A token alone, a few, chunks, a batch, on 1, 2 or 5 threads: no bit differs, whatever the experts' type."""
    if name in QUANTISED:
        path = write_quantised_experts(tmp_path / "m.gguf", name)
    elif name in SPARSE:
        path = write_sparse(tmp_path / "m.gguf", name)
    else:
        write_family(path := tmp_path, name)
    tokens = [token % 90 for token in prompt(4, 100)]
    expected = last_logits(path, tokens, 1, [1] * 100, 0)
    for threads, pieces, num_others in (
        (1, [100], 0),
        (2, [1] * 100, 0),
        (5, [97, 1, 1, 1], 0),
        (2, [20, 3, 3, 4, 5, 65], 0),
        (5, [60, 30, 10], 9),
        (2, [98, 1, 1], 2),
    ):
        assert last_logits(path, tokens, threads, pieces, num_others) == expected, (threads, pieces, num_others)
