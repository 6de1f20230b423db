"""`pyagent models quantize` beside llama.cpp's own converter: the same tensors and settings of the same folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.converted_encoders import ENCODERS, RANKERS, random_encoder
from support.converted_models import FAMILIES, random_family
from support.laid_out_folders import DESCRIBED, LAID_OUT, add_head, in_mxfp4, with_words, write_seeing
from support.llama_cpp import LlamaCpp, convert, llama_cpp, tensors_of
from support.mtp_reference import Head
from support.quantizing import quantized

from pyagent import _rust

pytestmark = pytest.mark.converter

PROMPTS = [[(7 * place + place * place) % 380 + 7 for place in range(40)]]
NUM_TOKENS = 24
WRITTEN = (
    *("llama, 3.1", "qwen3", "smollm3", "olmo2", "granite", "phi3", "phi3, LongRoPE", "ministral3"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "seed_oss", "exaone4", "olmo3"),
    *LAID_OUT,
    *DESCRIBED,
)
COMPUTED = ("rope_", "ssm_a")
"""Parts of names of tensors that both compute: Llama 3's factors, decays."""
KEPT = {"per_layer_model_proj.weight"}
"""What `llama-quantize` and PyAgent leave as it is, and the converter does not."""
OWN_CONTEXTS = (
    ("context_length", 1 << 20),
    ("context_length", 1 << 18),
    ("rope.scaling.original_context_length", 1 << 18),
)
"""What the converter says of models without positions and of Hunyuan, where PyAgent says what `config.json` does."""
UNREAD = {"rope.scaling.yarn_attn_factor", "expert_group_count", "expert_group_used_count"}
"""Ends of keys that say what is so without them."""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """llama.cpp's server for all tests here."""
    with llama_cpp(tmp_path_factory.mktemp("llama.cpp") / "log") as server:
        yield server


def settings_of(path: Path) -> dict[str, Any]:
    """Return what a file says of its architecture and its tokens."""
    about = _rust.read_model_header(path)["metadata"]
    name = str(about["general.architecture"])
    kept = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.pre", "general.architecture")
    return {key: value for key, value in about.items() if key.startswith(f"{name}.") or key in kept}


