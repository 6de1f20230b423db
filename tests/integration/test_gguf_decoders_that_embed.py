"""Decoders' GGUF files that say how they embed: the bits of the folders that they were made of, and refusals."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.folder_tokenizer import write_model_folder
from support.gguf_writer import write_gguf
from support.quantizing import quantized
from support.tiny_encoder import write_safetensors

from pyagent import _rust

TEXTS = [[(13 * place + length) % 240 + 3 for place in range(length)] for length in (1, 9, 40)]
POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "sliding_window_pattern": 6}
DENSE, HIDDEN = 24, 64


def write_folder(folder: Path, family: str, pooling: str, *, has_dense: bool = False, **changes: Any) -> Path:
    """Write a decoder as sentence-transformers lays out one that embeds, by a matrix with a bias after pooling."""
    write_model_folder(folder, family, **changes)
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Dense", "2_Dense")] if has_dense else [])]
    (folder / "modules.json").write_text(
        json.dumps([{"idx": at, "path": path, "type": f"m.{kind}"} for at, (kind, path) in enumerate(steps)])
    )
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in ("lasttoken", "mean_tokens", "cls_token")}
    modes |= {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    if has_dense:
        about = {"in_features": HIDDEN, "out_features": DENSE, "bias": True}
        (folder / "2_Dense").mkdir()
        config = about | {"activation_function": "torch.nn.modules.linear.Identity"}
        write_safetensors(folder / "2_Dense", config, {f"linear.{end}": value for end, value in dense().items()})
    return folder


def dense() -> dict[str, tuple[list[int], list[float]]]:
    draw = random.Random(3)
    weight = [draw.gauss(0, 0.2) for _ in range(DENSE * HIDDEN)]
    return {"weight": ([DENSE, HIDDEN], weight), "bias": ([DENSE], [draw.gauss(0, 0.2) for _ in range(DENSE)])}


def embedding_file(folder: Path, target: Path, family: str, *, has_dense: bool = False, **keys: Any) -> Path:
    """Write a folder's decoder under llama.cpp's names, and `keys` of its family, dots as double underscores."""
    plain = target.with_suffix(".plain")
    quantized(folder, plain, "F32")
    header, file = _rust.read_model_header(plain), _rust.TensorFile(plain)
    before = header["metadata"]["general.architecture"]
    metadata = {key.replace(f"{before}.", f"{family}."): value for key, value in header["metadata"].items()}
    metadata |= {f"{family}.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata["general.architecture"] = family
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    for name, dims, *_ in header["tensors"]:
        values = array("f", bytes(4 * dims[0] * (dims[1] if len(dims) > 1 else 1)))
        file.read_floats(name, 0, memoryview(values).cast("B"))
        tensors[name] = (tuple(dims), values)
    if has_dense:
        tensors |= {
            f"dense_2.{end}": (tuple(reversed(shape)), array("f", values)) for end, (shape, values) in dense().items()
        }
    return write_gguf(target, metadata, tensors)


def vectors(path: Path) -> bytes:
    return _rust.EncoderModel.load(path, threads=2).compute(TEXTS)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_decoder_embeds_as_its_folder_does(pooling: str, is_causal: bool, tmp_path: Path) -> None:
    """Qwen3-Embedding's kind: pooled as the file says, each token seeing those before it, or all."""
    changes = {} if is_causal else {"use_bidirectional_attention": True}
    folder = write_folder(tmp_path / "m", "qwen3", pooling, **changes)
    expected = vectors(folder)
    (folder / "config.json").write_text(
        json.dumps({**json.loads((folder / "config.json").read_text()), "use_bidirectional_attention": False})
    )
    path = embedding_file(
        folder, tmp_path / "m.gguf", "qwen3", pooling_type=POOLINGS[pooling], attention__causal=is_causal
    )
    assert _rust.model_task(path) == "embed"
    assert vectors(path) == expected


def test_embeddinggemma_embeds_as_its_folder_does(tmp_path: Path) -> None:
    """Both ways, with half of the window on each side, and a matrix with a bias after pooling."""
    both = {"use_bidirectional_attention": True}
    folder = write_folder(tmp_path / "m", "gemma3", "mean", has_dense=True, **GEMMA, **both)
    expected = vectors(folder)
    assert len(expected) == 4 * DENSE * len(TEXTS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_bidirectional_attention": False}))
    path = embedding_file(folder, tmp_path / "m.gguf", "gemma-embedding", has_dense=True, pooling_type=1)
    assert _rust.model_task(path) == "embed"
    assert vectors(path) == expected


def test_a_decoder_that_ranks_has_labels(tmp_path: Path) -> None:
    """A file that says that it ranks, without the matrix that would, is refused by that matrix's name."""
    folder = write_folder(tmp_path / "m", "qwen3", "mean")
    path = embedding_file(folder, tmp_path / "m.gguf", "qwen3", pooling_type=4)
    with pytest.raises(_rust.ModelFileError, match=r"is 4 \(rank\), but the file has no tensor 'cls.output.weight'"):
        vectors(path)
