"""The Rust core's kernels over torch's tensors: torch's numbers, in its threads, with tensors checked at the door."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paged_attention import Heads, make_inputs
from support.reference_decoder import write_family

from pyagent import _rust
from pyagent.core.runners.attention import AttentionShape
from pyagent.infrastructure.engine.runners.torch import stages as stages_module
from pyagent.infrastructure.engine.runners.torch.attention import plain
from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache
from pyagent.infrastructure.engine.runners.torch.attention.rust import RustAttend
from pyagent.infrastructure.engine.runners.torch.attention_backends import RustAttention
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.rust_kernels import RustStages, open_kernels
from pyagent.infrastructure.engine.runners.torch.stages import TorchStages, Trial, choose_stages

pytestmark = pytest.mark.oracle

CPU = torch.device("cpu")
F32 = torch.float32


def test_the_kernels_have_torchs_threads() -> None:
    """On Linux torch's own library lends them; a library that is not loaded, or is none, lends none."""
    assert open_kernels().has_threads
    assert not _rust.TorchKernels().has_threads
    assert not _rust.TorchKernels("/nonexistent/libtorch_cpu.so").has_threads


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_stages_are_torchs(family: str, tmp_path: Path) -> None:
    """A trial of a model's shapes finds no fault, and the kernels are taken for float32 alone."""
    write_family(tmp_path, family)
    config = open_model(tmp_path, {}).config
    assert Trial(config, CPU, F32, F32).fault(RustStages()) is None
    assert isinstance(choose_stages(Trial(config, CPU, F32, F32)), RustStages)
    for dtype, kv_dtype in ((torch.bfloat16, torch.bfloat16), (F32, torch.float8_e4m3fn)):
        assert type(choose_stages(Trial(config, CPU, dtype, kv_dtype))) is TorchStages


def test_stages_that_are_wrong_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the trial finds a fault, torch's own operations compute."""
    write_family(tmp_path, "llama")
    monkeypatch.setattr(stages_module.Trial, "fault", lambda *_: "the gate is wrong")
    assert type(choose_stages(Trial(open_model(tmp_path, {}).config, CPU, F32, F32))) is TorchStages


