"""`pyagent models merge`: a model's folder with adapters in its weights, complete or absent."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_line import fresh_environment, pyagent
from support.full_disk import full_disk
from support.reference_decoder import write_safetensors
from support.tiny_adapter import Tensor, write_adapter
from support.tiny_model import write_tiny_model
from support.torch_file import to_torch_file

from pyagent.cli.merge import merge
from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.models import merging
from pyagent.infrastructure.models.merging import Merged, merge_adapters

Q = "layers.0.self_attn.q_proj"
WEIGHTS = [[row + column / 8 for column in range(4)] for row in range(6)]
DOWN, UP = [[1.0, -2.0, 3.0, 0.5], [0.25, 1.0, 0.0, -1.0]], [[row - 2.0, 0.5 * row] for row in range(6)]


def matrix(rows: Sequence[Sequence[float]]) -> Tensor:
    return (len(rows), len(rows[0])), array("f", (value for row in rows for value in row))


def factors(module: str = f"model.{Q}", **more: Tensor) -> dict[str, Tensor]:
    """Tensors of an adapter for one matrix, and others."""
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A.weight": matrix(DOWN), f"{name}.lora_B.weight": matrix(UP), **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of one matrix that adapters are for, and an adapter `first` of scale 4."""
    model = tmp_path / "model"
    model.mkdir()
    head = [[1.0, 2.0, 3.0, 4.0]] * 2
    tensors: Any = {"lm_head.weight": head, f"model.{Q}.weight": WEIGHTS, "model.norm.weight": [[1.0] * 4]}
    write_safetensors(model, {"model_type": "llama"}, tensors)
    write_adapter(tmp_path / "first", given=factors(), config={"r": 2})
    return tmp_path


def merged(folder: Path, *names: str, **watching: Callable[[int, int], None]) -> Merged:
    adapters = [folder / name for name in names or ("first",)]
    progress = watching.get("progress", lambda done, total: None)
    return merge_adapters(folder / "model", adapters, folder / "out", threads=2, progress=progress)


