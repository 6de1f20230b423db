"""Tasks of jina-embeddings-v3 through backends and the server: instructions, numbers, and refusals."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.encoders import native, on
from support.jina_bert import texts
from support.jina_v3 import CONFIG, INSTRUCTIONS, TASKS, of_task, tensors_of, write_jina_v3
from support.tiny_encoder import write_safetensors

from pyagent import _rust
from pyagent.chains import Engine
from pyagent.cli.root import run as run_command
from pyagent.core.errors import RequestError
from pyagent.core.messages import EmbedRequest, RankRequest
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens
from pyagent.infrastructure.models.describe import describe_encoder
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jina_v3(tmp_path_factory.mktemp("v3") / "m")


def embedded(path: Path, words: list[str], task: str = "") -> Any:
    asked = EmbedRequest(model="", input=words, task=task)
    return on(lambda: native(path), lambda made: made.embed(asked))


@pytest.mark.parametrize("task", TASKS)
def test_a_text_of_a_task_stands_behind_its_instruction(task: str, folder: Path) -> None:
    """Its vector is that of the instruction and the text, with the task's number; tokens are counted as they are."""
    model = _rust.EncoderModel.load(folder, threads=1)
    tokens = TextTokens(folder, 40, model.info()["vocab_size"]).encode([INSTRUCTIONS[task] + "a cat"])[0]
    packed = array("f", model.compute([of_task(tokens, TASKS.index(task) + 1)])).tolist()
    found = embedded(folder, ["a cat"], task)
    assert found.vectors == [packed]
    assert found.usage.prompt_tokens == len(tokens)
    assert found.vectors != embedded(folder, ["a cat"]).vectors


def test_documents_are_ranked_as_passages_of_a_query(folder: Path) -> None:
    """By the tasks of the two, also a document that reads as the query does."""
    [query] = embedded(folder, ["a cat"], "retrieval.query").vectors
    [passage] = embedded(folder, ["a cat"], "retrieval.passage").vectors
    asked = RankRequest(model="", pairs=[("a cat", "a cat")])
    [score] = on(lambda: native(folder), lambda made: made.rank(asked)).scores
    assert score == sum(a * b for a, b in zip(query, passage, strict=True)) < 0.999


@pytest.mark.parametrize("words", [["a cat"], [""]])
def test_a_task_that_the_model_has_not_is_refused(words: list[str], folder: Path, tmp_path: Path) -> None:
    """With those that it has; and so is an empty text of one that it has."""
    with pytest.raises(RequestError, match=f"has no task 'query'; expected {', '.join(TASKS)}"):
        embedded(folder, words, "query")
    with pytest.raises(RequestError, match="input 0 is empty"):
        embedded(folder, [""], "retrieval.query")
    bare = write_jina_v3(tmp_path / "m", lora_adaptations=None)
    with pytest.raises(RequestError, match="has no tasks; leave out task"):
        embedded(bare, words, "retrieval.query")


def test_numbers_of_tasks_are_bounded(folder: Path) -> None:
    """A task that is not the model's is refused by the engine too, and so is any of a model without tasks."""
    model = _rust.EncoderModel.load(folder, threads=1)
    [text] = texts(5)
    with pytest.raises(ValueError, match="it is of task 4; the model has 3"):
        model.compute([of_task(text, 4)])
    with pytest.raises(ValueError, match="is not in the vocabulary"):
        model.compute([[text[0], *of_task(text[1:], 1)]])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lora_rank": 5}, "lora_A' is "),
        ({"lora_rank": 0}, "'lora_rank' is 0"),
        ({"lora_rank": 1 << 40}, "expected 1 to 512"),
        ({"lora_adaptations": TASKS[:2]}, "lora_A' is "),
        ({"lora_adaptations": [f"t{number}" for number in range(16)]}, "names 16 tasks; expected 1 to 15"),
        ({"lora_adaptations": "all"}, "names 0 tasks"),
        ({"lora_adaptations": [TASKS[0], TASKS[0]]}, "an entry that is no name, or one twice"),
        ({"lora_adaptations": [7]}, "an entry that is no name, or one twice"),
        ({"task_instructions": {"separation": "x"}}, "'task_instructions' has no text for the task 'retrieval.query'"),
        ({"task_instructions": ["the "]}, "'task_instructions' must be a table with a text for each task"),
        ({"truncate_dim": 8}, "'truncate_dim' is 8, which is not implemented"),
        ({"lora_alpha": "many"}, "'lora_alpha' NaN; expected"),
        ({"vocab_size": (1 << 26) + 1}, "vocabulary is 67108865; expected 1 to 67108864"),
    ],
)
def test_faulty_tasks_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Before memory is taken."""
    with pytest.raises(_rust.ModelFileError, match=expected):
        _rust.describe_encoder(write_jina_v3(tmp_path / "m", **changes))


def test_a_missing_tensor_of_a_task_is_refused(tmp_path: Path) -> None:
    """By its name: without it the task's vectors would be others."""
    path = write_jina_v3(tmp_path / "m")
    name = "roberta.encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_B"
    write_safetensors(path, CONFIG, {other: tensor for other, tensor in tensors_of(CONFIG).items() if other != name})
    with pytest.raises(_rust.ModelFileError, match=f'tensor "{name}" is missing'):
        _rust.describe_encoder(path)


def test_a_request_names_its_task(folder: Path) -> None:
    """Over HTTP and in a program: the task's vectors, and a 400 that names the field for one that the model has not."""
    expected = embedded(folder, ["a cat"], TASKS[1]).vectors
    with serve(create_app(native(folder))) as url:
        asked = {"model": str(folder), "input": "a cat", "task": TASKS[1]}
        answer = httpx.post(f"{url}/v1/embeddings", json=asked)
        assert [one["embedding"] for one in answer.json()["data"]] == expected
        refused = httpx.post(f"{url}/v1/embeddings", json=asked | {"task": "query"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "task")
        assert httpx.post(f"{url}/v1/embeddings", json=asked | {"task": 3}).status_code == 400
    with Engine(str(folder)) as engine:
        assert engine.embed(["a cat"], task=TASKS[1]) == expected


def test_a_models_card_names_its_tasks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`models show` has them; that of another encoder has none."""
    about = describe_encoder(folder)
    assert about is not None
    assert dict(about.tasks) == INSTRUCTIONS
    assert run_command(["models", "show", str(folder)]) == 0
    assert "tasks         retrieval.query, retrieval.passage, separation\n" in capsys.readouterr().out


def test_memory_of_tasks_is_reserved(folder: Path) -> None:
    """What is reserved by the header is no less than what the weights take, and little more."""
    about = _rust.describe_encoder(folder)
    assert about is not None
    taken = _rust.EncoderModel.load(folder, threads=1).info()["weight_bytes"]
    assert taken <= about["weight_bytes"] <= 1.5 * taken
