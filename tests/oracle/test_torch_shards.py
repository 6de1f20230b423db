"""Ranks that each have a part of a model compute what the whole one does; here they are threads of one process."""

from __future__ import annotations

import queue
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.mixtures import random_mixture
from support.reference_decoder import FAMILIES, write_family, write_safetensors
from torch import Tensor

from pyagent import _rust
from pyagent.core.errors import ConfigError
from pyagent.core.runners.attention import AUTO_ATTENTION
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.memory.evictions import make_pool
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.engine.runners.torch.device import Target, target_of
from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape, DeviceBatch
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.input_batch import InputBatch
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.parallel.messages import (
    StartRank,
    options_told,
    start_codec,
    told_options,
)
from pyagent.infrastructure.engine.runners.torch.parallel.pieces import pieces_of
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Shard, Span
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.rank_model import RankModel
from pyagent.infrastructure.engine.runners.torch.stages import TorchStages
from pyagent.infrastructure.engine.runners.torch.step import PackedStep
from pyagent.infrastructure.engine.runners.torch.weights import load_weights

pytestmark = pytest.mark.oracle

OPTIONS = RunnerOptions(kv_dtype="f32", dtype="f32")
STEP = LargestStep(256, 8)


class Meeting:
    """Where the threads of a tensor group leave tensors for each other; queues lead from stage to stage."""

    def __init__(self, tp_size: int) -> None:
        self.left: list[Tensor] = [torch.empty(0)] * tp_size
        self.barrier = threading.Barrier(tp_size, timeout=60)


class ThreadRanks:
    """As `Ranks`, between threads."""

    def __init__(self, shard: Shard, meetings: list[Meeting], hidden: dict[int, queue.Queue[Tensor]]) -> None:
        self._shard = shard
        self._meeting = meetings[shard.stage]
        self._hidden = hidden

    def _all(self, x: Tensor) -> list[Tensor]:
        self._meeting.left[self._shard.tp_rank] = x
        self._meeting.barrier.wait()
        seen = [one.clone() for one in self._meeting.left]
        self._meeting.barrier.wait()
        return seen

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack(self._all(x)).sum(0)

    def join(self, x: Tensor) -> Tensor:
        return torch.cat(self._all(x), 1)

    def send(self, x: Tensor) -> None:
        self._hidden[self._shard.next].put(x)

    def receive(self, x: Tensor) -> Tensor:
        return x.copy_(self._hidden[self._shard.rank].get(timeout=60))


class Divided:
    """A model divided among threads, its block pool, and steps with it."""

    def __init__(
        self, path: Path, tp_size: int, pp_size: int, num_pages: int = 200, options: RunnerOptions = OPTIONS
    ) -> None:
        shards = [Shard(rank, tp_size, pp_size) for rank in range(tp_size * pp_size)]
        self.models = [RankModel(open_model(path, {}), target_of(options), shard, STEP, 1) for shard in shards]
        meetings = [Meeting(tp_size) for _ in range(pp_size)]
        hidden: dict[int, queue.Queue[Tensor]] = {shard.rank: queue.Queue() for shard in shards}
        for shard, model in zip(shards, self.models, strict=True):
            model.allocate(num_pages, ThreadRanks(shard, meetings, hidden), AUTO_ATTENTION, lambda _: TorchStages())
        self.inputs = InputBatch(self.models[0].batch_shape, self.models[0].layers)
        self.pool = make_pool(num_pages, self.models[0].layers.groups, OPTIONS.eviction, OPTIONS.prefix_hash)

    def compute(self, *segments: tuple[int, list[int]], piece_tokens: int = 256) -> Tensor:
        """Compute the next tokens of sequences; returns the logits of each one's last, but of the last sequence's."""
        lengths = [len(tokens) for _, tokens in segments]
        for sequence, tokens in segments:
            self.pool.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        tokens = [token for _, tokens in segments for token in tokens]
        num_outputs = max(1, len(segments) - 1)  # the last is a chunk of a prompt
        batch = Batch([sequence for sequence, _ in segments], lengths, tokens, [None] * num_outputs)  # type: ignore[list-item]
        packed = self.inputs.pack(batch, self.pool)
        pieces = pieces_of(packed, 3, piece_tokens)
        with ThreadPoolExecutor(len(self.models)) as threads:
            logits, *_ = threads.map(lambda model: [model.compute(piece) for piece in pieces], self.models)
        for sequence, new in segments:
            self.pool.commit(sequence, new)
        return torch.cat(logits)


