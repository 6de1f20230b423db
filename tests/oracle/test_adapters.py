"""Adapters on the CPU runner against peft, on tiny random models in float32."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from oracle.test_logits import tiny_configs
from support.gguf_writer import write_gguf
from support.sparse_models import random_model, tensors_of, write_as_gguf
from support.tiny_adapter import side_by_side

from pyagent import _rust

pytestmark = [
    pytest.mark.oracle,
    # of transformers, which peft asks for what it renames
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
TOKENS = [(7 * place + place * place) % 250 for place in range(40)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"r": 8, "target_modules": ALL}),
    "alphas": ("dense behind experts", {"r": 5, "target_modules": ["q_proj", "v_proj", "1.mlp.down_proj"]}),
    "rslora": ("qwen3", {"r": 6, "target_modules": ALL, "use_rslora": True, "rank_pattern": {"k_proj": 3}}),
    "dora": ("biases", {"r": 4, "target_modules": ALL, "lora_alpha": 9, "use_dora": True}),
    "gemma": ("gemma3", {"r": 4, "target_modules": ALL, "use_dora": True}),
}
CASES["alphas"][1].update(lora_alpha=3, alpha_pattern={"layers.1.self_attn.q_proj": 11})


def config_of(family: str) -> Any:
    """A tiny configuration: with factors that are not 1, with biases everywhere, with experts in some layers."""
    from transformers import GraniteConfig, LlamaConfig, Qwen2MoeConfig

    shape = {name: getattr(tiny_configs()["llama"], name) for name in SHAPE}
    factors = {"embedding_multiplier": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "mlp_only_layers": [1]}
    experts["shared_expert_intermediate_size"] = 32
    match family:
        case "granite":
            return GraniteConfig(**shape, **factors, logits_scaling=3.0, tie_word_embeddings=False)
        case "biases":
            return LlamaConfig(**shape, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
        case "dense behind experts":
            return Qwen2MoeConfig(**shape, **experts, tie_word_embeddings=False)
        case _:
            return tiny_configs()[family]


def model_of(family: str, folder: Path) -> Any:
    """A tiny random model, saved."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_of(family), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def adapted(model: Any, folder: Path, seed: int, **config: Any) -> tuple[Any, Any]:
    """The model with a random adapter, saved, and its logits of `TOKENS`, [positions, vocab]."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    with_adapter = get_peft_model(model, LoraConfig(**config)).eval()
    with torch.no_grad():
        for name, parameter in with_adapter.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            elif "magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
        logits = with_adapter(torch.tensor([TOKENS])).logits[0].float().numpy()
    with_adapter.save_pretrained(folder)
    return with_adapter.unload(), logits


def our_logits(model: _rust.CpuModel, adapters: list[int]) -> Any:
    """Logits of `TOKENS` with each adapter, all in one step, [adapters, positions, vocab]."""
    import numpy as np

    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    for sequence, adapter_id in enumerate(adapters):
        pool.add(sequence, TOKENS, adapter_id=adapter_id)
        pool.reserve(sequence, len(TOKENS))
    lengths = [len(TOKENS)] * len(adapters)
    model.execute(pool, list(range(len(adapters))), lengths, TOKENS * len(adapters), num_outputs=lengths)
    return np.frombuffer(model.logits(), dtype="<f4").reshape(len(adapters), len(TOKENS), -1).copy()


def load(path: Path) -> _rust.CpuModel:
    return _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 24, kv_type="f32")


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_gives_the_logits_of_peft(case: str, tmp_path: Path) -> None:
    """Each logit of 40 positions is within 1e-4 of peft's, and the adapter changes them by much more."""
    import numpy as np

    family, config = CASES[case]
    base = model_of(family, tmp_path / "model")
    _, expected = adapted(base, tmp_path / "adapter", 3, **config)
    model = load(tmp_path / "model")
    _rust.AdapterFile.open(model, tmp_path / "adapter").load(model, 5)
    plain, got = our_logits(model, [0, 5])
    assert np.abs(got - expected).max() < 1e-4
    assert np.abs(plain - expected).max() > 0.1


@pytest.mark.parametrize("family", ["arcee", "olmo"])
def test_an_adapter_fits_files_whose_rows_lie_otherwise(family: str, tmp_path: Path) -> None:
    """llama.cpp's converter puts the rows of queries and keys in another order; peft's adapter is for both files."""
    import numpy as np

    base = random_model(family, tmp_path / "model")
    gguf = write_as_gguf(tmp_path / "m.gguf", family, tensors_of(tmp_path / "model"))
    _, expected = adapted(base, tmp_path / "adapter", 3, r=4, target_modules=["q_proj", "k_proj"])
    for path in (tmp_path / "model", gguf):
        model = load(path)
        _rust.AdapterFile.open(model, tmp_path / "adapter").load(model, 5)
        plain, got = our_logits(model, [0, 5])
        assert np.abs(got - expected).max() < 1e-4
        assert np.abs(plain - expected).max() > 0.01


