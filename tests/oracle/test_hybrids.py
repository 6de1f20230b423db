"""Models with recurrent layers against transformers on the same weights, from both kinds of files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.hybrid_conversion import write_hybrid_as_gguf

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
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_NEXT = {
    **_QWEN35,
    **_EXPERTS,
    "shared_expert_intermediate_size": 48,
    "linear_num_value_heads": 6,
    "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25},
}
_FACTORS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
_GRANITE = {
    **_SHAPE,
    **_FACTORS,
    "intermediate_size": 32,
    "shared_intermediate_size": 96,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
}
_DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
_NEMOTRON = {
    **_SHAPE,
    "head_dim": 32,
    "hybrid_override_pattern": "ME*EM-EM",
    "intermediate_size": 96,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
_FALCON = {
    **_SHAPE,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 32,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.7,
    "mlp_multipliers": [0.9, 0.6],
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.35, 0.8, 0.6, 1.3, 0.7],
    "rope_parameters": _ROPE,
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
    "lfm2_moe": (
        "lfm2_moe",
        {
            **_SHAPE,
            **_CONVOLUTIONS,
            **_EXPERTS,
            "intermediate_size": 96,
            "num_dense_layers": 1,
            "rope_parameters": _ROPE,
        }
        | {"routed_scaling_factor": 1.5},
    ),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**_QWEN35, **_EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3_next": ("qwen3_next", {**_NEXT, "tie_word_embeddings": True}),
    "qwen3_next-dense-layers": ("qwen3_next", {**_NEXT, "mlp_only_layers": [0], "decoder_sparse_step": 2}),
    "granitemoehybrid": ("granitemoehybrid", {**_GRANITE, "num_local_experts": 8, "num_experts_per_tok": 3}),
    "granitemoehybrid-dense": (
        "granitemoehybrid",
        {
            **_GRANITE,
            **_DENSE,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 48,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_chunk_size": 32,
        },
    ),
    "granitemoehybrid-limited": ("granitemoehybrid", {**_GRANITE, **_DENSE, "time_step_limit": (0.05, 0.3)}),
    "granitemoehybrid-attention": (
        "granitemoehybrid",
        {**_GRANITE, **_DENSE, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
    ),
    "granite": ("granite", {**_SHAPE, **_FACTORS, "intermediate_size": 96, "num_hidden_layers": 4}),
    "bamba": (
        "bamba",
        {
            **_SHAPE,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "time_step_limit": (0.01, 0.4),
        },
    ),
    "falcon_h1": ("falcon_h1", _FALCON),
    "falcon_h1-normalised": (
        "falcon_h1",
        {**_FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
    ),
    "nemotron_h": ("nemotron_h", _NEMOTRON),
    "nemotron_h-experts": ("nemotron_h", {**_NEMOTRON, "hybrid_override_pattern": "ME*EME"}),
    "nemotron_h-dense": (
        "nemotron_h",
        {
            **_NEMOTRON,
            "hybrid_override_pattern": "-M-MM*-",
            "mlp_bias": True,
            "mamba_num_heads": 2,
            "use_conv_bias": False,
        },
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
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "expert_bias" in name or "correction_bias" in name:
                parameter.copy_(torch.rand_like(parameter) * 0.5)
            elif name.endswith((".A_log", ".dt_bias", ".D")):
                parameter.copy_(torch.empty_like(parameter).uniform_(-3.0, 0.5))
            elif "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif parameter.dim() > 1 and name.endswith((".gate.weight", "router.weight")):
                parameter.mul_(16.0)
            elif parameter.dim() > 1 and "mup_vector" not in name:
                parameter.mul_(4.0)
    if kind == "nemotron_h":
        for layer in model.model.layers:
            # Its prompts have steps of `time_step_min` at least, its answers and NVIDIA's own code have not.
            layer.mixer.time_step_limit = (0.0, float("inf"))
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


@pytest.mark.parametrize(
    "family",
    [
        "lfm2",
        "qwen3_5",
        "qwen3_5-three-values-a-key",
        "lfm2_moe",
        "qwen3_5_moe",
        "qwen3_next",
        "granitemoehybrid",
        "granitemoehybrid-attention",
        "falcon_h1",
        "nemotron_h-experts",
        "nemotron_h-dense",
    ],
)
def test_gguf_files_under_the_names_of_llama_cpp_give_the_same_logits(family: str, tmp_path: Path) -> None:
    """The same weights as llama.cpp's converter arranges them: value heads in tiles, decays with their sign."""
    import torch

    reference = reference_model(family)
    path = write_hybrid_as_gguf(tmp_path / "model.gguf", reference)
    draw = random.Random(2)
    tokens = [draw.randrange(250) for _ in range(100)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_near(Runner(path).step((1, tokens)), expected)


@pytest.mark.parametrize("family", ["qwen3_5_moe"])
def test_experts_in_one_tensor_give_the_same_bits(family: str, tmp_path: Path) -> None:
    """All of a layer's experts in two tensors, gates before ups, as Qwen publishes them; one too many is refused."""
    import torch
    from safetensors.torch import load_file, save_file

    reference = reference_model(family)
    reference.save_pretrained(tmp_path)
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    expected = Runner(tmp_path).step((1, tokens))
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if ".experts." not in name}
    stacked = {name: tensor for name, tensor in reference.state_dict().items() if ".experts." in name}
    save_file({**tensors, **stacked}, path)
    assert (Runner(tmp_path).step((1, tokens)) == expected).all()
    name = next(name for name in stacked if name.endswith("down_proj"))
    save_file({**tensors, **stacked, name: torch.cat([stacked[name], stacked[name][:1]])}, path)
    with pytest.raises(_rust.ModelFileError, match=r"down_proj' is \[32, 64, 9\]; expected \[32, 64, 8\]"):
        Runner(tmp_path)


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