def is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_file_is_that_of_llama_cpps_converter(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """Each tensor has its name, shape and numbers; each setting of the model is said alike; llama.cpp answers alike."""
    import numpy as np

    family, folder = FAMILIES[name], tmp_path / "model"
    random_family(name, folder)
    words = with_words(name, folder)
    for file_type in ("f32", "q8_0"):
        theirs = convert(folder, tmp_path / f"theirs-{file_type}.gguf", file_type, words, family.published)
        ours = tmp_path / f"ours-{file_type}.gguf"
        quantized(folder, ours, file_type.upper())
        expected, found = dict(tensors_of(theirs)), dict(tensors_of(ours))
        shapes = [{key: value.shape for key, value in one.items()} for one in (found, expected)]
        assert shapes[0] == shapes[1]
        for key, values in expected.items():
            tolerance = 1e-6 if any(part in key for part in COMPUTED) else 0
            apart = np.abs(values).max() / 127 if file_type == "q8_0" and key in KEPT else 0
            assert np.allclose(found[key], values, rtol=tolerance, atol=apart), key
        if file_type == "q8_0" and KEPT & expected.keys():
            break
        asked = [ours, theirs]
    said, wanted = settings_of(ours), settings_of(theirs)
    missing = {key: value for key, value in wanted.items() if key not in said or not is_same(said[key], value)}
    missing = {key.partition(".")[2]: value for key, value in missing.items()}
    assert {
        key: value for key, value in missing.items() if key not in UNREAD and (key, value) not in OWN_CONTEXTS
    } == {}
    if family.peer_differs:
        return
    question = {"prompts": PROMPTS, "num_tokens": NUM_TOKENS, "banned": [], "texts": []}
    answers = [peer.ask(path, **question)["answers"] for path in asked]
    assert answers[0][0]["tokens"] == answers[1][0]["tokens"]


@pytest.mark.parametrize("name", ["qwen3_5", "qwen2_5_vl", "qwen3_vl"])
def test_a_text_half_is_that_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    """Of a Qwen that sees: the same tensors, and settings said alike."""
    import numpy as np

    folder = tmp_path / "model"
    words = write_seeing(name, folder)
    theirs = convert(folder, tmp_path / "theirs.gguf", "q8_0", words, {})
    quantized(folder, tmp_path / "ours.gguf", "Q8_0")
    expected, found = dict(tensors_of(theirs)), dict(tensors_of(tmp_path / "ours.gguf"))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert np.allclose(found[key], values, rtol=1e-6 if any(part in key for part in COMPUTED) else 0, atol=0), key
    said, wanted = settings_of(tmp_path / "ours.gguf"), settings_of(theirs)
    missing = {key for key, value in wanted.items() if key not in said or not is_same(said[key], value)}
    assert {key for key in missing if key.partition(".")[2] not in UNREAD} == set()


@pytest.mark.parametrize("name", ["qwen3_5", "glm4_moe", "gpt_oss"])
def test_what_is_published_is_that_of_llama_cpps_converter(name: str, peer: LlamaCpp, tmp_path: Path) -> None:
    """With a head that drafts, with experts in MXFP4: the same numbers, and llama.cpp answers alike."""
    import numpy as np

    family, folder = FAMILIES[name], tmp_path / "model"
    model = random_family(name, folder)
    words = with_words(name, folder)
    if name == "qwen3_5":
        Head(model).save(folder)
    elif name == "glm4_moe":
        add_head(folder)
    else:
        in_mxfp4(folder)
    theirs = convert(folder, tmp_path / "theirs.gguf", "q8_0", words, family.published, has_mtp=True)
    quantized(folder, tmp_path / "ours.gguf", "Q8_0")
    expected, found = dict(tensors_of(theirs)), dict(tensors_of(tmp_path / "ours.gguf"))
    assert found.keys() == expected.keys()
    assert any("nextn" in key for key in found) != (name == "gpt_oss")
    for key, values in expected.items():
        assert np.allclose(found[key], values, rtol=1e-6 if any(part in key for part in COMPUTED) else 0, atol=0), key
    said, wanted = settings_of(tmp_path / "ours.gguf"), settings_of(theirs)
    missing = {key for key, value in wanted.items() if key not in said or not is_same(said[key], value)}
    assert {key for key in missing if key.partition(".")[2] not in UNREAD} == set()
    question = {"prompts": PROMPTS, "num_tokens": NUM_TOKENS, "banned": [], "texts": []}
    answers = [peer.ask(path, **question)["answers"] for path in (tmp_path / "ours.gguf", theirs)]
    assert answers[0][0]["tokens"] == answers[1][0]["tokens"]


WRITTEN_ENCODERS = {
    **{name: ENCODERS[name] for name in ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert")},
    **{f"{name}, ranking": about for name, about in RANKERS.items()},
}
SAID_OTHERWISE = (
    *("tokenizer.ggml.pre", "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length"),
)
"""Ends of keys: how words are cut has several names, and of encoders the others are not read."""
NOT_ALIKE = {"nomic_bert": "context_length", "xlm-roberta": "tokenizer.ggml.tokens"}
"""What the converter says by the length alone, and a mask that it leaves out."""


@pytest.mark.parametrize("name", WRITTEN_ENCODERS)
def test_a_written_encoder_is_that_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    """BERT's families in F32 and Q8_0: the same tensors and settings, and llama.cpp gives the same numbers."""
    import numpy as np

    about, folder = WRITTEN_ENCODERS[name], tmp_path / "model"
    random_encoder(about, folder)
    texts, ranks = ["The keeper of the lighthouse counts boats at night.", "a café"], about.num_labels == 1
    asked = {"texts": texts[:1], "documents": texts} if ranks else {"texts": texts, "documents": []}
    with llama_cpp(tmp_path / "log", "llama_embed.py") as peer:
        for file_type in ("f32", "q8_0"):
            theirs = convert(folder, tmp_path / f"theirs-{file_type}.gguf", file_type, about.words, about.published)
            ours = tmp_path / f"ours-{file_type}.gguf"
            quantized(folder, ours, file_type.upper())
            expected, found = dict(tensors_of(theirs)), dict(tensors_of(ours))
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                assert np.array_equal(found[key], values), key
            if about.num_labels in {None, 1}:
                told = [peer.ask(path, **asked)["ranks" if ranks else "vectors"] for path in (ours, theirs)]
                assert np.abs(np.array(told[0]) - np.array(told[1])).max() < 1e-6
    said, wanted = settings_of(ours), settings_of(theirs)
    missing = {key: value for key, value in wanted.items() if key not in said or not is_same(said[key], value)}
    others = (*SAID_OTHERWISE, NOT_ALIKE.get(about.kind, "."))
    assert {key: value for key, value in missing.items() if not key.endswith(others)} == {}
