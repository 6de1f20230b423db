"""Weights that the torch runner leaves quantised: the file's numbers, and products as with the dequantised ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from support.native import chat, engine_of
from support.quantised_model import FFN, HIDDEN, TYPES, random_blocks, write_quantised_model

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.kernels import grouped
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.models import DescribedModel
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix, joined
from pyagent.infrastructure.engine.runners.torch.quantised.linear import GroupedLinear
from pyagent.infrastructure.engine.runners.torch.quantised.products import TritonProducts
from pyagent.infrastructure.engine.runners.torch.quantised.trial import trial_fault
from pyagent.infrastructure.engine.runners.torch.sizes import Sizes
from pyagent.infrastructure.engine.runners.torch.weights import Weights, load_weights

pytestmark = pytest.mark.oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MOST_ERROR = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
"""Of a product, as a share of it: bfloat16 keeps 8 bits of each weight and of the result."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quantised_model(tmp_path_factory.mktemp("quantised") / "tiny.gguf")


def matrix_of(kind: str, columns: int, rows: int, seed: int = 1) -> tuple[GroupedMatrix, torch.Tensor]:
    """A random matrix in planes, and the weights that the CPU runner's code reads of its bytes."""
    data, about = random_blocks(kind, columns, rows, seed), BLOCK_TYPES[kind]
    blocks = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(rows, -1, about.num_bytes)
    weights = torch.frombuffer(bytearray(_rust.dequantise(kind, data)), dtype=torch.float32).view(rows, columns)
    return about.planes(blocks.to(DEVICE)), weights.to(DEVICE)


@pytest.mark.parametrize("kind", TYPES)
def test_planes_hold_the_files_numbers(kind: str) -> None:
    """Every element type's blocks become planes that dequantise to the same float32 numbers, bit for bit."""
    matrix, weights = matrix_of(kind, 512, 7)
    assert matrix.dequantised(torch.float32).equal(weights)
    assert matrix.num_bytes <= len(random_blocks(kind, 512, 7, 1)) * 1.35


@pytest.mark.parametrize(
    ("kind", "columns", "num_tokens", "dtype"),
    [
        ("Q4_K", 256, 1, torch.float32),
        ("Q4_K", 512, 3, torch.bfloat16),
        ("Q4_1", 576, 1, torch.bfloat16),
        ("Q4_1", 576, 2, torch.float32),
        ("Q5_K", 256, 1, torch.float32),
        ("Q6_K", 512, 19, torch.float32),
        ("Q6_K", 256, 1, torch.bfloat16),
        ("Q8_0", 96, 1, torch.float32),
        ("Q8_0", 160, 17, torch.float32),
        ("Q4_0", 2112, 1, torch.float32),
        ("Q4_0", 2112, 2, torch.float32),
    ],
)
def test_kernels_multiply_as_dequantised_weights_do(kind: str, columns: int, num_tokens: int, dtype: Any) -> None:
    """One row, few and several tiles, columns that end within a block of the kernel, sums that are divided."""
    matrix, weights = matrix_of(kind, columns, 21)
    x = torch.randn(num_tokens, columns, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)
    out = torch.full((num_tokens, 24), torch.nan, dtype=dtype, device=DEVICE)
    grouped.product(x, matrix, out[:, 1:22])
    expected = x.double() @ weights.double().t()
    assert float((out[:, 1:22].double() - expected).norm() / expected.norm()) < MOST_ERROR[dtype]
    assert out[:, [0, 22, 23]].isnan().all()


@pytest.mark.parametrize(("kind", "columns"), [("Q4_K", 256), ("Q6_K", 256), ("Q8_0", 96), ("Q4_1", 192)])
def test_kernel_dequantises_as_torch_does(kind: str, columns: int) -> None:
    """The whole matrix, for products of many rows: the same numbers."""
    matrix, weights = matrix_of(kind, columns, 9)
    out = torch.empty_like(weights)
    grouped.dequantise(matrix, out)
    torch.testing.assert_close(out, weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (5, 256)), (torch.float16, (8, 512))])
