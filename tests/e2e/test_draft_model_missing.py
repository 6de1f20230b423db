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
from pyagent.infrastructure.engine.plugin import draft_faults


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
    """No such file: one line as the server starts, which takes requests; and one of `pyagent doctor`."""
    env = drafted_by(tmp_path / "missing.gguf", environment)
    process, url = server_started("--model", str(tiny_model_path), env=env)
    assert httpx.get(f"{url}/ready", timeout=60).status_code == 200
    process.terminate()
    _, errors = process.communicate(timeout=60)
    (line,) = [line for line in errors.splitlines() if "answers go on without a draft model" in line]
    assert re.search(r"engine\.speculative\.model: .*missing\.gguf does not exist", line)
    found = pyagent("doctor", "--model", str(tiny_model_path), env=env)
    assert "correct engine.speculative.model" in found.stdout


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
