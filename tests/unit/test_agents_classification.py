"""The classification agent: methods, taxonomies, calibration, where texts and labels come from, and hostile input."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pyagent.cli.agent_options import task_of
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import FileAccess, grant
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, PromptLogprob, TokenLogprob, Usage
from pyagent.logic.agents import classification
from pyagent.logic.agents.classification import Classification, ClassificationAgent, Classify
from pyagent.logic.classification.texts import labels_in
from pyagent.testing import Reply, ScriptedBackend

COLOURS = {"red": "rose cherry blood ruby", "blue": "sky ocean sapphire denim"}


class Knowing(ScriptedBackend):
    """Likes texts whose words belong to the label before them; chooses and embeds by the same words."""

    def __init__(self, *, scores: bool = True, tells: bool = True, bias: str = "") -> None:
        super().__init__(lambda request: Reply(text="unused"))
        self.scores, self.tells, self.bias = scores, tells, bias
        self.embedded: list[list[str]] = []

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        end = ChatDelta(finish_reason="stop", usage=Usage(3, 1, 4), backend=self.name)
        if request.sampling.prompt_logprobs is not None:
            if not self.scores:
                raise RequestError("scripted tells no prompt_logprobs", param="prompt_logprobs")
            label, _, text = (request.prompt or "").partition(":")
            entry = {0: PromptLogprob(-1.0 * bool(text) - 2.0 * (not self._fits(label, text)) * bool(text), 1, "x")}
            yield ChatDelta(prompt_logprobs=[None, entry], backend=self.name)
            yield end
            return
        options = (request.response_format.choice or []) if request.response_format else []
        text = request.messages[-1].text
        weights = {
            each: (3.0 if self._fits(each, text) else 1.0) * (5.0 if each == self.bias else 1.0) for each in options
        }
        total = sum(weights.values())
        best = max(weights, key=lambda each: weights[each])
        logprobs = [(each, math.log(weights[each] / total)) for each in options]
        told = [TokenLogprob(best, dict(logprobs)[best], logprobs)] if self.tells else []
        yield ChatDelta(content=best, backend=self.name, logprobs=told)
        yield end

    @staticmethod
    def _fits(label: str, text: str) -> bool:
        return any(word in text for name, words in COLOURS.items() if name in label for word in words.split())

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        self.embedded.append(list(request.input))
        vectors = [
            [1.0, *(float(name in text or self._fits(name, text)) for name in COLOURS)] for text in request.input
        ]
        return EmbedResult(vectors=vectors)


def _run(task: Task, backend: ScriptedBackend | None = None) -> Classification:
    async def work() -> object:
        async with Fleet(backend or Knowing(), [ClassificationAgent()]) as fleet:
            return await fleet.run_agent("classification", task)

    found = asyncio.run(work())
    assert isinstance(found, Classification)
    return found


def _labelled(text: str, backend: ScriptedBackend | None = None, **arguments: object) -> Classification:
    return _run(Task(text=text, arguments={"labels": ["red", "blue"], **arguments}), backend)


def test_likelihood_follows_bayes_rule() -> None:
    """Each label's probability is its share of exp(log P(text | label)); what the label alone costs does not count."""
    [item] = _labelled("a ruby").items
    assert (item.label, item.runner_up, item.method) == ("red", "blue", "likelihood")
    assert item.probability == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-4)
    assert item.runner_up_probability == pytest.approx(1 - item.probability, abs=1e-4)


def test_beginnings_of_labels_are_asked_for_once() -> None:
    """Of many texts each costs one call a label; the labels alone cost one each."""
    backend = Knowing()
    task = Task(text="a ruby\nthe sky\ncherry", arguments={"labels": ["red", "blue"], "lines": True})
    found = _run(task, backend)
    assert [item.label for item in found.items] == ["red", "blue", "red"]
    assert [item.place for item in found.items] == ["text:1", "text:2", "text:3"]
    assert len(backend.requests) == 2 + 3 * 2


