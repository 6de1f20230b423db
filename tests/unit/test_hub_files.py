"""Which files of a repository are fetched: what the engine reads, the weights once, and nothing that was not listed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.infrastructure.models.hub_files import (
    INDEX,
    TORCH_INDEX,
    folder_files,
    gguf_files,
    has_weights,
    index_of,
    other_files,
)

EMBEDS = ["modules.json", "vocab.txt", "model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"]
VOCABULARIES = ["qwen.tiktoken", "tokenizer.model", "tiktoken.model", "tokenizer.model.v3", "chat_template.jinja"]


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor{place}": name for place, name in enumerate(names)}}).encode()


@pytest.mark.parametrize(
    ("there", "told", "wanted"),
    [
        pytest.param(
            ["config.json", "model.safetensors", "original/model.safetensors", "metal/model.bin"],
            None,
            ["config.json", "model.safetensors"],
            id="gpt-oss",
        ),
        pytest.param(
            ["config.json", "model.json", "group1-shard1of1.bin", "model.safetensors"],
            None,
            ["config.json", "model.safetensors"],
            id="a graph beside it",
        ),
        pytest.param(
            ["config.json", "tekken.json", "consolidated.safetensors", "model.safetensors"],
            None,
            ["config.json", "tekken.json", "model.safetensors"],
            id="mistral",
        ),
        pytest.param(
            [INDEX, "consolidated.safetensors", "model-1.safetensors", "model-2.safetensors", "original/params.json"],
            index("model-1.safetensors", "model-2.safetensors", "model-1.safetensors"),
            [INDEX, "model-1.safetensors", "model-2.safetensors"],
            id="an index",
        ),
        pytest.param(
            [*EMBEDS, "2_Dense/pytorch_model.bin", "onnx/config.json", "openvino/2_x/config.json", "README.md"],
            None,
            EMBEDS,
            id="sentence-transformers",
        ),
        pytest.param(
            [*VOCABULARIES, "awq-4bit.safetensors", "merges.txt", "setup.py"],
            None,
            [*VOCABULARIES, "awq-4bit.safetensors"],
            id="vocabularies",
        ),
        pytest.param(
            ["config.json", "pytorch_model.bin", "training_args.bin", "optimizer.bin", "flax_model.msgpack"],
            None,
            ["config.json", "pytorch_model.bin"],
            id="torch alone",
        ),
        pytest.param(
            ["config.json", "pytorch_model.bin", TORCH_INDEX, "model.safetensors"],
            None,
            ["config.json", "model.safetensors"],
            id="torch beside it",
        ),
        pytest.param(
            [TORCH_INDEX, "pytorch_model-1.bin", "pytorch_model-2.bin", "pytorch_model-old.bin"],
            index("pytorch_model-1.bin", "pytorch_model-2.bin"),
            [TORCH_INDEX, "pytorch_model-1.bin", "pytorch_model-2.bin"],
            id="torch's index",
        ),
        pytest.param(
            ["config.json", "model.tensors", TORCH_INDEX, "pytorch_model-1.bin"],
            None,
            ["config.json", "model.tensors"],
            id="tensorizer's beside torch",
        ),
        pytest.param(
            ["config.json", "medusa_lm_head.pt", "optimizer.pt", "README.md"],
            None,
            ["config.json", "medusa_lm_head.pt"],
            id="heads of Medusa",
        ),
        pytest.param(
            [
                *("pytorch_model.bin", "2_Dense/pytorch_model.bin", "2_Dense/config.json"),
                *("3_Dense/pytorch_model.bin", "3_Dense/model.safetensors", "2_Dense/rust_model.ot"),
            ],
            None,
            ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "2_Dense/config.json", "3_Dense/model.safetensors"],
            id="torch's steps",
        ),
        pytest.param(
            ["config.json", "model.safetensors", *(f"eval_{place}.json" for place in range(5000)), "1_x/a.json"],
            None,
            ["config.json", "model.safetensors"],
            id="thousands of other settings",
        ),
    ],
)
def test_folder_is_what_the_engine_reads(there: list[str], told: bytes | None, wanted: list[str]) -> None:
    """Settings, vocabularies, templates and steps come; of weights that are there twice, those that are read."""
    found = folder_files(there, told)
    assert sorted(found) == sorted(wanted)
    assert len(found) == len(set(found))
    assert has_weights(found)


@pytest.mark.parametrize("told", [b"", b"[]", b"{}", b'{"weight_map": 3}', b"[" * 100_000, index("gone.safetensors")])
def test_index_that_says_nothing_is_not_followed(told: bytes) -> None:
    """A damaged index, or one of files that are not there, leaves the choice to the names."""
    there = [INDEX, "model-1.safetensors", "model-2.safetensors"]
    assert sorted(folder_files(there, told)) == sorted(there)


@given(st.lists(st.text("./a_1", max_size=12)), st.lists(st.text("./a_1", max_size=12)))
def test_nothing_is_fetched_that_was_not_listed(there: list[str], indexed: list[str]) -> None:
    """Whatever names a hub lists or an index has, what is fetched was listed and lies in the folder."""
    there += [f"{name}.safetensors" for name in there] + [f"{name}.json" for name in there]
    found = folder_files(there, index(*indexed, *(f"{name}.safetensors" for name in indexed)))
    assert set(found) <= set(there)
    assert not [name for name in found if ".." in name.split("/") or name.startswith("/")]


def test_the_index_of_the_weights_that_are_read_is_looked_into() -> None:
    """That of safetensors, or torch's where there are none, and nothing of tensorizer's."""
    assert index_of([INDEX, TORCH_INDEX]) == INDEX
    assert index_of(["model.tensors", TORCH_INDEX]) is None
    assert index_of([TORCH_INDEX, "pytorch_model-1.bin", "1_Dense/model.safetensors"]) == TORCH_INDEX
    assert index_of([TORCH_INDEX, "model.safetensors"]) is None


def test_no_weights_are_no_model() -> None:
    """A repository of GGUF files, or with the weights of a step alone, has no model as a folder."""
    assert not has_weights(folder_files(["config.json", "a.gguf", "1_Dense/model.safetensors"], None))


def test_gguf_files_are_found_or_their_neighbours_told() -> None:
    """One file, all of a split one, or none: then the nearest name is told, or those that there are."""
    there = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "README.md"]
    assert gguf_files("a-Q8_0.gguf", there) == ["a-Q8_0.gguf"]
    assert gguf_files("b-00002-of-00002.gguf", there) == there[2:4]
    assert gguf_files("a-q8_0.gguf", there) == gguf_files("c-00001-of-00002.gguf", there) == []
    assert other_files("a-q8_0.gguf", there) == "did you mean a-Q8_0.gguf?"
    assert other_files("zzz", there) == f"there are {', '.join(there[:4])}"
    assert other_files("", [f"{place}.gguf" for place in range(10)]).endswith("6.gguf, 7.gguf and 2 more")
    assert other_files("x.gguf", ["README.md"]) == "the repository has no GGUF files"
