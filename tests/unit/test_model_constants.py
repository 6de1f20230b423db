"""What a model's configuration says, held against a plain decoder in float64: each constant changes the numbers."""

from __future__ import annotations

import json
import math
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.gguf_writer import write_gguf
from support.native import engine_logits
from support.reference_decoder import (
    EXPERT_FAMILIES,
    FAMILIES,
    SHAPE,
    Matrix,
    Tensors,
    num_experts_of,
    reference_logits,
    write_family,
    write_safetensors,
)
from support.tiny_model import write_tiny_model

from pyagent import _rust

NUM_TOKENS = 40


def furthest(left: Matrix, right: Matrix) -> float:
    """The greatest difference of two tables."""
    pairs = ((a, b) for rows in zip(left, right, strict=True) for a, b in zip(*rows, strict=True))
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("family", [*FAMILIES, *EXPERT_FAMILIES])
def test_logits_of_every_family_are_those_of_the_formulas(family: str, tmp_path: Path) -> None:
    """Random weights of each family, windows and rotary scalings included: every logit is the formula's to 3e-4."""
    config, tensors = write_family(tmp_path, family)
    draw = random.Random(3)
    tokens = [draw.randrange(SHAPE["vocab_size"]) for _ in range(NUM_TOKENS)]
    assert furthest(engine_logits(tmp_path, tokens), reference_logits(config, tensors, tokens)) < 3e-4


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is not implemented"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is not implemented"),
    ("gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is not implemented"),
    ("llama", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is not implemented"),
    ("llama", {"residual_multiplier": 0.2}, "'residual_multiplier' is not implemented"),
    ("llama", {"sliding_window": 8}, "'sliding_window' is not implemented for llama"),
    (
        "llama",
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "has 'quant_method': \"bitsandbytes\", which is not implemented on the CPU; there are gptq, awq, fp8, "
        "compressed-tensors, modelopt. Take the model as a GGUF file",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "'rope_parameters' and 'rope_scaling' say different rotary scalings",
    ),
    ("llama-linear", {"rope_parameters": {"rope_type": "axial"}}, "rope scaling 'axial' is not supported"),
    (
        "llama-linear",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "low_freq_factor": 1.0}},
        "'rope_parameters.low_freq_factor' is not implemented",
    ),
    (
        "llama-linear",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 0.5}},
        "scaling factor must be finite and at least 1",
    ),
    (
        "llama-longrope",
        {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0] * 3, "short_factor": [1.0] * 3}},
        "3 factors for 8 frequencies",
    ),
    ("llama-longrope", {"rope_parameters": {"rope_type": "longrope"}}, "lacks 'short_factor', a list of numbers"),
    ("olmo2", {"sliding_window": 8}, "'sliding_window' is not implemented for olmo2"),
    ("phi3", {"partial_rotary_factor": 0.1}, "1 of a head's 16 numbers are rotated"),
    ("phi3", {"num_key_value_heads": 4}, "is 128 x 64; expected 192 x 64"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "'no_rope_layers' must have 1 (rotary) or 0 for each layer"),
    ("smollm3", {"no_rope_layers": [1, True, 0, 1, 1]}, "'no_rope_layers' must have 1 (rotary) or 0 for each layer"),
    (
        "llama-linear",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.2}},
        "'rope_parameters.attention_factor' is not implemented",
    ),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "'layer_types' is not implemented"),
    ("qwen3-partly", {"layer_types": ["chunked_attention"] * 3}, "'layer_types' is not implemented"),
    ("qwen3-partly", {"layer_types": ["full_attention"] * 2}, "the kinds of 2 layers are told, of 3"),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": "two"}, "must be a whole number"),
    ("qwen3_moe", {"num_experts_per_tok": 7}, "experts of a token are 7; expected 1 to 6"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "experts of a token are 0; expected 1 to 6"),
    ("qwen3_moe", {"num_experts": 2**40}, "experts of a layer are 1099511627776; expected 1 to 1024"),
    ("qwen3_moe", {"num_experts": 5}, "'model.layers.0.mlp.gate.weight' is 6 x 64; expected 5 x 64"),
    ("qwen3_moe", {"moe_intermediate_size": 80}, "'model.layers.0.mlp.experts.0.gate_proj.weight' is 48 x 64; exp"),
    ("qwen3_moe", {"mlp_only_layers": [1]}, "'mlp_only_layers' is not implemented"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "'decoder_sparse_step' is not implemented"),
    ("qwen3_moe", {"use_sliding_window": True}, "'use_sliding_window' is not implemented for qwen3_moe"),
    ("olmoe", {"clip_qkv": 8.0}, "'clip_qkv' is not implemented"),
    ("mixtral", {"norm_topk_prob": False}, "'norm_topk_prob' is not implemented"),
    ("mixtral", {"num_local_experts": None}, "config.json lacks 'num_local_experts'"),
    ("llama", {"num_local_experts": 4}, "'num_local_experts' is not implemented"),
]