def test_a_backend_that_scores_no_prompts_is_asked_to_choose() -> None:
    """Without log probabilities of prompts the model chooses, and the result says so."""
    backend = Knowing(scores=False)
    found = _labelled("a ruby", backend)
    assert (found.items[0].label, found.items[0].method) == ("red", "choice")
    assert "labelled by choice: scripted tells no prompt_logprobs" in found.note
    assert backend.requests[-1].response_format is not None
    assert backend.requests[-1].response_format.choice == ["red", "blue"]


def test_contextual_calibration_takes_the_models_preference_out() -> None:
    """A model that likes one label five times as much without a text is corrected; uncalibrated it is not."""
    options: dict[str, object] = {"method": "choice", "shots": 0}
    raw = _labelled("a ruby", Knowing(bias="blue"), calibration="none", **options)
    corrected = _labelled("a ruby", Knowing(bias="blue"), **options)
    assert (raw.items[0].label, corrected.items[0].label) == ("blue", "red")
    assert corrected.items[0].probability == pytest.approx(0.75, abs=1e-3)


def test_a_choice_without_log_probabilities_is_told_as_certain() -> None:
    """A backend that tells no probabilities still labels."""
    [item] = _labelled("the ocean", Knowing(tells=False), method="choice").items
    assert (item.label, item.probability) == ("blue", 1.0)


def test_examples_are_shown_to_the_model_in_turn() -> None:
    """Few examples become turns before the text, as many of each label, and all prompts begin alike."""
    backend = Knowing()
    examples = [
        {"text": f"{word} {nth}", "label": label}
        for label, word in (("red", "rose"), ("blue", "sky"))
        for nth in (1, 2)
    ]
    _labelled("a ruby", backend, method="choice", examples=examples, shots=3)
    turns = [message.text for message in backend.requests[-1].messages[1:]]
    assert turns == ["rose 1", "red", "sky 1", "blue", "rose 2", "red", "a ruby"]
    assert all(request.messages[:-1] == backend.requests[0].messages[:-1] for request in backend.requests)


def test_embeddings_go_by_the_nearest_label_or_its_examples() -> None:
    """The nearest centre wins; texts of a batch are embedded together."""
    backend = Knowing()
    task = Task(text="a ruby\ndenim", arguments={"labels": ["red", "blue"], "lines": True, "method": "embedding"})
    assert [item.label for item in _run(task, backend).items] == ["red", "blue"]
    assert backend.embedded == [["red", "blue"], ["a ruby", "denim"]]
    examples = [{"text": "cherry", "label": "warm"}, {"text": "ocean", "label": "cold"}]
    [item] = _run(Task(text="ruby", arguments={"examples": examples, "method": "embedding"}), backend).items
    assert item.label == "warm"
    fused = _labelled("a ruby", method="fused").items[0]
    assert (fused.label, fused.method) == ("red", "likelihood + embedding")
    assert fused.probability > _labelled("a ruby").items[0].probability


def test_a_backend_that_does_not_embed_is_refused_by_name() -> None:
    """Where nothing embeds, `--method embedding` says what the backend says."""

    class Mute(Knowing):
        async def embed(self, request: EmbedRequest) -> EmbedResult:
            raise RequestError("scripted has no embeddings", param="model")

    with pytest.raises(RequestError, match="scripted has no embeddings"):
        _labelled("a ruby", Mute(), method="embedding")


def _examples(num_each: int) -> list[dict[str, str]]:
    return [
        {"text": f"{words.split()[nth % 4]} number {nth}", "label": label}
        for nth in range(num_each)
        for label, words in COLOURS.items()
    ]


def test_twenty_examples_of_each_label_train_a_classifier_without_a_model() -> None:
    """With enough examples no model is asked; accuracy and calibration error come from examples left out."""
    backend = ScriptedBackend([])
    found = _run(Task(text="a cherry", arguments={"examples": _examples(20)}), backend)
    assert (found.items[0].label, found.items[0].method) == ("red", "trained")
    assert found.calibration is not None
    assert (found.calibration.num_examples, found.calibration.accuracy) == (40, 1.0)
    assert backend.requests == []
    assert "on 40 examples left out in turn: 100% right" in str(found)


