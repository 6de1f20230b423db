"""What a name means to commands: one rule for `--model` and all of `pyagent models`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.folder_tokenizer import write_model_folder

from pyagent.cli.one_model import local_path, resolved_name
from pyagent.cli.startup import read_settings
from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.models.quantize import quantizing
from pyagent.infrastructure.models.quantize.gguf_file import header
from pyagent.infrastructure.models.store import ModelStore


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a command runs in, beside a store with a model `known`."""
    folder = tmp_path / "here"
    folder.mkdir()
    write_model_folder(tmp_path / "store" / "known")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYAGENT_PATHS__MODELS", str(tmp_path / "store"))
    return folder


def test_a_bare_name_is_the_stores_model_or_a_folder_here(here: Path) -> None:
    """Whichever there is; a path is a path; where there is neither, the name comes back as it was."""
    (here / "mine").mkdir()
    store = ModelStore(here.parent / "store")
    for asked, meant in [
        ("known", "known"),
        ("KNOWN:latest", "known"),
        ("mine", "./mine"),
        ("./known", "./known"),
        ("smollm2", "smollm2:135m"),
        ("hf:a/b", "hf:a/b"),
        ("neither", "neither"),
    ]:
        assert resolved_name(asked, store) == meant
    assert (local_path("mine", None), local_path("known", None)) == (Path("mine"), here.parent / "store" / "known")
    with pytest.raises(ModelError, match="smollm2:135m is not here yet; fetch it first"):
        local_path("smollm2", None)


def test_a_bare_name_of_both_is_refused_with_both(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a model that would be fetched; not where the folder here is the store's own."""
    (here / "known").mkdir()
    (here / "smollm2").mkdir()
    store = ModelStore(here.parent / "store")
    with pytest.raises(
        RequestError, match=r"'known' may be the model known at .*store/known, or \./known; write \./kno"
    ):
        resolved_name("known", store)
    with pytest.raises(
        RequestError, match=r"'smollm2' may be the model smollm2:135m, which can be .*by its whole name"
    ):
        local_path("smollm2", None)
    monkeypatch.chdir(here.parent / "store")
    assert resolved_name("known", store) == "known"


def test_an_empty_name_is_told_so(here: Path) -> None:
    """Whatever command it is given to."""
    for name in ("", "  "):
        with pytest.raises(RequestError, match="the model's name is empty; `pyagent models list` says which"):
            ModelStore(here.parent / "store").meant(name)


def test_a_model_of_the_command_line_may_be_named_shortly(here: Path) -> None:
    """`--model` takes what the commands of `models` take."""
    (here / "mine").mkdir()
    for asked, meant in [("smollm2", "smollm2:135m"), ("Known", "known"), ("mine", "./mine"), ("/m.gguf", "/m.gguf")]:
        assert list(read_settings(None, None, asked).engine.models) == [meant]


def test_sizes_of_several_types_take_one_header(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is written into one once, however many types are asked for."""
    told = list[int]()

    def counted(*about: object) -> bytes:
        told.append(1)
        return header(*about)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(quantizing, "header", counted)
    assert len(quantizing.planned_bytes(here.parent / "store" / "known", ("Q4_0", "Q8_0", "F16"))) == 3
    assert len(told) == 1
