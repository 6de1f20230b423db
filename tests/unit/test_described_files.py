"""Files of families that are descriptions over shared layers: what they need, and what is refused by name."""

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
from support.tiny_model import CONTEXT, metadata, vocabulary

from pyagent import _rust

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 32, 2
QUERY, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
NUM_TOKENS = len(vocabulary()[0])
TOKENS = [(7 * place + place * place) % 250 for place in range(40)]

Shapes = dict[str, tuple[int, ...]]
_ATTENTION: Shapes = {
    "attn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HIDDEN, QUERY),
    "attn_k.weight": (HIDDEN, KV),
    "attn_v.weight": (HIDDEN, KV),
    "attn_output.weight": (QUERY, HIDDEN),
}
_JOINED: Shapes = {
    "attn_norm.weight": (HIDDEN,),
    "attn_qkv.weight": (HIDDEN, QUERY + 2 * KV),
    "attn_qkv.bias": (QUERY + 2 * KV,),
    "attn_output.weight": (QUERY, HIDDEN),
}
_BARE: Shapes = {"ffn_up.weight": (HIDDEN, FFN), "ffn_down.weight": (FFN, HIDDEN)}
_NORM: Shapes = {"ffn_norm.weight": (HIDDEN,)}
_STACKS: Shapes = {
    "ffn_gate_exps.weight": (HIDDEN, FFN, 3),
    "ffn_up_exps.weight": (HIDDEN, FFN, 3),
    "ffn_down_exps.weight": (FFN, HIDDEN, 3),
}
LAYER: dict[str, Shapes] = {
    "glm4": {
        **_ATTENTION,
        **_NORM,
        "post_attention_norm.weight": (HIDDEN,),
        "post_ffw_norm.weight": (HIDDEN,),
        "ffn_up.weight": (HIDDEN, 2 * FFN),
        "ffn_down.weight": (FFN, HIDDEN),
    },
    "minimax-m2": {
        **_ATTENTION,
        **_NORM,
        "attn_q_norm.weight": (QUERY,),
        "attn_k_norm.weight": (KV,),
        "ffn_gate_inp.weight": (HIDDEN, 3),
        "exp_probs_b.bias": (3,),
        "ffn_gate_exps.weight": (HIDDEN, FFN, 3),
        "ffn_up_exps.weight": (HIDDEN, FFN, 3),
        "ffn_down_exps.weight": (FFN, HIDDEN, 3),
    },
    "starcoder2": {**_ATTENTION, **_NORM, **_BARE, "ffn_norm.bias": (HIDDEN,)},
    "phi2": {**_JOINED, **_BARE},
    "gptneox": {**_JOINED, **_NORM, **_BARE},
    "command-r": {**_ATTENTION, **_BARE, "ffn_gate.weight": (HIDDEN, FFN)},
    "apertus": {**_ATTENTION, **_NORM, **_BARE},
    "falcon": {**_JOINED, **_BARE, "attn_norm_2.weight": (HIDDEN,)},
    "bloom": {**_JOINED, **_NORM, **_BARE},
    "gpt2": {**_JOINED, **_NORM, **_BARE},
    "chatglm": {**_JOINED, **_NORM, "ffn_up.weight": (HIDDEN, 2 * FFN), "ffn_down.weight": (FFN, HIDDEN)},
    "qwen": {**_JOINED, **_NORM, **_BARE, "ffn_gate.weight": (HIDDEN, FFN)},
    "phimoe": {
        **_ATTENTION,
        **_NORM,
        "ffn_gate_inp.weight": (HIDDEN, 3),
        "ffn_gate_exps.weight": (HIDDEN, FFN, 3),
        "ffn_up_exps.weight": (HIDDEN, FFN, 3),
        "ffn_down_exps.weight": (FFN, HIDDEN, 3),
    },
    "jais2": {**_ATTENTION, **_NORM, **_BARE, "attn_norm.bias": (HIDDEN,), "attn_output.bias": (HIDDEN,)},
    "maincoder": {
        **_ATTENTION,
        **_NORM,
        **_BARE,
        "ffn_gate.weight": (HIDDEN, FFN),
        "attn_q_norm.weight": (HEAD_DIM,),
        "attn_k_norm.weight": (HEAD_DIM,),
    },
    "hy_v3": {
        **_ATTENTION,
        **_NORM,
        **_STACKS,
        "attn_q_norm.weight": (HEAD_DIM,),
        "attn_k_norm.weight": (HEAD_DIM,),
        "ffn_gate_inp.weight": (HIDDEN, 3),
        "exp_probs_b": (3,),
        "ffn_gate_shexp.weight": (HIDDEN, 48),
        "ffn_up_shexp.weight": (HIDDEN, 48),
        "ffn_down_shexp.weight": (48, HIDDEN),
    },
    "cohere2moe": {
        **_ATTENTION,
        **_STACKS,
        "ffn_gate_inp.weight": (HIDDEN, 3),
        "ffn_gate_shexp.weight": (HIDDEN, 48),
        "ffn_up_shexp.weight": (HIDDEN, 48),
        "ffn_down_shexp.weight": (48, HIDDEN),
    },
    "granite_swa": {
        **_ATTENTION,
        **_NORM,
        "attn_sinks.weight": (HEADS,),
        "ffn_gate_inp.weight": (HIDDEN, 3),
        "ffn_gate_up_exps.weight": (HIDDEN, 2 * FFN, 3),
        "ffn_down_exps.weight": (FFN, HIDDEN, 3),
        "ffn_up_shexp.weight": (HIDDEN, 96),
        "ffn_down_shexp.weight": (48, HIDDEN),
    },
}
_SLOW = {"jais2", "maincoder", "cohere2moe"}
"""Compared where there is time: what they have of their own, the others have too."""
_EXPERTS: dict[str, object] = {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": FFN}
_SHARED: dict[str, object] = {**_EXPERTS, "expert_shared_feed_forward_length": 48}
_WINDOW: dict[str, object] = {
    "attention__sliding_window": 24,
    "attention__sliding_window_pattern": [False, True],
}
_ROTARY: dict[str, object] = {"rope__dimension_count": 16}
_LLAMA: Shapes = {f"blk.{layer}.ffn_norm.weight": (HIDDEN,) for layer in range(LAYERS)}
_KEYS: dict[str, dict[str, object]] = {
    "llama": {"attention__layer_norm_rms_epsilon": 1e-5},
    "glm4": _ROTARY,
    "minimax-m2": {**_EXPERTS, **_ROTARY},
    "starcoder2": {},
    "phi2": _ROTARY,
    "gptneox": _ROTARY,
    "command-r": {"logit_scale": 0.5},
    "apertus": {"attention__layer_norm_rms_epsilon": 1e-5},
    "falcon": {"tensor_data_layout": "jploski"},
    "bloom": {},
    "gpt2": {},
    "chatglm": {**_ROTARY, "attention__layer_norm_rms_epsilon": 1e-5},
    "qwen": {"feed_forward_length": 2 * FFN, "attention__layer_norm_rms_epsilon": 1e-5},
    "phimoe": {**_EXPERTS, "attention__layer_norm_rms_epsilon": 1e-5},
    "jais2": {},
    "maincoder": {"attention__layer_norm_rms_epsilon": 1e-5},
    "hy_v3": {**_SHARED, "attention__layer_norm_rms_epsilon": 1e-5},
    "cohere2moe": {**_SHARED, **_WINDOW, "logit_scale": 0.5},
    "granite_swa": {**_SHARED, **_WINDOW, "attention__layer_norm_rms_epsilon": 1e-5},
}
_BEFORE_LAYERS: dict[str, Shapes] = {
    "bloom": {"token_embd_norm.weight": (HIDDEN,), "token_embd_norm.bias": (HIDDEN,)},
    "gpt2": {"position_embd.weight": (HIDDEN, CONTEXT)},
}
CURVES = {f"xielu.{name}": [value] * LAYERS for name, value in (("alpha_p", 0.2), ("alpha_n", -0.9), ("beta", 0.5))}
CURVES |= {"xielu.eps": [-1e-6] * LAYERS}


def tensors(family: str) -> Shapes:
    found: Shapes = {"token_embd.weight": (HIDDEN, NUM_TOKENS), "output_norm.weight": (HIDDEN,)}
    found |= _BEFORE_LAYERS.get(family, {})
    if family in {"minimax-m2", "phi2", "gptneox", "apertus", "qwen", "phimoe"}:
        found["output.weight"] = (HIDDEN, NUM_TOKENS)
    return found | {f"blk.{layer}.{name}": dims for layer in range(LAYERS) for name, dims in LAYER[family].items()}


def write(path: Path, family: str, shapes: Shapes, **changes: object) -> Path:
    keys = {
        "attention__key_length": HEAD_DIM,
        "attention__value_length": HEAD_DIM,
        "attention__layer_norm_epsilon": 1e-5,
    }
    sizes = {
        "attention__head_count": HEADS,
        "attention__head_count_kv": KV_HEADS,
        "block_count": LAYERS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
    }
    curves = {key: changes.pop(key, value) for key, value in (CURVES if family == "apertus" else {}).items()}
    told = {f"{family}__{key}": value for key, value in {**keys, **sizes, **_KEYS[family], **changes}.items()}
    rng = random.Random(3)
    values: dict[str, Any] = {}
    for name, dims in shapes.items():
        count = 1
        for size in dims:
            count *= size
        values[name] = (dims, array("f", (rng.uniform(-0.2, 0.2) for _ in range(count))))
    told_whole = {key: value for key, value in curves.items() if value is not None}
    return write_gguf(path, metadata(family, **told) | told_whole, values)


def said_of(path: Path) -> str:
    """What is said of a file that is refused, in one line."""
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("xielu.alpha_n", None, "xielu.alpha_n"),
        ("xielu.beta", [0.5], "'xielu.beta' has 1 values; expected 2, one for each layer"),
        ("xielu.alpha_p", [0.2, math.inf], "the curve of layer 1's activation has numbers that are not finite"),
        ("xielu.eps", "no number", "xielu.eps"),
    ],
)
def test_a_curve_that_is_not_whole_is_refused(key: str, value: object, expected: str, tmp_path: Path) -> None:
    """Of Apertus's activation in a GGUF file: a number that is missing, of one layer alone, infinite, or none."""
    assert expected in said_of(write(tmp_path / "m.gguf", "apertus", tensors("apertus"), **{key: value}))