@pytest.mark.parametrize(
    ("family", "tp_size", "pp_size"),
    [*((family, 4, 1) for family in FAMILIES), *((family, 2, 2) for family in sorted(FAMILIES)[::3]), ("gemma3", 1, 3)],
)
def test_parts_compute_what_the_whole_does(family: str, tp_size: int, pp_size: int, tmp_path: Path) -> None:
    """Every family, also with fewer key-value heads than ranks: logits to 1e-5 of the largest, over mixed steps."""
    config, tensors = write_family(tmp_path, family)
    vocab_size = config["vocab_size"] = config["vocab_size"] - 1  # which no number of ranks divides
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = tensors[name][:vocab_size]
    write_safetensors(tmp_path, config, tensors)
    expect_parts_equal(tmp_path, vocab_size, tp_size, pp_size)


@pytest.mark.parametrize(
    ("family", "tp_size", "pp_size"),
    [("qwen2_moe, dense layers", 4, 1), ("qwen2_moe, dense layers", 2, 2), ("gpt_oss", 2, 1)],
)
def test_parts_of_a_mixture_compute_what_the_whole_does(
    family: str, tp_size: int, pp_size: int, tmp_path: Path
) -> None:
    """Ranks have columns of each expert, of the MLP beside them, and of layers without experts; sinks, and biases."""
    pytest.importorskip("transformers")
    random_mixture(family, tmp_path)
    expect_parts_equal(tmp_path, 250, tp_size, pp_size)


def expect_parts_equal(path: Path, vocab_size: int, tp_size: int, pp_size: int) -> None:
    """A model's logits, whole and divided, over mixed steps: to 1e-5 of the largest."""
    prompts = {sequence: [(7 * at + at * at + sequence) % vocab_size for at in range(40)] for sequence in (1, 2, 3)}
    results: list[list[Tensor]] = []
    for sizes in ((1, 1), (tp_size, pp_size)):
        divided = Divided(path, *sizes)
        for sequence, prompt in prompts.items():
            assert divided.pool.add(sequence, prompt) == 0
        steps = [
            ((1, 0, 17), (2, 0, 1), (3, 0, 30)),
            ((1, 17, 18), (2, 1, 40)),
            ((3, 30, 31), (2, 39, 40), (1, 18, 30)),
        ]
        results.append(
            [divided.compute(*((one, prompts[one][first:end]) for one, first, end in step)) for step in steps]
        )
    for ours, expected in zip(*results, strict=True):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_stages_keep_the_bits_of_batch_invariance(tmp_path: Path) -> None:
    """With `engine.batch_invariant`, three stages and pieces of any size give the bits that one device gives."""
    config, _ = write_family(tmp_path, "gemma3")
    prompts = {one: [(7 * at + at * at + one) % config["vocab_size"] for at in range(40)] for one in (1, 2)}
    results: list[list[Tensor]] = []
    for pp_size, piece_tokens in ((1, 256), (3, 256), (3, 7)):
        divided = Divided(tmp_path, 1, pp_size, options=replace(OPTIONS, batch_invariant=True))
        assert [divided.pool.add(one, prompt) for one, prompt in prompts.items()] == [0, 0]
        steps = [((1, 0, 33), (2, 0, 1)), ((1, 33, 34), (2, 1, 20)), ((2, 20, 21), (1, 34, 40))]
        results.append(
            [
                divided.compute(
                    *((one, prompts[one][first:end]) for one, first, end in step), piece_tokens=piece_tokens
                )
                for step in steps
            ]
        )
    for ours in results[1:]:
        assert all(map(torch.equal, ours, results[0]))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("piece_tokens", [1, 7])
def test_pieces_of_a_step_compute_what_it_does(family: str, piece_tokens: int, tmp_path: Path) -> None:
    """Cut at any token, within prompts too: the same logits, in the same order, from three stages at work at once."""
    config, _ = write_family(tmp_path, family)
    prompts = {
        sequence: [(7 * at + at * at + sequence) % config["vocab_size"] for at in range(40)] for sequence in range(6)
    }
    results: list[list[Tensor]] = []
    for piece in (256, piece_tokens):
        divided = Divided(tmp_path, 1, 3)
        for sequence, prompt in prompts.items():
            assert divided.pool.add(sequence, prompt) == 0
        steps = [
            ((0, 0, 20), (1, 0, 1), (2, 0, 5)),
            ((0, 20, 21), (1, 1, 2), (3, 0, 40), (2, 5, 33)),
            ((0, 21, 22), (1, 2, 3), (2, 33, 34), (4, 0, 1), (5, 0, 2)),
        ]
        results.append(
            [
                divided.compute(*((one, prompts[one][first:end]) for one, first, end in step), piece_tokens=piece)
                for step in steps
            ]
        )
    for ours, expected in zip(*results, strict=True):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(("tp_size", "pp_size"), [(2, 1), (2, 2)])
