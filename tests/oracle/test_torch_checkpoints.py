"""Quantised checkpoints in the torch runner: the weights that their formats say, and products that are theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.quantised_folder import FFN, FLOAT8, FORMATS, HIDDEN, Written, write_quantised

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.linear import Linear
from pyagent.infrastructure.engine.runners.torch.models import DescribedModel
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.quantised.linear import GroupedLinear
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes
from pyagent.infrastructure.engine.runners.torch.weights import Layer, Weights, load_weights

pytestmark = pytest.mark.oracle

CPU = torch.device("cpu")
COLUMNS = {"qkv": HIDDEN, "attention_output": HIDDEN, "mlp.gate_up": HIDDEN, "mlp.down": FFN}
MOST_ERROR = {"fp8-tensor": 6e-2, "fp8-row": 4e-2, "fp8-block": 4e-2, "int8-row": 1.5e-2}
"""Of products whose inputs are quantised, as a share: e4m3 keeps 4 bits of a number, INT8 a 127th of the largest."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda name: write_quantised(folder / name, name))


def weights_of(path: Path, *, keeps: bool = False, shard: Shard | None = None) -> Weights:
    target = Target(CPU, torch.float32, torch.float32, keeps)
    file = _rust.ModelFile(path)
    return load_weights(file, str(path), ModelPart.of(file.config, shard or Shard()), target, 2, ReadProgress())


def linears(layer: Layer) -> dict[str, Linear]:
    return {name: attrgetter(name)(layer) for name in COLUMNS}


