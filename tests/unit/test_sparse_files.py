"""Files of sparse models: the two forms of gpt-oss are one model, and what is wrong in a file is said by name."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import pytest
from support.native import engine_logits
from support.tiny_sparse import (
    EXPERTS,
    FAMILIES,
    FFN,
    HEADS,
    HIDDEN,
    OPENAI_CONFIG,
    USED,
    Shape,
    Values,
    sparse_tensors,
    write_openai_folder,
    write_sparse,
)

from pyagent import _rust
from pyagent.infrastructure.models.describe import describe_model

TOKENS = [(7 * place + place * place) % 250 for place in range(90)]
BLOCKS = "model.layers.2.mlp.experts.down_proj_blocks"
SCALES = "model.layers.2.mlp.experts.down_proj_scales"


def load(path: Path) -> _rust.CpuModel:
    return _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)


def said_of(path: Path) -> str:
    """What is said of a file that is refused, in one line."""
    with pytest.raises(_rust.ModelFileError) as caught:
        load(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_openais_folder_is_the_gguf_file_bit_for_bit(tmp_path: Path) -> None:
    """MXFP4 in either order of nibbles, gate and up apart or in turns: the same logits, past windows too."""
    folder, gguf = write_openai_folder(tmp_path / "m"), write_sparse(tmp_path / "m.gguf", "gpt-oss")
    logits = engine_logits(folder, TOKENS)
    assert logits == engine_logits(gguf, TOKENS)
    assert all(math.isfinite(value) for row in logits for value in row)


def test_models_are_described_from_their_headers(tmp_path: Path) -> None:
    """gpt-oss is named, with its type of weights, its size and its windows, from either kind of file."""
    paths = (write_openai_folder(tmp_path / "m"), write_sparse(tmp_path / "m.gguf", "gpt-oss"))
    folder, gguf = map(describe_model, paths)
    assert abs(folder.num_parameters / gguf.num_parameters - 1) < 0.02
    for about in (folder, gguf):
        assert (about.architecture, about.num_layers) == ("gpt-oss", 4)
        assert about.quantization.upper() == "MXFP4"
        assert [kind for kind, *_ in about.kv_groups] == ["window", "full"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_sparse_file_is_needed(family: str, tmp_path: Path) -> None:
    """A file that lacks any of a layer's tensors, or a bias that others have, is refused by that tensor's name."""
    whole = sparse_tensors(family)
    load(write_sparse(tmp_path / "m.gguf", family, whole))
    for name in whole:
        if name.startswith("blk.3.") and "_q_norm" not in name and "_k_norm" not in name:
            rest = {other: values for other, values in whole.items() if other != name}
            assert f'"{name}" is missing' in said_of(write_sparse(tmp_path / "m.gguf", family, rest))
    bare = {
        name: values
        for name, values in whole.items()
        if not name.endswith(".bias") or "exp_probs" in name or "indexer" in name
    }
    load(write_sparse(tmp_path / "m.gguf", family, bare))


_NO_LATENT = {
    "attention__kv_lora_rank": 0,
    "attention__key_length": 16,
    "attention__value_length": 0,
}


def zeros(*shape: int) -> tuple[Shape, Values]:
    return shape, array("f", [0.0]) * math.prod(shape)


@pytest.mark.parametrize(("family", "has_own"), [("gpt-oss", True), ("qwen2moe", True), ("glm4moe", False)])
def test_an_output_matrix_that_got_lost_is_missed(family: str, has_own: bool, tmp_path: Path) -> None:
    """Each file of such a family has one, as llama.cpp says too; of the others the embedding is the output matrix."""
    tensors = sparse_tensors(family)
    del tensors["output.weight"]
    path = write_sparse(tmp_path / "m.gguf", family, tensors)
    if has_own:
        assert 'tensor "output.weight" is missing' in said_of(path)
    else:
        load(path)


@pytest.mark.parametrize(
    ("family", "name", "values", "said"),
    [
        ("gpt-oss", "blk.3.attn_sinks.weight", zeros(HEADS - 1), "has 3 values; expected 4"),
        ("gpt-oss", "blk.3.ffn_up_exps.bias", zeros(FFN, EXPERTS - 1), "is [96, 5]; expected [96, 6]"),
        ("gpt-oss", "blk.3.ffn_down_exps.weight", zeros(FFN, HIDDEN, 5), "is [96, 64, 5]; expected [96, 64, 6]"),
        ("gpt-oss", "blk.3.ffn_gate_inp.bias", zeros(EXPERTS + 1), "has 7 values; expected 6"),
        ("glm4moe", "blk.3.exp_probs_b.bias", zeros(EXPERTS - 2), "has 4 values; expected 6"),
        ("glm4moe", "blk.0.ffn_up.weight", zeros(HIDDEN, 32), "is 32 x 64; expected 128 x 64"),
        ("glm4moe", "blk.3.ffn_up_shexp.weight", zeros(HIDDEN, 32), "is 32 x 64; expected 64 x 64"),
        ("deepseek2", "blk.3.attn_k_b.weight", zeros(32, 32, 3), "is [32, 32, 3]; expected [32, 32, 4]"),
        ("deepseek2", "blk.3.attn_v_b.weight", zeros(32, 32, 4), "is [32, 32, 4]; expected [32, 16, 4]"),
        ("deepseek2", "blk.3.attn_kv_a_mqa.weight", zeros(HIDDEN, 32), "is 32 x 64; expected 48 x 64"),
        ("deepseek2", "blk.3.attn_output.weight", zeros(128, HIDDEN), "is 64 x 128; expected 64 x 64"),
        ("deepseek2", "blk.3.attn_kv_b.weight", zeros(32, 128), "is 128 x 32; expected 192 x 32"),
        ("deepseek2", "blk.3.attn_kv_a_norm.weight", zeros(48), "has 48 values; expected 32"),
        ("qwen2moe", "blk.3.ffn_gate_inp_shexp.weight", zeros(HIDDEN, 2), "is 2 x 64; expected 1 x 64"),
    ],
)
def test_a_tensor_of_another_size_is_refused(
    family: str, name: str, values: tuple[Shape, Values], said: str, tmp_path: Path
) -> None:
    """What does not fit the configuration is named, with what was expected."""
    text = said_of(write_sparse(tmp_path / "m.gguf", family, sparse_tensors(family) | {name: values}))
    assert f"'{name}' {said}" in text


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("gpt-oss", {"expert_used_count": 7}, "experts of a token are 7; expected 1 to 6"),
        ("gpt-oss", {"expert_count": 0}, "experts of a layer are 0; expected 1 to 1024"),
        ("gpt-oss", {"expert_count": 2**31}, "experts of a layer are 2147483648; expected 1 to 1024"),
        ("gpt-oss", {"expert_gating_func": 7}, "'gpt-oss.expert_gating_func' 7 is not implemented"),
        ("gpt-oss", {"expert_shared_count": 1}, "'gpt-oss.expert_shared_count' is not implemented"),
        ("gpt-oss", {"block_count": 2**31}, "layers is 2147483648; expected 1 to 1000"),
        ("glm4moe", {"expert_group_count": 4}, "3 of 6 experts in 2 of 4 groups cannot be chosen"),
        ("glm4moe", {"expert_group_used_count": 1}, "3 of 6 experts in 1 of 3 groups cannot be chosen"),
        ("glm4moe", {"expert_group_used_count": 4}, "groups of a token are 4; expected 1 to 3"),
        ("glm4moe", {"expert_weights_scale": float("nan")}, "the factor on experts' weights is not a number"),
        ("glm4moe", {"expert_weights_scale": -1.0}, "the factor on experts' weights is not a number above 0"),
        ("glm4moe", {"nextn_predict_layers": 4}, "layers is 0; expected 1 to 1000"),
        ("glm4moe", {"rope__dimension_count": 33}, "33 of a head's 32 numbers are rotated"),
        ("deepseek2", _NO_LATENT, "numbers of a latent are 0; expected 1 to 4096"),
        ("deepseek2", {"attention__kv_lora_rank": None}, '"deepseek2.attention.kv_lora_rank" is missing'),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 48},
            "'deepseek2.attention.key_length' is 48, which is not supported",
        ),
        ("deepseek2", {"attention__key_length_mla": 8}, "keys of 8 numbers cannot have 16 that are rotated"),
        ("deepseek2", {"attention__key_length_mla": 40}, "a head's keys has 40 numbers, which is not supported"),
        ("deepseek2", {"attention__value_length_mla": 2**31}, "numbers of a value are 2147483648"),
        ("deepseek2", {"attention__q_lora_rank": 2**31}, "numbers of a compressed query are 2147483648"),
        ("deepseek2", {"expert_gating_func": 1}, "'deepseek2.expert_group_count' 3 is not implemented for experts"),
        ("deepseek2", {"attention__temperature_scale": 0.1}, "'deepseek2.attention.temperature_scale' is not implemen"),
        ("deepseek2", {"attention__indexer__top_k": 64}, "'deepseek2.attention.indexer.top_k' is not implemented"),
        (
            "llama4",
            {"attention__sliding_window": 0},
            "'llama4.attention.sliding_window' 0 is not implemented for llama4",
        ),
        ("llama4", {"expert_gating_func": 7}, "'llama4.expert_gating_func' 7 is not implemented"),
        ("llama4", {"attention__chunk_size": 64}, "'llama4.attention.chunk_size' is not implemented"),
        (
            "qwen2moe",
            {"expert_shared_feed_forward_length": 2**31},
            "columns of a shared expert are 2147483648",
        ),
        ("qwen2moe", {"rope__dimension_count": 16}, "'qwen2moe.rope.dimension_count' is 16, which is not supported"),
    ],
)
def test_keys_that_no_model_has_are_refused(family: str, changes: dict[str, object], said: str, tmp_path: Path) -> None:
    """Numbers that are out of bounds or not implemented are refused before memory is taken for them."""
    assert said in said_of(write_sparse(tmp_path / "m.gguf", family, **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({SCALES: None}, f'"{SCALES}" is missing'),
        ({BLOCKS: None}, f'"{BLOCKS}" is missing'),
        ({SCALES: ("U8", (6, 64, 2), bytes(768))}, f"'{SCALES}' is [2, 64, 6]; expected [3, 64, 6]"),
        ({BLOCKS: ("I8", (6, 64, 3, 16), bytes(18432))}, f"'{BLOCKS}' is I8; expected U8"),
        ({BLOCKS: ("U8", (6, 64, 48), bytes(18432))}, f"'{BLOCKS}' is [48, 64, 6]; expected [16, 3, 64, 6]"),
        ({"model.layers.2.mlp.experts.down_proj_bias": None}, 'down_proj_bias" is missing'),
        ({"model.layers.2.self_attn.sinks": None}, 'sinks" is missing'),
    ],
)
def test_folders_with_faulty_blocks_are_refused(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    """Blocks without exponents, of another type or another size are named."""
    assert said in said_of(write_openai_folder(tmp_path / "m", **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_scaling": None}, "config.json lacks 'rope_parameters'"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "has 'bits': null, which is not implemented"),
        ({"swiglu_beta": 2.0}, "'swiglu_beta' is not implemented"),
        ({"num_experts_per_tok": [4]}, "'num_experts_per_tok' must be a whole number, got a list"),
    ],
)
def test_fields_of_gpt_oss_that_are_not_implemented_are_refused(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    """A config.json that says something else than the formulas is not loaded."""
    folder = write_openai_folder(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(OPENAI_CONFIG | changes))
    assert said in said_of(folder)


def test_exponents_of_any_value_are_loaded(tmp_path: Path) -> None:
    """Exponents 0 and 255 are no fault of a file: its logits may be no numbers, but it is computed."""
    blocks = "model.layers.2.mlp.experts.down_proj_scales"
    folder = write_openai_folder(tmp_path / "m", **{blocks: ("U8", (6, 64, 3), bytes([0, 255, 1]) * 384)})
    assert len(engine_logits(folder, TOKENS[:3])) == 3


def routed(family: str, row: list[float]) -> dict[str, tuple[Shape, Values]]:
    """Tensors of a model whose routers rate all experts alike: each has this row."""
    tensors = sparse_tensors(family)
    routers = [name for name in tensors if name.endswith("ffn_gate_inp.weight")]
    return tensors | {name: ((HIDDEN, EXPERTS), array("f", row * EXPERTS)) for name in routers}


def logits_of(path: Path, family: str, tensors: dict[str, tuple[Shape, Values]]) -> list[list[float]]:
    return engine_logits(write_sparse(path, family, tensors), TOKENS[:8])


def test_of_experts_that_are_rated_alike_the_first_are_taken(tmp_path: Path) -> None:
    """What the last ones have in them changes nothing."""
    tensors = routed("qwen2moe", [0.0] * HIDDEN)
    taken = logits_of(tmp_path / "m.gguf", "qwen2moe", tensors)
    for name, (shape, values) in tensors.items():
        if "_exps." in name:
            last = (EXPERTS - USED) * (len(values) // EXPERTS)
            tensors[name] = (shape, array("f", [*values[:-last], *([9.0] * last)]))
    assert logits_of(tmp_path / "other.gguf", "qwen2moe", tensors) == taken


def test_experts_that_are_all_rated_nothing_give_nothing(tmp_path: Path) -> None:
    """Sigmoids of very low ratings are 0, and so is their sum, by which they are divided."""
    logits = logits_of(tmp_path / "m.gguf", "glm4moe", routed("glm4moe", [1e4] * HIDDEN))
    assert all(math.isfinite(value) for row in logits for value in row)


def test_ratings_that_are_no_numbers_are_not_hidden(tmp_path: Path) -> None:
    """Of a router whose ratings overflow no expert can be chosen: the answer ends, and is not made without experts."""
    logits = logits_of(tmp_path / "m.gguf", "qwen2moe", routed("qwen2moe", [3e38] * HIDDEN))
    assert all(math.isnan(value) for row in logits for value in row)