def test_biases_after_sums_are_added_once(tp_size: int, pp_size: int, tmp_path: Path) -> None:
    """Those of the attention's output and of the FFN's last matrix, which every rank of a stage could add."""
    config, tensors = write_family(tmp_path, "llama")
    for layer in range(3):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.{layer}.{name}.bias"] = [[0.1 * (at % 7) - 0.2 for at in range(64)]]
    write_safetensors(tmp_path, {**config, "attention_bias": True, "mlp_bias": True}, tensors)
    results: list[Tensor] = []
    for sizes in ((1, 1), (tp_size, pp_size)):
        divided = Divided(tmp_path, *sizes)
        assert divided.pool.add(1, [*range(20)]) == divided.pool.add(2, [*range(20)]) == 0
        results.append(divided.compute((1, [*range(20)]), (2, [1])))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5 * float(results[0].abs().max()))


@given(
    num_queries=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    num_before=st.lists(st.integers(0, 40), min_size=8, max_size=8),
    num_outputs=st.integers(0, 8),
    num_stages=st.integers(1, 4),
    least_tokens=st.integers(1, 12),
)
def test_pieces_have_every_token_once(
    num_queries: list[int], num_before: list[int], num_outputs: int, num_stages: int, least_tokens: int
) -> None:
    """In order, with its sequence's row and the tokens before it; outputs and what changes are those of the step."""
    num = len(num_queries)
    num_tokens = [before + new for before, new in zip(num_before, num_queries, strict=False)]
    numbers = array("i", [2, 77, *range(sum(num_queries)), *accumulate(num_queries, initial=0)])
    step = PackedStep(bytearray(numbers), 1, num_queries, num_tokens, min(num_outputs, num), [16], has_tokens=True)
    positions: list[tuple[int, int, int]] = []  # token, position, row
    outputs: list[int] = []
    pieces = pieces_of(step, num_stages, least_tokens)
    assert [piece.num_written for piece in pieces] == [1] + [0] * (len(pieces) - 1)
    device_batch = DeviceBatch(BatchShape(8, 4, 1), 3, torch.device("cpu"))
    for piece in pieces:
        new, starts = (column.tolist() for column in device_batch.take(piece))
        assert (starts[-1], piece.num_queries) == (len(new), [end - start for start, end in pairwise(starts)])
        assert len(pieces) == 1 or len(new) >= least_tokens
        for at, (start, end) in enumerate(pairwise(starts)):
            length, row = piece.num_tokens[at], piece.first_row + at
            positions += [(new[place], length - (end - place), row) for place in range(start, end)]
        outputs += [new[starts[row + 1] - 1] for row in range(piece.num_outputs)]
        if len(pieces) > 1 and piece.shared != [0]:
            decoding = [piece.first_row + at for at, new in enumerate(piece.num_queries) if new == 1]
            assert len(decoding) > 1
            assert {num_queries[row] for row in decoding} == {1}
    expected = [(before + at, row) for row, before in enumerate(num_before[:num]) for at in range(num_queries[row])]
    assert positions == [(token, at, row) for token, (at, row) in enumerate(expected)]
    assert outputs == [last - 1 for last in [*accumulate(num_queries)][: step.num_outputs]]


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2"])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(2, 1), (1, 3), (2, 2)])
def test_ranks_hold_their_part_only(family: str, tp_size: int, pp_size: int, tmp_path: Path) -> None:
    """The ranks' matrices are the model's, each once; the sizes told beforehand are those that are there."""
    write_family(tmp_path, family)
    whole, divided = Divided(tmp_path, 1, 1), Divided(tmp_path, tp_size, pp_size)

    def num_weights(model: RankModel) -> int:
        target = Target(torch.device("cpu"), torch.float32, torch.float32)
        weights = load_weights(_rust.ModelFile(tmp_path), str(tmp_path), model.part, target, 1, ReadProgress())
        embedding = weights.embedding.nbytes
        return embedding + sum(layer.qkv(torch.zeros(1, 64)).nbytes for layer in weights.layers)

    assert sum(map(num_weights, divided.models)) == num_weights(whole.models[0])
    for model in divided.models:
        assert model.kv.slots[0].keys.shape[2] == whole.models[0].kv.slots[0].keys.shape[2] // tp_size
        assert model.sizes.weight_bytes < whole.models[0].sizes.weight_bytes
    if family == "llama":
        pages = [sum(slot.keys.nbytes for slot in model.kv.slots) for model in (whole.models[0], *divided.models)]
        slots = -(-3 // pp_size) * pp_size  # stages have as many, though one may have a layer less
        assert sum(pages[1:]) * 3 == pages[0] * slots


@pytest.mark.parametrize("num_layers", [1, 2, 5, 26, 61])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_stages_have_each_layer_once(num_layers: int, num_stages: int) -> None:
    """Layers are divided in order, and each has a slot of its own in a page that its group's tables name."""
    windows = [None if at % 6 == 5 else 512 for at in range(num_layers)]
    stages = [KvLayers.of(windows, num_stages, stage) for stage in range(num_stages)]
    assert sum(len(stage.places) for stage in stages) == num_layers
    assert len({(stage.groups, stage.num_slots, stage.tables) for stage in stages}) == 1
    first = 0
    for stage in stages:
        assert len(set(stage.places)) == len(stage.places)
        for place, window in zip(stage.places, windows[first:], strict=False):
            assert stage.groups[stage.tables[place.table][0]][1] == (window or 0)
            assert place.slot < stage.num_slots
        first += len(stage.places)


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "said"),
    [
        (3, 1, "tensor_parallel_size is 3, which does not divide the model's 4 attention heads"),
        (1, 4, "pipeline_parallel_size is 4, which does not divide the model's 3 layers"),
        (8, 1, "tensor_parallel_size is 8, which does not divide the model's 4 attention heads"),
    ],
)
def test_sizes_that_do_not_divide_a_model_are_refused(tp_size: int, pp_size: int, said: str, tmp_path: Path) -> None:
    """When the model is looked at, before any process is started; the setting is named."""
    write_family(tmp_path, "llama")
    options = RunnerOptions(tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size)
    with pytest.raises(ConfigError, match=said) as caught:
        TorchRunnerFactory().estimate(tmp_path, options, STEP)
    assert caught.value.key in {"engine.tensor_parallel_size", "engine.pipeline_parallel_size"}