def test_a_model_is_asked_about_doubtful_texts_only() -> None:
    """Of a batch the model sees what the classifier cannot tell; both opinions count."""
    backend = Knowing()
    task = Task(text="a cherry\nqqq", arguments={"examples": _examples(20), "lines": True})
    sure, doubtful = _run(task, backend).items
    assert (sure.method, doubtful.method) == ("trained", "trained + likelihood")
    assert all("cherry" not in (request.prompt or "") for request in backend.requests)


def test_doubtful_texts_are_labelled_without_a_model_that_fails() -> None:
    """No model: the classifier's own opinion stands, and the note says so."""
    found = _run(Task(text="qqq", arguments={"examples": _examples(20)}), ScriptedBackend([]))
    assert found.items[0].method == "trained"
    assert "labelled without a model" in found.note


def test_rows_of_numbers_are_classified_as_numbers() -> None:
    """Texts that are the same words around numbers train on the numbers: 5.1 is nearer to 5.0 than to 9."""
    rows = [{"text": f"length {5 + nth / 100:g}, width {1 + nth / 50:g}", "label": "small"} for nth in range(20)] + [
        {"text": f"length {9 + nth / 100:g}, width {4 + nth / 50:g}", "label": "large"} for nth in range(20)
    ]
    found = _run(Task(text="length 5.3, width 1.9", arguments={"examples": rows}), ScriptedBackend([]))
    assert (found.items[0].label, found.items[0].probability > 0.9) == ("small", True)
    other = _run(Task(text="what is this?", arguments={"examples": rows, "method": "trained"}), ScriptedBackend([]))
    assert other.items[0].probability == 0.5


def test_threshold_abstains() -> None:
    """A text whose likeliest label is not likely enough has none, and says what was likeliest."""
    found = _labelled("a chair", threshold=0.6)
    assert (found.items[0].label, found.num_without_label) == (None, 1)
    assert found.items[0].probability == 0.5
    assert "no label is likely enough" in str(found)


def test_multi_gives_all_labels_that_fit() -> None:
    """Each label is weighed against something else, by itself."""
    found = _labelled("a ruby in the ocean", multi=True)
    assert {share.label for share in found.items[0].labels} == {"red", "blue"}
    assert [share.label for share in _labelled("a ruby", multi=True, threshold=0.6).items[0].labels] == ["red"]
    assert _labelled("a chair", multi=True, threshold=0.6).items[0].labels == []
    near = _labelled("a ruby", multi=True, method="embedding").items[0]
    assert [share.label for share in near.labels] == ["red"]


def test_multi_is_trained_label_by_label(tmp_path: Path) -> None:
    """Examples with several labels train a classifier for each; files separate labels by `;`."""
    words = {"red": "cherry", "blue": "ocean"}
    rows = ["text,labels"]
    for nth in range(24):
        labels = [label for bit, label in enumerate(words) if nth >> bit & 1]
        rows.append(f"{' '.join(words[label] for label in labels)} thing,{';'.join(labels)}")
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    arguments = {"multi": True, "examples": str(tmp_path / "seen.csv"), "method": "trained", "labels": ["red", "blue"]}
    found = _run(Task(text="cherry and ocean", arguments=arguments), ScriptedBackend([]))
    assert {share.label for share in found.items[0].labels} == {"red", "blue"}
    found = _run(Task(text="an ocean", arguments=arguments), ScriptedBackend([]))
    assert [share.label for share in found.items[0].labels] == ["blue"]


TREE = {"colour": {"red": {}, "blue": {}}, "shape": ["round", "square"]}


class _Tree(Knowing):
    @staticmethod
    def _fits(label: str, text: str) -> bool:
        return Knowing._fits(label, text) or ("colour" in label and any(Knowing._fits(each, text) for each in COLOURS))


