"""The example fleets run whole: on a scripted model for their results, on an engine of random weights to their end.

Random weights say nothing that makes sense: what ends with a typed result on them does so whatever a model says.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.tiny_model import write_tiny_model

from pyagent import AgentError, ChatRequest, PyAgentError
from pyagent.testing import ScriptedBackend

FLEETS = Path(__file__).parents[2] / "examples" / "fleets"


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with a token a byte, and room for the examples' prompts."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "random.gguf", llama__context_length=8192)


@pytest.fixture
def random_chain(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings' chain is the engine with random weights."""
    monkeypatch.setenv("PYAGENT_CHAIN", json.dumps([f"native:{random_model}"]))


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fleet_{name}", FLEETS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_question(**answers: str) -> Callable[[ChatRequest], str]:
    """Return a script that answers by a word of the last message; spaces are `_`."""

    def script(request: ChatRequest) -> str:
        text = request.messages[-1].text
        return next(answer for word, answer in answers.items() if word.replace("_", " ") in text)

    return script


def run_of(lines: str) -> str:
    """Return the run's name from what a program printed."""
    return lines.partition(":")[0]


# -- mail triage ------------------------------------------------------------------------------------------------------


def triage(folder: Path, backend: ScriptedBackend | None = None) -> Any:
    fleet = example("mail_triage")
    return asyncio.run(fleet.main(fleet.mails_in(folder), date(2026, 11, 25), backend=backend))


def test_mail_is_sorted_by_rules_dates_and_model() -> None:
    """Headers and calendars decide alone, the model is asked about the rest, and what is due comes first."""
    backend = ScriptedBackend(by_question(invoice="bill", ladder="question", books="other", Café="greeting"))
    mails = triage(FLEETS / "samples" / "mail", backend).mails
    assert [(Path(mail.file).stem[2:], mail.kind, mail.by, mail.is_late) for mail in mails] == [
        ("library", "other", "model", True),
        ("meeting", "meeting", "rule", False),
        ("invoice", "bill", "model", False),
        ("newsletter", "news", "rule", False),
        ("question", "question", "model", False),
        ("photo", "greeting", "model", False),
    ]
    assert all(request.private for request in backend.requests)
    assert "Café by the sea" in [mail.subject for mail in mails]


def test_mail_that_no_model_places_stays_unsorted(tmp_path: Path) -> None:
    """A model that answers with no kind, and a mail that is hardly one, end no run."""
    (tmp_path / "broken.eml").write_bytes(b"Subject: \xff\nContent-Type: text/plain; charset=nope\n\n\xfe 2026-99-99")
    [mail] = triage(tmp_path, ScriptedBackend(lambda _: "I would say a bill")).mails
    assert (mail.kind, mail.by, mail.due) == ("unsorted", "-", None)
    with pytest.raises(SystemExit, match="there are no"):
        triage(tmp_path / "nowhere")


@pytest.mark.usefixtures("random_chain")
def test_mail_triage_ends_on_random_weights() -> None:
    """Each mail has a kind."""
    mails = triage(FLEETS / "samples" / "mail").mails
    assert {mail.kind for mail in mails} <= {*example("mail_triage").KINDS, "news"}
    assert len(mails) == 6


# -- research team ----------------------------------------------------------------------------------------------------

ASKED = "How heavy are the blocks that divers found?"
NOTES = FLEETS / "samples" / "notes"
WEIGHT = "Some blocks weigh 70 tonnes."


def research(backend: ScriptedBackend | None = None, resume: str = "", question: str = ASKED) -> Any:
    return asyncio.run(example("research_team").main(question, NOTES, backend=backend, resume=resume))


def test_research_rests_on_quotes() -> None:
    """The answer names a sentence of the text, and a number that no quote has does not pass."""
    answer = research(ScriptedBackend(by_question(Which_line=WEIGHT, Answer_in_one="They weigh 70 tonnes.")))
    assert answer.text == "They weigh 70 tonnes."
    assert [(quote.file, quote.sentence) for quote in answer.quotes] == [("divers.txt", WEIGHT)]
    invented = research(ScriptedBackend(by_question(Which_line=WEIGHT, Answer_in_one="They weigh 100 tonnes.")))
    assert invented.text == WEIGHT
    silent = research(ScriptedBackend(by_question(Which_line="none of these")))
    assert (silent.text, silent.quotes) == ("The texts do not say.", [])


