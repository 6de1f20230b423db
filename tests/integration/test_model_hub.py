"""`hf:` models from a hub on loopback, by `pyagent models pull`: whole, of one commit, and checked by checksums."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.tiny_model import split_tiny_model, write_tiny_model

from pyagent.core.errors import ModelError
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.hub import fetch_from_hub
from pyagent.infrastructure.models.store import ModelStore

pytest.importorskip("huggingface_hub")

COMMIT = "c0ffee" * 6 + "c0ff"
REPOSITORY = "owner/tiny"


def blob_id(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """A hub with one repository: files as they are served, and the digests that its API gives."""

    files: dict[str, bytes]
    digests: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    paths: list[str] = field(default_factory=list[str])
    broken: set[str] = field(default_factory=set[str])
    slow: set[str] = field(default_factory=set[str])
    unlisted: set[str] = field(default_factory=set[str])
    refusal: tuple[int, str] | None = None
    claimed_size: int | None = None
    commit: object = COMMIT
    url: str = ""

    def entry(self, name: str) -> dict[str, object]:
        data = self.files[name]
        size = len(data) if self.claimed_size is None else self.claimed_size
        entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob_id(data)}
        if name.endswith((".gguf", ".safetensors")):
            digest = self.digests.get(name, hashlib.sha256(data).hexdigest())
            entry |= {"lfs": {"sha256": digest, "size": len(data), "pointerSize": 130}} if digest else {"blobId": None}
        elif name in self.digests:
            entry["blobId"] = self.digests[name]
        return entry

    def info(self) -> bytes:
        siblings = [self.entry(name) for name in self.files]
        told = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": self.commit, "cardData": {"license": "apache-2.0"}}
        return json.dumps({**told, "siblings": siblings}).encode()

    def tree(self) -> bytes:
        listed = {name: data for name, data in self.files.items() if name not in self.unlisted}
        entries = [{"type": "file", "path": name, "oid": "0", "size": len(data)} for name, data in listed.items()]
        return json.dumps(entries).encode()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.paths.append(path)
            status, body = 404, b"{}"
            if hub.refusal is not None:
                status = hub.refusal[0]
            elif re.fullmatch(rf"/api/models/{REPOSITORY}/tree/.+", path):
                status, body = 200, hub.tree()
            elif path.startswith(f"/api/models/{REPOSITORY}"):
                status, body = 200, hub.info()
            elif path.startswith(start := f"/{REPOSITORY}/resolve/{COMMIT}/") and path.removeprefix(start) in hub.files:
                name = path.removeprefix(start)
                status, body = (404, b"") if name in hub.broken else (200, hub.files[name])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json" if path.startswith("/api") else "binary/octet-stream")
            self.send_header("X-Repo-Commit", COMMIT)
            if hub.refusal is not None:
                self.send_header("X-Error-Code", hub.refusal[1])
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[: len(body) // 2])
                if path.rpartition("/")[2] in hub.slow:
                    time.sleep(0.6)
                self.wfile.write(body[len(body) // 2 :])

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A GGUF file, and a folder of safetensors with its configuration."""
    gguf = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    made = Hub({"tiny.gguf": gguf, "config.json": b'{"a": 1}', "model.safetensors": b"weights" * 100, "x.bin": b"x"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def pull(hub: Hub, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """`pyagent models pull NAME`, with this hub and a store of its own."""
    return models(hub, folder, "pull", name)


def models(hub: Hub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pyagent models ...`, likewise."""
    own = {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH"}}
    places = {name: str(folder / name.lower()) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pyagent.cli.main import main; sys.exit(main())",
            "models",
            *arguments,
        ],
        env=own
        | places
        | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "PYAGENT_PATHS__MODELS": str(folder / "models")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def stored(folder: Path) -> list[str]:
    """The models in the store, what was begun and locks included."""
    entries = (folder / "models").iterdir() if (folder / "models").is_dir() else ()
    return [entry.name for entry in entries]


def test_file_of_the_hub_is_stored_with_its_checksum(hub: Hub, tmp_path: Path) -> None:
    """A GGUF file comes from the commit that the API named, and damage later is found by its checksum."""
    done = pull(hub, tmp_path, "hf:owner/tiny/tiny.gguf")
    assert done.returncode == 0, done.stderr
    assert f"/owner/tiny/resolve/{COMMIT}/tiny.gguf" in hub.paths
    store = ModelStore(tmp_path / "models")
    (model,) = store.list()
    assert model.manifest.sha256 == hashlib.sha256(hub.files["tiny.gguf"]).hexdigest()
    assert sorted(file.name for file in model.path.parent.iterdir()) == ["model.json", "tiny.gguf"]
    store.check(model.manifest.name)
    model.path.write_bytes(model.path.read_bytes()[:-1] + b"?")
    with pytest.raises(ModelError, match="is damaged"):
        store.check(model.manifest.name)


def test_split_model_of_the_hub_is_stored_whole(hub: Hub, tmp_path: Path) -> None:
    """Of a model in several files one is named; all come, each is compared, and the model is read and counted whole."""
    whole = describe_model(write_tiny_model(tmp_path / "whole.gguf"))
    names = [file.name for file in split_tiny_model(tmp_path)]
    hub.files |= {f"q4/{name}": (tmp_path / name).read_bytes() for name in names}
    hub.files["q4/other-00001-of-00003.gguf"] = b"another model"
    name = f"hf:owner/tiny/q4/{names[0]}"
    done = pull(hub, tmp_path, name)
    assert done.returncode == 0, done.stderr
    store = ModelStore(tmp_path / "models")
    (model,) = store.list()
    assert sorted(file.name for file in model.path.parent.iterdir()) == names
    assert model.size_bytes == store.size_of(name) == sum((tmp_path / name).stat().st_size for name in names)
    about = describe_model(model.path)
    assert (about.num_parameters, about.file_bytes) == (whole.num_parameters, model.size_bytes)
    store.check(name)
    (model.path.parent / names[2]).write_bytes(b"?")
    with pytest.raises(ModelError, match=f"{names[2]} is damaged"):
        store.check(name)


def test_folder_of_the_hub_is_stored_with_the_checksum_of_each_file(hub: Hub, tmp_path: Path) -> None:
    """Of a repository come configuration and weights, each compared; a file that is gone or changed is named later."""
    done = pull(hub, tmp_path, "hf:owner/tiny")
    assert done.returncode == 0, done.stderr
    store = ModelStore(tmp_path / "models")
    (model,) = store.list()
    assert model.manifest.files == {
        name: hashlib.sha256(hub.files[name]).hexdigest() for name in ("config.json", "model.safetensors")
    }
    store.check("hf:owner/tiny")
    (model.path / "config.json").write_bytes(b"{}")
    with pytest.raises(ModelError, match=r"config\.json is damaged"):
        store.check("hf:owner/tiny")
    (model.path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is gone"):
        store.check("hf:owner/tiny")


def test_weights_that_torch_saved_are_fetched_where_there_are_no_others(hub: Hub, tmp_path: Path) -> None:
    """With what lies beside them for the model, checked as all files are; other JSON files and pickles stay there."""
    del hub.files["model.safetensors"]
    hub.files |= {"pytorch_model.bin": b"weights", "training_args.bin": b"x", "all_results.json": b"{}"}
    done = pull(hub, tmp_path, "hf:owner/tiny")
    assert done.returncode == 0, done.stderr
    (model,) = ModelStore(tmp_path / "models").list()
    assert sorted(model.manifest.files) == ["config.json", "pytorch_model.bin"]
    assert stored(tmp_path) == ["hf%3aowner%2ftiny"]
    del hub.files["pytorch_model.bin"]
    assert (
        "has no safetensors, no model.tensors and no pytorch_model.bin; name a GGUF file"
        in pull(hub, tmp_path / "b", "hf:owner/tiny").stderr
    )


def test_a_disk_that_becomes_full_is_said_and_pieces_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not whole is deleted at once; whole files stay for the next try."""
    import huggingface_hub

    hub = Hub({"config.json": b"{}", "model.safetensors": b"weights"})
    (piece := tmp_path / ".cache" / "huggingface" / "download" / "model.incomplete").parent.mkdir(parents=True)

    files = [type("File", (), {"rfilename": name, "size": 1, "lfs": None, "blob_id": None}) for name in hub.files]
    told = type("Info", (), {"sha": COMMIT, "card_data": None, "siblings": files})

    def fill(*_: object, **__: object) -> None:
        (tmp_path / "config.json").write_bytes(b"{}")
        piece.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "model_info", lambda *_, **__: told)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fill)
    with pytest.raises(ModelError, match="the disk is full; make room, or set"):
        fetch_from_hub("owner/tiny", tmp_path, "hf:owner/tiny", lambda _done, _total: None)
    assert (tmp_path / "config.json").exists()
    assert not piece.exists()


@pytest.mark.parametrize(
    ("name", "file", "digest"),
    [
        ("hf:owner/tiny/tiny.gguf", "tiny.gguf", "0" * 64),
        ("hf:owner/tiny", "model.safetensors", "0" * 64),
        ("hf:owner/tiny", "config.json", "0" * 40),
    ],
)
def test_file_that_is_not_what_the_hub_says_is_thrown_away(
    hub: Hub, tmp_path: Path, name: str, file: str, digest: str
) -> None:
    """A file whose digest is not the API's, large (SHA-256) or small (git's), fails by name and leaves nothing."""
    hub.digests[file] = digest
    done = pull(hub, tmp_path, name)
    assert done.returncode == 1
    assert f"{file} of {name} has checksum" in done.stderr
    assert stored(tmp_path) == []


def test_hub_without_digests_is_believed(hub: Hub, tmp_path: Path) -> None:
    """Where a mirror's API gives no digest, the file's own is recorded for later checks."""
    hub.digests["tiny.gguf"] = None
    assert pull(hub, tmp_path, "hf:owner/tiny/tiny.gguf").returncode == 0
    ModelStore(tmp_path / "models").check("hf:owner/tiny/tiny.gguf")


@pytest.mark.parametrize("name", ["hf:owner", "hf:owner/../x.gguf", "hf:owner/tiny/../../x.gguf", "hf:owner//x"])
def test_name_that_is_no_repository_is_refused_unasked(hub: Hub, tmp_path: Path, name: str) -> None:
    """Names that lack a part, or lead elsewhere, reach no server."""
    done = pull(hub, tmp_path, name)
    assert done.returncode == 1
    assert "expected hf:OWNER/NAME" in done.stderr
    assert hub.paths == []
    assert stored(tmp_path) == []


@pytest.mark.parametrize("file", ["x.bin", "README.md", ".cache/x.gguf"])
def test_file_that_is_no_model_is_refused(file: str, tmp_path: Path) -> None:
    """Only GGUF files are models, and none where the package keeps its own notes."""
    with pytest.raises(ModelError, match=r"expected hf:OWNER/NAME/FILE\.gguf"):
        fetch_from_hub(f"owner/tiny/{file}", tmp_path, f"hf:owner/tiny/{file}", lambda _done, _total: None)


def test_hub_that_does_not_give_all_files_gives_no_model(hub: Hub, tmp_path: Path) -> None:
    """Where its list of the commit lacks one that its API named; the next try asks for that list again."""
    hub.unlisted = {"model.safetensors"}
    done = pull(hub, tmp_path, "hf:owner/tiny")
    assert done.returncode == 1
    assert "the hub did not give model.safetensors of owner/tiny; try again later" in done.stderr
    assert ModelStore(tmp_path / "models").list() == []
    hub.unlisted = set()
    assert pull(hub, tmp_path, "hf:owner/tiny").returncode == 0


def test_commit_that_is_a_path_writes_no_file(hub: Hub, tmp_path: Path) -> None:
    """The package names a file by the commit."""
    hub.commit = "../../../../../written"
    done = pull(hub, tmp_path, "hf:owner/tiny")
    assert done.returncode == 1
    assert "the hub names no commit of owner/tiny" in done.stderr
    assert not [path for path in tmp_path.rglob("*.json") if path.is_file()]


def test_folder_of_the_hub_has_its_weights_once_and_its_vocabulary(hub: Hub, tmp_path: Path) -> None:
    """What lies there for other programs stays there; size and licence are told, and the bar is ours alone."""
    shards = {f"model-0000{place}-of-00002.safetensors": b"weights" * 9_000 * place for place in (1, 2)}
    told = {"weight_map": {str(place): name for place, name in enumerate(shards)}}
    hub.files = {**shards, "config.json": b"{}", "model.safetensors.index.json": json.dumps(told).encode()}
    hub.files |= {"tokenizer.model": b"pieces", "1_Pooling/config.json": b"{}", "chat_template.jinja": b""}
    hub.slow = {"model-00001-of-00002.safetensors"}
    wanted, size = set(hub.files), sum(map(len, hub.files.values()))
    hub.files |= {"consolidated.safetensors": b"again" * 999, "original/model.safetensors": b"again" * 999}
    hub.files |= {"onnx/config.json": b"{}", "metal/model.bin": b"x"}
    done = pull(hub, tmp_path, "hf:owner/tiny")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"fetching hf:owner/tiny, {format_bytes(size)}, from Hugging Face into ")
    assert re.search(rf"^hf:owner/tiny: [\d.]+ kB of {format_bytes(size)}$", done.stderr, re.MULTILINE)
    assert "%|" not in done.stderr
    (model,) = ModelStore(tmp_path / "models").list()
    assert set(model.manifest.files) == wanted
    assert model.manifest.licence == "apache-2.0"
    assert not [path for path in hub.paths if "resolve" in path and path.partition(COMMIT)[2][1:] not in wanted]


def test_fetch_that_broke_off_goes_on_with_the_files_that_are_whole(hub: Hub, tmp_path: Path) -> None:
    """What came whole stays, is listed as begun, and is not fetched again, unless the hub has another file since."""
    hub.broken = {"model.safetensors"}
    first = pull(hub, tmp_path, "hf:owner/tiny")
    assert first.returncode == 1
    assert "hf:owner/tiny cannot be fetched from Hugging Face" in first.stderr
    assert "config.json" in {file.name for file in (tmp_path / "models").rglob("*")}
    listed = models(hub, tmp_path, "list")
    assert re.search(r"hf:owner/tiny +[\d,]+ bytes +begun +pyagent models pull hf:owner/tiny goes on", listed.stdout)
    (tmp_path / "models" / ".partial-hf%3aowner%2ftiny" / "stray.safetensors").write_bytes(b"of another commit")
    hub.broken, hub.paths = set(), []
    assert pull(hub, tmp_path, "hf:owner/tiny").returncode == 0
    fetched = [path for path in hub.paths if "/resolve/" in path]
    assert {path.rpartition("/")[2] for path in fetched} == {"model.safetensors"}
    store = ModelStore(tmp_path / "models")
    store.check("hf:owner/tiny")
    assert sorted(file.name for file in store.list()[0].path.iterdir()) == [
        "config.json",
        "model.json",
        "model.safetensors",
    ]
    assert store.begun() == {}


def test_what_a_fetch_left_can_be_deleted(tmp_path: Path) -> None:
    """`models rm` takes what has begun as well as what is whole."""
    store = ModelStore(tmp_path)
    begun = tmp_path / ".partial-hf%3aowner%2ftiny"
    begun.mkdir()
    (begun / "config.json").write_bytes(b"{}")
    assert store.begun() == {"hf:owner/tiny": 2}
    assert store.list() == []
    assert store.remove("hf:owner/tiny") == 2
    assert not begun.exists()
    with pytest.raises(ModelError, match="is not in the store"):
        store.remove("hf:owner/tiny")


@pytest.mark.parametrize(
    ("name", "refusal", "told"),
    [
        ("hf:owner/tiny/TINY.gguf", None, "there is no TINY.gguf in the repository; did you mean tiny.gguf?"),
        ("hf:owner/tiny", (404, "RepoNotFound"), "there is no repository owner/tiny, or it is private"),
        ("hf:owner/tiny", (403, "GatedRepo"), "owner/tiny is gated; accept its terms on its page"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_line(
    hub: Hub, tmp_path: Path, name: str, refusal: tuple[int, str] | None, told: str
) -> None:
    """A file that is not there, no such repository, one whose terms are to be accepted: each with what to do."""
    hub.refusal = refusal
    done = pull(hub, tmp_path, name)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert told in line
    assert stored(tmp_path) == []


def test_a_disk_without_room_is_said_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    """What all files take by the API and what is free; no file was asked for."""
    hub.claimed_size = 10**18
    done = pull(hub, tmp_path, "hf:owner/tiny/tiny.gguf")
    assert done.returncode == 1
    assert re.search(
        r"owner/tiny takes [\d,.]+ .?B, and .* are free in .*/models; make room, or set paths", done.stderr
    )
    assert not [path for path in hub.paths if "/resolve/" in path]
    assert stored(tmp_path) == []