def test_a_curve_may_be_one_for_all_layers(tmp_path: Path) -> None:
    """A single number stands for each layer's, as llama.cpp reads it."""
    each = engine_logits(write(tmp_path / "each.gguf", "apertus", tensors("apertus")), TOKENS)
    one = write(tmp_path / "one.gguf", "apertus", tensors("apertus"), **{"xielu.alpha_p": 0.2, "xielu.beta": 0.5})
    assert engine_logits(one, TOKENS) == each
    other = write(tmp_path / "other.gguf", "apertus", tensors("apertus"), **{"xielu.alpha_p": 0.3})
    assert engine_logits(other, TOKENS) != each


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in LAYER]
)
def test_every_tensor_of_a_layer_is_needed_in_its_size(family: str, tmp_path: Path) -> None:
    """A file that lacks a tensor of the last layer, but a bias, or has it larger, is refused by that tensor's name."""
    whole = tensors(family)
    _rust.CpuModel.load(write(tmp_path / "m.gguf", family, whole), threads=1, kv_bytes=1 << 20)
    for name, dims in whole.items():
        if not name.startswith(f"blk.{LAYERS - 1}."):
            continue
        larger = {**whole, name: (*dims[:-1], dims[-1] + 16)}
        assert f"'{name}'" in said_of(write(tmp_path / "m.gguf", family, larger))
        if not name.endswith(".bias") or "exp_probs" in name:
            rest = {other: shape for other, shape in whole.items() if other != name}
            said = said_of(write(tmp_path / "m.gguf", family, rest))
            assert f'"{name}" is missing' in said or ("attn_q.weight" in said and "qkv" in name)


