"""A draft model that cannot be used, as an operator and clients see it: said at the start, and no answer is lost."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import httpx
from support.command_line import pyagent, server_started
from support.tiny_encoder import write_encoder
from support.tiny_model import vocabulary, write_tiny_model

from pyagent.core.config import load_settings
from pyagent.infrastructure.engine.setting_faults import draft_faults, unknown_models


def drafted_by(draft: object, environment: dict[str, str]) -> dict[str, str]:
    speculative = "PYAGENT_ENGINE__SPECULATIVE__"
    return environment | {f"{speculative}METHOD": "draft_model", f"{speculative}MODEL": str(draft)}


def test_a_server_answers_without_its_draft_model(
    tmp_path: Path, tiny_model_path: Path, environment: dict[str, str]
) -> None:
    """Another vocabulary is found when the model loads: the answer, /health and the metrics come all the same."""
    tokens, _ = vocabulary()
    tokens[100], tokens[101] = tokens[101], tokens[100]
    other = write_tiny_model(tmp_path / "other.gguf", tokenizer__ggml__tokens=tokens)
    process, url = server_started("--model", str(tiny_model_path), env=drafted_by(other, environment))
    with httpx.Client(base_url=url, timeout=60) as http:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "on"}], "max_tokens": 3}
        answer = http.post("/v1/chat/completions", json=asked)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 3)
        health = http.get("/health")
        assert health.status_code == 200
        assert (
            "loaded, and goes on without a draft model: engine.speculative.model: other.gguf has another vocabulary: "
            in (health.json()["detail"])
        )
        loaded = 'pyagent_engine_spec_decode_draft_model_loaded{engine="0",model="tiny"} 0.0'
        assert loaded in http.get("/metrics").text
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("goes on without a draft model") == 1, "said once, not with each request"


def test_what_can_be_known_is_said_at_the_start(
    tmp_path: Path, tiny_model_path: Path, environment: dict[str, str]
) -> None:
    """No such file, no such model to draft for: a line each as the server starts, and one of `pyagent doctor`."""
    config = tmp_path / "pyagent.toml"
    drafts = f'{{ "{tiny_model_path}" = "missing.gguf", "smolm2:135m" = "smollm2:135m" }}'
    speculative = f'speculative = {{ method = "draft_model", model = {drafts} }}'
    config.write_text(f'[engine]\nmodels = ["{tiny_model_path}"]\n{speculative}\n')
    process, url = server_started("--config", str(config), env=environment)
    assert httpx.get(f"{url}/ready", timeout=60).status_code == 200
    process.terminate()
    _, errors = process.communicate(timeout=60)
    (line,) = [line for line in errors.splitlines() if "without a draft model" in line]
    assert re.search(r"engine\.speculative\.model: .*missing\.gguf does not exist", line)
    told = "engine.speculative.model: there is no model 'smolm2:135m'; did you mean 'smollm2:135m'?"
    (line,) = [line for line in errors.splitlines() if "there is no model" in line]
    assert f"{told}; what is set for it is not used" in line
    found = pyagent("doctor", "--config", str(config), env=environment).stdout
    assert "correct engine.speculative.model" in found
    assert told in found


def test_names_and_files_that_are_wrong_are_known_before_loading(tmp_path: Path, tiny_model_path: Path) -> None:
    """No such name or file, no model, an encoder: each in a sentence; nothing is said of what may do."""
    (tmp_path / "text.gguf").write_text("not a model")
    write_encoder(tmp_path / "encoder")

    def faults(draft: object, **more: object) -> list[str]:
        chosen = {"engine.speculative.method": "draft_model", "engine.speculative.model": draft, **more}
        return draft_faults(load_settings(overrides=chosen).settings)

    for draft, told in (
        ("smolllm2:135m", "model 'smolllm2:135m' is not known; did you mean 'smollm2:135m'?"),
        (str(tmp_path / "missing.gguf"), "missing.gguf does not exist"),
        (str(tmp_path / "text.gguf"), "text.gguf"),
        (str(tmp_path / "encoder"), "is an encoder, which writes no text"),
    ):
        (fault,) = faults(draft)
        assert fault.startswith("engine.speculative.model: ")
        assert told in fault
    assert faults(str(tiny_model_path)) == faults({"a": str(tiny_model_path), "b": "smollm2:135m"}) == []
    assert faults("smolllm2:135m", **{"engine.speculative.method": "suffix"}) == []
    assert len(faults({"a": "nothing-like-it", "b": str(tmp_path / "missing.gguf")})) == 2


def test_a_model_file_that_is_not_there_is_said_at_the_start(tmp_path: Path, environment: dict[str, str]) -> None:
    """The server starts, as another link or a file that comes later may answer, and its log names the file."""
    process, url = server_started("--model", str(tmp_path / "absent.gguf"), env=environment)
    assert httpx.get(f"{url}/health", timeout=60).json()["status"] == "unavailable"
    assert process.stderr is not None
    too_late = threading.Timer(30, process.terminate)
    too_late.start()
    line = process.stderr.readline()
    too_late.cancel()
    process.terminate()
    process.communicate(timeout=60)
    assert re.search(r"native:absent cannot answer: model file .*absent\.gguf does not exist; give the path", line)


def test_keys_of_tables_by_model_may_be_any_way_to_name_one(tmp_path: Path, tiny_model_path: Path) -> None:
    """Names of the store, of files that are served, their paths, other files and repositories; nothing else."""
    path = str(tiny_model_path)

    def unknown(**tables: object) -> list[str]:
        chosen = {"engine.models": [path], "paths.models": str(tmp_path), "engine.speculative.method": "draft_model"}
        chosen |= {f"engine.{table.replace('__', '.')}": value for table, value in tables.items()}
        return unknown_models(load_settings(overrides=chosen).settings)

    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model_path.read_bytes())
    good = ["smollm2:135m", tiny_model_path.stem, path, "other", str(other), "hf:owner/name"]
    assert unknown(speculative__model=dict.fromkeys(good, path), chat_templates=dict.fromkeys(good, "chatml")) == []
    assert unknown(speculative__model=path, adapters={"pirate": path, f"{path}:poet": path}) == []
    assert unknown(adapters={"othr:poet": path, "othr:pirate": path, "poet": path}) == [
        "engine.adapters: there is no model 'othr'; did you mean 'other'?"
    ]
    (fault,) = unknown(chat_templates={str(tmp_path / "gone.gguf"): "chatml"})
    assert "gone.gguf'; " in fault
    assert unknown(speculative__method="suffix", speculative__model={"x": path}) == []
