"""Models with recurrent layers against transformers on the same weights, from both kinds of files."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.gguf_writer import write_gguf
from support.hybrid_model import hybrid_metadata

from pyagent import _rust
from pyagent.infrastructure.engine.tokens.word_patterns import QWEN35

pytestmark = pytest.mark.oracle

NUM_POSITIONS = 500
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]}
_QWEN35 = {
    **_SHAPE,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "lfm2",
        {**_SHAPE, **_CONVOLUTIONS, "intermediate_size": 144, "block_multiple_of": 32, "rope_parameters": _ROPE},
    ),
    "lfm2-biases": (
        "lfm2",
        {
            **_SHAPE,
            **_CONVOLUTIONS,
            "intermediate_size": 96,
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
            "conv_L_cache": 5,
            "rope_parameters": _ROPE,
        },
    ),
    "qwen3_5": ("qwen3_5_text", {**_QWEN35, "tie_word_embeddings": True}),
    "qwen3_5-three-values-a-key": (
        "qwen3_5_text",
        {**_QWEN35, "linear_num_value_heads": 6, "linear_key_head_dim": 48, "linear_conv_kernel_dim": 3},
    ),
    "qwen3_5-in-turn": ("qwen3_5_text", {**_QWEN35, "full_attention_interval": 2, "attention_bias": True}),
}


def reference_model(family: str) -> Any:
    """Return transformers' model of random weights in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    kind, shape = CONFIGS[family]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "A_log" in name:
                parameter.copy_(torch.empty_like(parameter).uniform_(-3.0, 0.5))
            elif parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


class Runner:
    """A model and a pool."""

    def __init__(self, path: Path) -> None:
        self.model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 25, kv_type="f32")
        self.vocab_size = self.model.info()["vocab_size"]
        self.pool = _rust.BlockPool(self.model.info()["num_pages"], groups=self.model.info()["kv_groups"])
        self._known: set[int] = set()

    def step(self, *segments: tuple[int, list[int]]) -> Any:
        """Logits of every token of some sequences, [tokens, vocab]."""
        import numpy as np

        for sequence, tokens in segments:
            if sequence not in self._known:
                self.pool.add(sequence, tokens)
                self._known.add(sequence)
            self.pool.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        ids, lengths = [sequence for sequence, _ in segments], [len(tokens) for _, tokens in segments]
        log = [token for _, tokens in segments for token in tokens]
        self.model.execute(self.pool, ids, lengths, log, num_outputs=lengths)
        return np.frombuffer(self.model.logits(), dtype="<f4").reshape(len(log), self.vocab_size).copy()


def expect_near(got: Any, expected: Any) -> None:
    """Each logit to 1e-4 of the largest, or of 1; the same best token where the two best are further apart."""
    import numpy as np

    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(got - expected).max() < 1e-4 * scale
    best = np.sort(expected, axis=-1)
    is_clear = best[:, -1] - best[:, -2] > 2e-4 * scale
    assert is_clear.mean() > 0.9
    assert (got.argmax(-1) == expected.argmax(-1))[is_clear].all()


@pytest.mark.parametrize("family", CONFIGS)
def test_hybrids_agree_with_transformers_at_500_positions(family: str, tmp_path: Path) -> None:
    """At once, and in chunks and then token by token beside others: every logit is transformers'."""
    import numpy as np
    import torch

    reference = reference_model(family)
    reference.save_pretrained(tmp_path)
    draw = random.Random(1)
    tokens, other = ([draw.randrange(250) for _ in range(NUM_POSITIONS)] for _ in range(2))
    with torch.no_grad():
        expected, of_other = reference(torch.tensor([tokens, other])).logits.numpy()
    runner = Runner(tmp_path)
    whole = runner.step((1, tokens))
    expect_near(whole, expected)
    runner.pool.clear_index()
    rows, others, start = [], [], 0
    while start < NUM_POSITIONS:
        count = draw.choice([17, 64, 100]) if start < 300 else 1
        chunk = slice(start, start + count)
        logits = runner.step((2, tokens[chunk]), (3, other[chunk]))
        rows.append(logits[: len(tokens[chunk])])
        others.append(logits[len(tokens[chunk]) :])
        start += count
    assert (np.concatenate(rows) == whole).all(), "the same bits"
    expect_near(np.concatenate(others), of_other)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5", "qwen3_5-three-values-a-key"])