def test_research_without_texts_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A question that no text shares a word with ends before a model is asked."""
    with pytest.raises(AgentError, match="has words of the question"):
        research(ScriptedBackend([]), question="xylophone")
    assert "write is skipped, as find failed" in capsys.readouterr().out


def test_research_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """A team whose writer's model died is resumed: what was read is not read again."""
    with pytest.raises(PyAgentError):
        research(ScriptedBackend([WEIGHT]))
    run = run_of(capsys.readouterr().out)
    backend = ScriptedBackend(["They weigh 70 tonnes."])
    assert research(backend, resume=run).text == "They weigh 70 tonnes."
    assert len(backend.requests) == 1
    assert "goes on: 2 agents" in capsys.readouterr().out


@pytest.mark.usefixtures("random_chain")
def test_research_ends_on_random_weights() -> None:
    """Quotes are sentences of the texts, whatever the model."""
    answer = research()
    assert answer.text
    assert all(quote.sentence in (NOTES / quote.file).read_text() for quote in answer.quotes)


# -- code reviewer ----------------------------------------------------------------------------------------------------


def review(folder: Path, backend: ScriptedBackend | None = None, **given: Any) -> Any:
    return asyncio.run(example("code_reviewer").main(folder, backend=backend, **given))


def test_review_finds_what_is_certain() -> None:
    """The faults of the sample are found by their lines; the model's remarks stand beside them, the grave first."""

    def remark(request: ChatRequest) -> str:
        severity = "high" if "catches every exception" in request.messages[-1].text else "low"
        return json.dumps({"severity": severity, "advice": "Mend it."})

    found = review(FLEETS / "samples" / "project", ScriptedBackend(remark))
    assert [(each.fault.line, each.fault.function, each.remark.severity) for each in found.findings] == [
        (11, "load", "high"),
        (6, "load", "low"),
        (15, "price", "low"),
        (15, "price", "low"),
    ]
    assert {each.fault.what for each in found.findings} >= {"takes 7 arguments", "has complexity 7"}
    assert found.num_files == 1


def test_review_stands_without_the_model(tmp_path: Path) -> None:
    """A file that is no Python is a finding, and a model that answers nothing sensible leaves the facts."""
    (tmp_path / "a.py").write_text("def f(:\n")
    (tmp_path / "b.py").write_text("def f(a=[]):\n    return a\n")
    found = review(tmp_path, ScriptedBackend(lambda _: "no"))
    assert [(Path(each.fault.file).name, each.remark) for each in found.findings] == [("a.py", None), ("b.py", None)]
    with pytest.raises(PyAgentError, match="no file or folder"):
        review(tmp_path / "nowhere", ScriptedBackend([]))


@pytest.mark.usefixtures("random_chain")
def test_review_ends_on_random_weights(tmp_path: Path) -> None:
    """The finding is a fact; a remark, where there is one, has its form."""
    (tmp_path / "b.py").write_text("def f(a=[]):\n    return a\n")
    [found] = review(tmp_path).findings
    assert found.fault.function == "f"
    assert found.remark is None or 1 <= len(found.remark.advice) <= 200


# -- data cleaner -----------------------------------------------------------------------------------------------------

COUNTRIES = {"Deutschland": "Germany", "Espana": "Spain", "Eire": "another"}


def clean(
    output: Path, backend: ScriptedBackend | None = None, source: Path = FLEETS / "samples" / "orders.csv"
) -> Any:
    return asyncio.run(example("data_cleaner").main(source, output, backend=backend))


def test_table_is_cleaned(tmp_path: Path) -> None:
    """Dates, amounts and doubles are exact; a guess of the model is in the table with its doubt."""
    cleaned = clean(tmp_path / "clean.csv", ScriptedBackend(by_question(**COUNTRIES)))
    with (tmp_path / "clean.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(row["ordered"], row["amount"], row["country"]) for row in rows] == [
        ("2026-10-02", "1200.50", "DE"),
        ("2026-10-05", "80.00", "DE"),
        ("2026-10-07", "49.90", "ES"),
        ("", "49.90", "ES"),
        ("2026-10-07", "", ""),
    ]
    assert rows[1]["doubts"] == "'Deutschland' may be DE"
    assert rows[4]["doubts"] == "'free' is no amount; 'Eire' is no country"
    assert (cleaned.num_read, len(cleaned.rows)) == (6, 5)
    assert [path.name for path in tmp_path.glob("*.part")] == []