def test_blocks_beside_each_other_are_not_those_in_turn(tmp_path: Path) -> None:
    """GPT-NeoX's files say which; the same weights give other logits."""
    logits = [
        engine_logits(
            write(tmp_path / f"{truth}.gguf", "gptneox", tensors("gptneox"), use_parallel_residual=truth), TOKENS
        )
        for truth in (True, False)
    ]
    assert abs(logits[0][-1][0] - logits[1][-1][0]) > 1e-4


def test_layers_that_a_file_does_not_count_are_no_leftovers(tmp_path: Path) -> None:
    """A file of two layers that says one would run as another model."""
    path = write(tmp_path / "m.gguf", "starcoder2", tensors("starcoder2"), block_count=1)
    assert "'starcoder2.block_count' is 1, but there is a tensor 'blk.1." in said_of(path)


@pytest.mark.parametrize(
    "extra",
    [
        "blk.1.attn_norm.bias",
        "blk.0.ffn_gate.weight",
        "blk.1.attn_sub_norm.weight",
        "blk.0.attn_q.scale",
        "position_embd.weight",
        "blk.0.attn_k.scale",
        "blk.1.nextn.eh_proj.weight",
    ],
)
def test_tensors_that_nothing_reads_are_refused_by_name(extra: str, tmp_path: Path) -> None:
    """A bias of a norm that has none, a gate, a norm of queries: left out, the model would be another one."""
    family = "starcoder2" if "ffn_gate" in extra else "llama"
    shapes = tensors("command-r") | _LLAMA if family == "llama" else tensors(family)
    said = said_of(write(tmp_path / "m.gguf", family, {**shapes, extra: (HIDDEN,)}))
    assert f"there is a tensor '{extra}', which is not implemented for {family}" in said


