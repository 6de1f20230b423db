"""Folders with what torch saved in place of safetensors: each command takes them as the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import fresh_environment, pyagent
from support.folder_tokenizer import write_model_folder
from support.tiny_adapter import write_adapter
from support.tiny_encoder import write_encoder, write_late_encoder
from support.torch_file import to_torch_file

from pyagent import _rust
from pyagent.infrastructure.engine.kv_moves.fingerprint import find_weights
from pyagent.infrastructure.engine.models.adapter_digest import adapter_id_of
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.quantize.quantizing import planned_bytes, quantize_model
from pyagent.infrastructure.models.store import ModelStore


def quantised(folder: Path, type_name: str) -> bytes:
    """The file that quantising a folder writes."""
    target = folder.parent / f"{type_name}.gguf"
    quantize_model(folder, target, type_name, overwrites=True, threads=1, progress=lambda _done, _total: None)
    return target.read_bytes()


def test_a_decoder_that_torch_saved_is_described_listed_and_quantised(tmp_path: Path) -> None:
    """Its card but for the file's size, its name in the store's folder, and the very bytes of the GGUF file."""
    folder = write_model_folder(tmp_path / "models" / "tiny")
    before, expected = describe_model(folder), quantised(folder, "Q8_0")
    to_torch_file(folder)
    after = describe_model(folder)
    assert (after.num_parameters, after.quantization, after.weight_bytes) == (
        *(before.num_parameters, before.quantization, before.weight_bytes),
    )
    assert after.file_bytes == (folder / "pytorch_model.bin").stat().st_size
    assert quantised(folder, "Q8_0") == expected
    assert ModelStore(tmp_path / "models").find("tiny") is not None
    assert {file.path.name for file in find_weights(folder)} == {"pytorch_model.bin", "config.json"}


def test_an_encoder_that_torch_saved_embeds_the_same(tmp_path: Path) -> None:
    """Bit for bit, its dense step in a folder of its own too."""
    folder = write_late_encoder(tmp_path / "m")
    texts = [[2, *range(5, 5 + length), 3] for length in (1, 7, 30)]
    expected = _rust.EncoderModel.load(folder, threads=1).compute(texts)
    to_torch_file(to_torch_file(folder) / "1_Dense")
    assert not list(folder.rglob("*.safetensors"))
    assert _rust.EncoderModel.load(folder, threads=1).compute(texts) == expected


def test_an_adapter_that_torch_saved_is_read(tmp_path: Path) -> None:
    """Its card is the same, and it is known by its content; of both files the one that is read counts."""
    folder = write_adapter(tmp_path / "a")
    before, weights = _rust.describe_adapter(folder), (folder / "adapter_model.safetensors").read_bytes()
    known = adapter_id_of(folder)
    to_torch_file(folder, "adapter_model.safetensors", "adapter_model.bin")
    assert _rust.describe_adapter(folder) == before
    assert adapter_id_of(folder) not in {0, known}
    (folder / "adapter_model.safetensors").write_bytes(weights)
    assert adapter_id_of(folder) == known


def test_show_says_what_quantising_would_give(tmp_path: Path) -> None:
    """The size is that of the file then written, for each type, and whether it fits; nothing is written."""
    folder = write_model_folder(tmp_path / "tiny")
    planned = planned_bytes(folder, ("Q4_0", "Q4_K_M", "Q8_0"))
    assert planned == {name: len(quantised(folder, name)) for name in planned}
    environment = fresh_environment(tmp_path)
    there = sorted(folder.iterdir())
    ran = pyagent("models", "show", str(folder), "--json", env=environment)
    told = json.loads(ran.stdout)["quantised"]
    assert {name: one["file_bytes"] for name, one in told.items()} == planned
    assert all(one["fits"] for one in told.values())
    assert told["Q8_0"]["needed_bytes"] - told["Q4_0"]["needed_bytes"] == planned["Q8_0"] - planned["Q4_0"]
    assert sorted(folder.iterdir()) == there
    encoder = write_encoder(tmp_path / "encoder")
    told = json.loads(pyagent("models", "show", str(encoder), "--json", env=environment).stdout)["quantised"]
    assert {name: one["file_bytes"] for name, one in told.items()} == planned_bytes(encoder, tuple(planned))


@pytest.mark.parametrize("payload", [b"cos\nsystem\n", b"cposix\nsystem\n", b"cbuiltins\nexec\n"])
def test_a_pickle_that_calls_something_is_refused_and_not_run(payload: bytes, tmp_path: Path) -> None:
    """One line that names what it would call; what it would do is not done."""
    folder = to_torch_file(write_model_folder(tmp_path / "tiny"))
    file, mark = folder / "pytorch_model.bin", tmp_path / "owned"
    command = f"touch {mark}".encode()
    call = b"\x80\x02" + payload + b"(X" + len(command).to_bytes(4, "little") + command + b"tR."
    whole = file.read_bytes()
    assert whole.count(b"\x80\x02}(") == 1
    start = whole.index(b"\x80\x02}(")
    file.write_bytes(whole[:start] + call + whole[start + len(call) :])
    ran = pyagent("models", "show", str(folder), env=fresh_environment(tmp_path))
    assert ran.returncode == 1
    name = payload[1:-1].decode().replace("\n", ".")
    assert f"its pickle names {name}, which no plain state dict has; nothing of it is run" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not mark.exists()