@pytest.mark.parametrize("num_rows", [1, 7, 700])
@pytest.mark.parametrize("is_interleaved", [True, False])
def test_each_stage_is_torchs_for_any_rows(num_rows: int, is_interleaved: bool) -> None:
    """Few rows in the caller's thread and many in torch's, of widths that fill no register: torch's numbers.

    Queries, keys and values are slices of one product's rows.
    """
    ours, theirs = RustStages(), TorchStages()
    x, branch, weight = torch.randn(num_rows, 83), torch.randn(num_rows, 83), torch.randn(83)
    for found, expected in zip(
        ours.add_rms_norm(x, branch, weight, 1e-5), theirs.add_rms_norm(x, branch, weight, 1e-5), strict=True
    ):
        torch.testing.assert_close(found, expected)
    heads = torch.randn(num_rows, 9, 24)
    norm = torch.randn(24)
    torch.testing.assert_close(ours.rms_norm(heads[:, 2:5], norm, 1e-6), theirs.rms_norm(heads[:, 2:5], norm, 1e-6))
    for activation in ("silu", "gelu_tanh"):
        gate_up = torch.randn(num_rows, 2 * 61)
        torch.testing.assert_close(ours.gated(gate_up, activation), theirs.gated(gate_up, activation))
    angles = torch.randn(num_rows, 1, 10)
    rows = torch.randperm(64 * 16)[:num_rows]
    caches = [PagedCache(torch.zeros(64, 16, 2, 24), torch.zeros(64, 16, 2, 24)) for _ in range(2)]
    split = heads.split([5, 2, 2], 1)
    found, expected = (
        stages.rotate_and_store(split, (angles.cos(), angles.sin()), rows, cache, is_interleaved=is_interleaved)
        for stages, cache in ((ours, caches[0]), (theirs, caches[1]))
    )
    for one, other in ((found, expected), *zip(caches[0].tensors, caches[1].tensors, strict=True)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_attention_is_the_plain_form(num_threads: int) -> None:
    """Ragged sequences that decode, with prompts beside them, over pages whose other contents are NaN."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        attend = RustAttend()
        batches = ([700, 3, 40, 33, 690, 1, 36], [20] * 9, [16], [400, 399, 401])
        for window, lengths, shape in product((None, 24), batches, (Heads(6, 2, 32), Heads(5, 1, 80), Heads(4, 4, 16))):
            for num_prompt in (0, 7):
                num_queries = [*[1] * len(lengths), *[num_prompt] * (num_prompt > 0)]
                num_tokens = [*lengths, *[50] * (num_prompt > 0)]
                q, cache, batch = make_inputs(num_queries, num_tokens, shape, F32, window=window)
                expected = plain.attend(q, cache, batch, 0.2, window, None)
                torch.testing.assert_close(attend(q, cache, batch, 0.2, window, None), expected, atol=1e-5, rtol=0)
    finally:
        torch.set_num_threads(before)


def test_a_query_has_the_same_bits_beside_any_others() -> None:
    """A sequence alone, and in a batch."""
    q, cache, batch = make_inputs([1] * 9, [90, 4, 600, 33, 5, 5, 64, 1, 300], Heads(6, 2, 64), F32)
    attend = RustAttend()
    together = attend(q, cache, batch, 0.2, None, None)
    for row in range(9):
        one = slice(row, row + 1)
        alone = type(batch)(batch.query_starts[:2], batch.lengths[one], batch.tables[one], [1], batch.num_tokens[one])
        assert torch.equal(attend(q[one], cache, alone, 0.2, None, None)[0], together[row])


def shape_of(**changes: Any) -> AttentionShape:
    shape = {
        "device": "cpu",
        "dtype": "f32",
        "kv_dtype": "f32",
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "windows": frozenset({None}),
        "softcap": None,
    }
    return AttentionShape(**shape | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda:0"}, "not cuda:0"),
        ({"dtype": "bf16", "kv_dtype": "bf16"}, "float32"),
        ({"kv_dtype": "fp8"}, "float32"),
        ({"head_dim": 72}, "multiples of 16, not 72"),
        ({"softcap": 50.0}, "no softcap"),
    ],
)
def test_attention_says_what_it_is_not_for(changes: dict[str, Any], reason: str) -> None:
    """Devices, data types and heads that the kernel does not take are told with what was asked for."""
    assert RustAttention().unavailable_reason(shape_of()) is None
    assert reason in (RustAttention().unavailable_reason(shape_of(**changes)) or "")


def test_tensors_that_do_not_fit_are_refused() -> None:
    """Pages that do not exist, lengths beyond them, rows of no page, other shapes: `ValueError`, before any is read."""
    kernels = open_kernels()
    cache, q, out = torch.zeros(4, 16, 2, 16), torch.zeros(1, 4, 16), torch.zeros(1, 4, 16)
    options: dict[str, Any] = {"num_threads": 2, "scale": 1.0}

    def attend(table: list[int], length: int, target: torch.Tensor = out, keys: torch.Tensor = cache) -> None:
        tables, lengths = torch.tensor([table], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
        tensors = (q, keys, cache, tables, lengths, target)
        kernels.attend(*(one.numpy() for one in tensors), **options)

    attend([0, 3], 32)
    for table, length in (([0, 4], 32), ([-1, 0], 32), ([0, 1], 33), ([0, 1], 0), ([0, 1], -5)):
        with pytest.raises(ValueError, match="do not fit"):
            attend(table, length)
    with pytest.raises(ValueError, match="do not fit"):
        attend([0, 3], 32, torch.zeros(1, 3, 16))
    with pytest.raises(ValueError, match="side by side"):
        attend([0, 3], 32, keys=torch.zeros(4, 16, 2, 32)[..., ::2])
    heads, angles = (q, q[:, :2], q[:, :2]), torch.zeros(1, 1, 8)
    for row in (-1, 64):
        with pytest.raises(ValueError, match="the pages do not fit"):
            RustStages().rotate_and_store(
                heads, (angles, angles), torch.tensor([row]), PagedCache(cache, cache.clone()), is_interleaved=False
            )
    with pytest.raises(ValueError, match="the norm do not fit"):
        kernels.rms_norm(*(torch.zeros(size).numpy() for size in (9, 4, 9)), epsilon=1e-5, num_threads=1)
    with pytest.raises(ValueError, match="the gate do not fit"):
        kernels.gated(torch.zeros(2, 8).numpy(), torch.zeros(2, 3).numpy(), is_silu=True, num_threads=1)
