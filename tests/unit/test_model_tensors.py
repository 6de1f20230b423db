"""What a runner outside of Rust is told of a model: its description, and its tensors by one set of names."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.reference_decoder import FAMILIES, write_family
from support.tiny_model import HIDDEN, write_tiny_model

from pyagent._rust import CpuModel, ModelFile, ModelFileError

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_PARTS = PARTS | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


OLMO_PARTS = GEMMA_PARTS | {"attn_norm": "(none)", "ffn_norm": "(none)"}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3"])
def test_tensors_of_a_folder_go_by_their_names_in_gguf(family: str, tmp_path: Path) -> None:
    """Each tensor of a folder of safetensors is found by its GGUF name, and is read from any row on."""
    _, tensors = write_family(tmp_path, family)
    file = ModelFile(tmp_path)
    parts = {"gemma2": GEMMA_PARTS, "gemma3": GEMMA_PARTS, "olmo2": OLMO_PARTS}.get(family, PARTS)
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    names |= {"output.weight": "lm_head.weight"}
    for layer in range(file.config.num_layers):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                names[f"blk.{layer}.{ours}.{kind}"] = f"model.layers.{layer}.{theirs}.{kind}"
    found = {theirs: file.find(ours) for ours, theirs in names.items()}
    assert {theirs for theirs, shape in found.items() if shape} == set(tensors)
    for ours, theirs in names.items():
        if theirs in tensors:
            rows = tensors[theirs]
            assert found[theirs] == ([len(rows[0])] + [len(rows)] * (len(rows) > 1), "F32")
            assert read(file, ours, rows[-1:], first_row=len(rows) - 1) == rows[-1]


def test_matrices_that_lie_in_one_are_found_apart(tmp_path: Path) -> None:
    """Phi-3's query, key and value, and its gate and up, are rows of one tensor each, readable from any row on."""
    _, tensors = write_family(tmp_path, "phi3")
    file = ModelFile(tmp_path)
    whole = tensors["model.layers.1.self_attn.qkv_proj.weight"]
    assert [file.find(f"blk.1.attn_{part}.weight") for part in "qkv"] == [
        ([64, 64], "F32"),
        ([64, 32], "F32"),
        ([64, 32], "F32"),
    ]
    assert read(file, "blk.1.attn_k.weight", whole[94:96], first_row=30) == [*whole[94], *whole[95]]
    up = tensors["model.layers.1.mlp.gate_up_proj.weight"][80:]
    assert read(file, "blk.1.ffn_up.weight", up[:1]) == up[0]
    with pytest.raises(ValueError, match="32 rows"):
        file.read_bytes("blk.1.attn_k.weight", 32, bytearray(256))


def read(file: ModelFile, name: str, rows: list[list[float]], first_row: int = 0) -> list[float]:
    """As many numbers as the rows have; both ways of reading them are the same."""
    numbers, same = (array("f", bytes(4 * len(rows) * len(rows[0]))) for _ in range(2))
    file.read_floats(name, first_row, memoryview(numbers).cast("B"))
    file.read_bytes(name, first_row, memoryview(same).cast("B"))
    assert numbers == same
    return numbers.tolist()


def test_description_has_all_that_a_forward_pass_needs(tmp_path: Path) -> None:
    """Windows of layers, caps, scales and rotary frequencies, as the family has them."""
    config, _ = write_family(tmp_path, "gemma2")
    about = ModelFile(tmp_path).config
    assert (about.architecture, about.activation, about.is_output_tied) == ("gemma2", "gelu_tanh", True)
    assert (about.num_heads, about.num_kv_heads, about.head_dim, about.vocab_size) == (4, 2, 32, 96)
    assert about.windows == [12, None, 12]
    assert (about.attention_softcap, about.logit_softcap) == (5.0, 3.0)
    assert about.attention_scale == pytest.approx(config["query_pre_attn_scalar"] ** -0.5)
    assert about.embedding_scale == pytest.approx(math.sqrt(64))
    assert about.norm_weight_offset == 1
    assert about.rope_frequencies == pytest.approx([1000 ** (-index / 16) for index in range(16)])
    assert not about.is_rope_interleaved
    assert (about.rope_attention_factor, about.local_rope_attention_factor) == (1, 1)
    assert (about.rotary_layers, about.has_input_norms, about.is_qk_norm_wide) == ([True] * 3, True, False)


