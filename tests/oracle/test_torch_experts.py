"""Mixtures of experts on the torch runner, on torch's CPU device: transformers' logits, and steps fit for capture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.captured_steps import Graphing
from support.laid_out_folders import in_mxfp4
from support.mixtures import random_mixture, write_gpt_oss
from support.sparse_models import CONFIGS, random_model, tensors_of
from support.torch_sequences import EXACT, STEP, Sequences, torch_runner
from torch.fx.experimental.proxy_tensor import make_fx

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.runners.torch import experts, sizes
from pyagent.infrastructure.engine.runners.torch.experts import (
    DenseStack,
    ExpertMlp,
    GroupedExperts,
    Mxfp4Stack,
    StackedExperts,
    choose_experts,
)
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.layers import ClampedSwiglu
from pyagent.infrastructure.engine.runners.torch.linear import DenseLinear
from pyagent.infrastructure.engine.runners.torch.packed_experts import (
    GgufExperts,
    PackedExperts,
    has_mxfp4,
    packed_place,
)
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised import mxfp4
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import Mxfp4
from pyagent.infrastructure.engine.runners.torch.stages import TorchStages

pytestmark = pytest.mark.oracle

ONE_THREAD = dataclasses.replace(EXACT, threads=1)
TOKENS = [(7 * place + place * place) % 250 for place in range(60)]


@pytest.mark.parametrize("family", ["qwen2_moe, dense layers", "gpt_oss"])
def test_a_rows_bits_do_not_depend_on_the_batch(family: str, tmp_path: Path) -> None:
    """`engine.batch_invariant`: experts, and whom they share a product with, change nothing; nor do sinks."""
    random_mixture(family, tmp_path)
    options = RunnerOptions(threads=1, kv_bytes=1 << 22, batch_invariant=True)
    runner = torch_runner(tmp_path, options)
    alone, rows = Sequences(runner), list[Any]()
    for token in TOKENS[:24]:
        alone.compute((0, [token]))
        rows.append(runner.rows[0])
    beside = Sequences(runner)
    beside.compute(*((length, TOKENS[:length]) for length in range(1, 25)))
    for length in range(1, 25):
        assert (runner.rows[length - 1] == rows[length - 1]).all(), length
    beside.compute((12, TOKENS[12:13]), (3, TOKENS[3:20]), (16, TOKENS[16:17]))
    assert (runner.rows == [rows[12], rows[19], rows[16]]).all()


@pytest.mark.parametrize("family", ["glm4_moe", "gpt_oss"])
def test_captured_steps_compute_what_eager_ones_do(family: str, tmp_path: Path) -> None:
    """Replayed for more rows than there are, of padding: the same tokens, of experts in 4 bits too."""
    random_mixture(family, tmp_path)
    options = ONE_THREAD
    if family == "gpt_oss":
        in_mxfp4(tmp_path)
        options = dataclasses.replace(options, quantization="keep")
    said: list[list[int]] = []
    for kind in (torch_runner, lambda path, options: Graphing(path, options, STEP)):
        runner = kind(tmp_path, options)
        sequences, tokens, found = Sequences(runner), [3, 7, 9], list[int]()
        for step in range(30):
            tokens = sequences.compute(*((number, [token]) for number, token in enumerate(tokens[: 3 - step // 20])))
            found += tokens
            while isinstance(runner, Graphing) and runner.when_idle():
                pass
        said.append(found)
        if isinstance(runner, Graphing):
            assert runner.graphs is not None
            assert runner.graphs.num_replayed > 15
    assert said[0] == said[1]


def test_steps_that_ask_the_host_are_not_captured(tmp_path: Path) -> None:
    """`engine.batch_invariant` groups tokens in steps that decode too: a capture of them would fail."""
    random_mixture("glm4_moe", tmp_path)
    runner = Graphing(tmp_path, dataclasses.replace(ONE_THREAD, batch_invariant=True), STEP)
    assert runner.graphs is None
    assert not runner.twin.places


# --- the parts ---


def about(**fields: Any) -> Any:
    """A description of experts."""
    plain = {"is_rated_by_sigmoid": False, "is_renormalised": True, "weight_scale": 1.0}
    return SimpleNamespace(**{"num_used": 2, "num_groups": 1, "num_used_groups": 1, **plain, **fields})


def in_4_bits(num_experts: int, draw: torch.Generator) -> StackedExperts:
    """Random experts in MXFP4, with biases."""
    stacks: list[Mxfp4Stack] = []
    for rows, columns in ((64, 32), (32, 32)):
        numbers = torch.randint(256, (num_experts, rows, columns // 2), generator=draw).to(torch.uint8)
        scales = torch.randint(124, 128, (num_experts, rows, columns // 32), generator=draw).to(torch.uint8)
        biases = torch.randn(num_experts, rows, generator=draw)
        stacks.append(Mxfp4Stack(Mxfp4(numbers, scales), biases, torch.float32))
    return StackedExperts(*stacks)


def block(
    config: Any, num_experts: int = 6, *, grouped: bool = False, has_4_bits: bool = False
) -> tuple[ExpertMlp, torch.Tensor]:
    """A mixture of small random experts, and rows for it."""
    draw = torch.Generator().manual_seed(4)
    if has_4_bits:
        router = DenseLinear(torch.randn(num_experts, 32, generator=draw), torch.randn(num_experts, generator=draw))
        gate = ClampedSwiglu(1.702, 7.0)
        mlp = ExpertMlp(config, router, None, in_4_bits(num_experts, draw), None, None, gate)
        return mlp, torch.randn(9, 32, generator=draw)
    gate_up, down = torch.randn(num_experts, 24, 16, generator=draw), torch.randn(num_experts, 16, 12, generator=draw)
    both = zip(gate_up, down, strict=True)
    products = GroupedExperts([(DenseLinear(one), DenseLinear(two)) for one, two in both])
    router, correction = torch.randn(num_experts, 16, generator=draw), torch.rand(num_experts, generator=draw)
    shared = None
    kind = products if grouped else StackedExperts(DenseStack(gate_up), DenseStack(down))
    mlp = ExpertMlp(config, DenseLinear(router), correction, kind, shared, None, "silu")
    return mlp, torch.randn(9, 16, generator=draw)


def computed(mlp: ExpertMlp) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step that decodes, as a function of its rows."""
    return lambda x: mlp(x, TorchStages(), is_decode=True)


