"""Short names of model files, and what a request means that writes a name in another way."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.config import load_settings
from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import ModelInfo
from pyagent.infrastructure.models.loose import loose_models
from pyagent.infrastructure.models.names import by_model_name, configured_names, file_names, find_model, is_path
from pyagent.infrastructure.models.store import ModelStore


def models(*ids: str) -> list[ModelInfo]:
    return [ModelInfo(id=name, backend="link") for name in ids]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/m/qwen3-4b.gguf"], ["qwen3-4b"]),
        (["/m/SmolLM2/", "/m/folder/model.safetensors"], ["SmolLM2", "folder"]),
        (["/q4/m.gguf", "/q8/m.gguf"], ["q4/m", "q8/m"]),
        (["/a/q/m.gguf", "/b/q/m.gguf", "/c/m.gguf"], ["a/q/m", "b/q/m", "c/m"]),
        (["/m/big-00001-of-00003.gguf"], ["big"]),
        (["/hub/models--Owner--Name/snapshots/0a1b2c"], ["Name"]),
        (["/m/default.gguf", "/m/native.gguf"], ["m/default", "m/native"]),
        (["/m/qwen3:4b.gguf", "/m/agent:x.gguf"], ["qwen3-4b", "agent-x"]),
        (["/m/x\ny.gguf", "/"], ["/m/x\ny.gguf", "/"]),
        (["/m/m.gguf", "/m/m"], ["/m/m.gguf", "/m/m"]),
        (["/m/../m/a.gguf", "/m/a.gguf"], ["a", "a"]),
    ],
)
def test_files_have_short_names(paths: list[str], names: list[str]) -> None:
    """A file's name without its ending; folders join it where it would be another's, and no name is made up."""
    assert list(file_names(paths).values()) == names


def test_a_name_of_a_model_is_none_of_a_file() -> None:
    """Models of the store keep their names; a file of the same name says which folder it is in."""
    assert file_names(["small", "/m/small.gguf", "smollm2:135m"]) == {"/m/small.gguf": "m/small"}


_PATHS = st.lists(st.text("ab.:/-~é\n", min_size=1, max_size=12).map(lambda text: f"/{text}.gguf"), max_size=6)


@given(_PATHS, st.lists(st.text("ab/", min_size=1, max_size=3), max_size=3))
def test_names_tell_files_apart(paths: list[str], others: list[str]) -> None:
    """Two files never have one name, a file never another model's, and none reads as a scheme or an adapter."""
    names = file_names([*paths, *others])
    plain = {name for name in others if not is_path(name)}
    places = {path: Path(path).resolve() for path in names}
    for one, other in itertools.combinations(names, 2):
        same = names[one] == names[other]
        assert not same or places[one] == places[other]
    for path, name in names.items():
        assert name == path or (name not in plain and ":" not in name and name.isprintable())


def test_settings_name_files_in_links_too() -> None:
    """`engine.models` and the chain's `native:PATH` are named together, and tables by path or by name are alike."""
    chosen = {
        "engine.models": ["/q4/m.gguf", "smollm2:135m"],
        "chain": ["native", "native:/q8/m.gguf", "ollama:/x.gguf"],
    }
    names = configured_names(load_settings(overrides=chosen).settings)
    assert names == {"/q4/m.gguf": "q4/m", "/q8/m.gguf": "q8/m"}
    table = {"/q4/m.gguf": 1, "q8/m": 2, "/q4/m.gguf:poet": 3, "": 4, "smollm2:135m": 5}
    assert by_model_name(table, names) == {"q4/m": 1, "q8/m": 2, "q4/m:poet": 3, "": 4, "smollm2:135m": 5}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("smollm2:135m", "smollm2:135m"),
        ("SmolLM2:135M", "smollm2:135m"),
        ("smollm2", "smollm2:135m"),
        ("smollm2:latest", "smollm2:135m"),
        ("llama3.2", "llama3.2:latest"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
        ("q4/m", "q4/m"),
        ("owner/file", "hf:owner/file.gguf"),
        ("file.gguf", "hf:owner/file.gguf"),
        ("/models/q8/m.gguf", "q8/m"),
        ("voting", None),
        ("agent:voting", "agent:voting"),
        ("other/gpt-oss-20b", None),
        ("smollm2:360m", None),
        ("oss-20b", None),
        ("", None),
        ("/", None),
    ],
)
def test_a_name_may_be_shorter(asked: str, found: str | None) -> None:
    """Without the owner, the tag, the ending and in either case; never another owner's or another tag's model."""
    known = models(
        "smollm2:135m", "llama3.2:latest", "llama3.2:1b", "openai/gpt-oss-20b", "q4/m", "hf:owner/file.gguf",
        "agent:voting",
    )  # fmt: skip
    known.append(ModelInfo(id="q8/m", aliases=("/models/q8/m.gguf",)))
    model = find_model(asked, known)
    assert (model and model.id) == found


