"""`engine.batch_invariant`: a token's logits are the same bits in any batch, chunk, and order of events."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.native import at_once, chat, engine_of, one_by_one
from support.paged_attention import Heads, make_inputs
from support.reference_decoder import write_family

from pyagent import _rust
from pyagent.core.errors import ConfigError
from pyagent.core.runners.attention import AttentionChoice, AttentionShape
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.attention import plain, sdpa
from pyagent.infrastructure.engine.runners.torch.attention.choice import choose_invariant_attention
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.attention_backends import (
    FlexAttention,
    PlainAttention,
    SdpaAttention,
    TritonAttention,
)
from pyagent.infrastructure.engine.runners.torch.invariant import attention as fixed
from pyagent.infrastructure.engine.runners.torch.invariant.products import (
    BlockedLinear,
    InvariantProducts,
    TritonLinear,
    blocks_of,
)
from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend
from pyagent.infrastructure.engine.runners.torch.kernels.products import product
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

pytestmark = pytest.mark.oracle

OPTIONS = RunnerOptions(threads=1, kv_bytes=1 << 21, batch_invariant=True)
STEP = LargestStep(512, 24)


class KeptLogits(TorchRunner):
    """A torch runner that keeps the logits of its last step."""

    def __init__(self, path: Path, options: RunnerOptions = OPTIONS) -> None:
        super().__init__(path, options, STEP)

    def logits(self, packed: PackedStep) -> torch.Tensor:
        self.rows = super().logits(packed)
        return self.rows

    def compute(self, *segments: tuple[int, Sequence[int]]) -> torch.Tensor:
        """Compute the next tokens of sequences; returns a row of logits for each."""
        samplers = [_rust.SamplerState(temperature=0.0) for _ in segments]
        tokens = [token for _, tokens in segments for token in tokens]
        lengths = [len(tokens) for _, tokens in segments]
        self.execute(Batch([one for one, _ in segments], lengths, tokens, samplers, [0] * len(segments)))
        return self.rows.clone()


def alone(path: Path, texts: list[list[int]]) -> list[list[torch.Tensor]]:
    """The logits after every token of texts, computed one token at a time with nothing beside it."""
    runner = KeptLogits(path)
    rows: list[list[torch.Tensor]] = []
    for number, text in enumerate(texts):
        assert runner.add(number, text, most_cached=0) == 0
        assert runner.reserve(number, len(text))
        rows.append([runner.compute((number, [token]))[0] for token in text])
        runner.release(number)
    return rows


@pytest.mark.parametrize("family", ["gemma2", "qwen3"])
def test_logits_are_the_same_bits_however_they_are_computed(family: str, tmp_path: Path) -> None:
    """Random batches, chunks, prefix hits and preemptions: each row is the bits that its token alone gives.

    The texts are longer than a block of attention's keys; some begin alike; those that are preempted find some of
    their blocks again.
    """
    config, _ = write_family(tmp_path, family)
    draw = random.Random(5)
    beginning = [draw.randrange(config["vocab_size"]) for _ in range(40)]
    texts = [
        [*beginning[: draw.choice((0, 40))], *(draw.randrange(config["vocab_size"]) for _ in range(length))]
        for length in (265, 17, 40, 5, 33, 21)
    ]
    expected = alone(tmp_path, texts)
    runner = KeptLogits(tmp_path)
    done: dict[int, int] = {}
    rest, num_rows, num_cached = list(range(len(texts))), 0, 0
    while rest:
        for number in [one for one in done if draw.random() < 0.05]:
            runner.release(number)  # preempted
            del done[number]
        for number in draw.sample(rest, min(len(rest), draw.randint(1, 8))):
            if number not in done:
                done[number] = runner.add(number, texts[number])
                num_cached += done[number]
        chosen = draw.sample(sorted(done), draw.randint(1, len(done)))
        segments: list[tuple[int, list[int]]] = []
        for number in chosen:
            num = min(draw.choice((1, 1, 1, 2, 7, 33)), len(texts[number]) - done[number])
            segments.append((number, texts[number][done[number] : done[number] + num]))
            done[number] += num
            assert runner.reserve(number, done[number])
        for (number, _), row in zip(segments, runner.compute(*segments), strict=True):
            assert torch.equal(row, expected[number][done[number] - 1]), (number, done[number], segments)
            num_rows += 1
            if done[number] == len(texts[number]):
                runner.release(number)
                del done[number]
                rest.remove(number)
    assert num_rows > 30
    assert num_cached >= 32


def test_engine_gives_the_same_numbers_alone_and_among_others(tiny_model_path: Path) -> None:
    """Through the engine, seeded, with short steps: tokens and log probabilities are equal, not close."""
    overrides = {"engine.runner": "torch", "engine.batch_invariant": True, "engine.max_num_batched_tokens": 24}
    sampling: dict[str, Any] = {"max_tokens": 8, "seed": 3, "temperature": 1.0, "ignore_eos": True, "top_logprobs": 3}
    requests = [chat(f"{'Tell me more. ' * number}What is {number}?", **sampling) for number in range(5)]

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False, **overrides) as backend:
            together = [told_of(reply) for reply in await at_once(backend, requests)]
            assert together == [told_of(reply) for reply in await one_by_one(backend, requests)]
        async with engine_of(tiny_model_path, process=False, **overrides) as backend:
            assert together == [told_of(reply) for reply in await one_by_one(backend, requests)]
        assert [len(told) for told in together] == [8] * 5

    asyncio.run(work())


def told_of(reply: Any) -> list[tuple[str, Any]]:
    """An answer's tokens and log probabilities."""
    return [(one.token, (one.logprob, one.top_logprobs)) for delta in reply.deltas for one in delta.logprobs]


