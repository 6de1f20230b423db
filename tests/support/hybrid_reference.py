"""Hybrid models of transformers with random weights, and a runner whose logits are compared with theirs."""
# pyright: basic

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyagent import _rust

_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]}
QWEN35_SHAPE = {
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
    **QWEN35_SHAPE,
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
_JAMBA = {
    **_SHAPE,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
_ALONE = {"vocab_size": 250, "hidden_size": 64, "num_hidden_layers": 3}
_SPACE = {"num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16}
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
_KIMI = {
    **_SHAPE,
    **_EXPERTS,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "linear_num_heads": 3,
    "linear_head_dim": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_group": 2,
    "topk_group": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MINIMAX = {
    **_SHAPE,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "block_size": 64,
    "full_attn_alpha_factor": 2.5,
    "linear_attn_alpha_factor": 2.5,
    "mlp_alpha_factor": 2.5,
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
    "lfm3": (
        "lfm3",
        {
            **_SHAPE,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 96,
            "sliding_window": 40,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "qwen3_5": ("qwen3_5_text", {**QWEN35_SHAPE, "tie_word_embeddings": True}),
    "qwen3_5-three-values-a-key": (
        "qwen3_5_text",
        {**QWEN35_SHAPE, "linear_num_value_heads": 6, "linear_key_head_dim": 48, "linear_conv_kernel_dim": 3},
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
    "qwen3_5_moe": ("qwen3_5_moe_text", {**QWEN35_SHAPE, **_EXPERTS, "shared_expert_intermediate_size": 48}),
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
    "jamba": ("jamba", _JAMBA),
    "jamba-dense": (
        "jamba",
        {
            **_JAMBA,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "mamba_d_state": 12,
            "mamba_d_conv": 3,
            "mamba_dt_rank": 48,
            "mamba_expand": 3,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "kimi_linear": ("kimi_linear", _KIMI),
    "kimi_linear-compressed": (
        "kimi_linear",
        {
            **_KIMI,
            "q_lora_rank": 48,
            "linear_head_dim": 64,
            "linear_num_heads": 2,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 4,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
        },
    ),
    "mamba": ("mamba", {**_ALONE, "use_bias": True}),
    "falcon_mamba": ("falcon_mamba", {**_ALONE, "time_step_rank": 12, "tie_word_embeddings": False}),
    "mamba2": ("mamba2", {**_ALONE, **_SPACE}),
    "mamba2-biases": (
        "mamba2",
        {
            **_ALONE,
            **_SPACE,
            "n_groups": 1,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "time_step_limit": (0.05, 0.3),
            "tie_word_embeddings": True,
        },
    ),
    "minimax": ("minimax", _MINIMAX),
    "minimax-in-turn": (
        "minimax",
        {
            **_MINIMAX,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": None,
            "layer_types": None,
            "num_hidden_layers": 5,
            "block_size": 100,
            "full_attn_alpha_factor": 1.5,
            "full_attn_beta_factor": 0.7,
            "linear_attn_alpha_factor": 0.8,
            "linear_attn_beta_factor": 1.3,
            "mlp_alpha_factor": 3.0,
            "mlp_beta_factor": 0.6,
            "tie_word_embeddings": True,
        },
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
    "qwen3_5-in-turn": ("qwen3_5_text", {**QWEN35_SHAPE, "full_attention_interval": 2, "attention_bias": True}),
}


def reference_model(family: str, **changes: Any) -> Any:
    """Return transformers' model of random weights in float32, its configuration with `changes`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    kind, shape = CONFIGS[family]
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **(shape | changes)), dtype=torch.float32
    ).eval()
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
            elif parameter.dim() > 1 and not name.endswith(("mup_vector", "_decay", "slope_rate")):
                parameter.mul_(4.0)
    if kind == "nemotron_h":
        for layer in model.model.layers:
            # Its prompts have steps of `time_step_min` at least, its answers and NVIDIA's own code have not.
            layer.mixer.time_step_limit = (0.0, float("inf"))
    return model


class Runner:
    """A model and a pool; a head of EAGLE-3 is attached where there is one."""

    def __init__(self, path: Path, head: Path | None = None) -> None:
        self.model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 25, kv_type="f32", head=head)
        self.model.attach_drafter(head)
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