def test_a_name_of_several_models_is_refused_with_all_of_them() -> None:
    """One sentence lists the candidates; where they are many, some and how many more."""
    with pytest.raises(RequestError, match=r"^model 'm' may be any of q4/m, q8/m; name one of them$") as caught:
        find_model("m", models("q4/m", "q8/m", "other"))
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    with pytest.raises(RequestError, match=r"o7/m and 12 more; name"):
        find_model("m", models(*(f"o{number}/m" for number in range(20))))
    assert find_model("m", [*models("q4/m"), *models("q4/m")]) == models("q4/m")[0], "one model of two links"


def test_files_that_lie_in_the_folder_are_models(tmp_path: Path) -> None:
    """GGUF files and folders of weights, as LM Studio keeps them; parts, projectors and caches are not."""
    for file in (
        "a.gguf", "pub/name/b.gguf", "pub/name/mmproj-b.gguf", "MMProj-c.gguf",
        "c-00001-of-00002.gguf", "c-00002-of-00002.gguf",
        "folder/config.json", "folder/model.safetensors", "own/model.json", "own/d.gguf", ".partial-x/e.gguf",
        "1/2/3/4/f.gguf", "notes.txt", "pub/other/a.gguf", "heads/config.json", "heads/medusa_lm_head.pt",
        "saved/config.json", "saved/model.tensors",
    ):  # fmt: skip
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = loose_models(tmp_path, "model.json")
    assert {name: str(path.relative_to(tmp_path)) for name, path in found.items()} == {
        f"{tmp_path.name}/a": "a.gguf",
        "other/a": "pub/other/a.gguf",
        "b": "pub/name/b.gguf",
        "c": "c-00001-of-00002.gguf",
        **{name: name for name in ("folder", "heads", "saved")},
    }
    assert loose_models(tmp_path / "none", "model.json") == {}


def test_a_folder_of_too_many_files_is_not_walked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found until then is there."""
    monkeypatch.setattr("pyagent.infrastructure.models.loose._MAX_ENTRIES", 4)
    (tmp_path / "a").mkdir()
    (tmp_path / "b.gguf").touch()
    for number in range(3):
        (tmp_path / "a" / f"{number}.gguf").touch()
    assert list(loose_models(tmp_path, "model.json")) == ["b"]


def test_a_file_that_was_deleted_is_no_model(tmp_path: Path) -> None:
    """The store forgets it as soon as it is gone, and finds one that came meanwhile."""
    store = ModelStore(tmp_path, {})
    (tmp_path / "a.gguf").touch()
    assert store.find("a") is not None
    (tmp_path / "a.gguf").rename(tmp_path / "b.gguf")
    assert store.find("a") is None
    assert store.find("b") is not None


def test_thousands_of_files_are_named_at_once() -> None:
    """Half of them with others' names; comparing each with all others would take minutes."""
    paths = [f"/models/{number % 2}/m{number // 2}.gguf" for number in range(10_000)]
    start = time.process_time()
    names = file_names(paths)
    assert time.process_time() - start < 5
    assert names["/models/1/m7.gguf"] == "1/m7"
    assert len(set(names.values())) == len(paths)


def test_unknown_names_do_not_have_the_folder_walked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a walk takes long, it is done again after a while alone; a file that was found meanwhile is there."""
    walks = list[Path]()

    def walk(folder: Path, _manifest: str) -> dict[str, Path]:
        walks.append(folder)
        time.sleep(0.05)
        return {"m": tmp_path}

    monkeypatch.setattr("pyagent.infrastructure.models.store.loose_models", walk)
    store = ModelStore(tmp_path)
    assert [store.find(f"unknown-{number}") for number in range(100)] == [None] * 100
    assert len(walks) == 1
    assert store.find("m") is not None
    time.sleep(0.6)
    store.find("unknown")
    assert len(walks) == 2


@pytest.mark.parametrize("path", ["~nobody-of-this-name/m.gguf", "/" + "a" * 300 + ".gguf", "/a\0b.gguf"])
def test_paths_that_lead_nowhere_are_files_that_do_not_exist(path: str, tmp_path: Path) -> None:
    """Homes of no user, names longer than any file's, and zeros: told of in a sentence, and other models are listed."""
    settings = load_settings(overrides={"engine.models": [path], "paths.models": tmp_path}).settings
    (tmp_path / "mine.gguf").touch()
    store = ModelStore.of(settings)
    assert [model.manifest.name for model in store.list()] == ["mine"]
    for name in (path, *store.named.values()):
        assert store.size_of(name) == 0
        with pytest.raises(ModelError, match="does not exist; give the path of a GGUF file"):
            store.look(name)


def test_a_name_longer_than_any_files_is_unknown(tmp_path: Path) -> None:
    """And not repeated whole."""
    with pytest.raises(ModelError, match=r"^model 'a+ is not known; known are") as caught:
        ModelStore(tmp_path).pull("a" * 5000)
    assert len(str(caught.value)) < 600