def furthest(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_the_weights_that_it_stands_for(name: str, written: Callable[[str], Written]) -> None:
    """Packed numbers, scales, zero points and orders of columns become the numbers that were packed, to rounding."""
    model = written(name)
    for layer, plain in zip(weights_of(model.path).layers, weights_of(model.plain_path).layers, strict=True):
        for part, linear in linears(layer).items():
            rows = torch.eye(COLUMNS[part])
            torch.testing.assert_close(linear(rows), linears(plain)[part](rows), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_products_are_those_of_the_weights(name: str, written: Callable[[str], Written]) -> None:
    """What stays quantised multiplies as its weights do: to rounding, or as its quantised inputs allow."""
    model = written(name)
    layer, plain = weights_of(model.path, keeps=True).layers[0], weights_of(model.plain_path).layers[0]
    for part, linear in linears(layer).items():
        x = torch.randn(5, COLUMNS[part], generator=torch.Generator().manual_seed(3))
        assert isinstance(linear, GroupedLinear)
        assert furthest(linear(x), linears(plain)[part](x)) < MOST_ERROR.get(name, 1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_estimate_is_what_the_weights_take(name: str, written: Callable[[str], Written]) -> None:
    """What is said before loading counts planes, scales and zero points, and what is dequantised as such."""
    model = DescribedModel(written(name).path, None, None)
    part, weights = ModelPart.of(model.config, Shard()), weights_of(written(name).path, keeps=True)
    target = Target(CPU, torch.float32, torch.float32, keeps_quantised=True)
    sizes = Sizes.of(model, part, KvLayers.of(model.config.windows), LargestStep(64, 4), target)
    taken = 2 * weights.embedding.nbytes  # and an output, which is not quantised
    for layer in weights.layers:
        taken += sum(linear.num_bytes for linear in linears(layer).values() if isinstance(linear, GroupedLinear))
    assert sizes.weight_bytes == taken


@pytest.mark.parametrize("name", ["gptq", "gptq-order", "awq", "packed-zeros", "fp8-tensor", "fp8-block", "int8-row"])
def test_ranks_share_a_checkpoint(name: str, written: Callable[[str], Written]) -> None:
    """Two ranks' rows lie one below the other, and products of their columns sum to the whole's."""
    model = written(name)
    plain = weights_of(model.plain_path).layers[0]
    ranks = [weights_of(model.path, keeps=True, shard=Shard(rank, 2)).layers[0] for rank in range(2)]
    x = torch.randn(3, FFN, generator=torch.Generator().manual_seed(4))
    total = sum(rank.mlp.down(share) for rank, share in zip(ranks, x.chunk(2, 1), strict=True))
    assert isinstance(total, torch.Tensor)
    assert furthest(total, plain.mlp.down(x)) < MOST_ERROR.get(name, 1e-6)
    gates = [rank.mlp.gate_up(x[:, :HIDDEN]).chunk(2, 1) for rank in ranks]
    found = torch.cat([part[0] for part in gates] + [part[1] for part in gates], 1)
    assert furthest(found, plain.mlp.gate_up(x[:, :HIDDEN])) < MOST_ERROR.get(name, 1e-6)


@pytest.mark.parametrize("name", ["gptq", "packed-zeros", "fp8-row"])
def test_fused_matrices_are_cut(name: str, tmp_path: Path) -> None:
    """Phi-3's query, key and value lie in one quantised matrix."""
    model = write_quantised(tmp_path, name, "phi3")
    layer, plain = weights_of(model.path).layers[0], weights_of(model.plain_path).layers[0]
    for part, linear in linears(layer).items():
        rows = torch.eye(COLUMNS[part])
        torch.testing.assert_close(linear(rows), linears(plain)[part](rows), rtol=1e-6, atol=1e-7)


QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("gptq", {"quant_method": "bitsandbytes"}, "'quant_method': \"bitsandbytes\", which is not implemented"),
        ("gptq", {"bits": 3}, "'bits': 3, which is not implemented; there are 4, 8"),
        ("gptq", {"bits": True}, "'bits': true, which is not implemented"),
        ("gptq", {"group_size": 0}, "'group_size': 0; expected a number of columns, or -1"),
        ("gptq", {"group_size": 1 << 40}, "'group_size': 1099511627776; expected"),
        ("gptq", {"sym": "no"}, "'sym': \"no\"; expected true or false"),
        ("gptq", {"checkpoint_format": "marlin"}, "'checkpoint_format': \"marlin\", which is not implemented"),
        ("gptq", {"dynamic": {"-:lm_head": {}}}, "'dynamic': {\"-:lm_head\": {}}, which is not implemented"),
        ("awq", {"version": "gemv"}, "'version': \"gemv\", which is not implemented"),
        ("packed", {"format": "marlin-24"}, "'format': \"marlin-24\", which is not implemented"),
        ("packed", {"config_groups": {}}, "has no 'config_groups'"),
        (
            "packed",
            {"config_groups": {"a": {"weights": 4}}},
            "'quantization_config.config_groups.a.weights' must be an",
        ),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "'format': \"sparse-24-bitmask\", which is"),
        ("fp8-block", {"weight_block_size": [0, 128]}, "'weight_block_size': [0, 128]; expected rows and columns"),
        ("fp8-block", {"activation_scheme": "static"}, "there are dynamic, for blocks of weights"),
        ("fp8-block", {"scale_fmt": "ue8m0"}, "'scale_fmt': \"ue8m0\", which is not implemented"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    name: str, config: dict[str, Any], expected: str, written: Callable[[str], Written], tmp_path: Path
) -> None:
    """Before any tensor is read, and with what there is."""
    path = written(name).write(tmp_path, config, {})
    with pytest.raises(ModelError, match=r"config\.json") as refused:
        weights_of(path)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("name", "end", "tensor", "expected"),
    [
        ("gptq", "qzeros", None, "is missing: is the model whole?"),
        ("gptq", "qweight", torch.zeros(3, 128, dtype=torch.int32), "is [3, 128]; expected [16, 128]"),
        ("gptq", "qweight", torch.zeros(16, 120, dtype=torch.int32), "has 120 rows; expected 128"),
        ("gptq", "qweight", torch.zeros(16, dtype=torch.int32), "is [16]; expected rows and columns"),
        ("gptq", "qweight", torch.zeros(16, 128), "is of element type F32; expected I32"),
        ("gptq", "scales", torch.full((4, 128), torch.nan).half(), "has numbers that are not finite"),
        ("gptq-order", "g_idx", None, "is missing"),
        ("gptq-order", "g_idx", torch.full((128,), 9).int(), "does not say 32 columns for each of 4 groups"),
        ("gptq-order", "g_idx", torch.zeros(128).int(), "does not say 32 columns for each of 4 groups"),
        ("awq", "scales", torch.zeros(5, 128).half(), "is [5, 128]; expected [4, 128]"),
        ("packed", "weight_scale", torch.zeros(128, 3).half(), "is [128, 3]; expected [128, 4]"),
        ("packed", "weight_packed", torch.zeros(128, 32).int(), "of which config.json says nothing"),
        ("packed-zeros", "weight_zero_point", torch.zeros(1, 4).int(), "is [1, 4]; expected [16, 4]"),
        ("fp8-row", "weight_scale", None, "is missing"),
        ("fp8-row", "weight_scale", torch.tensor([torch.inf]), "has numbers that are not finite"),
        ("fp8-row", "weight", torch.full((128, 128), 127, dtype=torch.uint8).view(FLOAT8), "are not finite"),
        ("fp8-tensor", "input_scale", torch.tensor([-1.0]), "is -1; expected a number above 0"),
        ("fp8-tensor", "input_scale", torch.ones(2), "is [2]; expected one number"),
        ("int8-row", "weight_scale", torch.ones(127, 1), "is [127, 1]; expected [128, 1]"),
    ],
)
def test_hostile_tensors_are_named(
    name: str, end: str, tensor: torch.Tensor | None, expected: str, written: Callable[[str], Written], tmp_path: Path
) -> None:
    """A tensor that is missing, of another shape or type, or not finite is said by name, and nothing is loaded."""
    path = written(name).write(tmp_path, {}, {f"{QUERY}.{end}": tensor})
    with pytest.raises(ModelError) as refused:
        weights_of(path, keeps=True)
    assert QUERY in str(refused.value)
    assert expected in str(refused.value)


def test_what_cannot_stay_quantised_is_said(
    written: Callable[[str], Written], caplog: pytest.LogCaptureFixture
) -> None:
    """Columns of act-order that ranks divide are dequantised beside the rest, and the log says how many."""
    with caplog.at_level("INFO"):
        layer = weights_of(written("gptq-order").path, keeps=True, shard=Shard(0, 2)).layers[0]
    assert not isinstance(layer.mlp.down, GroupedLinear)
    assert isinstance(layer.qkv, GroupedLinear)
    assert "dequantised 2 matrices that cannot stay quantised as they are, blk.0.attn_output first" in caplog.text


def test_zero_points_that_are_not_the_middle_count_in_a_symmetric_file(tmp_path: Path) -> None:
    """Files that call themselves symmetric have zero points all the same: what they say is followed, not the name."""
    model = write_quantised(tmp_path, "gptq-order")
    file = model.path / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for name, told in header.items():
        if name.endswith("down_proj.qzeros"):
            first, end = (start + offset for offset in told["data_offsets"])
            assert set(data[first:end]) == {0x77}  # the middle of 4 bits, less one
            data[first:end] = b"\x66" * (end - first)
    file.write_bytes(data)
    moved, plain = (weights_of(path).layers[0].mlp.down(torch.eye(FFN)) for path in (model.path, model.plain_path))
    assert bool((moved > plain).all())  # each number by its scale