def test_cpu_runner_refuses_to_be_divided(tiny_model_path: Path) -> None:
    """It has one process: the setting is named, and what to do."""
    with pytest.raises(ConfigError, match=r"set engine\.tensor_parallel_size to 1, or engine\.runner to torch"):
        CPU.estimate(tiny_model_path, RunnerOptions(tensor_parallel_size=2), STEP)


def test_every_option_of_a_runner_reaches_other_ranks() -> None:
    """But for those that only rank 0 has a use for, and attention, which is told by its name."""
    options = RunnerOptions(threads=3, kv_bytes=5, kv_dtype="f16", dtype="bf16", quantization="keep", isa="avx2")
    told = start_codec.decode(start_codec.encode(start_of(options)))
    alone = {"attention", "eviction", "when_lost", "architectures"}
    assert {field.name for field in fields(RunnerOptions)} - told.options.keys() <= alone
    theirs = options_told(told.options)
    assert all(getattr(theirs, name) == getattr(options, name) for name in told.options)


def start_of(options: RunnerOptions) -> StartRank:
    given = told_options(options)
    words = {"folder": "f", "endpoint": "e", "reports": "r", "path": "p", "device": "cpu"}
    numbers = {"rank": 1, "log_level": 1, "engine_id": 1}
    place = {"attention": None, "largest_step": (1, 1, None), "has_own_device": False}
    return StartRank(options=given, **words, **numbers, **place)  # type: ignore[arg-type]


def test_memory_told_of_ranks_is_that_of_all(tiny_model_path: Path) -> None:
    """On torch's CPU device all ranks are on this machine: their weights and pages are the model's, the rest grows."""
    factory = TorchRunnerFactory()
    one, four = (
        factory.estimate(tiny_model_path, RunnerOptions(kv_dtype="f32", **sizes), STEP)
        for sizes in ({}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2})
    )
    assert four.page_bytes * sum(pages for _, _, pages in four.kv_groups) == one.page_bytes
    assert 0.9 < four.weight_bytes / one.weight_bytes < 1.3
    assert four.workspace_bytes > one.workspace_bytes


def test_spans_cover_everything_once() -> None:
    """Shares of any number follow each other without gaps."""
    for total in (1, 7, 64):
        for num in (1, 2, 5):
            shares = [Span.share(total, rank, num) for rank in range(num)]
            assert [place for share in shares for place in range(share.first, share.end)] == list(range(total))