@pytest.mark.parametrize(
    "extra",
    [
        "mtp.fc.weight",
        "v.blk.0.attn_q.weight",
        "mm.0.weight",
        "blk.0.attn_rot_embd",
        "blk.0.attention.bias",
        "score.weight",
    ],
)
def test_tensors_of_something_else_are_left_alone(extra: str, tmp_path: Path) -> None:
    """Towers of pictures, heads that draft or judge, and what older converters stored."""
    path = write(tmp_path / "m.gguf", "llama", {**tensors("command-r"), **_LLAMA, extra: (HIDDEN,)})
    _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)


@pytest.mark.parametrize(
    ("family", "lost", "changes", "said"),
    [
        ("gpt2", "position_embd.weight", {}, '"position_embd.weight" is missing'),
        (
            "gpt2",
            "",
            {"context_length": CONTEXT + 1},
            f"is {CONTEXT} x {HIDDEN}; expected {CONTEXT + 1} x {HIDDEN}, a row",
        ),
        ("bloom", "token_embd_norm.weight", {}, '"token_embd_norm.weight" is missing'),
        ("phimoe", "", {"expert_used_count": 1}, "experts of a token are 1; expected 2, chosen in turn"),
        ("gptj", "", {}, "architecture 'gptj' is not supported"),
    ],
)
def test_what_tokens_are_given_before_the_first_layer_is_needed(
    family: str, lost: str, changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    """A table of positions that is missing or too short, a norm; and what files of no family have."""
    known = "gpt2" if family == "gptj" else family
    shapes = {name: dims for name, dims in tensors(known).items() if name != lost}
    path = write(tmp_path / "m.gguf", known, shapes, **changes)
    if known != family:
        path.write_bytes(path.read_bytes().replace(b"gpt2.", b"gptj.").replace(b"gpt2", b"gptj", 1))
    assert said in said_of(path)


def test_positions_that_are_learned_change_logits(tmp_path: Path) -> None:
    """The same token twice has other logits: by what it attends to alone it would have the same."""
    path = write(tmp_path / "m.gguf", "gpt2", tensors("gpt2"))
    first, second = engine_logits(path, [7, 7])[:2]
    assert max(abs(one - other) for one, other in zip(first, second, strict=True)) > 1e-3


_CONFIG: dict[str, object] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}


_FEW: dict[str, object] = {"num_experts": 4, "num_experts_per_tok": 2}
_SMALL: dict[str, object] = {**_FEW, "moe_intermediate_size": 32}


def folder_of(path: Path, changes: dict[str, object], shapes: Shapes) -> Path:
    """Write a configuration with changes, and tensors of zeros; return the folder."""
    (path / "config.json").write_text(json.dumps({**_CONFIG, **changes}))
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    told = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        file.truncate(8 + len(told) + end)
    return path


def matrices_of(family: str) -> Shapes:
    """What a folder of a family has besides norms, some of other families too."""
    is_neox = family == "gpt_neox"
    decoder, embedding, output = ("gpt_neox", "embed_in", "embed_out") if is_neox else ("model", "embed_tokens", "")
    parts: Shapes = {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "attention.query_key_value": (192, 64),
        "attention.dense": (64, 64),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.c_fc", "mlp.dense_h_to_4h"), (FFN, 64)),
        **dict.fromkeys(("mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h"), (64, FFN)),
        "mlp.gate_up_proj": (2 * FFN, 64),
    }
    layers = {f"{decoder}.layers.{layer}.{name}.weight": shape for layer in (0, 1) for name, shape in parts.items()}
    return {f"{decoder}.{embedding}.weight": (250, 64), f"{output or 'lm_head'}.weight": (250, 64), **layers}