def test_gguf_files_under_the_names_of_llama_cpp_give_the_same_logits(family: str, tmp_path: Path) -> None:
    """The same weights as llama.cpp's converter arranges them: value heads in tiles, decays with their sign."""
    import torch

    reference = reference_model(family)
    kind = "lfm2" if family == "lfm2" else "qwen35"
    path = write_gguf(tmp_path / "model.gguf", gguf_metadata(reference.config, kind), gguf_tensors(reference, kind))
    draw = random.Random(2)
    tokens = [draw.randrange(250) for _ in range(100)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_near(Runner(path).step((1, tokens)), expected)


def gguf_metadata(config: Any, kind: str) -> dict[str, object]:
    """Return the metadata of a model's file."""
    if kind == "lfm2":
        entries = {"feed_forward_length": 96, "attention.layer_norm_rms_epsilon": config.norm_eps}
    else:
        entries = {
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "feed_forward_length": config.intermediate_size,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.time_step_rank": config.linear_num_value_heads,
        }
    return hybrid_metadata(kind, **{f"{kind}.{key}": value for key, value in entries.items()})


_COMMON = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_tensors(model: Any, kind: str) -> Any:
    """Return a model's tensors under llama.cpp's names, each as its converter has it."""
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().clone()
        is_offset = kind == "qwen35" and "norm" in name and "linear_attn" not in name
        values = values + 1 if is_offset else values
        if kind == "qwen35" and "linear_attn" in name:
            values = tiled(name, values, config)
        values = values.squeeze(1) if values.dim() == 3 else values
        tensors[gguf_name(name)] = (tuple(reversed(values.shape)), array("f", values.flatten().tolist()))
    return tensors


def gguf_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    if rest.endswith("A_log"):
        return f"blk.{layer}.ssm_a"
    if rest.endswith("dt_bias"):
        return f"blk.{layer}.ssm_dt.bias"
    part, _, end = rest.rpartition(".")
    return f"blk.{layer}.{_COMMON[part]}.{end}"


def tiled(name: str, values: Any, config: Any) -> Any:
    """Return a delta net's tensor with one value head of every key head, then the next of each."""
    import torch

    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    keys, size = 2 * key_heads * config.linear_key_head_dim, config.linear_value_head_dim

    def tile(rows: Any, unit: int) -> Any:
        shape = (key_heads, value_heads // key_heads, unit, *rows.shape[1:])
        return rows.reshape(shape).transpose(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat([values[:keys], tile(values[keys:], size)])
    if "in_proj_z" in name:
        return tile(values, size)
    if "out_proj" in name:
        return tile(values.T, size).T.contiguous()
    if "A_log" in name:
        values = -values.exp()
    return values if "norm" in name else tile(values, 1)


def test_words_of_qwen_3_5_are_those_of_transformers() -> None:
    """GGUF files name how texts are cut into words, and do not say it: the pattern is transformers'."""
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

    assert QWEN35 == PRETOKENIZE_REGEX


def test_text_by_qwen_3_5_with_pictures_agrees_with_transformers(tmp_path: Path) -> None:
    """The text half of a checkpoint of pictures and text, as transformers saves it."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    pictures = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    config = AutoConfig.for_model("qwen3_5", text_config=_QWEN35, vision_config=pictures)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(2.0).add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(tmp_path)
    tokens = [(7 * place + place * place) % 250 for place in range(80)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_near(Runner(tmp_path).step((1, tokens)), expected)