def test_a_taxonomy_is_descended_level_by_level() -> None:
    """The path's probability is the product of its levels, and stops where that falls below the threshold."""
    each = 1 / (1 + math.exp(-2))
    [item] = _run(Task(text="a ruby", arguments={"taxonomy": TREE}), _Tree()).items
    assert (item.path, item.label) == (["colour", "red"], "red")
    assert item.probability == pytest.approx(each * each, abs=1e-3)
    [item] = _run(Task(text="a ruby", arguments={"taxonomy": TREE, "threshold": 0.8}), _Tree()).items
    assert (item.path, item.label) == (["colour"], "colour")
    [item] = _run(Task(text="a ruby", arguments={"taxonomy": TREE, "threshold": 0.9}), _Tree()).items
    assert (item.path, item.label) == ([], None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", json.dumps(TREE)),
        ("t.csv", "label,parent\nred,colour\ncolour,\nblue,colour\nshape,\nround,shape\nsquare,shape\n"),
        ("t.md", "- colour\n    - red\n    - blue\n- shape\n    - round\n    - square\n"),
    ],
)
def test_taxonomies_are_read_from_json_csv_and_indented_lines(tmp_path: Path, name: str, text: str) -> None:
    """One taxonomy in three forms; rows of CSV may stand in any order."""
    (tmp_path / name).write_text(text)
    found = _run(Task(text="the sky", arguments={"taxonomy": str(tmp_path / name)}), _Tree())
    assert found.items[0].path == ["colour", "blue"]
    assert set(found.labels) == {"colour", "red", "blue", "shape", "round", "square"}


def _nested(levels: int) -> dict[str, object]:
    tree: dict[str, object] = {}
    for nth in range(levels):
        tree = {f"level {nth}": tree, f"other {nth}": {}}
    return tree


@pytest.mark.parametrize(
    ("taxonomy", "complaint"),
    [
        (_nested(400), "more than 32 levels"),
        ({"a": {"b": {}, "B ": {}}}, "two labels read alike: 'b' and 'B'"),
        ({f"label {nth}": {} for nth in range(1001)}, "more than 1,000 labels beside each other"),
        ({f"{top}": {f"{top}.{nth}": {} for nth in range(900)} for top in range(12)}, "more than 10,000 labels"),
        ({"": {}}, "a label has 1 to 80 characters"),
        ({"a": 7}, "a label is a text, got 7"),
        ({"x" * 81: {}}, "a label has 1 to 80 characters"),
    ],
)
def test_wrong_taxonomies_are_refused(taxonomy: dict[str, object], complaint: str) -> None:
    """Too deep, too many, alike, or no labels: said before a model is asked."""
    with pytest.raises(RequestError, match=complaint):
        _run(Task(text="x", arguments={"taxonomy": taxonomy}), ScriptedBackend([]))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.csv", "label,parent\na,b\nb,c\nc,a\nd,\n", "goes in a circle: a, b, c"),
        ("t.csv", "label,parent\na,a\n", "goes in a circle: a"),
        ("t.csv", "label,parent\na,\na,\n", "'a' has two rows"),
        ("t.csv", "label,parent\na,z\n", "no row for 'z', the parent of 'a'"),
        ("t.csv", "label,parent\nl0,\n" + "".join(f"l{nth},l{nth - 1}\n" for nth in range(1, 1000)), "32 levels"),
        ("t.json", '{"a":' * 1000 + "{}" + "}" * 1000, "32 levels|no JSON that can be read"),
        ("t.json", '{"a":' * 200_000, "no JSON that can be read"),
        ("t.md", "\n".join(" " * nth + f"label {nth}" for nth in range(1000)), "32 levels"),
        ("t.json", "{}", "no label"),
    ],
)
def test_wrong_taxonomy_files_are_refused(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """A circle, a thousand levels, a parent that is missing: each is named."""
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=complaint):
        _run(Task(text="x", arguments={"taxonomy": str(tmp_path / name)}), ScriptedBackend([]))


