"""Folders that torch saved against the same folders of safetensors: what is computed is the same bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.reference_decoder import write_family
from support.tiny_encoder import SHAPE, write_encoder

from pyagent import _rust

pytestmark = pytest.mark.oracle


def saved(folder: Path, num_files: int, **changes: Any) -> Path:
    """Replace a folder's safetensors by what `torch.save` writes of the same tensors, with `changes` among them."""
    import json

    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors") | changes
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    if num_files == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder
    places = {
        name: f"pytorch_model-{place % num_files + 1:05}-of-{num_files:05}.bin" for place, name in enumerate(names)
    }
    for file in set(places.values()):
        torch.save({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def logits(folder: Path) -> bytes:
    """The logits of some tokens."""
    model = _rust.CpuModel.load(folder, threads=1, kv_bytes=1 << 22, kv_type="f32")
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    pool.add(0, tokens)
    pool.reserve(0, len(tokens))
    model.execute(pool, [0], [len(tokens)], tokens, num_outputs=[len(tokens)])
    return bytes(model.logits())


@pytest.mark.parametrize("num_files", [1, 3])
def test_decoders_that_torch_saved_compute_the_same(num_files: int, tmp_path: Path) -> None:
    """A decoder in one file and in three, its output a second name of the embedding's storage."""
    from safetensors.torch import load_file

    write_family(tmp_path, "llama", tie_word_embeddings=True)
    expected = logits(tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    saved(tmp_path, num_files, **{"model.embed_tokens.weight": embedding, "lm_head.weight": embedding})
    assert logits(tmp_path) == expected


def test_encoders_that_torch_saved_embed_the_same(tmp_path: Path) -> None:
    """An encoder with views of one storage, a parameter, and numbers that no one reads."""
    import torch

    folder = write_encoder(tmp_path / "m")
    texts = [[2, *range(5, 5 + length), 3] for length in range(1, 30)]
    expected = _rust.EncoderModel.load(folder, threads=1).compute(texts)
    place = "encoder.layer.0.attention.self"
    from safetensors.torch import load_file

    own = load_file(folder / "model.safetensors")
    names = [f"{place}.{part}.weight" for part in ("query", "key", "value")]
    fused = torch.cat([own[name] for name in names])
    views = dict(zip(names, fused.split(SHAPE["hidden_size"]), strict=True))
    ids = torch.arange(8).expand((1, -1))
    parameter = torch.nn.Parameter(own["embeddings.LayerNorm.weight"])
    changes = {**views, "embeddings.position_ids": ids, "embeddings.LayerNorm.weight": parameter}
    saved(folder, 1, **changes)
    assert _rust.EncoderModel.load(folder, threads=1).compute(texts) == expected


def test_what_torch_saves_otherwise_is_refused(tmp_path: Path) -> None:
    """The form before 1.6, a transposed matrix, a whole module, a checkpoint of a training: each says what to do."""
    import torch

    folder, file = tmp_path, tmp_path / "pytorch_model.bin"
    (folder / "config.json").write_text("{}")
    tensor = torch.ones(2, 3)
    for value, told in [
        (torch.nn.Linear(2, 3), "its pickle names torch.nn.modules.linear.Linear, which no plain state dict has"),
        ({"a": tensor.t()}, "does not lie row after row; save the model with contiguous tensors"),
        ({"model": {"a": tensor}}, 'the entry "model" is not a tensor; save model.state_dict() alone'),
        ({"a": tensor.to(torch.complex64)}, "names torch.ComplexFloatStorage"),
        ({"a": torch.zeros(0)}, "a dimension is 0"),
    ]:
        torch.save(value, file)
        with pytest.raises(_rust.ModelFileError) as refused:
            _rust.TensorFile(folder)
        assert told in str(refused.value)
    torch.save({"a": tensor}, file, _use_new_zipfile_serialization=False)
    with pytest.raises(_rust.ModelFileError, match=r"before torch 1\.6.*save it again"):
        _rust.TensorFile(folder)