# --- attention ---


@pytest.mark.parametrize(("heads", "window"), [(Heads(9, 3, 64), None), (Heads(4, 4, 32), 24), (Heads(20, 1, 16), 300)])
def test_fixed_attention_is_the_plain_form(heads: Heads, window: int | None) -> None:
    """Sequences that decode, prompts and chunks over pages whose other contents are NaN, with a softcap, with sinks."""
    q, cache, batch = make_inputs([1, 1, 20, 1, 300, 5], [7, 400, 60, 300, 620, 5], heads, window=window)
    for softcap in (None, 20.0):
        expected = plain.attend(q, cache, batch, 0.2, window, softcap)
        torch.testing.assert_close(fixed.attend(q, cache, batch, 0.2, window, softcap), expected, atol=1e-5, rtol=0)
    told = (0.2, window, None, torch.linspace(-2, 4, heads.q))
    expected = plain.attend(q, cache, batch, *told)
    torch.testing.assert_close(fixed.attend(q, cache, batch, *told), expected, atol=1e-5, rtol=0)


def trial_of(
    *, window: int | None = None, softcap: float | None = None, dtype: str = "f32", has_sinks: bool = False
) -> AttentionTrial:
    shape = AttentionShape("cpu", dtype, dtype, 4, 2, 32, frozenset({None, window}), softcap, has_sinks)
    return AttentionTrial(shape, 0.2, torch.device("cpu"))


def test_trial_finds_no_bit_that_depends_on_the_batch() -> None:
    """Chunks, single queries and what is beside them, by torch's form."""
    for trial in (trial_of(has_sinks=True), trial_of(window=70, softcap=30.0), trial_of(dtype="bf16")):
        assert trial.fault(fixed.attend) is None
        assert trial.variance(fixed.attend) is None


@pytest.mark.parametrize("form", [sdpa.attend, attend])
def test_trial_finds_attention_that_depends_on_the_batch(form: Any) -> None:
    """Torch's own attention, and kernels of which some queries take one and some another, are found out."""
    assert "differ" in str(trial_of(window=70).variance(form))


class WithoutKeeping(PlainAttention):
    """A backend that says it has a form for the mode, which depends on the batch."""

    name = "careless"

    def open_invariant(self, shape: AttentionShape) -> Any:
        return sdpa.attend


def test_backend_that_does_not_keep_its_word_is_refused() -> None:
    """What computes the right numbers in other bits for other batches is an error that says where they differ."""
    careless = AttentionChoice((WithoutKeeping(),), is_auto=False)
    with pytest.raises(ConfigError, match=r"no attention is right \(careless: with window .* differ"):
        choose_invariant_attention(careless, trial_of(window=70))


@pytest.mark.parametrize("backend", [SdpaAttention(), FlexAttention()])
def test_backend_without_the_property_is_refused_by_name(backend: Any, tiny_model_path: Path) -> None:
    """Named with the mode, it is an error that says which may be named."""
    options = dataclasses.replace(OPTIONS, attention=AttentionChoice((backend,), is_auto=False))
    with pytest.raises(ConfigError, match=rf"attention is {backend.name}, which has no form .* triton or torch"):
        KeptLogits(tiny_model_path, options)


def test_backends_with_the_property_give_the_same_to_rounding(tiny_model_path: Path) -> None:
    """`torch` and, in the interpreter, `triton` are taken where they are named, and pass their trials."""
    rows: list[torch.Tensor] = []
    for backend in (PlainAttention(), TritonAttention()):
        options = dataclasses.replace(OPTIONS, attention=AttentionChoice((backend,), is_auto=False))
        runner = KeptLogits(tiny_model_path, options)
        runner.add(1, list(range(40)), most_cached=0)
        assert runner.reserve(1, 40)
        rows.append(runner.compute((1, list(range(40)))))
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=0)