_TWO_OF_THREE: dict[str, object] = {"num_local_experts": 3, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "cohere", "use_qk_norm": True}, "'use_qk_norm' is not implemented"),
        (
            {"model_type": "cohere", "logit_scale": 0.0},
            "a factor on embeddings, scores, blocks or logits is not a number",
        ),
        ({"model_type": "stablelm", "qk_layernorm": True}, "'qk_layernorm' is not implemented"),
        ({"model_type": "gpt_neox", "use_parallel_residual": "yes", "hidden_act": "gelu"}, "must be true or false"),
        ({"model_type": "olmo", "clip_qkv": 8.0}, "'clip_qkv' is not implemented"),
        (
            {"model_type": "phi", "hidden_act": "relu6"},
            "activation 'relu6' is not supported for a block without a gate",
        ),
        ({"model_type": "glm4", "sliding_window": 64}, "'sliding_window' is not implemented for glm4"),
        ({"model_type": "minimax_m2", "num_local_experts": 3, "num_experts_per_tok": 4}, "experts of a token are 4"),
        (
            {"model_type": "minimax_m2", "num_local_experts": 3, "num_experts_per_tok": 2, "rotary_dim": -4},
            "are rotated",
        ),
        ({"model_type": "nemotron", "partial_rotary_factor": 1.5, "hidden_act": "relu2"}, "are rotated"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "'do_layer_norm_before' is not implemented"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "'word_embed_proj_dim' is not implemented"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx' is not"),
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "'apply_residual_connection_post_"),
        (
            {"model_type": "falcon", "num_ln_in_parallel_attn": 2},
            "expected 1 norm, or 2 where 'new_decoder_architecture'",
        ),
        ({"model_type": "falcon", "alibi": "yes"}, "'alibi' must be true or false, got a text"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 1]]}, "does not say of each of 2 layers"),
        ({"model_type": "gpt_neo", "attention_types": [[["global", "wide"], 1]]}, "does not say of each of 2 layers"),
        ({"model_type": "gpt_neo", "attention_types": [[["local"], 10**18]]}, "does not say of each of 2 layers"),
        (
            {"model_type": "gpt_neo", "num_hidden_layers": 10**18, "hidden_act": None},
            "layers is 1000000000000000000; expected 1 to 1000",
        ),
        ({"model_type": "gptj", "rotary_dim": 7, "hidden_act": None}, "are rotated"),
        ({"model_type": "gptj", "rotary_dim": "all"}, "'rotary_dim' must be a number, got a text"),
        ({"model_type": "phimoe", **_TWO_OF_THREE, "router_jitter_noise": 0.1}, "'router_jitter_noise' 0.1 is not"),
        ({"model_type": "phimoe", **_TWO_OF_THREE, "num_experts_per_tok": 3}, "experts of a token are 3; expected 2"),
        ({"model_type": "baichuan"}, "not implemented for folders of safetensors; take the model as a GGUF file"),
        ({"model_type": "chatglm"}, "not implemented for folders of safetensors; take the model as a GGUF file"),
        ({"model_type": "corvus"}, "is not supported; a plugin can describe it (hook pyagent_register_architectures)"),
        ({"model_type": "zamba2"}, "the nearest that is supported is granitehybrid"),
        ({"model_type": "gemma3n_text"}, "the nearest that is supported is gemma4"),
        (
            {"model_type": "maincoder"},
            "architecture 'maincoder' is not implemented for folders of safetensors; take the model as a GGUF file",
        ),
        ({"model_type": "mimo_v2_flash"}, "the nearest that is supported is glm4moe"),
        ({"model_type": "hy_v3", **_SMALL, "route_norm": False}, "'route_norm' is not implemented"),
        (
            {"model_type": "hy_v3", **_SMALL, "mlp_layer_types": ["wide"] * 2},
            "'mlp_layer_types' must have dense or sparse",
        ),
        ({"model_type": "cohere2_moe", **_FEW, "expert_selection_fn": "tanh"}, "expected softmax or sigmoid"),
        (
            {"model_type": "cohere2_moe", **_FEW, "shared_expert_combination_strategy": "gated"},
            "'shared_expert_combination_strategy' \"gated\" is not implemented here; expected average or sum",
        ),
        ({"model_type": "hyperclovax", "use_post_norm": False}, "'use_post_norm' is not implemented"),
        ({"model_type": "granite_swa", "layer_rope_theta": [1e4]}, "'layer_rope_theta' must have a number from 0 up"),
        (
            {"model_type": "granite_swa", "layer_rope_theta": [1e4, -1]},
            "'layer_rope_theta' must have a number from 0 up",
        ),
        (
            {"model_type": "granite_swa", "layer_types": ["full_attention"] * 2, "layer_rope_theta": [1e4, 5e4]},
            "'layer_rope_theta' differs between layers of one of 'layer_types'",
        ),
        ({"model_type": "cwm"}, "config.json lacks 'rope_parameters'"),
        ({"model_type": "gpt2", "n_embd": 32}, "'n_embd' is 32, and 'hidden_size' by another name, which is 64"),
        ({"model_type": "gpt2", "activation_function": "relu", "hidden_act": "gelu"}, "'hidden_act' by another name"),
        ({"model_type": "gpt_neo", "attention_layers": ["local", "global"]}, "'attention_layers' are others than"),
        ({"model_type": "gpt_neo", "attention_layers": 4}, "'attention_layers' are others than"),
        (
            {"model_type": "nanochat", "hidden_act": "relu2", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "a rope scaling is not implemented for nanochat",
        ),
    ],
)
def test_what_a_config_asks_for_and_is_not_there_is_refused_by_name(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    """Before any tensor is read: the folder has one, of one number."""
    assert said in said_of(folder_of(tmp_path, changes, {"lm_head.weight": (1,)}))


@pytest.mark.parametrize(
    "family",
    [
        *("gemma", "glm4", "arcee", "granitemoe", "granitemoeshared", "minimax_m2", "cohere", "phi", "stablelm"),
        *("nemotron", "olmo", "gpt_neox", "internlm3", "minicpm", "jais2", "nanochat", "hyperclovax", "iquestcoder"),
    ],
)
def test_windows_of_families_without_any_are_refused(family: str, tmp_path: Path) -> None:
    """transformers' code of these families does not read the field, and another program may."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    changes = {"model_type": family, **(experts if "moe" in family or "minimax" in family else {})}
    folder = folder_of(tmp_path, {**changes, "sliding_window": 64}, {"lm_head.weight": (1,)})
    assert f"'sliding_window' is not implemented for {family}; expected null" in said_of(folder)


@pytest.mark.parametrize(("count", "has_heads"), [(1, False), (1, True), (2, False)])
def test_a_folder_has_the_layers_that_it_counts(count: int, has_heads: bool, tmp_path: Path) -> None:
    """Layers that `num_hidden_layers` leaves out are no leftovers, unless they predict further tokens."""
    shapes = matrices_of("llama") | ({"model.layers.1.eh_proj.weight": (64, 128)} if has_heads else {})
    path = folder_of(tmp_path, {"model_type": "llama", "num_hidden_layers": count}, shapes)
    if count == 2 or has_heads:
        assert _rust.ModelFile(path).config.num_layers == count
    else:
        said = "'num_hidden_layers' is 1, but there is a tensor 'model.layers.1."
        with pytest.raises(_rust.ModelFileError, match=said):
            _rust.ModelFile(path)


def test_a_head_excuses_no_other_layer(tmp_path: Path) -> None:
    """Beside a layer that predicts further tokens, one that is not counted is refused all the same."""
    more: Shapes = {"model.layers.1.eh_proj.weight": (64, 128), "model.layers.2.mlp.up_proj.weight": (FFN, 64)}
    path = folder_of(tmp_path, {"model_type": "llama", "num_hidden_layers": 1}, matrices_of("llama") | more)
    with pytest.raises(_rust.ModelFileError, match=r"there is a tensor 'model\.layers\.2\.mlp"):
        _rust.ModelFile(path)


_ONE_WINDOW = ["full_attention", "sliding_attention"]
_EXPERTS_OF_FOLDERS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "glm4"}, {"norm_epsilon": 1.5625e-7}),
        ({"model_type": "stablelm"}, {"norm_epsilon": 1e-5, "num_rotated": 4}),
        ({"model_type": "stablelm", "norm_eps": 1e-3}, {"norm_epsilon": 1e-3}),
        ({"model_type": "starcoder2", "norm_epsilon": 1e-3, "hidden_act": "gelu"}, {"norm_epsilon": 1e-3}),
        ({"model_type": "gpt_neox", "hidden_act": "gelu"}, {"num_kv_heads": 4, "num_rotated": 4, "base": 1e4}),
        (
            {"model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.5, "rotary_emb_base": 500},
            {"num_rotated": 8, "base": 500.0},
        ),
        (
            {"model_type": "cohere2", "sliding_window": 24, "layer_switch": 2},
            {"windows": [24, None], "rotates": [True, False]},
        ),
        ({"model_type": "cohere2", "sliding_window": 24}, {"windows": [24, 24], "rotates": [True, True]}),
        ({"model_type": "dots1", "sliding_window": 24}, {"windows": [None, None]}),
        ({"model_type": "dots1", "sliding_window": 24, "layer_types": _ONE_WINDOW}, {"windows": [None, 24]}),
        ({"model_type": "minicpm"}, {"residual_scale": 1.4 / math.sqrt(2), "logit_divisor": 64 / 256}),
        (
            {"model_type": "minicpm", "scale_depth": None, "dim_model_base": None},
            {"residual_scale": 1.0, "logit_divisor": 1.0},
        ),
        ({"model_type": "exaone_moe", **_EXPERTS_OF_FOLDERS}, {"weight_scale": 2.5}),
        ({"model_type": "hy_v3", **_SMALL}, {"weight_scale": 2.826, "norm_epsilon": 1e-5, "base": 11_158_840.0}),
        ({"model_type": "helium"}, {"norm_epsilon": 1e-8, "base": 1e5}),
        ({"model_type": "phimoe", **_TWO_OF_THREE}, {"norm_epsilon": 1e-5, "base": 1e6}),
        ({"model_type": "cohere2_moe", **_FEW, "num_shared_experts": 2}, {"weight_scale": 0.5, "norm_epsilon": 1e-5}),
        (
            {"model_type": "cohere2_moe", **_FEW, "first_k_dense_replace": 1},
            {"weight_scale": 1.0, "windows": [None, 4096], "rotates": [True, True]},
        ),
        ({"model_type": "granite_swa"}, {"windows": [None, 128], "rotates": [True, True]}),
        (
            {"model_type": "cwm", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            {"windows": [None, 8192], "base": 1e6, "norm_epsilon": 1e-5},
        ),
        (
            {"model_type": "vaultgemma", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16},
            {"windows": [4096, None]},
        ),
        ({"model_type": "ministral"}, {"windows": [4096, 4096]}),
        ({"model_type": "granite_swa", "layer_rope_theta": [0, 5e3]}, {"rotates": [False, True]}),
        ({"model_type": "hyperclovax", "logits_scaling": 4.0}, {"logit_divisor": 0.25}),
        ({"model_type": "glm4_moe", **_EXPERTS_OF_FOLDERS}, {"weight_scale": 1.0}),
        ({"model_type": "hunyuan_v1_dense", "use_mixed_mlp_moe": False, "moe_layer_num_skipped": 2}, {"base": 1e4}),
    ],
)
def test_what_published_files_leave_out_or_call_otherwise_is_read(
    changes: dict[str, object], expected: dict[str, object], tmp_path: Path
) -> None:
    """Defaults of families, and the names of fields before transformers had one for all."""
    family = str(changes["model_type"])
    dense = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 2}
    more = dense if family == "dots1" else {}
    about = _rust.ModelFile(folder_of(tmp_path, {**more, **changes}, matrices_of(family))).config
    frequencies = about.rope_frequencies
    found = {
        "norm_epsilon": about.norm_epsilon,
        "num_kv_heads": about.num_kv_heads,
        "num_rotated": 2 * len(frequencies),
        "base": frequencies[1] ** -len(frequencies),
        "windows": about.windows,
        "rotates": about.rotary_layers,
        "residual_scale": about.residual_scale,
        "logit_divisor": about.logit_divisor,
        "weight_scale": about.experts.weight_scale if about.experts else math.nan,
    }
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name


def test_heads_that_do_not_lie_in_groups_are_refused(tmp_path: Path) -> None:
    """CodeGen's queries, values and keys lie in four groups of whole heads: with two heads, rows would be others."""
    parts: Shapes = {
        "attn.qkv_proj": (192, 64),
        "attn.out_proj": (64, 64),
        "mlp.fc_in": (FFN, 64),
        "mlp.fc_out": (64, FFN),
    }
    parts |= {"ln_1": (64,)}
    biases: Shapes = {"ln_1": (64,), "mlp.fc_in": (FFN,), "mlp.fc_out": (64,)}
    ends: list[tuple[str, Shapes]] = [("weight", parts), ("bias", biases)]
    begins = [f"transformer.h.{layer}" for layer in (0, 1)]
    shapes = {f"{begin}.{name}.{end}": shape for begin in begins for end, of in ends for name, shape in of.items()}
    shapes |= {"transformer.wte.weight": (250, 64), "transformer.ln_f.weight": (64,), "transformer.ln_f.bias": (64,)}
    shapes |= {"lm_head.weight": (250, 64), "lm_head.bias": (250,)}
    about: dict[str, object] = {"model_type": "codegen", "hidden_act": "gelu_new", "rotary_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    with pytest.raises(_rust.ModelFileError, match="2 heads do not lie in 4 groups of as many"):
        _rust.CpuModel.load(folder_of(tmp_path, {**about, **heads}, shapes), threads=1, kv_bytes=1 << 20)


def _axk1() -> tuple[dict[str, object], Shapes]:
    """A.X K1 of one layer without experts and one with three: its configuration and tensors."""
    dims = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
    about: dict[str, object] = {**dims, "model_type": "axk1", "num_key_value_heads": 4, "n_routed_experts": 3}
    about |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    attention: Shapes = {
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "post_mlp_layernorm"), (64,)),
        **dict.fromkeys(("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm"), (16,)),
        "self_attn.q_a_proj": (16, 64),
        "self_attn.q_b_proj": (128, 16),
        "self_attn.kv_a_proj_with_mqa": (32, 64),
        "self_attn.kv_b_proj": (128, 16),
        "self_attn.o_proj": (64, 64),
    }

    def gated(name: str, size: int) -> Shapes:
        return {f"{name}.gate_proj": (size, 64), f"{name}.up_proj": (size, 64), f"{name}.down_proj": (64, size)}

    experts = [gated(f"mlp.{name}", 32) for name in ("shared_experts", *(f"experts.{expert}" for expert in range(3)))]
    blocks = [gated("mlp", FFN), {"mlp.gate": (3, 64)}]
    for expert in experts:
        blocks[1] |= expert
    layers = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer, block in enumerate(blocks)
        for name, shape in (attention | block).items()
    }
    around: Shapes = {"model.embed_tokens.weight": (250, 64), "model.norm.weight": (64,), "lm_head.weight": (250, 64)}
    return about, around | layers


