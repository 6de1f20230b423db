"""MPT and others: no positions but what ALiBi adds to scores, against transformers on the same weights."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.classic_models import WITH_ALIBI
from support.gguf_writer import write_gguf
from support.logit_sequences import TOKENS, expect_same, reference_logits
from support.sparse_models import CONFIGS, KEYS, random_model, tensors_of, write_as_gguf

from pyagent import _rust

pytestmark = pytest.mark.oracle

SIZES = {"vocab_size": 250, "n_layers": 2, "max_seq_len": 512}
HEAD_DIM = 16
NAMES = {
    "transformer.wte": "token_embd",
    "transformer.norm_f": "output_norm",
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
}


def write_mpt(folder: Path, num_heads: int, **attention: Any) -> Any:
    """Write a random model by transformers, attention sharp; returns it."""
    import torch
    from transformers import MptConfig, MptForCausalLM

    torch.manual_seed(11)
    model = MptForCausalLM(
        MptConfig(**SIZES, d_model=HEAD_DIM * num_heads, n_heads=num_heads, attn_config=attention)
    ).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.add_(torch.randn_like(values) * (0.1 if "norm" in name or "wte" in name else 0.15))
    model.save_pretrained(folder)
    if max_bias := attention.get("alibi_bias_max"):  # which transformers' decoder leaves at 8
        build = model.transformer.build_mpt_alibi_tensor
        model.transformer.build_mpt_alibi_tensor = lambda *sizes, **rest: build(*sizes, max_bias, **rest)
    return model


def write_mpt_as_gguf(path: Path, folder: Path, num_heads: int, **keys: object) -> Path:
    """Write the folder's tensors as llama.cpp has them."""
    sizes = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": HEAD_DIM * num_heads,
        "feed_forward_length": 4 * HEAD_DIM * num_heads,
        "attention.head_count": num_heads,
        "attention.layer_norm_epsilon": 1e-5,
        **keys,
    }
    found: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    for name, values in tensors_of(folder).items():
        whole, _, end = name.rpartition(".")
        _, _, of_layer = name.partition("blocks.")
        layer, _, part = of_layer.rpartition(f".{end}")[0].partition(".")
        key = f"blk.{layer}.{NAMES[part]}.{end}" if of_layer else f"{NAMES[whole]}.{end}"
        found[key] = (tuple(reversed(values.shape)), array("f", values.contiguous().numpy().tobytes()))
    metadata = {"general.architecture": "mpt"} | {f"mpt.{key}": value for key, value in sizes.items()}
    return write_gguf(path, metadata, found)


@pytest.mark.parametrize(("num_heads", "max_bias"), [(4, 8), (6, 5)])
def test_folders_and_files_of_mpt_agree_with_transformers(num_heads: int, max_bias: int, tmp_path: Path) -> None:
    """Heads that are a power of two, and others, of another greatest exponent: as `expect_same`, from both kinds."""
    model = write_mpt(tmp_path / "folder", num_heads, alibi_bias_max=max_bias)
    expected = reference_logits(model)
    expect_same(tmp_path / "folder", expected)
    keys = {"attention.max_alibi_bias": float(max_bias)}
    expect_same(write_mpt_as_gguf(tmp_path / "m.gguf", tmp_path / "folder", num_heads, **keys), expected)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attn_config": {"clip_qkv": 6.0}}, r"'attn_config.clip_qkv' is not implemented"),
        ({"attn_config": {"qk_ln": True}}, r"'attn_config.qk_ln' is not implemented"),
        ({"attn_config": {"softmax_scale": 0.1}}, r"'attn_config.softmax_scale' is not implemented"),
        ({"attn_config": {"alibi": False}}, r"'attn_config.alibi' is false"),
        ({"attn_config": {"alibi": "no"}}, r"'attn_config.alibi' must be true or false, got a text"),
        ({"attn_config": [{"alibi": False}]}, "'attn_config' must be a table, got a list"),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
        ({"attn_config": {"alibi_bias_max": "wide"}}, r"'attn_config.alibi_bias_max' must be a number"),
        ({"attn_config": {"alibi_bias_max": -1}}, "ALiBi's greatest exponent is -1; expected 0 to 1000"),
        ({"logit_scale": 0.5}, "'logit_scale' is not implemented"),
        ({"norm_type": "rmsnorm"}, "'norm_type' 'rmsnorm' is not implemented for mpt"),
        ({"d_model": None}, "lacks 'd_model'"),
        ({"n_heads": 10**30}, "n_heads"),
    ],
)
def test_what_an_mpt_may_be_besides_is_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Projections that are cut off or normalised, other scales, no ALiBi, sizes that are none."""
    config = {"model_type": "mpt", **SIZES, "d_model": 64, "n_heads": 4, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_mpt(tmp_path / "folder", 4)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "folder/model.safetensors").read_bytes())
    with pytest.raises(_rust.ModelFileError, match=said):
        _rust.describe_model(tmp_path)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "'mpt.attention.max_alibi_bias' is 0, and positions without ALiBi are not implemented"),
        ({"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 6.0}, "'mpt.attention.clamp_kqv' is not implemented"),
        ({"attention.max_alibi_bias": float("nan")}, "ALiBi's greatest exponent is NaN; expected 0 to 1000"),
    ],
)
def test_files_of_other_mpts_are_refused_by_name(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    """As llama.cpp's converter says that there is no ALiBi, or that projections are cut off."""
    write_mpt(tmp_path / "folder", 4)
    with pytest.raises(_rust.ModelFileError, match=said):
        _rust.describe_model(write_mpt_as_gguf(tmp_path / "m.gguf", tmp_path / "folder", 4, **keys))


def alibi_of(num_heads: int, length: int) -> Any:
    """What is added to scores, `[1, heads, queries, keys]`; heads a power of two."""
    import torch

    slopes = 2.0 ** -torch.arange(8 / num_heads, 8.1, 8 / num_heads)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    bias = -slopes[:, None, None] * distance
    return bias.masked_fill(distance < 0, float("-inf"))[None]


def test_the_first_falcons_scale_what_alibi_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Falcon-RW adds it before scores are scaled. transformers rounds it to bfloat16, which is undone here."""
    import torch
    from transformers.models.falcon import modeling_falcon

    def exactly(mask: Any, num_heads: int, dtype: Any) -> Any:
        slopes = 2.0 ** -torch.arange(8 / num_heads, 8.1, 8 / num_heads)
        return (slopes[:, None, None] * torch.arange(mask.shape[1])).to(dtype)

    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", exactly)
    model = random_model("falcon", tmp_path, CONFIGS["falcon, in turn"] | {"alibi": True})
    model.config._attn_implementation = "sdpa"  # the other way adds it twice
    expect_same(tmp_path, reference_logits(model))


@pytest.mark.parametrize("name", WITH_ALIBI)
def test_llamas_without_positions_have_alibi_under_other_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refact, and Baichuan of 40 layers: transformers' Llama on the same weights, unrotated, with ALiBi as its mask."""
    import torch

    for known, own in zip((CONFIGS, KEYS), WITH_ALIBI[name], strict=True):
        monkeypatch.setitem(known, name, own)
    model = random_model(name, tmp_path / "folder")
    path = write_as_gguf(tmp_path / "m.gguf", name, tensors_of(tmp_path / "folder"))
    unrotated = torch.ones(1, len(TOKENS), 16), torch.zeros(1, len(TOKENS), 16)
    model.model.rotary_emb.forward = lambda *_, **__: unrotated
    mask = alibi_of(4, len(TOKENS))
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), attention_mask=mask).logits[0].numpy()
    expect_same(path, expected)