# --- products ---


def test_blocks_cover_all_rows_in_few_sizes() -> None:
    """The largest that there are rows for, then the least, whose last may lack some."""
    assert list(blocks_of(1, (256, 64, 16))) == [(0, 16)]
    assert list(blocks_of(350, (256, 64, 16))) == [(0, 256), (256, 64), (320, 16), (336, 16)]
    assert list(blocks_of(33, (16,))) == [(0, 16), (16, 16), (32, 16)]
    assert not list(blocks_of(0, (64, 16)))


def test_only_sizes_of_the_same_bits_are_kept() -> None:
    """Of a library that adds up otherwise from 200 rows on, blocks are of fewer."""
    weight = torch.randn(24, 32)

    def by_rows(x: torch.Tensor) -> torch.Tensor:
        return x @ weight.t() + (1e-6 if len(x) >= 200 else 0.0)

    linear = BlockedLinear(by_rows, (24, 32), torch.float32, torch.device("cpu"))
    linear.settle()
    x = torch.randn(300, 32)
    assert [len(part) for part in x.split(64)] == [64, 64, 64, 64, 44]
    torch.testing.assert_close(linear(x), torch.cat([by_rows(part) for part in x.split(64)]), atol=0, rtol=0)


def test_library_whose_rows_depend_on_others_is_refused() -> None:
    """Where even blocks of one size give a row other bits at another place, the mode cannot be kept."""

    def uneven(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(len(x))[:, None] * 1e-6

    linear = BlockedLinear(uneven, (32, 32), torch.float32, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"batch_invariant cannot be kept on this machine: a product of 32 x 32"):
        linear.settle()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_torch_are_settled_and_right(dtype: torch.dtype) -> None:
    """A matrix of which only one of its shape is tried: any number of rows gives torch's product, row by row."""
    products = InvariantProducts()
    weight, bias, x = torch.randn(96, 80, dtype=dtype), torch.randn(96, dtype=dtype), torch.randn(300, 80, dtype=dtype)
    first, linear = products(torch.randn(96, 80, dtype=dtype)), products(weight, bias)
    products.settle()
    whole = linear(x)
    torch.testing.assert_close(whole, torch.nn.functional.linear(x, weight, bias), atol=1e-1, rtol=1e-2)
    for start, end in ((0, 1), (3, 20), (100, 290)):
        assert torch.equal(linear(x[start:end]), whole[start:end])
    assert first(x).shape == (300, 96)
    assert linear(x[:0]).shape == (0, 96)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_out", "num_in", "has_bias"), [(100, 80, True), (7, 33, False)])
def test_products_of_triton_are_settled_and_right(
    num_out: int, num_in: int, has_bias: bool, dtype: torch.dtype
) -> None:
    """The kernel, interpreted: torch's product to rounding over shapes that fill no tile; the same bits row by row."""
    weight = torch.randn(num_out, num_in, dtype=dtype)
    bias = torch.randn(num_out, dtype=dtype) if has_bias else None
    linear = TritonLinear(weight, bias)
    linear.settle()
    x = torch.randn(200, num_in + 3, dtype=dtype)[:, :num_in]
    whole = linear(x)
    torch.testing.assert_close(whole, torch.nn.functional.linear(x, weight, bias), atol=1e-3, rtol=2e-2)
    for start, end in ((0, 1), (3, 20), (100, 199)):
        assert torch.equal(linear(x[start:end]), whole[start:end])
    assert product(x[:0], weight, bias, is_wide=False).shape == (0, num_out)


# --- what cannot be kept ---


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"tensor_parallel_size": 2}, "engine.tensor_parallel_size", "whose ranks add up in any order"),
        ({"quantization": "keep"}, "engine.quantization", "whose products depend on the number of rows"),
    ],
)
def test_settings_without_the_property_are_refused_by_name(
    change: dict[str, Any], key: str, said: str, tiny_model_path: Path
) -> None:
    """Before anything is loaded, with what to set."""
    with pytest.raises(ConfigError, match=said) as caught:
        KeptLogits(tiny_model_path, dataclasses.replace(OPTIONS, **change))
    assert caught.value.key == key


# --- sampling ---


def test_log_sums_do_not_depend_on_other_rows() -> None:
    """Sums of whole numbers: to 2e-7 those of float64, and a row alone, of a long vocabulary, gives the same bits."""
    logits = 4 * torch.randn(9, 70_001)
    sums = sampling.log_sums(logits)
    torch.testing.assert_close(sums, logits.double().logsumexp(1), atol=2e-7, rtol=0)
    assert all(torch.equal(sampling.log_sums(logits[row : row + 1])[0], sums[row]) for row in range(9))
