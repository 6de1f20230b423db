"""Products whose inputs are of 8 bits too, in Triton's interpreter, and which products are taken on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.runners.torch.device import target_of
from pyagent.infrastructure.engine.runners.torch.kernels import scaled
from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.numbers import FLOAT8, Numbers
from pyagent.infrastructure.engine.runners.torch.quantised.products import (
    PlainProducts,
    TritonProducts,
    is_for_library,
    library_product,
    quantised_rows,
)
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs
from pyagent.infrastructure.engine.runners.torch.quantised.trial import choose_products, trial_fault

pytestmark = pytest.mark.oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def matrix_of(
    dtype: torch.dtype, rows: int, columns: int, group: int, inputs: Inputs = Inputs.DYNAMIC
) -> GroupedMatrix:
    draw = torch.Generator().manual_seed(rows)
    values = (torch.randn(rows, columns, generator=draw) * 40).clamp(-127, 127).round().to(DEVICE, dtype)
    scales = (torch.rand(rows, columns // group, generator=draw) / 100).to(DEVICE)
    return Numbers(values, scales, None, group).planes(Span.whole(columns), group, inputs, 0.02)


def rows_of(num_tokens: int, num_columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(num_tokens, num_columns, generator=torch.Generator().manual_seed(5))
    x[0] = 0  # a row of padding
    return x.to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [FLOAT8, torch.int8])
@pytest.mark.parametrize(("group", "inputs"), [(160, Inputs.DYNAMIC), (32, Inputs.DYNAMIC), (160, Inputs.STATIC)])
def test_kernel_quantises_rows_as_torch_does(dtype: torch.dtype, group: int, inputs: Inputs) -> None:
    """Numbers and scales of each row, of its groups, or of the file's scale, with what is beyond cut off: the same."""
    matrix, x = matrix_of(dtype, 16, 160, group, inputs), rows_of(3, 160) * 3
    numbers, scales = scaled.quantised_rows(x, matrix)
    expected, expected_scales = quantised_rows(x, matrix)
    torch.testing.assert_close(scales, expected_scales.expand(scales.shape))
    assert (numbers.float() == expected.float()).float().mean() > 0.99  # another rounding of a quotient
    assert numbers.float().isfinite().all()
    torch.testing.assert_close(numbers.float(), expected.float(), rtol=0.126, atol=1.0)


@pytest.mark.parametrize(
    ("dtype", "columns", "group", "num_tokens", "x_dtype"),
    [
        (torch.int8, 160, 160, 1, torch.float32),
        (torch.int8, 2080, 2080, 18, torch.float32),
        (torch.int8, 192, 64, 3, torch.bfloat16),
        (FLOAT8, 2080, 2080, 2, torch.float32),
        (FLOAT8, 160, 160, 17, torch.bfloat16),
        (FLOAT8, 2304, 128, 1, torch.float32),
        (FLOAT8, 96, 32, 5, torch.float32),
    ],
)
def test_kernels_multiply_what_was_quantised(
    dtype: torch.dtype, columns: int, group: int, num_tokens: int, x_dtype: torch.dtype
) -> None:
    """One row and several tiles, columns that end within a block, sums that are divided: to rounding."""
    matrix, x = matrix_of(dtype, 21, columns, group), rows_of(num_tokens + 1, columns, x_dtype)
    out = torch.full((num_tokens + 1, 24), torch.nan, dtype=x_dtype, device=DEVICE)
    TritonProducts(DEVICE).multiply(x, matrix, out[:, 1:22])
    expected = torch.empty(num_tokens + 1, 21, dtype=x_dtype, device=DEVICE)
    PlainProducts().multiply(x, matrix, expected)
    error = (out[:, 1:22].float() - expected.float()).norm() / expected.float().norm()
    assert error < (4e-3 if x_dtype == torch.bfloat16 else 1e-3)
    assert (out[0, 1:22] == 0).all()
    assert out[:, [0, 22, 23]].isnan().all()


def test_weights_of_fp8_alone_are_made_by_their_bits() -> None:
    """All 254 numbers of e4m3 that are finite, those below the normal ones too, for GPUs without the type."""
    finite = torch.tensor([byte for byte in range(256) if byte & 127 != 127] + [0, 0], dtype=torch.uint8)
    values = finite.view(1, 256).to(DEVICE).view(FLOAT8)
    matrix = Numbers(values, torch.ones(1, 1, device=DEVICE), None, 256).planes(Span.whole(256), 256, Inputs.NONE, 0)
    out = torch.empty(2, 1, device=DEVICE)
    for start in range(0, 256, 2):
        x = torch.zeros(2, 256, device=DEVICE)
        x[0, start], x[1, start + 1] = 1, 1
        if start % 64 == 0 or start > 240:
            TritonProducts(DEVICE).multiply(x, matrix, out)
            assert out[:, 0].equal(values[0, start : start + 2].float())


def test_torchs_own_product_takes_what_we_give_it() -> None:
    """By torch's own checks for a GPU: types, strides and shapes of scales."""
    with FakeTensorMode():
        weights = torch.empty(256, 512, dtype=FLOAT8, device="cuda")
        matrix = GroupedMatrix(8, 512, 512, weights, torch.empty(256, 1, device="cuda"), inputs=Inputs.DYNAMIC)
        numbers, scales = torch.empty(65, 512, dtype=FLOAT8, device="cuda"), torch.empty(65, 1, device="cuda")
        out = torch.empty(65, 300, dtype=torch.bfloat16, device="cuda")[:, :256]
        assert is_for_library(numbers, matrix, out)
        library_product(numbers, scales, matrix, out)
        assert not is_for_library(numbers[:64], matrix, out)
        assert not is_for_library(numbers, matrix, out.half())


class Wrong(PlainProducts):
    """Products that forget a part of each sum."""

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        super().multiply(torch.cat((x[:, :-32], torch.zeros_like(x[:, -32:])), 1), matrix, out)


class Failing(PlainProducts):
    """Products of a compiler that is not there."""

    def multiply(self, x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify")


def test_products_that_are_wrong_or_fail_are_not_taken() -> None:
    """The trial says which product is wrong and by how much, or the first line of what a compiler says."""
    assert trial_fault(PlainProducts(), DEVICE, torch.float32, 8, 256) is None
    assert str(trial_fault(Wrong(), DEVICE, torch.float32, 8, 256)).startswith("the product with Q4_K is wrong by ")
    fault = trial_fault(Failing(), DEVICE, torch.float32, 8, 256)
    assert fault == "RuntimeError: Failed to find C compiler."


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the trial is passed")
def test_model_is_reckoned_and_loaded_dequantised_where_the_trial_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU whose products fail, `keep` and `auto` become what `none` is before sizes are said, and the log why."""
    choose_products.cache_clear()
    for name, told in (("is_available", True), ("device_count", 1), ("get_device_capability", (9, 0))):
        monkeypatch.setattr(torch.cuda, name, lambda *_, told=told, **__: told)
    for quantization in ("keep", "auto"):
        assert not target_of(RunnerOptions(quantization=quantization, dtype="bf16")).keeps_quantised
    choose_products.cache_clear()
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert said.startswith("dequantising weights when they are loaded, as Triton's products cannot be taken: ")
