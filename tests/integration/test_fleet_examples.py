"""The example programs run: each is loaded from its file and does what its first line says."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from support.tiny_adapter import write_adapter
from support.tiny_encoder import write_encoder

from pyagent.testing import ScriptedBackend

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_custom_agent_asks_again() -> None:
    """The agent sends a title that is too long back to the model."""
    backend = ScriptedBackend(['{"title": "a b c d e f g"}', '{"title": "The Sea"}'])
    title = asyncio.run(_example("custom_agent").main("the sea", backend=backend))
    assert title.title == "The Sea"


def test_steps_hand_results_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report's prompt holds what the steps before it found."""
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    backend = ScriptedBackend(["All well."])
    report = asyncio.run(_example("steps").main(str(tmp_path), backend=backend))
    assert str(report) == "All well."
    prompt = backend.requests[0].messages[-1].text
    assert "= 9" in prompt
    assert "a.py:1" in prompt
    assert "audit is done" in capsys.readouterr().out


def test_chain_says_who_did_not_answer(tiny_model_path: Path) -> None:
    """With the server off, the engine answers, and the first delta says why."""
    answer = asyncio.run(_example("chain").main("openai:http://127.0.0.1:9/v1", f"native:{tiny_model_path}"))
    assert answer.last.backend.startswith("native:")
    assert [attempt.backend.partition(":")[0] for attempt in answer.deltas[0].attempts] == ["openai"]


def test_engine_loads_a_model_and_answers(tiny_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program loads a model, answers at once and streamed."""
    text = asyncio.run(_example("engine").main(str(tiny_model_path)))
    assert text
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_engine_generates_objects(tiny_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program gets an object of its Pydantic model, a choice, a date and a sum."""
    city = asyncio.run(_example("generate").main(str(tiny_model_path)))
    assert 0 <= city.population <= 50_000_000
    *_, choice, date, total = capsys.readouterr().out.splitlines()
    assert choice in {"yes", "no"}
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
    assert re.fullmatch(r"[1-9](\+[1-9]){1,3}", total)


def _shown(name: str, model: str, path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a program of one model prints, with another model in its place."""
    source = (EXAMPLES / f"{name}.py").read_text()
    assert f'"{model}' in source
    exec(compile(source.replace(model, str(path)), name, "exec"), {})
    return capsys.readouterr().out.splitlines()


def test_an_adapter_is_named_and_asked(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program prints the model's answer, and another one with the adapter."""
    write_adapter(tmp_path / "pirate")
    monkeypatch.chdir(tmp_path)
    plain, adapted = _shown("adapters", "smollm2:135m", tiny_model_path, capsys)
    assert plain.startswith(f"{tiny_model_path}: ")
    assert adapted.startswith(f"{tiny_model_path}:pirate: ")
    assert plain.split(": ", 1)[1] != adapted.split(": ", 1)[1]


def test_activations_are_read(tiny_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints a line for each token."""
    assert _shown("activations", "smollm2:135m", tiny_model_path, capsys)


def test_documents_are_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints each document once, the most relevant first."""
    shown = _shown("rank_texts", "all-minilm:l6-v2", write_encoder(tmp_path / "encoder"), capsys)
    relevances = [float(line.split(" ", 1)[0]) for line in shown]
    assert len({line.split(" ", 1)[1] for line in shown}) == 3
    assert relevances == sorted(relevances, reverse=True)
