"""Folders that tensorizer wrote against the same folders of safetensors: what is computed is the same bit for bit.

tensorizer wants packages of clouds and databases, which nothing else here does: without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.reference_decoder import write_family
from support.tensorizer_file import tensorizer_bytes, tensors_of

from pyagent import _rust
from pyagent.infrastructure.models.tensor_checksums import check_tensors

pytestmark = pytest.mark.oracle


def serializer(file: Path, **options: Any) -> Any:
    """Return tensorizer's writer of a file."""
    return pytest.importorskip("tensorizer", reason="pip install tensorizer").TensorSerializer(str(file), **options)


def logits(folder: Path) -> bytes:
    """The logits of some tokens."""
    model = _rust.CpuModel.load(folder, threads=1, kv_bytes=1 << 22, kv_type="f32")
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    pool.add(0, tokens)
    pool.reserve(0, len(tokens))
    model.execute(pool, [0], [len(tokens)], tokens, num_outputs=[len(tokens)])
    return bytes(model.logits())


def test_a_state_dict_that_tensorizer_wrote_computes_the_same(tmp_path: Path) -> None:
    """The logits are equal, the checksums hold, and the tests' own writer gives the very bytes of the file."""
    from safetensors.torch import load_file

    write_family(tmp_path, "llama")
    expected, source = logits(tmp_path), tmp_path / "model.safetensors"
    tensors, told = load_file(source), tensors_of(source)
    file = tmp_path / "model.tensors"
    writer = serializer(file)
    writer.write_state_dict({name: tensors[name] for name in told})
    writer.close()
    source.unlink()
    assert logits(tmp_path) == expected
    assert check_tensors(tmp_path)
    assert file.read_bytes() == tensorizer_bytes(told)


def test_every_element_type_and_a_tensor_without_bytes_are_known(tmp_path: Path) -> None:
    """Types have the names that safetensors gives them; a meta tensor, as vLLM marks its files, is left alone."""
    import torch

    names = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
    names += ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32"]
    tensors = {name: torch.ones(2, 3).to(getattr(torch, name)) for name in names}
    tensors["marker"] = torch.empty(1, device="meta")
    (tmp_path / "config.json").write_text("{}")
    writer = serializer(tmp_path / "model.tensors")
    writer.write_state_dict(tensors)
    writer.close()
    assert check_tensors(tmp_path)
    file = _rust.TensorFile(tmp_path)
    for name, kind in [("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")]:
        assert file.find(name) == ([3, 2], kind)
    kinds = ["F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "U16", "U32"]
    for name, kind in [*zip(names[3:], kinds, strict=True), ("marker", "of no bytes in the file")]:
        with pytest.raises(_rust.ModelFileError, match=f"has element type {kind}"):
            file.find(name)


def test_a_whole_module_is_read_by_its_parameters(tmp_path: Path) -> None:
    """What `write_module` writes of transformers' model computes the same as what it saves as safetensors."""
    from transformers import AutoModelForCausalLM

    write_family(tmp_path, "llama", tie_word_embeddings=True)
    expected = logits(tmp_path)
    writer = serializer(tmp_path / "model.tensors")
    writer.write_module(AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto"))
    writer.close()
    (tmp_path / "model.safetensors").unlink()
    assert logits(tmp_path) == expected


def test_an_encrypted_file_is_refused_by_name(tmp_path: Path) -> None:
    """As its header says it, before anything else is read."""
    import torch

    tensorizer = pytest.importorskip("tensorizer", reason="pip install tensorizer")
    (tmp_path / "config.json").write_text("{}")
    try:
        encryption = tensorizer.EncryptionParams.random()
    except RuntimeError as error:
        pytest.skip(f"tensorizer cannot encrypt here: {error}")
    writer = serializer(tmp_path / "model.tensors", encryption=encryption)
    writer.write_state_dict({"a": torch.ones(2, 3)})
    writer.close()
    with pytest.raises(_rust.ModelFileError, match="it is encrypted, and the engine has no key"):
        _rust.TensorFile(tmp_path)