def test_kernels_pass_their_trial(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """What is asked of the kernels before they are taken on a GPU: products that float16 has room for too."""
    assert trial_fault(TritonProducts(DEVICE), DEVICE, dtype, *shape) is None


def test_neighbours_of_one_format_become_one_matrix() -> None:
    """Query and key of one type are one product; another type between them keeps the order of the rows."""
    made = [matrix_of(kind, 256, rows, rows) for kind, rows in (("Q4_K", 3), ("Q4_K", 2), ("Q6_K", 4), ("Q4_K", 1))]
    whole = joined([matrix for matrix, _ in made])
    assert [matrix.num_rows for matrix in whole] == [5, 4, 1]
    rows = torch.cat([matrix.dequantised(torch.float32) for matrix in whole])
    assert rows.equal(torch.cat([weights for _, weights in made]))


def weights_of(path: Path, shard: Shard, *, keeps: bool) -> Weights:
    target = Target(DEVICE, torch.float32, torch.float32, keeps)
    file = _rust.ModelFile(path)
    return load_weights(file, str(path), ModelPart.of(file.config, shard), target, 2, ReadProgress())


def test_ranks_share_quantised_matrices(model_path: Path) -> None:
    """Two ranks' rows lie one below the other, and their products of shared columns sum to the whole's."""
    whole = weights_of(model_path, Shard(), keeps=False)
    ranks = [weights_of(model_path, Shard(rank, 2), keeps=True) for rank in range(2)]
    x = torch.randn(3, FFN, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    layer, shared = whole.layers[1], [weights.layers[1] for weights in ranks]
    assert all(isinstance(part.mlp.down, GroupedLinear) for part in shared)
    total = sum(part.mlp.down(share) for part, share in zip(shared, x.chunk(2, 1), strict=True))
    torch.testing.assert_close(total, layer.mlp.down(x), rtol=1e-4, atol=1e-4)
    heads = [part.attention_output(share) for part, share in zip(shared, x[:, :HIDDEN].chunk(2, 1), strict=True)]
    torch.testing.assert_close(heads[0] + heads[1], layer.attention_output(x[:, :HIDDEN]), rtol=1e-4, atol=1e-4)
    queries = [part.qkv(x[:, :HIDDEN])[:, : HIDDEN // 2] for part in shared]
    torch.testing.assert_close(torch.cat(queries, 1), layer.qkv(x[:, :HIDDEN])[:, :HIDDEN], rtol=1e-4, atol=1e-4)


def test_estimate_is_what_the_weights_take(model_path: Path) -> None:
    """What is said of a model before it is loaded counts each matrix as it stays."""
    model = DescribedModel(model_path, None, None)
    part, weights = ModelPart.of(model.config, Shard()), weights_of(model_path, Shard(), keeps=True)
    target = Target(DEVICE, torch.float32, torch.float32, keeps_quantised=True)
    sizes = Sizes.of(model, part, KvLayers.of(model.config.windows), LargestStep(64, 4), target)
    linears = [weights.output]
    for layer in weights.layers:
        linears += [layer.qkv, layer.attention_output, layer.mlp.gate_up, layer.mlp.down]
    taken = weights.embedding.nbytes
    for linear in linears:
        assert isinstance(linear, GroupedLinear)
        taken += linear.num_bytes
    assert sizes.weight_bytes == taken


def test_answers_are_those_of_dequantised_weights(model_path: Path) -> None:
    """`engine.quantization` through the engine: `keep`, `none`, and what `auto` is without a GPU, say the same."""

    async def answer(quantization: str) -> str:
        settings = {"engine.runner": "torch", "engine.quantization": quantization, "engine.kv_dtype": "f32"}
        async with engine_of(model_path, process=False, **settings) as backend:
            return (await collect(backend.chat(chat("ab", max_tokens=12, temperature=0.0, ignore_eos=True)))).text

    texts = [asyncio.run(answer(quantization)) for quantization in ("keep", "none", "auto")]
    assert texts[0]
    assert texts == [texts[0]] * 3