@pytest.mark.parametrize(
    ("text", "amount"), [("5.000", "5000.00"), ("1.234,5", "1234.50"), ("12", "12.00"), ("-3", ""), ("1e9", "")]
)
def test_amounts_are_read_or_left(text: str, amount: str) -> None:
    """A point before three digits parts thousands; what is no amount is empty."""
    assert example("data_cleaner").amount_of(text) == amount


def test_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    """The error names the columns; nothing is written."""
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PyAgentError, match="lacks customer, ordered"):
        clean(tmp_path / "clean.csv", ScriptedBackend([]), tmp_path / "other.csv")
    assert not (tmp_path / "clean.csv").exists()


@pytest.mark.usefixtures("random_chain")
def test_data_cleaner_ends_on_random_weights(tmp_path: Path) -> None:
    """What is exact is the same; only countries may differ."""
    cleaned = clean(tmp_path / "clean.csv")
    assert [row.amount for row in cleaned.rows] == ["1200.50", "80.00", "49.90", "49.90", ""]


# -- test writer ------------------------------------------------------------------------------------------------------


def write_tests(module: Path, output: Path, backend: ScriptedBackend | None = None) -> Any:
    return asyncio.run(example("write_tests").main(module, output, backend=backend))


def test_written_tests_pass_and_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and errors become tests that pass on the module, and fail when it changes."""
    module = tmp_path / "subject_module.py"
    module.write_text("def half(number: int) -> float:\n    return 10 / number\n\ndef free(x):\n    return x\n")
    backend = ScriptedBackend(['{"number": 4}', '{"number": 0}'])
    written = write_tests(module, tmp_path / "test_subject_module.py", backend)
    assert [(case.value, case.error) for case in written.cases] == [("2.5", ""), ("", "ZeroDivisionError")]
    assert list(written.left_out) == ["free"]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the changed module may have the time of the first
    first, second = written_in(tmp_path / "test_subject_module.py")
    first()
    second()
    module.write_text("def half(number: int) -> float:\n    return number and 20 / number\n")
    for test in written_in(tmp_path / "test_subject_module.py"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            test()


def written_in(file: Path) -> list[Callable[[], None]]:
    """Return the tests of a file, which imports the module that it is about anew."""
    sys.modules.pop("subject_module", None)
    found = runpy.run_path(str(file))
    return [found[name] for name in found if name.startswith("test_")]


def test_function_without_a_value_has_no_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that never ends, one that ends the process, and values that text cannot say are left out."""
    module = tmp_path / "odd.py"
    module.write_text(
        "import os\ndef hang(n: int) -> int:\n    while True: pass\ndef leave(n: int) -> int:\n    os._exit(0)\n"
        "def odd(n: int) -> float:\n    return float('nan')\n"
    )
    fleet = example("write_tests")
    monkeypatch.setattr(fleet, "SECONDS", 0.5)
    with pytest.raises(AgentError, match="no input gave a value"):
        asyncio.run(fleet.main(module, tmp_path / "test_odd.py", backend=ScriptedBackend(lambda _: '{"n": 1}')))
    with pytest.raises(PyAgentError, match="SyntaxError"):
        write_tests(FLEETS / "samples" / "notes" / "bread.txt", tmp_path / "test_odd.py", ScriptedBackend([]))
    assert not (tmp_path / "test_odd.py").exists()


@pytest.mark.usefixtures("random_chain")
def test_test_writer_ends_on_random_weights(tmp_path: Path) -> None:
    """Arguments fit the signature whatever the model, so that most calls give a value."""
    written = write_tests(FLEETS / "samples" / "project" / "shop.py", tmp_path / "test_shop.py")
    assert {case.name for case in written.cases} <= {"slug", "median"}
    assert set(written.left_out) >= {"load", "price"}