def test_a_norm_after_experts_is_needed_where_there_are_some(tmp_path: Path) -> None:
    """A.X K1's files have one in layers without experts too, which nothing reads, and no corrections of ratings."""
    about, shapes = _axk1()
    _rust.CpuModel.load(folder_of(tmp_path, about, shapes), threads=1, kv_bytes=1 << 20)
    for layer, is_needed in ((0, False), (1, True)):
        name = f"model.layers.{layer}.post_mlp_layernorm.weight"
        folder = folder_of(tmp_path, about, {other: shape for other, shape in shapes.items() if other != name})
        if is_needed:
            assert f'"{name}" is missing' in said_of(folder)
        else:
            _rust.CpuModel.load(folder, threads=1, kv_bytes=1 << 20)


_LATENT_KEYS: dict[str, object] = {
    "attention__kv_lora_rank": 32,
    "attention__q_lora_rank": 32,
    "attention__key_length": 48,
    "rope__dimension_count": 16,
}
_GROWING: dict[str, object] = {
    **_LATENT_KEYS,
    **_EXPERTS,
    "attention__head_count_kv": 1,
    "attention__value_length": 32,
    "attention__key_length_mla": 48,
    "attention__value_length_mla": 16,
    "attention__temperature_scale": 0.3,
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 8.0,
    "rope__scaling__original_context_length": 64,
}


