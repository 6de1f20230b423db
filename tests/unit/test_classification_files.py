"""Files of texts, examples and taxonomies as programs of many countries write them; many texts, several opinions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult
from pyagent.logic.agents.classification import Classification, ClassificationAgent
from pyagent.logic.classification import labelling
from pyagent.logic.classification.texts import labels_in
from pyagent.logic.classification.trained import Classifier, train
from pyagent.testing import ScriptedBackend

EXAMPLES = [("cherry rose", "red"), ("ruby blood", "red"), ("ocean sky", "blue"), ("denim sapphire", "blue")]


class Slow(ScriptedBackend):
    """Chooses the first label after a moment, and counts how many requests there are at once."""

    def __init__(self) -> None:
        super().__init__([])
        self.num_now = self.most = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        await asyncio.sleep(0.01)
        self.num_now -= 1
        yield ChatDelta(content="red", finish_reason="stop", backend=self.name)


def classified(task: Task, backend: ScriptedBackend | None = None) -> Classification:
    async def work() -> object:
        async with Fleet(backend or ScriptedBackend([]), [ClassificationAgent()]) as fleet:
            return await fleet.run_agent("classification", task)

    found = asyncio.run(work())
    assert isinstance(found, Classification)
    return found


@pytest.mark.parametrize("beginning", ["", "\ufeff"])
@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_tables_begin_with_a_mark_and_have_semicolons(tmp_path: Path, beginning: str, sign: str) -> None:
    """A spreadsheet writes a byte order mark and, where decimals have commas, semicolons."""
    rows = "".join(f"{text}{sign}{label}\n" for text, label in EXAMPLES)
    (tmp_path / "e.csv").write_text(f"{beginning}text{sign}label\n{rows}")
    (tmp_path / "t.csv").write_text(f"{beginning}id{sign}text\n1{sign}a ruby\n2{sign}the ocean\n")
    (tmp_path / "x.csv").write_text(f"{beginning}label{sign}parent\nred{sign}\nblue{sign}\n")
    files = (str(tmp_path / "t.csv"),)
    arguments: dict[str, object] = {"examples": str(tmp_path / "e.csv"), "method": "trained"}
    assert [each.label for each in classified(Task(files=files, arguments=arguments)).items] == ["red", "blue"]
    arguments["taxonomy"] = str(tmp_path / "x.csv")
    assert [each.path for each in classified(Task(files=files, arguments=arguments)).items] == [["red"], ["blue"]]


def test_taxonomy_that_is_no_csv_is_refused_with_its_line(tmp_path: Path) -> None:
    """A cell of a megabyte is not read, nor is it a fault of ours."""
    (tmp_path / "t.csv").write_text("label,parent\na,\n" + "x" * 1_100_000 + ",a\n")
    with pytest.raises(RequestError, match="the taxonomy is no CSV after line 2: field larger than field limit"):
        classified(Task(text="x", arguments={"taxonomy": str(tmp_path / "t.csv")}))


def test_example_of_a_label_at_two_places_is_refused() -> None:
    """It does not say which of both it is of; without examples the names may stand twice."""
    taxonomy = {"fruit": ["orange", "apple"], "colour": ["orange", "red"]}
    examples = [{"text": text, "label": label} for text, label in [*EXAMPLES, ("zest", "orange"), ("peel", "orange")]]
    with pytest.raises(RequestError, match="'orange' stands below 'fruit' and 'colour': an example of it does not"):
        classified(Task(text="x", arguments={"taxonomy": taxonomy, "examples": examples, "method": "trained"}))


def test_long_texts_are_no_rows_of_numbers() -> None:
    """Numbers are looked for in short texts only: each may be followed by a megabyte that is looked through."""
    long = "1" * 30 + "." + "1" * 30 + "e111" + "a" * 3_000_000 + "1"
    started = time.monotonic()
    train([(long, "a"), (long, "b")])
    numbers = train([("7 and 1", "a"), ("8 and 1", "a"), ("1 and 7", "b"), ("1 and 8", "b")])
    assert numbers.scores(long) is None
    assert time.monotonic() - started < 1.0
    scores = numbers.scores("9 and 0")
    assert scores is not None
    assert scores["a"] > scores["b"]


def test_training_keeps_no_other_run_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting words of many examples takes long: it is done beside the event loop."""
    threads: list[threading.Thread] = []

    def seen(examples: Sequence[tuple[str, str]]) -> Classifier:
        threads.append(threading.current_thread())
        return train(examples)

    monkeypatch.setattr(labelling, "train", seen)
    examples = [{"text": text, "label": label} for text, label in EXAMPLES]
    assert (
        classified(Task(text="a ruby", arguments={"examples": examples, "method": "trained"})).items[0].label == "red"
    )
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_a_model_is_asked_about_eight_texts_at_once() -> None:
    """However many there are: a backend of others is not flooded."""
    backend = Slow()
    arguments = {"labels": ["red", "blue"], "method": "choice", "lines": True, "calibration": "none"}
    text = "\n".join(f"text {number}" for number in range(40))
    assert len(classified(Task(text=text, arguments=arguments), backend).items) == 40
    assert len(backend.requests) == 40
    assert backend.most == labelling.MAX_CONCURRENCY == 8


def test_no_opinion_rules_a_label_out_alone() -> None:
    """One that gives a label nothing is outvoted by two that are sure of it."""
    sure = {"a": 0.0001, "b": 0.9999}
    assert labelling.fused([{"a": 1.0, "b": 0.0}, sure, sure])["b"] > 0.9
    assert labelling.fused([{"a": 1.0, "b": 0.0}, sure])["a"] > 0.9
    assert sum(labelling.fused([{"a": 1.0, "b": 0.0}, sure]).values()) == pytest.approx(1)


class Embedder(ScriptedBackend):
    """Embeds a text by the letters x and y in it."""

    def __init__(self) -> None:
        super().__init__([])
        self.num_embedded = 0

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        self.num_embedded += len(request.input)
        return EmbedResult(vectors=[[float(text.count("x")), float(text.count("y"))] for text in request.input])


def test_examples_stand_for_a_label_and_not_its_name() -> None:
    """Fifty of them at most: the label is where its examples are, whatever it is called."""
    backend = Embedder()
    examples = [{"text": "yyx", "label": "x"} for _ in range(70)] + [{"text": "xxy", "label": "y"} for _ in range(3)]
    arguments = {"labels": ["x", "y"], "examples": examples, "method": "embedding"}
    found = classified(Task(text="xxx", arguments=arguments), backend)
    assert found.items[0].label == "y"
    assert backend.num_embedded == 50 + 3 + 1


def test_word_before_a_list_of_labels_is_none_of_them() -> None:
    """`this` is what is to be labelled."""
    assert labels_in("What is this, good or bad: the soup was cold") == (["good", "bad"], "the soup was cold")
    assert labels_in("Is it fair, good or bad: the soup was cold")[0] == ["fair", "good", "bad"]