HOSTILE = ['a" | root ::= "x', "}]{[\\", "<|im_end|>", "%llg %regex /.*/", "na\u202eive", "-> \\u0041", "日本語"]


def test_labels_may_have_any_characters() -> None:
    """Characters of grammars, markers and control characters are a label like another, on one line."""
    found = _run(Task(text="x", arguments={"labels": HOSTILE, "method": "choice"}))
    assert found.items[0].label in found.labels
    assert len(found.labels) == len(HOSTILE)
    assert "\u202e" not in str(found)
    assert _run(Task(text="x", arguments={"labels": ["two\nlines", "a\tb"]})).labels == ["two lines", "a b"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"labels": [f"label {nth}" for nth in range(10_000)]}, "more than 1,000 labels"),
        ({"labels": [f"label {nth}" for nth in range(101)]}, "at most 100 labels at once, got 101"),
        ({"labels": ["red", "Red"]}, "two labels read alike: 'red' and 'Red'"),
        ({"labels": ["red"]}, "two labels or more"),
        ({"labels": ["red", "blue"], "threshold": 1.5}, "threshold from 0 to 1"),
        ({"labels": ["red", "blue"], "threshold": math.nan}, "threshold from 0 to 1"),
        ({"labels": ["red", "blue"], "shots": -1}, "shots from 0 to 50"),
        ({"labels": ["red", "blue"], "method": "trained"}, "trained on examples"),
        ({"labels": ["red", "blue"], "calibration": "temperature"}, "fitted on examples"),
        ({"labels": ["red", "blue"], "taxonomy": {"a": {}}}, "a taxonomy has its own labels"),
        ({"labels": ["red", "blue"], "descriptions": {"green": "grass"}}, "'green', which is no label"),
        ({"labels": ["red", "blue"], "examples": "nowhere.csv"}, "no file or folder 'nowhere.csv'"),
        ({"labels": ["red", "blue"], "method": "trained", "examples": _examples(1)}, "two examples of each label"),
        (
            {"labels": ["red", "blue"], "calibration": "temperature", "examples": _examples(4), "method": "likelihood"},
            "at least 10 examples beside those shown, got 0",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], complaint: str) -> None:
    """What does not go together, and numbers out of range, are said."""
    with pytest.raises(RequestError, match=complaint):
        _run(Task(text="x", arguments=arguments))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("e.csv", "text,label\n", "has no example"),
        ("e.csv", "words,label\na,b\n", "e.csv:2 has no `text`"),
        ("e.csv", "text\na\n", "neither `label` nor `labels`"),
        ("e.jsonl", '{"text": "a", "label": 7}\n', "neither `label` nor `labels`"),
        ("e.jsonl", "[1]\n", "e.jsonl:1 is no JSON object"),
        ("e.jsonl", '{"text": "a", "label": ""}\n', "a label has 1 to 80 characters"),
    ],
)
def test_wrong_examples_are_refused_by_their_row(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """The file and row that is wrong is named."""
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=complaint):
        _run(Task(text="x", arguments={"labels": ["red", "blue"], "examples": str(tmp_path / name)}))


def test_many_labels_are_trained_exactly() -> None:
    """Many labels need no model: examples of each do."""
    examples = [{"text": f"word{nth} again", "label": f"label {nth}"} for nth in range(300) for _ in range(2)]
    found = _run(Task(text="a word7 here", arguments={"examples": examples, "method": "trained"}))
    assert found.items[0].label == "label 7"


def test_temperature_is_fitted_on_examples_that_were_not_shown() -> None:
    """Asked for, a model's temperature is fitted on examples, and the result tells its calibration error."""
    found = _labelled("a ruby", examples=_examples(15), shots=4, calibration="temperature", method="likelihood")
    assert found.calibration is not None
    assert found.calibration.num_examples == 26
    assert found.calibration.ece is not None
    assert found.calibration.ece_before is not None
    assert found.calibration.ece < found.calibration.ece_before
    assert found.items[0].probability > 0.95, "the model was always right, so it is believed more"


