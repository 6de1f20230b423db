"""jina-embeddings-v2 from folders and GGUF files: what they are for, the same bits, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration.test_gguf_encoders import written
from support.jina_bert import FORMS, gguf_of, texts, write_jina

from pyagent import _rust

TEXTS = texts(1, 9, 40)


def computed(path: Path) -> bytes:
    return _rust.EncoderModel.load(path, threads=2).compute(TEXTS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_split", [False, True])
def test_a_gguf_file_gives_the_folders_bits(form: str, is_split: bool, tmp_path: Path) -> None:
    """With the gate and what it multiplies in one matrix, or in two as older files have them."""
    folder = write_jina(tmp_path / "m", form)
    sizes, tensors = gguf_of(form, is_split=is_split)
    path = written(tmp_path / "m.gguf", "jina-bert-v2", sizes, tensors)
    assert _rust.model_task(path) == _rust.model_task(folder) == "embed"
    assert _rust.EncoderModel.load(path, threads=1).info()["architecture"] == "jina-bert-v2"
    assert computed(path) == computed(folder)


def test_the_forms_differ(tmp_path: Path) -> None:
    """The same weights of layers but for the code model's own norms and halves give other vectors."""
    assert computed(write_jina(tmp_path / "a", "text")) != computed(write_jina(tmp_path / "b", "code"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"feed_forward_type": "reglu"}, "'feed_forward_type' is \"reglu\", which is not implemented"),
        ({"feed_forward_type": "original"}, "'feed_forward_type' is \"original\""),
        ({"emb_pooler": "cls"}, "'emb_pooler' is \"cls\""),
        ({"num_attention_heads": 5}, "5 attention heads cannot share a hidden size of 24"),
        ({"intermediate_size": 41}, "is 80 x 24; expected 82 x 24"),
        ({"max_position_embeddings": 0}, "longest text is 0"),
        ({"position_embedding_type": "relative_key"}, "'emb_pooler' is not implemented"),
        ({"alibi_scale": 2}, "alibi_scale"),
    ],
)
def test_other_configurations_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Before memory is taken."""
    folder = write_jina(tmp_path / "m", "text")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    with pytest.raises(_rust.ModelFileError, match=expected):
        _rust.describe_encoder(folder)


def test_texts_are_no_longer_than_memory_allows(tmp_path: Path) -> None:
    """No table bounds what a file says of positions."""
    folder = write_jina(tmp_path / "m", "code", max_position_embeddings=1 << 20)
    (folder / "sentence_bert_config.json").unlink()
    about = _rust.describe_encoder(folder)
    assert about is not None
    assert about["max_tokens"] == 8_192


def test_a_rankers_file_without_its_pooler_is_refused(tmp_path: Path) -> None:
    """llama.cpp's converter leaves the pooler of jina-reranker-v1 out."""
    sizes, tensors = gguf_of("text")
    path = written(tmp_path / "m.gguf", "jina-bert-v2", sizes, tensors | {"cls.weight": ([1, 24], [0.5] * 24)})
    with pytest.raises(_rust.ModelFileError, match="without the layer before them"):
        computed(path)
