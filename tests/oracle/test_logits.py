"""Logits of the CPU runner against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.reference_decoder import (
    EXPERT_FAMILIES,
    FAMILIES,
    SHAPE,
    reference_logits,
    write_family,
    write_safetensors,
)

from pyagent import _rust

pytestmark = pytest.mark.oracle

TEXT = Path(__file__).parents[2] / "src/pyagent/cli/demo_text.txt"
WINDOW = 500


def our_logits(model: _rust.CpuModel, windows: list[list[int]]):
    """Logits of every position of every window, [windows * positions, vocab]."""
    import numpy as np

    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    rows = []
    for sequence, tokens in enumerate(windows):
        pool.clear_index()
        pool.add(sequence, tokens)
        pool.reserve(sequence, len(tokens))
        model.execute(pool, [sequence], [len(tokens)], tokens, num_outputs=[len(tokens)])
        rows.append(np.frombuffer(model.logits(), dtype="<f4").reshape(len(tokens), info["vocab_size"]).copy())
        pool.release(sequence)
    return np.concatenate(rows)


def tiny_configs():
    """One small random configuration of each family, with what is peculiar to it."""
    from transformers import (
        Gemma3TextConfig,
        LlamaConfig,
        MistralConfig,
        MixtralConfig,
        OlmoeConfig,
        Qwen2Config,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    shape = {
        "vocab_size": 250,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    llama3_rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    gemma = shape | {"num_hidden_layers": 8, "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48}
    return {
        "llama": LlamaConfig(**shape, tie_word_embeddings=False),
        "llama-3.1": LlamaConfig(**shape, head_dim=48, rope_parameters=llama3_rope, tie_word_embeddings=True),
        "mistral": MistralConfig(**shape, sliding_window=40),
        "qwen2": Qwen2Config(**shape, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**shape, head_dim=32),
        "gemma3": Gemma3TextConfig(**gemma),
        "mixtral": MixtralConfig(**shape, num_local_experts=8),
        "qwen3_moe": Qwen3MoeConfig(
            **shape, head_dim=32, num_experts=40, moe_intermediate_size=48, norm_topk_prob=True
        ),
        "qwen3_moe-plain": Qwen3MoeConfig(**shape, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48),
        "olmoe": OlmoeConfig(**shape, num_experts=20, num_experts_per_tok=4, pad_token_id=0, eos_token_id=1),
    }


@pytest.mark.parametrize(
    "family",
    ["llama", "llama-3.1", "mistral", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe", "qwen3_moe-plain", "olmoe"],
)
def test_tiny_float32_models_agree_with_transformers_to_1e_4(family: str, tmp_path: Path) -> None:
    """Every family, random weights in float32: each logit of 300 positions is within 1e-4 of transformers'."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    config = tiny_configs()[family]
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path)
    tokens = torch.randint(0, 250, (300,)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    model = _rust.CpuModel.load(tmp_path, threads=2, kv_bytes=1 << 24, kv_type="f32")
    got = our_logits(model, [tokens])
    assert np.abs(got - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("qwen2_vl", {"mrope_section": [2, 3, 3]}),
        ("qwen2_5_vl", {"mrope_section": [4, 2, 2]}),
        ("qwen3_vl", {"mrope_section": [12, 10, 10], "head_dim": 64}),
    ],
)
def test_text_by_a_model_of_pictures_agrees_with_transformers(name: str, shape: dict[str, Any], tmp_path: Path) -> None:
    """Random weights in float32, as transformers saves them: each logit of 60 positions to 1e-4 of the largest."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": shape.pop("mrope_section")}
    text = {key: value for key, value in SHAPE.items() if key != "rms_norm_eps"} | {"rope_parameters": rope} | shape
    pictures = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(name, text_config=text, vision_config=pictures)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path)
    tokens = [(7 * place + place * place) % SHAPE["vocab_size"] for place in range(60)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    model = _rust.CpuModel.load(tmp_path, threads=2, kv_bytes=1 << 24, kv_type="f32")
    assert np.abs(our_logits(model, [tokens]) - expected).max() < 1e-4 * np.abs(expected).max()


def test_experts_by_a_model_of_pictures_are_read_in_both_forms(tmp_path: Path) -> None:
    """Published files of Qwen3-VL with experts have inputs as rows, transformers' newer ones outputs: the same bits."""
    import numpy as np
    from safetensors.torch import load_file, save_file

    shape = {"mrope_section": [12, 10, 10], "head_dim": 64, "num_experts": 6, "moe_intermediate_size": 32}
    test_text_by_a_model_of_pictures_agrees_with_transformers("qwen3_vl_moe", shape, tmp_path)
    tokens = [(7 * place + place * place) % SHAPE["vocab_size"] for place in range(20)]
    both = list[Any]()
    for _ in range(2):
        model = _rust.CpuModel.load(tmp_path, threads=2, kv_bytes=1 << 24, kv_type="f32")
        both.append(our_logits(model, [tokens]))
        tensors = load_file(tmp_path / "model.safetensors")
        turned = {name: values.transpose(1, 2).contiguous() for name, values in tensors.items() if "experts." in name}
        save_file(tensors | turned, tmp_path / "model.safetensors")
    assert np.array_equal(*both)