@pytest.mark.parametrize(("family", "changes", "expected"), REFUSED)
def test_a_field_that_changes_numbers_and_is_not_implemented_is_refused_by_name(
    family: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """A model that would compute otherwise than its configuration says is not loaded."""
    config, _ = write_family(tmp_path, family)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": None, "transformers_version": "5.1", "torch_dtype": "float32", "use_cache": True},
        {"partial_rotary_factor": 1, "use_bidirectional_attention": False, "initializer_range": 0.02},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ],
)
def test_fields_that_say_nothing_new_are_taken(changes: dict[str, Any], tmp_path: Path) -> None:
    """Fields that are unset, neutral, or about something else than the forward pass change no number."""
    config, tensors = write_family(tmp_path, "gemma3")
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    tokens = list(range(20))
    assert furthest(engine_logits(tmp_path, tokens), reference_logits(config, tensors, tokens)) < 3e-4


GGUF_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
GGUF_EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
GGUF_KINDS = {"qwen3_moe": "qwen3moe", "mixtral": "llama"}
GGUF_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def as_gguf(path: Path, config: dict[str, Any], tensors: Tensors, keys: dict[str, object]) -> Path:
    """Write a family's folder as GGUF files have it: names, metadata, neighbours as rotary pairs where they are."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    parts = dict(GGUF_PARTS)
    if kind == "olmo2":
        parts |= {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    sizes = {
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "context_length": config["max_position_embeddings"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config.get("rope_theta", 10_000.0),
    }
    if num_experts := num_experts_of(config):
        used = {"expert_count": num_experts, "expert_used_count": config["num_experts_per_tok"]}
        sizes |= used | {
            "expert_feed_forward_length": config.get("moe_intermediate_size") or sizes["feed_forward_length"]
        }
    is_interleaved = kind in {"smollm3", "mixtral"}
    kind = GGUF_KINDS.get(kind, kind)
    metadata = {"general.architecture": kind} | {f"{kind}.{key}": value for key, value in (sizes | keys).items()}
    written: dict[str, Any] = {}
    for name, rows in tensors.items():
        stem, _, end = name.rpartition(".")
        if stem in GGUF_WHOLE:
            stem = GGUF_WHOLE[stem]
        elif ".experts." in stem:
            _, _, layer, _, _, expert, part = stem.split(".")
            stem = f"blk.{layer}.{GGUF_EXPERTS[part]}"
            _, others = written.get(f"{stem}.{end}", ((), array("f")))
            assert len(others) == int(expert) * len(rows) * len(rows[0])
            values = others + array("f", (value for row in rows for value in row))
            written[f"{stem}.{end}"] = ((len(rows[0]), len(rows), int(expert) + 1), values)
            continue
        else:
            _, _, layer, part = stem.split(".", 3)
            stem = f"blk.{layer}.{parts[part]}"
        if is_interleaved and stem.endswith(("attn_q", "attn_k")):
            dim = config["hidden_size"] // heads
            order = [at // dim * dim + at % dim // 2 + at % 2 * dim // 2 for at in range(len(rows))]
            values = array("f", (value for at in order for value in rows[at]))
        else:
            values = array("f", (value for row in rows for value in row))
        shape = (len(rows[0]),) if len(rows) == 1 else (len(rows[0]), len(rows))
        written[f"{stem}.{end}"] = (shape, values)
    for key, length in (("long_factor", "long"), ("short_factor", "short")):
        if factors := config.get("rope_parameters", {}).get(key):
            written[f"rope_factors_{length}.weight"] = ((len(factors),), array("f", factors))
    return write_gguf(path, metadata, written)


_YARN_KEYS: dict[str, object] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.attn_factor": 1.4 / (1 + 0.1 * math.log(4)),
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 2.0,
}
_LONGROPE_KEYS: dict[str, object] = {
    "rope.dimension_count": 12,
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": 32,
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(16) / math.log(32)),
}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("qwen2-yarn", _YARN_KEYS),
        ("qwen2-yarn", _YARN_KEYS | {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.4}),
        ("phi3", {"attention.sliding_window": 12}),
        ("phi3-longrope", {**_LONGROPE_KEYS, "attention.sliding_window": 0}),
        ("olmo2", {}),
        ("smollm3", {}),
        ("mixtral", {}),
        ("qwen3_moe", {"attention.key_length": 32, "attention.value_length": 32, "expert_gating_func": 1}),
        ("olmoe", {}),
    ],
)
def test_a_gguf_file_is_read_as_its_folder(family: str, keys: dict[str, object], tmp_path: Path) -> None:
    """The same weights in a GGUF file, with its names, layouts and keys: the same logits to 1e-4."""
    config, tensors = write_family(tmp_path, family)
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(30)]
    path = as_gguf(tmp_path / "m.gguf", config, tensors, keys)
    assert furthest(engine_logits(path, tokens), engine_logits(tmp_path, tokens)) < 1e-4


def test_windows_of_olmo_3_see_no_stretched_context(tmp_path: Path) -> None:
    """A GGUF file says YaRN once; layers with a window turn by the plain base, as the family's folders say."""
    config, tensors = write_family(tmp_path, "olmo2")
    windows = {"attention.sliding_window": 12, "attention.sliding_window_pattern": [True, True, False]}
    about = _rust.ModelFile(as_gguf(tmp_path / "m.gguf", config, tensors, _YARN_KEYS | windows)).config
    assert about.rope_attention_factor == pytest.approx(1.4)
    assert about.local_rope_attention_factor == 1.0
    assert about.local_rope_frequencies != about.rope_frequencies