@pytest.mark.parametrize(
    ("family", "keys", "told"),
    [
        ("minicpm3", _LATENT_KEYS, "value_dims: 16,"),
        ("minicpm3", {**_LATENT_KEYS, "attention__value_length": 32}, "value_dims: 32,"),
        ("mistral4", _GROWING, "original: 64,"),
        ("mistral4", {**_GROWING, "attention__temperature_length": 32}, "original: 32,"),
    ],
)
def test_what_gguf_files_may_leave_out_is_read_where_it_is_there(
    family: str, keys: dict[str, object], told: str, tmp_path: Path
) -> None:
    """How wide values are, and from which position on queries grow."""
    sizes = {"attention__head_count": 4, "attention__head_count_kv": 4, "embedding_length": 64, "block_count": 1}
    named = {f"{family}__{key}": value for key, value in {**sizes, "feed_forward_length": FFN, **keys}.items()}
    embedding: dict[str, Any] = {"token_embd.weight": ((64, NUM_TOKENS), array("f", [0.0] * (64 * NUM_TOKENS)))}
    about = _rust.ModelFile(write_gguf(tmp_path / "m.gguf", metadata(family, **named), embedding)).config
    assert told in f"{about.latent} {about.query_growth}"


def test_decoders_with_layer_norms_do_not_embed(tmp_path: Path) -> None:
    """Layers that only answers are computed with are named, and not taken for others."""
    config = {"model_type": "starcoder2", **_CONFIG, "norm_epsilon": 1e-5, "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    steps = [{"idx": 0, "path": "", "type": "m.Transformer"}, {"idx": 1, "path": "1_Pooling", "type": "m.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    header = json.dumps({"embed_tokens.weight": {"dtype": "F32", "shape": [250, 64], "data_offsets": [0, 64_000]}})
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(64_000))
    with pytest.raises(
        _rust.ModelFileError, match="'starcoder2' has LayerNorm, which is not implemented for models that"
    ):
        _rust.describe_encoder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rms_norm_eps": -1}, "norm epsilon is -1; expected a number above 0"),
        ({"rms_norm_eps": 0}, "norm epsilon is 0; expected a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "'rms_norm_eps' must be a number, got a text"),
        ({"model_type": "cohere", "logit_scale": True}, "'logit_scale' must be a number, got true"),
        ({"model_type": "cohere", "logit_scale": [0.5]}, "'logit_scale' must be a number, got a list"),
        ({"rope_theta": {}}, "'rope_theta' must be a number, got a table"),
        ({"rope_parameters": {"rope_type": 3}}, "'rope_parameters.rope_type' must be a text, got 3"),
        ({"model_type": "gpt_neox", "use_parallel_residual": "no"}, "'use_parallel_residual' must be true or false"),
        ({"hidden_act": ["gelu"]}, "'hidden_act' must be a text"),
        ({"rope_parameters": [10_000]}, "'rope_parameters' must be a table, got a list"),
        ({"rope_scaling": "yarn"}, "'rope_scaling' must be a table, got a text"),
        ({"num_hidden_layers": "x" * 9000}, "'num_hidden_layers' must be a whole number, got a text"),
        ({"model_type": "x" * 9000}, f"architecture '{'x' * 120}...' is not supported"),
    ],
)
def test_fields_of_another_kind_are_no_defaults(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    """They were read as if they were not there, and the model's numbers were others; a negative epsilon gave NaN."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **_CONFIG, **changes}))
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert said in said_of(tmp_path)
