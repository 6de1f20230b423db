"""Folders with a file of CoreWeave's tensorizer in place of safetensors: each command takes them as the same model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.command_line import fresh_environment, pyagent
from support.folder_tokenizer import write_model_folder
from support.tensorizer_file import to_tensorizer_file
from support.tiny_adapter import write_adapter
from support.tiny_encoder import write_encoder

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.kv_moves.fingerprint import find_weights
from pyagent.infrastructure.engine.models.adapter_digest import adapter_id_of
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.hub_files import folder_files, has_weights
from pyagent.infrastructure.models.quantize.quantizing import quantize_model
from pyagent.infrastructure.models.store import ModelStore
from pyagent.infrastructure.models.tensor_checksums import check_tensors, checksum_kinds


def quantised(folder: Path) -> bytes:
    """The file that quantising a folder writes."""
    target = folder.parent / "m.gguf"
    quantize_model(folder, target, "Q8_0", overwrites=True, threads=1, progress=lambda _done, _total: None)
    return target.read_bytes()


def test_a_decoder_is_described_listed_quantised_and_compared(tmp_path: Path) -> None:
    """Its card but for the file's size, its name in the store's folder, the very bytes of the GGUF file."""
    folder = write_model_folder(tmp_path / "models" / "tiny")
    before, expected = describe_model(folder), quantised(folder)
    to_tensorizer_file(folder)
    file = folder / "model.tensors"
    assert describe_model(folder) == msgspec.structs.replace(before, file_bytes=file.stat().st_size)
    assert quantised(folder) == expected
    assert {one.path.name for one in find_weights(folder)} == {"model.tensors", "config.json"}
    store = ModelStore(tmp_path / "models")
    assert store.find("tiny") is not None
    assert (store.check("tiny"), store.check(str(folder))) == (True, True)
    assert checksum_kinds(folder) == ["CRC-32", "SHA-256"]


def test_an_encoder_and_an_adapter_are_read(tmp_path: Path) -> None:
    """An encoder embeds the same bit for bit; an adapter's card is the same, and it is known by its content."""
    folder, adapter = write_encoder(tmp_path / "m"), write_adapter(tmp_path / "a")
    texts = [[2, *range(5, 5 + length), 3] for length in (1, 7, 30)]
    expected, card = _rust.EncoderModel.load(folder, threads=1).compute(texts), _rust.describe_adapter(adapter)
    known = adapter_id_of(adapter)
    to_tensorizer_file(folder)
    to_tensorizer_file(adapter, "adapter_model.safetensors", "adapter_model.tensors")
    assert _rust.EncoderModel.load(folder, threads=1).compute(texts) == expected
    assert _rust.describe_adapter(adapter) == card
    assert adapter_id_of(adapter) not in {0, known}


def test_each_byte_of_a_tensor_is_under_its_checksums(tmp_path: Path) -> None:
    """A changed byte of a tensor or of a checksum is found and the tensor named; the reader alone notices neither."""
    folder = to_tensorizer_file(write_model_folder(tmp_path / "tiny"))
    file = folder / "model.tensors"
    whole, sums = file.read_bytes(), _rust.tensor_checksums(file)
    name, _, start, end, places = sums[len(sums) // 2]
    for at, kind in [(start, "CRC-32"), (end - 1, "CRC-32"), *((first, kind) for kind, first, _ in places)]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert _rust.TensorFile(folder).find(name) is not None
        with pytest.raises(ModelError, match=rf"model.tensors is damaged: the {kind} of tensor '{name}' is"):
            check_tensors(folder)


def test_a_tensor_that_lost_its_checksums_is_a_fault(tmp_path: Path) -> None:
    """Where the others have some, one without is not taken for whole; without any, nothing is compared."""
    folder = to_tensorizer_file(write_model_folder(tmp_path / "tiny"))
    file = folder / "model.tensors"
    whole, sums = bytearray(file.read_bytes()), _rust.tensor_checksums(file)
    numbers = [min(first for _, first, _ in places) - 3 for *_, places in sums]  # how many checksums follow
    whole[numbers[1]] = 0
    file.write_bytes(whole)
    with pytest.raises(ModelError, match=f"tensor '{sums[1][0]}' has no checksum, as others have; download it again"):
        check_tensors(folder)
    for number in numbers:
        whole[number] = 0
    file.write_bytes(whole)
    assert not check_tensors(folder)


def test_the_commands_say_what_the_checksums_are_and_whether_they_hold(tmp_path: Path) -> None:
    """`models show` names their kinds, `models check` compares, by path and by name; an encrypted file is refused."""
    folder = to_tensorizer_file(write_model_folder(tmp_path / "tiny"))
    environment = fresh_environment(tmp_path)
    ran = pyagent("models", "show", str(folder), env=environment)
    assert "checksums     CRC-32, SHA-256 of each tensor; `pyagent models check` compares them" in ran.stdout
    ran = pyagent("models", "check", str(folder), "--json", env=environment)
    assert json.loads(ran.stdout)[0] == {"name": str(folder), "is_whole": True, "fault": "", "has_own_sums": True}
    file = folder / "model.tensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    ran = pyagent("models", "check", str(folder), env=environment)
    assert ran.returncode == 1
    assert "is damaged: the CRC-32 of tensor" in ran.stdout
    file.write_bytes(whole[:5] + b"\3" + whole[6:])
    ran = pyagent("models", "show", str(folder), env=environment)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert (
        "it is encrypted, and the engine has no key; write it again with tensorizer without `encryption`" in ran.stderr
    )


def test_a_repository_with_such_a_file_is_a_model() -> None:
    """The hub's file is fetched where there are no safetensors, and torch's is not then."""
    there = ["config.json", "model.tensors", "pytorch_model.bin", "pytorch_model.bin.index.json"]
    assert folder_files(there, None) == ["config.json", "model.tensors"]
    assert folder_files([*there, "model.safetensors"], None) == ["config.json", "model.safetensors"]
    assert has_weights(["model.tensors"])
    assert not has_weights(["vae.tensors"])


def test_checksums_of_a_file_that_is_not_read_are_not_compared(tmp_path: Path) -> None:
    """Beside safetensors, which go before it, whatever is in it says nothing of the model."""
    for name in ("model.tensors", "model.safetensors"):
        (tmp_path / name).write_bytes(b"rubbish")
    assert (checksum_kinds(tmp_path), check_tensors(tmp_path)) == ([], False)
