"""FlashInfer and FlashAttention 3 as attention backends, by stand-ins that compute from the documented arguments.

No GPU has run the real ones. A stand-in asks for what the documentation asks for: types, shapes, memory of the host for
what is planned there. It computes by the formula, so that a length, page or window told wrongly gives other numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paged_attention import Heads, make_inputs, worst_row

from pyagent.assembly import make_host
from pyagent.core.errors import ConfigError
from pyagent.core.runners.attention import AttentionShape
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.runners.choice import pick_attention
from pyagent.infrastructure.engine.runners.torch.attention import plain
from pyagent.infrastructure.engine.runners.torch.attention.choice import choose_attention
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial
from pyagent.infrastructure.engine.runners.torch.attention_backends import BACKENDS

pytestmark = pytest.mark.oracle

FORMULA = '''
import torch

def formula(q, keys, values, scale, left, cap):
    """q [Q, Hq, D] are the last of keys and values [L, Hkv, D]; `left` positions before a query's own are seen."""
    num, length = len(q), len(keys)
    at, of = torch.arange(length - num, length)[:, None], torch.arange(length)
    seen = (of <= at) & ((of >= at - left) if left >= 0 else True)
    keys, values = (rows.float().repeat_interleave(q.shape[1] // rows.shape[1], 1) for rows in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys.nan_to_num()) * scale
    scores = cap * torch.tanh(scores / cap) if cap > 0 else scores
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.nan_to_num()).to(q.dtype)
'''
FLASHINFER = (
    FORMULA
    + """
PLANS = []

class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, *, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
             q_data_type="float16", kv_data_type=None):
        for told in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len, paged_kv_indices):
            assert told.dtype == torch.int32 and told.dim() == 1
        for told in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            assert told.device.type == "cpu"
        assert len(qo_indptr) == len(paged_kv_indptr) == len(paged_kv_last_page_len) + 1
        assert len(paged_kv_indices) == paged_kv_indptr[-1] and causal
        assert paged_kv_last_page_len.min() >= 1 and paged_kv_last_page_len.max() <= page_size
        self.told = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self.shape = num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type, kv_data_type
        self.how = sm_scale, window_left, logits_soft_cap or 0.0
        PLANS.append(self.how)

    def run(self, q, paged_kv_cache):
        k_cache, v_cache = paged_kv_cache
        assert self.shape == (*q.shape[1:2], *k_cache.shape[2:], k_cache.shape[1], q.dtype, k_cache.dtype)
        out, (queries, pages, indices, last) = torch.empty_like(q), self.told
        for row in range(len(last)):
            mine = indices[pages[row] : pages[row + 1]].long()
            length = (len(mine) - 1) * k_cache.shape[1] + last[row]
            keys, values = (cache[mine].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
            rows = slice(queries[row], queries[row + 1])
            out[rows] = formula(q[rows], keys, values, *self.how)
        return out
"""
)
FLASH_ATTENTION = (
    FORMULA
    + """
def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q,
                            softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    for told in (cache_seqlens, page_table, cu_seqlens_q):
        assert told.dtype == torch.int32 and told.device == q.device
    assert q.dim() == 3 and q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert causal and window_size[1] == (-1 if window_size[0] == -1 else 0)
    assert max_seqlen_q == cu_seqlens_q.diff().max() and len(page_table) == len(cache_seqlens)
    out = torch.empty_like(q)
    for row, length in enumerate(cache_seqlens):
        mine = page_table[row, : -(-length // k_cache.shape[1])].long()
        keys, values = (cache[mine].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        rows = slice(cu_seqlens_q[row], cu_seqlens_q[row + 1])
        out[rows] = formula(q[rows], keys, values, softmax_scale, window_size[0], softcap)
    return out
"""
)
OURS = {backend.name: backend for backend in BACKENDS}
MODULES = {"flashinfer": "flashinfer", "flash_attn": "flash_attn_interface"}
SHAPE = AttentionShape("cpu", "bf16", "bf16", 8, 2, 64, frozenset({None}), None)
NAMES = pytest.mark.parametrize("name", MODULES)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Both packages where Python finds them, until the test ends."""
    (tmp_path / "flashinfer.py").write_text(FLASHINFER)
    (tmp_path / "flash_attn_interface.py").write_text(FLASH_ATTENTION)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in MODULES.values():
        sys.modules.pop(module, None)


@NAMES
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (None, 20.0), (1, 5.0)])
@pytest.mark.usefixtures("stand_ins")
def test_packages_are_told_what_the_formula_takes(name: str, window: int | None, softcap: float | None) -> None:
    """Sequences that decode beside chunks, in shuffled pages, with groups of heads: rows as the plain form's."""
    attend = OURS[name].open(SHAPE)
    for num_queries, num_tokens in (([1, 7, 1, 40], [50, 90, 16, 40]), ([1, 1], [1, 33]), ([3], [200])):
        inputs = make_inputs(num_queries, num_tokens, Heads(8, 2, 64), torch.bfloat16, window=window)
        found = attend(*inputs, 0.2, window, softcap)
        assert worst_row(found, plain.attend(*inputs, 0.2, window, softcap)) < 1e-2


@pytest.mark.usefixtures("stand_ins")
def test_flashinfer_plans_a_batch_once_for_all_layers_that_see_the_same() -> None:
    """Layers share a plan by their batch and window; ten batches later a plan is made anew, and is right."""
    attend = OURS["flashinfer"].open(SHAPE)
    batches = [make_inputs([1, 5], [20 + seed, 30], Heads(8, 2, 64), torch.bfloat16, seed=seed) for seed in range(10)]
    for inputs in (*batches, batches[0]):
        for window in (None, 20, None, 20):
            found = attend(*inputs, 0.2, window, None)
            assert worst_row(found, plain.attend(*inputs, 0.2, window, None)) < 1e-2
    assert len(sys.modules["flashinfer"].PLANS) == 2 * 11


def chosen(name: str, **shape: Any) -> Any:
    """Choose a backend by its name as the settings do, for a model of this shape."""
    host = make_host(Settings())
    told = {field: getattr(SHAPE, field) for field in AttentionShape.__dataclass_fields__} | shape
    trial = AttentionTrial(AttentionShape(**told), 1.0, torch.device("cpu"))
    return choose_attention(pick_attention(name, host.attention_backends()), trial)


@NAMES
def test_package_that_is_not_there_is_refused_by_name(name: str) -> None:
    """`engine.attention` names a package that is not installed: the load ends with one sentence."""
    with pytest.raises(ConfigError, match=rf"engine\.attention is {name}, .* is not installed \(there is no module"):
        chosen(name, device="cuda:0")


@NAMES
def test_shapes_that_a_package_is_not_built_for_are_refused(name: str, stand_ins: Path) -> None:
    """No GPU, FP8 keys with our scales, float32, heads too wide, and a package that fails to import."""
    assert OURS[name].unavailable_reason(AttentionShape("cuda:0", "bf16", "bf16", 8, 2, 64, frozenset(), None)) is None
    for told, said in (
        ({}, "needs a CUDA device, and this one is cpu"),
        ({"device": "cuda:0", "kv_dtype": "fp8"}, "not bf16 and fp8"),
        ({"device": "cuda:0", "dtype": "f32", "kv_dtype": "f32"}, "takes f16 or bf16 alike"),
        ({"device": "cuda:0", "head_dim": 512}, "has no kernel for heads of 512"),
    ):
        with pytest.raises(ConfigError, match=said):
            chosen(name, **told)
    sys.modules.pop(MODULES[name], None)
    (stand_ins / f"{MODULES[name]}.py").write_text("raise OSError('libcudart.so.13 is missing')")
    with pytest.raises(ConfigError, match=r"cannot be imported: OSError: libcudart\.so\.13 is missing"):
        chosen(name, device="cuda:0")


def test_auto_leaves_out_what_is_not_installed() -> None:
    """Without the packages `auto` takes what there is."""
    assert chosen("auto").attend.__class__.__module__.endswith("attention.cpu")
    assert RunnerOptions().attention.is_auto