def without_experts(tensors: Tensors, *ends: str) -> Tensors:
    """The tensors but those of an expert of the last layer whose names end so."""
    return {
        name: rows for name, rows in tensors.items() if not name.endswith(tuple(f"2.mlp.experts.{e}" for e in ends))
    }


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_experts_that_are_not_all_there_are_refused_before_other_tensors_are_read(form: str, tmp_path: Path) -> None:
    """The last layer lacks an expert, and the first one's queries are wrong: the expert is what the error names."""
    config, tensors = write_family(tmp_path, "qwen3_moe")
    parts = ["5.up_proj.weight"] if form == "folder" else [f"5.{part}_proj.weight" for part in ("gate", "up", "down")]
    missing = without_experts(tensors, *parts)
    missing["model.layers.0.self_attn.q_proj.weight"] = [[1.0] * 64] * 8
    expected = '"model.layers.2.mlp.experts.5.up_proj.weight" is missing'
    path = tmp_path
    if form == "gguf":
        keys: dict[str, object] = {"attention.key_length": 32, "attention.value_length": 32}
        path = as_gguf(tmp_path / "m.gguf", config, missing, keys)
        expected = "tensor 'blk.2.ffn_gate_exps.weight' is [64, 48, 5]; expected [64, 48, 6]"
    else:
        write_safetensors(tmp_path, config, missing)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


PICTURES = {"vision_config": {"depth": 1}, "image_token_id": 90, "vision_start_token_id": 91}
"""Outer fields of a model of pictures and text."""


def as_text_half(folder: Path, name: str, family: str, changes: dict[str, Any]) -> list[int]:
    """Write a family's random model as the text half of one of pictures; returns tokens to compute."""
    config, tensors = write_family(folder, family)
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta"), "mrope_section": [2, 3, 3]}
    text = config | {"model_type": f"{name}_text", "rope_parameters": rope} | changes
    named = {key.replace("model.", "model.language_model.", 1): rows for key, rows in tensors.items()}
    named["model.visual.patch_embed.proj.weight"] = [[1.0] * 8] * 8
    write_safetensors(folder, PICTURES | {"model_type": name, "text_config": text}, named)
    return [(7 * place + place * place) % config["vocab_size"] for place in range(30)]