@pytest.mark.parametrize(
    ("config", "has_4_bits"),
    [(about(), False), (about(is_rated_by_sigmoid=True, num_groups=3, num_used_groups=2), False), (about(), True)],
)
def test_steps_that_decode_wait_for_nothing(config: Any, has_4_bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced with symbols for data, no shape follows from the device's numbers and the host asks for none of them.

    Of the form that groups tokens this would not hold: it is refused by the same trace. Pieces of the weights that are
    gathered at a time are cut by shapes alone.
    """
    mlp, x = block(config, has_4_bits=has_4_bits)
    for num_bytes in (1 << 20, 30_000 if has_4_bits else 5000):  # all at once; a pair and a half
        monkeypatch.setattr(experts, "GATHER_BYTES", num_bytes)
        graph = make_fx(computed(mlp), tracing_mode="fake", _allow_non_fake_inputs=True)(x)
        called = " ".join(str(node.target) for node in graph.graph.nodes)
        assert not [word for word in ("_local_scalar_dense", "nonzero", "bincount", "unique") if word in called]
        torch.testing.assert_close(graph(x), mlp(x, TorchStages(), is_decode=False), atol=1e-4, rtol=1e-5)
    grouped, x = block(config, grouped=True)
    with pytest.raises(Exception, match=r"data-dependent|bincount|tolist|item"):
        make_fx(computed(grouped), tracing_mode="fake", _allow_non_fake_inputs=True)(x)


def test_the_first_of_equal_experts_are_chosen() -> None:
    """Equal ratings, sigmoids that are one number, and a correction that chooses and does not weigh."""
    ratings = torch.tensor([[1.0, 2, 2, 2, 0], [30, 40, -1, 35, 41]])
    assert choose_experts(ratings, about(), None)[1].tolist() == [[1, 2], [4, 1]]
    found = choose_experts(ratings, about(is_rated_by_sigmoid=True), None)
    assert found[1].tolist() == [[1, 2], [4, 1]]
    assert found[0].tolist() == [[0.5, 0.5]] * 2
    correction = torch.tensor([0.0, 0, 0, 0, 9])
    weights, places = choose_experts(ratings[:1], about(is_renormalised=False, weight_scale=2.0), correction)
    assert places.tolist() == [[4, 1]]
    torch.testing.assert_close(weights[0], 2 * ratings[0].softmax(0)[[4, 1]])


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    """A group is as good as its best two: one very good expert among bad ones is left out."""
    ratings = torch.tensor([[9.0, -9, -9, 5, 5, 0, 4, 4, 4]]) / 10
    config = about(is_rated_by_sigmoid=True, num_groups=3, num_used_groups=2)
    assert choose_experts(ratings, config, torch.zeros(9))[1].tolist() == [[3, 4]]
    few = about(is_rated_by_sigmoid=True, num_groups=9, num_used_groups=2)  # of one expert each
    assert choose_experts(ratings, few, torch.zeros(9))[1].tolist() == [[0, 3]]


# --- files ---


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """gpt-oss with experts in MXFP4, as a folder and as a GGUF file."""
    return write_gpt_oss(tmp_path_factory.mktemp("gpt_oss"))[:2]


def test_experts_in_4_bits_are_told_as_such(gpt_oss: tuple[Path, Path]) -> None:
    """Kept, they take what the file has; dequantised, a number each."""
    tensors = tensors_of(gpt_oss[0])
    packed = sum(one.numel() for name, one in tensors.items() if name.endswith(("_blocks", "_scales")))
    plain = sum(one.numel() for name, one in tensors.items() if name.endswith("weight") and "norm" not in name)
    for path in gpt_oss:
        told = [
            TorchRunnerFactory().estimate(path, dataclasses.replace(ONE_THREAD, **one), STEP).weight_bytes
            for one in ({"quantization": "keep"}, {"quantization": "none"})
        ]
        assert told == [4 * plain + packed, 4 * plain + 4 * packed * 32 // 17]


def test_numbers_of_4_bits_are_the_gguf_packages() -> None:
    """Every byte and every scale that is finite, from GGUF's blocks: bit for bit, in bfloat16 by one rounding."""
    gguf = pytest.importorskip("gguf")
    blocks = torch.randint(256, (3, 86, 17), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    blocks[..., 0] = torch.arange(258).view(3, 86) % 252  # of larger ones the package's products are infinite
    kind = gguf.GGMLQuantizationType.MXFP4
    expected = torch.from_numpy(gguf.quants.dequantize(blocks.flatten(1).numpy(), kind).copy())
    found = mxfp4.of_gguf(blocks)
    assert torch.equal(found.dequantised(torch.float32), expected)
    assert torch.equal(found.dequantised(torch.bfloat16), expected.to(torch.bfloat16))


def test_a_ranks_experts_in_4_bits_are_columns_of_the_whole(gpt_oss: tuple[Path, Path]) -> None:
    """Of gates, ups and downs, from a folder and a GGUF file; columns that share a scale are not parted."""
    hidden, cpu, block = Span.whole(64), torch.device("cpu"), "blk.1"
    for path in gpt_oss:
        file = _rust.ModelFile(path)
        place = packed_place(file, block)
        make = partial(GgufExperts, file, block) if place is None else partial(PackedExperts, file, str(path), place, 6)
        whole, own = (make(hidden, inside) for inside in (Span.whole(96), Span(32, 64, 96)))
        for expert in (0, 5):
            (gate_up, down), part = (
                [one.dequantised(torch.float32) for one in of.kept(expert, cpu)] for of in (whole, own)
            )
            gates, ups = gate_up.chunk(2)
            assert torch.equal(part[0], torch.cat((gates[32:], ups[32:])))
            assert torch.equal(part[1], down[:, 32:])
        kept = [has_mxfp4(file, block, hidden, Span(*inside, 96)) for inside in ((32, 64), (0, 48), (16, 32))]
        assert kept == [True, False, False]


@pytest.mark.parametrize(
    ("end", "change", "said"),
    [
        ("gate_up_proj_scales", None, "is missing: is the model whole"),
        ("down_proj_bias", None, "is missing"),
        ("down_proj_blocks", lambda one: one[:, :-1], r"is \[6, 63, 3, 16\]; expected \[6, 64, 3, 16\]"),
        ("gate_up_proj_bias", lambda one: one[:, :-2], r"is .*; expected \[6, 192\]"),
        ("gate_up_proj_scales", lambda one: one.to(torch.int8), "is of element type I8; expected U8"),
    ],
)
def test_faulty_packed_experts_are_named(
    end: str, change: Any, said: str, gpt_oss: tuple[Path, Path], tmp_path: Path
) -> None:
    """A tensor that is missing, of another shape or type, before any of the layer's is read."""
    from safetensors.torch import save_file

    tensors, name = tensors_of(gpt_oss[0]), f"model.layers.1.mlp.experts.{end}"
    faulty = tensors.pop(name)
    if change is not None:
        tensors[name] = change(faulty).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((gpt_oss[0] / "config.json").read_text())
    with pytest.raises(ModelError, match=rf"layers\.1\.mlp\.experts\.{end}' {said}"):
        torch_runner(tmp_path, ONE_THREAD)


def test_memory_counts_every_expert(tmp_path: Path) -> None:
    """What the runner is told to need of weights is what its tensors take, the experts that no token has too."""
    random_mixture("qwen2_moe, dense layers", tmp_path)
    needs = TorchRunnerFactory().estimate(tmp_path, ONE_THREAD, STEP)
    tensors = tensors_of(tmp_path)
    numbers = sum(tensor.numel() for name, tensor in tensors.items() if "norm" not in name and "bias" not in name)
    assert needs.weight_bytes == 4 * numbers
    fewer = TorchRunnerFactory().estimate(tmp_path, dataclasses.replace(ONE_THREAD, dtype="bf16"), STEP)
    assert needs.weight_bytes / 2 <= fewer.weight_bytes < 0.51 * needs.weight_bytes  # routers stay float32


def test_steps_count_an_expert_larger_than_what_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is gathered at least: of Mixtral 8x22B it has 604 MB."""
    random_mixture("qwen2_moe, dense layers", tmp_path)
    told: list[int] = []
    for num_bytes in (0, 1, 1 << 40):
        monkeypatch.setattr(sizes, "EXPERT_BYTES", num_bytes)
        told.append(TorchRunnerFactory().estimate(tmp_path, ONE_THREAD, STEP).workspace_bytes)
    config = json.loads((tmp_path / "config.json").read_text())
    expert_bytes = 4 * 3 * config["moe_intermediate_size"] * config["hidden_size"]
    assert told[0] == told[1] == told[2] - (1 << 40) + expert_bytes


def test_an_expert_that_is_missing_or_of_another_size_is_named(tmp_path: Path) -> None:
    """Before anything is computed; so is a correction that the family has."""
    from safetensors.torch import save_file

    random_mixture("glm4_moe", tmp_path)
    tensors = tensors_of(tmp_path)
    names = ("experts.5.up_proj.weight", "gate.e_score_correction_bias")
    for end in names:
        name = f"model.layers.2.mlp.{end}"
        for other in ({}, {name: tensors[name][:-1].contiguous()}):
            save_file(
                {**{one: tensors[one] for one in tensors if one != name}, **other}, tmp_path / "model.safetensors"
            )
            with pytest.raises(ModelError, match=r"blk\.2\.(ffn_up_exps\.5\.weight|exp_probs_b\.bias)"):
                torch_runner(tmp_path, ONE_THREAD)


def test_mixtures_that_only_the_cpu_computes_are_refused_by_name(tmp_path: Path) -> None:
    """With what may be done instead."""
    random_model("llama4_text", tmp_path, CONFIGS["llama4_text"])
    with pytest.raises(ModelError, match=r"llama4 with experts is not implemented.*set engine\.runner to cpu"):
        torch_runner(tmp_path, ONE_THREAD)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama4_text"