@pytest.mark.parametrize("family", [*FAMILIES, *EXPERT_FAMILIES])
def test_windows_rotary_scalings_and_experts_agree_with_transformers(family: str, tmp_path: Path) -> None:
    """Every family of the plain decoder that `make test` compares with is what transformers makes of its files."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    config, tensors = write_family(tmp_path, family)
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(60)]
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(np.array(reference_logits(config, tensors, tokens)) - expected).max() < 5e-4  # of logits up to 60
    model = _rust.CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 24, kv_type="f32")
    assert np.abs(our_logits(model, [tokens]) - expected).max() < 5e-4


REAL_ROPES: list[tuple[str, dict[str, Any]]] = [
    (
        "llama",
        {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    ("qwen2", {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}),
    ("qwen2", {"rope_theta": 1e6, "rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}),
    ("qwen2", {"rope_theta": 1e4, "rope_type": "yarn", "factor": 16.0, "beta_fast": 64.0, "truncate": False}),
    ("llama", {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 8.0}),
    ("llama", {"rope_theta": 1e4, "rope_type": "longrope", "factor": 32.0}),
]


@pytest.mark.parametrize("most_positions", [None, 8192])
@pytest.mark.parametrize(("kind", "rope"), REAL_ROPES)
def test_rotary_frequencies_of_real_shapes_are_those_of_transformers(
    kind: str, rope: dict[str, Any], most_positions: int | None, tmp_path: Path
) -> None:
    """Heads of 128, contexts of thousands: frequencies to 4 units in the last place, the attention factor to 1e-7.

    Where all texts are as short as the original context, LongRoPE's are those for short ones.
    """
    import numpy as np
    import torch
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = rope | {"original_max_position_embeddings": 8192}
    if rope["rope_type"] == "longrope":
        rope |= {"long_factor": [1.05 + place**1.8 for place in range(64)], "short_factor": [1.0] * 64}
    config = SHAPE | {"model_type": kind, "head_dim": 128, "max_position_embeddings": 32768, "rope_parameters": rope}
    write_safetensors(tmp_path, config, {"model.embed_tokens.weight": [[0.0] * 64] * 96})
    about = _rust.ModelFile(tmp_path, most_positions).config
    theirs = AutoConfig.from_pretrained(tmp_path)
    compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    is_shorter = most_positions is not None and rope["rope_type"] == "longrope"
    longest = most_positions if is_shorter else about.context_length
    frequencies, factor = compute(theirs, seq_len=torch.tensor(longest))
    np.testing.assert_array_max_ulp(np.array(about.rope_frequencies, np.float32), frequencies.numpy(), 4)
    assert about.rope_attention_factor == pytest.approx(factor, rel=1e-7)


def load_dequantised(path: Path):
    """transformers' model of a GGUF file, its weights dequantised to float32."""
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, object] = {}
    try:
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(dequantize=True)
    except ImportError:
        pass
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, **options).eval()


def agreement(path: Path, num_positions: int) -> tuple[float, float, float]:
    """Over positions of real text: share with cosine > 0.999, smallest cosine, share with the same best token."""
    import numpy as np
    import torch

    from pyagent.infrastructure.engine.tokens import ModelTokenizer

    model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 28)
    tokenizer = ModelTokenizer.load(path, vocab_size=model.info()["vocab_size"])
    ids = tokenizer.encode_text(TEXT.read_text(encoding="utf-8"))[:num_positions]
    windows = [ids[start : start + WINDOW] for start in range(0, num_positions, WINDOW)]
    reference = load_dequantised(path)
    cosines, same = list[float](), list[bool]()
    for window in windows:  # 500 positions of Gemma's logits are half a gigabyte
        got = our_logits(model, [window]).astype(np.float64)
        with torch.no_grad():
            expected = reference(torch.tensor([window])).logits[0].double().numpy()
        cosines += list((got * expected).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1))
        same += list(got.argmax(axis=1) == expected.argmax(axis=1))
    return float((np.array(cosines) > 0.999).mean()), float(min(cosines)), float(np.mean(same))


# Gemma's 262,144 logits of a position take transformers and numpy ten times as long as SmolLM2's.
@pytest.mark.parametrize(("model", "num_positions"), [("smollm2_path", 2_000), ("gemma3_path", 500)])
def test_real_models_agree_with_transformers_on_dequantised_weights(
    model: str, num_positions: int, request: pytest.FixtureRequest
) -> None:
    """SmolLM2 Q4_1, Gemma 3 270M Q4_K_M: cosine > 0.999 on > 98 % of the positions, the same argmax on > 98 %."""
    close, cosine, same = agreement(request.getfixturevalue(model), num_positions)
    print(f"{model}: cosine > 0.999 on {close:.2%}, at least {cosine:.6f}; same argmax {same:.2%}")
    assert close > 0.98
    assert cosine > 0.9  # at single positions, what happens to a rounding error is chance
    assert same > 0.98