def test_description_tells_where_families_differ(tmp_path: Path) -> None:
    """Layers without rotary positions, a part of a head that is rotated, norms of outputs alone, a longer context."""
    abouts = {}
    for family in ("smollm3", "phi3-longrope", "olmo2", "llama-yarn", "llama-dynamic"):
        (tmp_path / family).mkdir()
        write_family(tmp_path / family, family)
        abouts[family] = ModelFile(tmp_path / family).config
    assert abouts["smollm3"].rotary_layers == [True, True, True, False, True]
    assert len(abouts["phi3-longrope"].rope_frequencies) == 0.75 * 16 / 2
    assert abouts["phi3-longrope"].rope_attention_factor == pytest.approx(math.sqrt(1 + math.log(16) / math.log(32)))
    assert (abouts["olmo2"].has_input_norms, abouts["olmo2"].is_qk_norm_wide) == (False, True)
    assert abouts["llama-yarn"].rope_attention_factor == pytest.approx(1 + 0.1 * math.log(4))
    assert (abouts["llama-yarn"].context_length, abouts["llama-dynamic"].context_length) == (64, 60)


def test_texts_as_short_as_the_original_context_have_the_frequencies_for_short_ones(tmp_path: Path) -> None:
    """LongRoPE by `engine.max_model_len`, for both runners: from one position more on, those for long texts."""
    config, _ = write_family(tmp_path, "llama-longrope")
    short, long = (
        [1 / divisor for divisor in config["rope_parameters"][f"{kind}_factor"]] for kind in ("short", "long")
    )
    plain = [10_000 ** (-index / 8) for index in range(8)]
    tables = set[object]()
    for most_positions, divisors in ((16, short), (32, short), (33, long), (None, long)):
        about = ModelFile(tmp_path, most_positions).config
        assert about.rope_frequencies == pytest.approx([a * b for a, b in zip(plain, divisors, strict=True)])
        loaded = CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 20, most_positions=most_positions)
        tables.add((divisors is short, loaded.info()["rope"]))
    assert len(tables) == 2


def test_gguf_file_has_its_own_layout(tmp_path: Path) -> None:
    """Llama's rotary pairs are neighbours in a GGUF file, and a matrix of the output's own is noticed."""
    about = ModelFile(write_tiny_model(tmp_path / "m.gguf")).config
    assert about.is_rope_interleaved
    assert not about.is_output_tied
    assert about.windows == [None] * about.num_layers
    assert (about.attention_softcap, about.logit_softcap) == (None, None)


def test_gguf_of_gemma_2_has_its_caps(tmp_path: Path) -> None:
    """The caps, the window of every other layer and the scale of a GGUF file's Gemma 2."""
    keys = {"attention__sliding_window": 40, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    changes: dict[str, Any] = {f"gemma2__{key}": value for key, value in keys.items()}
    path = write_tiny_model(tmp_path / "m.gguf", architecture="gemma2", gemma2__block_count=4, **changes)
    about = ModelFile(path).config
    assert (about.attention_softcap, about.logit_softcap) == (50.0, 30.0)
    assert about.windows == [40, None, 40, None]
    assert about.attention_scale == pytest.approx((HIDDEN // about.num_heads) ** -0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_frequencies_are_one_for_each_pair(family: str, tmp_path: Path) -> None:
    """Scaled or not, of layers with a window or without."""
    write_family(tmp_path, family)
    about = ModelFile(tmp_path).config
    for frequencies in (about.rope_frequencies, about.local_rope_frequencies):
        assert len(frequencies) == (6 if family == "phi3-longrope" else about.head_dim // 2)
        assert frequencies == sorted(frequencies, reverse=True)


@pytest.mark.parametrize(
    ("name", "first_row", "out", "kind", "said"),
    [
        ("blk.0.attn_z.weight", 0, bytearray(256), KeyError, "no tensor"),
        ("blk.9.attn_q.weight", 0, bytearray(256), KeyError, "no tensor"),
        ("blk.0.attn_q.weight", 0, bytearray(100), ValueError, "rows of 64"),
        ("blk.0.attn_q.weight", 64, bytearray(256), ValueError, "rows of 64"),
        ("blk.0.attn_q.weight", 2**63, bytearray(256), ValueError, "rows of 64"),
        ("blk.0.attn_q.weight", 0, bytes(256), ValueError, "cannot be written"),
        ("blk.0.attn_q.weight", 0, memoryview(bytearray(512))[::2], ValueError, "cannot be written"),
        ("blk.0.attn_q.weight", 0, memoryview(bytearray(257))[1:], ValueError, "aligned"),
    ],
)
def test_what_cannot_be_read_is_refused(
    name: str, first_row: int, out: Any, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    """Tensors and rows that there are not, and buffers that do not fit, are errors; nothing is written."""
    file = ModelFile(write_tiny_model(tmp_path / "m.gguf"))
    with pytest.raises(kind, match=said):
        file.read_floats(name, first_row, out)
    assert not any(bytes(out))


def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """As where it is loaded: the error names the file."""
    (tmp_path / "m.gguf").write_bytes(b"no model")
    with pytest.raises(ModelFileError, match=r"m\.gguf"):
        ModelFile(tmp_path / "m.gguf")