@pytest.mark.parametrize(
    ("text", "labels", "subject"),
    [
        ("Classify this as good or bad: it rained", ["good", "bad"], "it rained"),
        ("Is it red, green, or blue? A rose", ["red", "green", "blue"], "A rose"),
        ("classify: “it broke” as positive or negative", ["positive", "negative"], "it broke"),
        ("Which one: billing, technical or sales?\nMy card", ["billing", "technical", "sales"], "My card"),
        ("classify this text", [], ""),
        ("good or bad", [], ""),
    ],
)
def test_labels_are_read_from_the_words_of_a_task(text: str, labels: list[str], subject: str) -> None:
    """A task in words names its labels, then the text."""
    assert labels_in(text) == (labels, subject)


def test_plain_tasks_find_the_agent() -> None:
    """A task that asks to classify and names its labels is scored; one that names none is not, and declines."""
    agent = ClassificationAgent()
    assert agent.score(Task(text="Classify this as red or blue: a ruby")) == 0.85
    assert not agent.score(Task(text="What is the difference between red and blue?"))
    assert _run(Task(text="Classify this as red or blue: a ruby")).items[0].label == "red"
    with pytest.raises(RequestError, match="it names no labels"):
        _run(Task(text="classify this"))


def test_command_line_and_arguments_say_the_same(tmp_path: Path) -> None:
    """`--labels a,b` is a list of two; files have a text in each row."""
    (tmp_path / "in.csv").write_text("id,text\n1,a ruby\n2,the sky\n")
    typed = task_of(ClassificationAgent(), ["--labels", "red,blue"], [str(tmp_path / "in.csv")])
    listed = Task(files=(str(tmp_path / "in.csv"),), arguments={"labels": ["red", "blue"]})
    assert _run(typed) == _run(listed)
    assert [item.label for item in _run(typed).items] == ["red", "blue"]
    assert [item.place.rpartition(":")[2] for item in _run(typed).items] == ["2", "3"]


def test_results_of_earlier_steps_are_labelled() -> None:
    """In a graph, what earlier steps said is what is labelled."""
    found = _run(Task(arguments={"labels": ["red", "blue"]}, results={"look": "it is a ruby"}))
    assert (found.items[0].place, found.items[0].label) == ("step look", "red")
    with pytest.raises(RequestError, match="no text to label"):
        _run(Task(text="  ", arguments={"labels": ["red", "blue"]}))


def test_files_outside_the_runs_folder_are_not_read(tmp_path: Path) -> None:
    """Examples and taxonomies go through the run's access to files, and what is outside reads as not there."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "e.csv").write_text("text,label\na,red\nb,blue\n")

    async def work() -> object:
        grant(FileAccess.below(tmp_path / "inside"))
        async with Fleet(Knowing(), [ClassificationAgent()]) as fleet:
            task = Task(text="x", arguments={"examples": "../e.csv"})
            return await fleet.run_agent("classification", task)

    with pytest.raises(RequestError, match="no file or folder"):
        asyncio.run(work())


def test_tool_classifies_with_the_callers_model() -> None:
    """Models have the tool `classify_text`; it asks through the agent that calls it."""
    [tool] = classification.pyagent_register_tools()
    assert set(msgspec.json.schema(Classify)["$defs"]["Classify"]["properties"]) >= {"labels", "taxonomy"}

    class Caller:
        name, description = "caller", "calls"

        async def run(self, context: object, task: Task) -> object:
            return await context.call_tool("classify_text", {"text": task.text, "labels": ["red", "blue"]})  # type: ignore[attr-defined]

    async def work() -> object:
        async with Fleet(Knowing(), [Caller()], tools=[tool]) as fleet:
            return await fleet.run_agent("caller", "a ruby")

    found = asyncio.run(work())
    assert isinstance(found, Classification)
    assert found.items[0].label == "red"