def test_a_batch_mixes_the_bare_model_and_two_adapters(tmp_path: Path) -> None:
    """In one step each sequence has the logits that peft gives with its own adapter."""
    import numpy as np
    import torch

    base = model_of("llama", tmp_path / "model")
    with torch.no_grad():
        plain = base(torch.tensor([TOKENS])).logits[0].float().numpy()
    base, first = adapted(base, tmp_path / "first", 3, r=8, target_modules=ALL)
    _, second = adapted(base, tmp_path / "second", 4, r=3, target_modules=list(ATTENTION))
    model = load(tmp_path / "model")
    for adapter_id, name in ((5, "first"), (6, "second")):
        _rust.AdapterFile.open(model, tmp_path / name).load(model, adapter_id)
    got = our_logits(model, [5, 0, 6, 5])
    for ours, expected in zip(got, [first, plain, second, first], strict=True):
        assert np.abs(ours - expected).max() < 1e-4


def test_several_adapters_add_up_as_in_peft(tmp_path: Path) -> None:
    """With two adapters of other ranks, scales and matrices active at once, beside the bare model and each alone."""
    import numpy as np
    import torch
    from peft import PeftModel

    base = model_of("llama", tmp_path / "model")
    with torch.no_grad():
        plain = base(torch.tensor([TOKENS])).logits[0].float().numpy()
    base, first = adapted(base, tmp_path / "first", 3, r=8, lora_alpha=12, target_modules=ALL)
    base, second = adapted(
        base, tmp_path / "second", 4, r=3, lora_alpha=5, use_rslora=True, target_modules=[*ATTENTION]
    )
    both = PeftModel.from_pretrained(base, tmp_path / "first", adapter_name="first").eval()
    both.load_adapter(tmp_path / "second", adapter_name="second")
    both.base_model.set_adapter(["first", "second"])
    with torch.no_grad():
        together = both(torch.tensor([TOKENS])).logits[0].float().numpy()
    model = load(tmp_path / "model")
    for adapter_id, names in ((5, ["first"]), (6, ["second"]), (7, ["first", "second"]), (8, ["second", "first"])):
        _rust.AdapterFile.open(model, *(tmp_path / name for name in names)).load(model, adapter_id)
    got = our_logits(model, [7, 0, 5, 6, 8])
    for ours, expected in zip(got, [together, plain, first, second, together], strict=True):
        assert np.abs(ours - expected).max() < 1e-4
    assert min(np.abs(together - other).max() for other in (plain, first, second)) > 0.1
    assert (our_logits(model, [7])[0] == got[0]).all()


def as_gguf(model: Any, path: Path) -> Path:
    """Write a llama or a Granite of transformers as llama.cpp's converter does."""
    config = model.config
    family = config.model_type
    head_dim = config.hidden_size // config.num_attention_heads
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    wholes = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    for name, value in model.state_dict().items():
        module = name.removesuffix(".weight")
        shape, numbers = tuple(value.shape), array("f", value.flatten().tolist())
        if module in wholes:
            tensors[f"{wholes[module]}.weight"] = (shape[::-1], numbers)
            continue
        layer, part = module.removeprefix("model.layers.").split(".", 1)
        if part in {"self_attn.q_proj", "self_attn.k_proj"}:
            numbers = side_by_side(numbers, shape[1], head_dim)
        tensors[f"blk.{layer}.{parts[part]}.weight"] = (shape[::-1], numbers)
    metadata: dict[str, object] = {
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "rope.freq_base": 10_000.0,
    }
    if family == "granite":
        metadata |= {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "logit_scale": config.logits_scaling,
            "residual_scale": config.residual_multiplier,
        }
    named = {f"{family}.{key}": value for key, value in metadata.items()}
    return write_gguf(path, {"general.architecture": family, **named}, tensors)


@pytest.mark.parametrize(("family", "is_dora"), [("llama", False), ("llama", True), ("granite", False)])
def test_an_adapter_of_peft_fits_a_gguf_file(family: str, is_dora: bool, tmp_path: Path) -> None:
    """GGUF files have the rows of heads in another order: the adapter's are reordered, and give peft's logits."""
    import numpy as np

    base = model_of(family, tmp_path / "folder")
    model = load(as_gguf(base, tmp_path / "model.gguf"))
    _, expected = adapted(base, tmp_path / "adapter", 3, r=8, target_modules=ALL, use_dora=is_dora)
    _rust.AdapterFile.open(model, tmp_path / "adapter").load(model, 5)
    assert np.abs(our_logits(model, [5])[0] - expected).max() < 1e-4