def refusal(folder: Path, *names: str) -> str:
    """What a merge is refused with; nothing is left of it."""
    before = sorted(folder.iterdir())
    with pytest.raises(ModelError) as caught:
        merged(folder, *names)
    assert sorted(folder.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    """Element type and bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    told = {name: about for name, about in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"}
    places = {
        name: (about["dtype"], *(8 + length + at for at in about["data_offsets"])) for name, about in told.items()
    }
    return {name: (dtype, data[start:end]) for name, (dtype, start, end) in places.items()}


def expected(scale: float, rows: Sequence[Sequence[float]] = WEIGHTS) -> list[float]:
    """The matrix with what the adapter adds."""
    added = [[sum(b * a[column] for b, a in zip(up, DOWN, strict=True)) for column in range(4)] for up in UP]
    return [w + scale * d for row, more in zip(rows, added, strict=True) for w, d in zip(row, more, strict=True)]


def test_only_the_tensors_that_an_adapter_adds_to_change(folder: Path) -> None:
    """The file keeps its size and header; other tensors, the tokenizer and folders of modules come along."""
    model = folder / "model"
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "model.safetensors"}}')
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text("[]")
    (model / "1_Pooling/model.safetensors").write_text("other")
    for name in ("2_Dense", "onnx"):
        (model / name).mkdir()
        (model / name / "pytorch_model.bin").write_text("other")
    (model / ".git").mkdir()
    (model / ".git/config").write_text("")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "model.gguf", "model.tensors"):
        (model / name).write_text("old weights")
    told: list[tuple[int, int]] = []
    made = merged(folder, progress=lambda done, total: told.append((done, total)))
    before, after = stored(model / "model.safetensors"), stored(folder / "out/model.safetensors")
    assert [name for name in before if before[name] != after[name]] == [f"model.{Q}.weight"]
    assert array("f", after[f"model.{Q}.weight"][1]).tolist() == expected(4)
    files = sorted(str(file.relative_to(folder / "out")) for file in (folder / "out").rglob("*") if file.is_file())
    copied = [
        "1_Pooling/config.json",
        "1_Pooling/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert files == sorted([*copied, "model.safetensors"])
    assert sorted(made.copied) == copied
    others = ["consolidated.safetensors", "model.gguf", "model.tensors", "pytorch_model.bin", "onnx/pytorch_model.bin"]
    assert made.left_out == others
    assert made.num_tensors == 1
    assert told[-1] == (made.num_bytes, made.num_bytes)
    assert made.num_bytes == sum((folder / "out" / file).stat().st_size for file in files)


def test_tensors_are_merged_in_whatever_order_a_file_has_them(folder: Path) -> None:
    """A later layer's matrix before an earlier one's, as no name says where it lies."""
    names = [f"model.{Q.replace('.0.', f'.{layer}.')}" for layer in (2, 0, 1)]
    write_safetensors(folder / "model", {"model_type": "llama"}, {f"{name}.weight": WEIGHTS for name in names})
    write_adapter(folder / "all", given=factors(names[0]) | factors(names[1]) | factors(names[2]), config={"r": 2})
    merged(folder, "all")
    after = stored(folder / "out/model.safetensors")
    assert len(set(names)) == 3
    assert {name: array("f", after[f"{name}.weight"][1]).tolist() for name in names} == dict.fromkeys(
        names, expected(4)
    )


def test_pieces_do_not_change_what_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows one by one or by four, the last ones two, and files by as many bytes, are the same files."""
    merged(folder)
    whole = (folder / "out/model.safetensors").read_bytes()
    for piece_bytes in (16, 64):
        shutil.rmtree(folder / "out")
        monkeypatch.setattr(merging, "_PIECE_BYTES", piece_bytes)
        merged(folder)
        assert (folder / "out/model.safetensors").read_bytes() == whole


def test_names_of_decoders_in_other_models_are_found(folder: Path) -> None:
    """An adapter of the text half fits a checkpoint that has it beside pictures."""
    write_safetensors(folder / "model", {}, {f"model.language_model.{Q}.weight": WEIGHTS})
    merged(folder)
    (values,) = stored(folder / "out/model.safetensors").values()
    assert array("f", values[1]).tolist() == expected(4)


def test_a_name_that_two_matrices_could_have_is_refused(folder: Path) -> None:
    """A checkpoint with two decoders: which of them the adapter is for is not guessed."""
    both = {f"model.{Q}.weight": WEIGHTS, f"language_model.model.{Q}.weight": WEIGHTS}
    write_safetensors(folder / "model", {}, both)
    told = refusal(folder, "first")
    assert f"several such matrices: language_model.model.{Q}.weight, model.{Q}.weight" in told


FAULTS: dict[str, tuple[dict[str, Tensor], dict[str, object], str]] = {
    "another layer": (
        factors("model.layers.7.self_attn.q_proj"),
        {},
        '"layers.7.self_attn.q_proj": the model has no such matrix: is it an adapter of another model?',
    ),
    "another size": (
        factors() | {f"base_model.model.model.{Q}.lora_A.weight": matrix([[1.0] * 5] * 2)},
        {},
        "is 2 x 5; the model's matrix needs 2 x 4: is it an adapter of another model?",
    ),
    "a vector": (factors("model.norm"), {}, '"norm": the model has no matrix there, but a tensor of another kind'),
    "the output": (factors("lm_head"), {}, "adapters of embeddings and of output matrices are not merged"),
    "a matrix of embeddings": (
        factors("model.embed_tokens"),
        {},
        "adapters of embeddings and of output matrices are not",
    ),
    "embeddings": (
        factors(base_model_embed_tokens_lora_embedding_A=matrix(DOWN)),
        {},
        "adapters of embeddings and of output matrices are not implemented",
    ),
    "a saved module": (factors() | {"base_model.model.score.weight": matrix(DOWN)}, {}, "without modules_to_save"),
    "modules_to_save": (factors(), {"modules_to_save": ["score"]}, '"modules_to_save" is ["score"]'),
    "biases": (factors(), {"bias": "all"}, 'bias is "all": adapters of biases are not implemented'),
    "another rank": (factors(), {"r": 8}, "has rank 2, but r and rank_pattern say 8"),
    "nothing": ({}, {}, "it adds to nothing: it has no tensors"),
    "too large": (
        factors() | {f"base_model.model.model.{Q}.lora_B.weight": matrix([[3e38, 3e38]] * 6)},
        {},
        "with what is added: ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_merged_is_refused_by_name(fault: str, folder: Path) -> None:
    """One line that names the file and what is wrong with it; no folder is written."""
    given, config, text = FAULTS[fault]
    path = write_adapter(folder / "second", given=given, config={"r": 2, **config})
    told = refusal(folder, "second")
    assert text in told
    assert str(path if fault != "too large" else folder / "model") in told


def test_dora_is_merged_alone(folder: Path) -> None:
    """It resizes rows, so that the order would change the model: beside another it is refused."""
    magnitude: Tensor = ((6,), array("f", [1.0] * 6))
    given = factors() | {f"base_model.model.model.{Q}.lora_magnitude_vector": magnitude}
    write_adapter(folder / "dora", given=given, config={"r": 2, "use_dora": True})
    assert "DoRA resizes what other adapters add" in refusal(folder, "first", "dora")
    merged(folder, "dora")
    values = array("f", stored(folder / "out/model.safetensors")[f"model.{Q}.weight"][1])
    for row in range(6):
        assert sum(value * value for value in values[4 * row : 4 * row + 4]) == pytest.approx(1, abs=1e-6)


def test_models_that_cannot_be_merged_into_are_refused(folder: Path) -> None:
    """A GGUF file, quantised or incomplete weights, linked folders, what torch saved, an adapter in a GGUF file."""
    model = folder / "model"
    write_tiny_model(folder / "tiny.gguf")
    assert "expected a folder that peft saved" in refusal(folder, "tiny.gguf")
    with pytest.raises(ModelError, match=r"is a GGUF file; merge into the folder of safetensors .* models quantize"):
        merge_adapters(folder / "tiny.gguf", [], folder / "out", threads=1, progress=lambda done, total: None)
    (model / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    assert "its weights are quantised; merge into the folder of the model as it was published" in refusal(folder)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    assert "model-2.safetensors: cannot find the file" in refusal(folder)
    (model / "model.safetensors.index.json").unlink()
    (model / "1_Pooling").symlink_to(folder)
    assert "1_Pooling is a link to a folder; put the folder itself in its place" in refusal(folder)
    (model / "1_Pooling").unlink()
    to_torch_file(model)
    assert "its weights are what torch or tensorizer wrote; save it as safetensors first" in refusal(folder)


def test_a_model_that_becomes_shorter_meanwhile_is_refused(folder: Path) -> None:
    """It is an error, not the end of the process by a signal; nothing is left of the folder that was begun."""

    def shrink(done: int, total: int) -> None:
        os.truncate(folder / "model/model.safetensors", 8)

    with pytest.raises(ModelError, match="has become shorter"):
        merge_adapters(folder / "model", [folder / "first"], folder / "out", threads=1, progress=shrink)
    assert not list(folder.glob("*out*"))


def test_a_place_that_is_taken_or_full_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays; a disk that is known to be full, and one that fills up, leave nothing."""
    (folder / "out").mkdir()
    assert "out is there already; --output names another" in refusal(folder)
    (folder / "out").rmdir()
    (folder / "out").symlink_to(folder / "nowhere")
    assert "out is there already" in refusal(folder)
    (folder / "out").unlink()
    inside = folder / "model/out"
    with pytest.raises(ModelError, match="is in the model's folder"):
        merge_adapters(folder / "model", [folder / "first"], inside, threads=1, progress=lambda done, total: None)
    with full_disk():
        assert "cannot be written" in refusal(folder)
    free = shutil.disk_usage(folder)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert "100 bytes are free" in refusal(folder)


def test_a_place_that_is_taken_meanwhile_stays_as_it_is(folder: Path) -> None:
    """A folder that somebody made while the merge was on its way, though there is nothing in it."""
    out = folder / "out"
    with pytest.raises(ModelError, match="out is there already"):
        merged(folder, progress=lambda done, total: out.mkdir(exist_ok=True))
    assert list(out.iterdir()) == []
    assert not (folder / ".out.partial").exists()


def test_what_a_killed_merge_left_is_written_over_and_a_running_one_is_not(folder: Path) -> None:
    """Two at once do not write one folder; after one that was killed the next is complete."""
    partial = folder / ".out.partial"
    (partial / "model.safetensors").mkdir(parents=True)
    (partial / "stray.json").write_text("{}")
    told: list[str] = []
    merged(folder, progress=lambda done, total: told.append(refusal(folder)))
    assert told
    assert all("is being written by another process" in one for one in told)
    assert sorted(file.name for file in (folder / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert not partial.exists()


def test_the_command_takes_names_folders_and_several(folder: Path) -> None:
    """Names are those of engine.adapters; in either order several are the same file; a wrong name gets the nearest."""
    write_adapter(folder / "second", given=factors(), config={"r": 2, "lora_alpha": 3})
    home = folder / "home"
    home.mkdir()
    env = fresh_environment(home)
    (folder / "pyagent.toml").write_text('[engine.adapters]\none = "./first"\ntwo = "./second"\n')

    def run(*arguments: str) -> Any:
        return pyagent("models", "merge", *arguments, env=env, cwd=folder)

    ran = run("./model", "one+two", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["path"] == "model-one-two"
    ran = run("model", "./second+first", "--output", "both")
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["folder", "size", "tensors", "seconds"]
    one, other = ((folder / name / "model.safetensors").read_bytes() for name in ("model-one-two", "both"))
    assert one == other
    values = array("f", stored(folder / "both/model.safetensors")[f"model.{Q}.weight"][1])
    assert values.tolist() == pytest.approx(expected(5.5), rel=1e-6)
    wrong = {
        "onee": "did you mean 'one'?",
        "one+one": "names an adapter twice",
        "one+": "'' is neither a folder nor a known adapter",
        "+".join("abcdefghi"): "9 adapters are named; expected at most 8",
    }
    for named, text in wrong.items():
        with pytest.raises(RequestError, match=re.escape(text)):
            merge(str(folder / "model"), named, config=folder / "pyagent.toml")


def test_a_name_of_the_settings_goes_before_a_folder_that_lies_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone as among several; a folder may have a `+` in its name, and a GGUF file is refused as what it is."""
    write_adapter(folder / "here/one", given=factors(), config={"r": 2, "lora_alpha": 3})
    write_adapter(folder / "here/a+b", given=factors(), config={"r": 2, "lora_alpha": 3})
    write_tiny_model(folder / "here/lora.gguf")
    settings = folder / "pyagent.toml"
    settings.write_text('[engine.adapters]\none = "./first"\n')
    monkeypatch.chdir(folder / "here")
    written: dict[str, bytes] = {}
    for named in ("one", "../first", "./one", "a+b"):
        merge("../model", named, output=Path("out"), config=settings)
        written[named] = (folder / "here/out/model.safetensors").read_bytes()
        shutil.rmtree("out")
    assert written["one"] == written["../first"] != written["./one"]
    assert written["a+b"] == written["./one"]
    with pytest.raises(ModelError, match="adapters in GGUF files are not merged into a folder"):
        merge("../model", "./lora.gguf", config=settings)