@pytest.mark.parametrize(
    ("name", "family", "changes"),
    [
        ("qwen2_vl", "qwen2", {}),
        ("qwen2_5_vl", "qwen2", {}),
        ("qwen3_vl", "qwen3", {"rope_parameters": {"rope_theta": 1_000.0, "mrope_section": [6, 5, 5]}}),
    ],
)
def test_the_text_half_of_a_model_of_pictures_computes_as_its_family(
    name: str, family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Nested fields, other tensor names, sections of positions: in text, Qwen2's or Qwen3's logits, bit for bit."""
    (tmp_path / "plain").mkdir()
    write_family(tmp_path / "plain", family)
    tokens = as_text_half(tmp_path, name, family, changes)
    assert engine_logits(tmp_path, tokens) == engine_logits(tmp_path / "plain", tokens)


def test_the_older_form_of_a_model_of_pictures_is_read(tmp_path: Path) -> None:
    """Text fields beside the pictures', `rope_scaling`, tensors without `language_model`: the same logits."""
    (tmp_path / "plain").mkdir()
    config, tensors = write_family(tmp_path / "plain", "qwen2")
    older = {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    write_safetensors(tmp_path, config | PICTURES | older, tensors)
    assert engine_logits(tmp_path, [1, 2, 3]) == engine_logits(tmp_path / "plain", [1, 2, 3])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_parameters": {"mrope_section": [2, 3, 4]}}, "'mrope_section' of three numbers whose sum is 8"),
        ({"rope_parameters": {"mrope_section": [2**64 - 1, 2, 3]}}, "'mrope_section' of three numbers"),
        ({"rope_parameters": {"mrope_section": "all"}}, "'mrope_section' of three numbers"),
        ({"rope_parameters": {"type": "yarn", "factor": 4.0}}, "the rope scaling 'yarn' is not implemented for qwen2"),
        ({"rope_parameters": {"type": "mrope", "beta_fast": 4.0}}, "'rope_parameters.beta_fast' is not implemented"),
        ({"rope_parameters": {"mrope_interleaved": True}}, "'mrope_interleaved' false"),
        ({"use_sliding_window": True}, "sliding windows are not implemented for qwen2_5_vl"),
        ({"residual_multiplier": 2.0}, "'residual_multiplier' is not implemented"),
    ],
)
def test_what_a_text_half_cannot_be_is_refused_by_name(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Sections that are no head's, other scalings, windows, and fields of `text_config` that are not known."""
    as_text_half(tmp_path, "qwen2_5_vl", "qwen2", changes)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


def test_the_text_half_of_a_gguf_file_is_read(tmp_path: Path) -> None:
    """`qwen2vl` with its sections is what `qwen2` is."""
    config, tensors = write_family(tmp_path, "qwen2")
    for name in ("qwen2", "qwen2vl"):
        keys: dict[str, object] = {"rope.dimension_sections": [2, 3, 3, 0]} if name == "qwen2vl" else {}
        as_gguf(tmp_path / f"{name}.gguf", config | {"model_type": name}, tensors, keys)
    plain, half = (engine_logits(tmp_path / f"{name}.gguf", [1, 2, 3]) for name in ("qwen2", "qwen2vl"))
    assert plain == half


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("llama", {"llama__attn_logit_softcapping": 50.0}, "'llama.attn_logit_softcapping' is not implemented"),
        ("llama", {"llama__rope__dimension_count": 8}, "'llama.rope.dimension_count' is 8"),
        ("qwen2", {"qwen2__expert_count": 8}, "'qwen2.expert_count' is not implemented"),
        ("llama", {"llama__expert_count": 8}, "llama.expert_used_count"),
        (
            "llama",
            {"llama__expert_count": 8, "llama__expert_used_count": 9},
            "experts of a token are 9; expected 1 to 8",
        ),
        ("llama", {"llama__expert_count": 8, "llama__expert_used_count": 2}, "blk.0.ffn_gate_inp.weight"),
        ("qwen3moe", {"qwen3moe__expert_used_count": 2}, "experts of a layer are 0; expected 1 to 1024"),
        ("llama", {"llama__rope__scaling__type": "su"}, "rope scaling 'su' is not supported"),
        ("llama", {"llama__attention__value_length": 32}, "'llama.attention.value_length' is 32"),
        ("qwen2", {"qwen2__attention__sliding_window": 8}, "does not say which layers have the window"),
    ],
)
def test_a_gguf_key_that_is_not_implemented_is_refused_by_name(
    architecture: str, changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """Likewise in the metadata of a GGUF file."""
    path = write_tiny_model(tmp_path / "m.gguf", architecture=architecture, **changes)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


def test_gguf_keys_that_say_nothing_new_are_taken(tmp_path: Path) -> None:
    """Neutral and irrelevant keys of a GGUF change no number."""
    plain = write_tiny_model(tmp_path / "a.gguf")
    more = write_tiny_model(tmp_path / "b.gguf", llama__expert_count=0, llama__vocab_size=325, llama__logit_scale=1.0)
    assert engine_logits(plain, [1, 2, 3]) == engine_logits(more, [1, 2, 3])
