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

from pyagent import AgentError, ChatRequest, PyAgentError, ToolCall
from pyagent.core.messages import FunctionCall
from pyagent.testing import Reply, ScriptedBackend

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


# -- translator -------------------------------------------------------------------------------------------------------


def translated(script: Callable[[ChatRequest], str] | None, text: str, rounds: int = 1) -> Any:
    backend = None if script is None else ScriptedBackend(script)
    return asyncio.run(example("translator").main(text, "German", rounds, backend=backend))


def test_translators_debate_and_a_judge_decides() -> None:
    """Each translator sees the other's version; what is left apart goes to the judge."""
    asked: list[str] = []

    def script(request: ChatRequest) -> str:
        asked.append(text := request.messages[-1].text)
        if "Which German is better" in text:
            return "second"
        style = "wörtlich" if "word by word" in request.messages[0].text else "frei"
        return f"{style} {'neu' if 'Another wrote' in text else 'alt'} 7"

    done = translated(script, "At 7.\n\nAt seven, 7.")
    assert [(each.text, each.why, each.is_doubtful) for each in done.paragraphs] == [
        ("frei neu 7", "the judge took the second", False)
    ] * 2
    assert sum("Another wrote: frei alt 7" in text for text in asked) == 2


def test_translation_that_lost_a_number_does_not_win() -> None:
    """Exact faults outrank the judge; where both are at fault, or the judge says nothing, a person is told."""

    def loses(request: ChatRequest) -> str:
        return "Um 7 Uhr" if "word by word" in request.messages[0].text else "Um acht Uhr"

    [kept] = translated(loses, "At 7.").paragraphs
    assert (kept.text, kept.why, kept.is_doubtful) == ("Um 7 Uhr", "it lost 7", False)
    [both] = translated(lambda _: "At 7.", "At 7.").paragraphs
    assert (both.is_doubtful, both.why) == (True, "both are at fault: it is the text itself")
    [silent] = translated(lambda request: f"no. {len(request.messages[0].text)}", "Hello.", 0).paragraphs
    assert silent.is_doubtful
    with pytest.raises(PyAgentError, match="rounds must be an integer >= 0"):
        translated(lambda _: "x", "Hello.", -1)


@pytest.mark.usefixtures("random_chain")
def test_translator_ends_on_random_weights() -> None:
    """Every paragraph has a text and a reason."""
    done = translated(None, "Go.\n\nStay 3.")
    assert [each.source for each in done.paragraphs] == ["Go.", "Stay 3."]
    assert all(each.text and each.why for each in done.paragraphs)


# -- watch folder -----------------------------------------------------------------------------------------------------


def watch(folder: Path, output: Path, backend: ScriptedBackend | None = None, seconds: float = 0) -> Any:
    return asyncio.run(example("watch_folder").main(folder, output, seconds, backend=backend))


def test_folder_is_summarised_as_it_changes(tmp_path: Path) -> None:
    """Each text is summarised once, and again when it changes; others are left alone."""
    inbox, output = tmp_path / "inbox", tmp_path / "inbox" / "summaries"
    inbox.mkdir()
    (inbox / "a.txt").write_text("The boat left. " * 20)
    (inbox / "picture.png").write_bytes(b"\x89PNG")
    (inbox / "empty.txt").touch()
    known = watch(inbox, output, ScriptedBackend(["The boat left early."]))
    assert list(known.files) == ["a.txt"]
    assert (output / "a.txt.summary.txt").read_text() == "The boat left early."
    backend = ScriptedBackend(["It came back."])
    watch(inbox, output, backend)
    assert backend.requests == []
    (inbox / "a.txt").write_text("The boat came back. " * 20)
    watch(inbox, output, backend)
    assert (output / "a.txt.summary.txt").read_text() == "It came back."


def test_folder_is_watched_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that comes later is found by the same program."""
    fleet = example("watch_folder")
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.01)
    (tmp_path / "a.txt").write_text("One boat. " * 20)

    def script(_: ChatRequest) -> str:
        if not (tmp_path / "b.txt").exists():
            (tmp_path / "b.txt").write_text("Two boats. " * 20)
        return "A boat."

    async def main() -> None:
        watching = asyncio.create_task(fleet.main(tmp_path, tmp_path / "out", None, backend=ScriptedBackend(script)))
        while not (tmp_path / "out" / "b.txt.summary.txt").exists():
            assert not watching.done()
            await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_text_that_fails_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no text is not read again and again, and the others are summarised."""
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.txt").write_text("One boat. " * 20)
    known = watch(tmp_path, tmp_path / "out", ScriptedBackend(["A boat."]))
    assert [how for _, how in known.files.values()][1] == "done"
    assert "a.txt is not text in UTF-8" in capsys.readouterr().out
    (tmp_path / "out" / ".known.json").write_text("{")
    assert list(watch(tmp_path, tmp_path / "out", ScriptedBackend(["A boat."])).files) == ["a.txt", "b.txt"]


@pytest.mark.usefixtures("random_chain")
def test_watch_folder_ends_on_random_weights(tmp_path: Path) -> None:
    """Each text has a summary or a reason."""
    known = watch(FLEETS / "samples" / "notes", tmp_path / "out")
    assert len(known.files) == 4


# -- nightly report ---------------------------------------------------------------------------------------------------

LOG = FLEETS / "samples" / "server.log"
DAY = date(2026, 11, 22)


def report(folder: Path, backend: ScriptedBackend | None = None, log: Path = LOG, **given: Any) -> Any:
    return asyncio.run(example("nightly_report").main(log, DAY, folder, backend=backend, **given))


def test_report_has_the_facts(tmp_path: Path) -> None:
    """Lines and errors are counted and compared with the day before; the words stand above them."""
    written = report(tmp_path, ScriptedBackend(["Payments timed out 3 times. The disk"]), code=FLEETS)
    text = (tmp_path / "2026-11-22.md").read_text()
    assert text == written.text
    assert text.startswith("# 2026-11-22\n\nPayments timed out 3 times.\n\n- 18 lines, 4 errors, more by 3 than")
    assert "- new: disk: N % full (1 times)" in text
    assert "- again: payment: timeout after N s (3 times)" in text
    assert "functions of" in text


def test_report_lets_no_number_through(tmp_path: Path) -> None:
    """Words with a number that is not counted are left out."""
    assert "(no words tonight" in report(tmp_path, ScriptedBackend(["There were 77 errors."])).text


def test_report_of_a_night_goes_on_and_ends_once(tmp_path: Path) -> None:
    """A night whose model was down goes on where it was; a night that is done is not run again."""
    with pytest.raises(PyAgentError):
        report(tmp_path, ScriptedBackend([]))
    written = report(tmp_path, ScriptedBackend(["All calm."]))
    assert "All calm." in written.text
    with pytest.raises(PyAgentError, match="is done") as raised:
        report(tmp_path, ScriptedBackend([]))
    assert getattr(raised.value, "code", "") == "done"
    with pytest.raises(PyAgentError, match="has no lines of 2026-11-22"):
        report(tmp_path, ScriptedBackend([]), FLEETS / "samples" / "orders.csv")


@pytest.mark.usefixtures("random_chain")
def test_nightly_report_ends_on_random_weights(tmp_path: Path) -> None:
    """The facts are the same, whatever the model says."""
    assert "- 18 lines, 4 errors" in report(tmp_path).text


# -- two models -------------------------------------------------------------------------------------------------------


def classified(
    small: Callable[[ChatRequest], str], larger: ScriptedBackend, *messages: str, tokens: int = 10_000
) -> list[Any]:
    fleet = example("two_models")
    settings = fleet.settings_for("", tokens=tokens)
    backends = (ScriptedBackend(small), larger)
    return asyncio.run(fleet.main(list(messages), fleet.settings_for(""), settings, backends))


def wavering(request: ChatRequest) -> str:
    """Return the kind that stands first in the question, unless a refund is asked for."""
    text = request.messages[-1].text
    return "refund" if "money" in text else text.partition("about: ")[2].partition(" or ")[0]


def test_doubtful_answers_go_to_the_larger_model() -> None:
    """A small model that contradicts itself is not believed; one that is sure is not asked about again."""
    larger = ScriptedBackend(lambda _: "technical")
    sure, unsure = classified(wavering, larger, "I want my money back.", "It is black.")
    assert (sure.kind, sure.by, sure.is_doubtful) == ("refund", "small", False)
    assert (unsure.kind, unsure.by, unsure.is_doubtful) == ("technical", "larger", False)
    assert len(larger.requests) == 1


def test_larger_model_has_a_budget_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """When it is used up, what is left is the small model's, marked as doubtful, and the larger is not asked again."""
    larger = ScriptedBackend(lambda _: "technical")
    answers = classified(wavering, larger, "It is black.", "It is white.", "It is red.", "It is blue.", tokens=60)
    assert [answer.is_doubtful for answer in answers][-1]
    assert len(larger.requests) < 3
    assert capsys.readouterr().out.count("the larger model does not answer") == 1


def test_small_model_without_an_answer_is_not_sure() -> None:
    """An answer that is no kind goes on; where the larger one has none either, the message is `other`, doubtful."""
    [answer] = classified(lambda _: "hm", ScriptedBackend(lambda _: "hm"), "It is black.")
    assert (answer.kind, answer.by, answer.is_doubtful) == ("other", "small", True)


@pytest.mark.usefixtures("random_chain")
def test_two_models_end_on_random_weights() -> None:
    """Each message has a kind, by one model or the other."""
    fleet = example("two_models")
    settings = fleet.settings_for("")
    answers = asyncio.run(fleet.main(fleet.messages_in(FLEETS / "samples" / "messages.txt")[:2], settings, settings))
    assert {answer.kind for answer in answers} <= set(fleet.KINDS)


# -- MCP-only assistant -----------------------------------------------------------------------------------------------


def call(number: int, name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=f"c{number}", function=FunctionCall(name=f"pantry__{name}", arguments=json.dumps(arguments)))


def test_assistant_works_with_a_server_alone(tmp_path: Path) -> None:
    """It looks without a question, takes only what a person allows, and is offered nothing but the server's tools."""
    stock, asked = tmp_path / "pantry.json", list[str]()
    look, take = call(1, "how_much", item="sugar"), {"item": "sugar", "grams": 100}
    replies = (Reply(tool_calls=(look, call(2, "take", **take))), Reply(tool_calls=(call(3, "take", **take),)))
    fleet, backend = example("mcp_assistant"), ScriptedBackend([*replies, '{"answer": "300 grams are left."}'])

    def second_time(question: Any) -> str:
        assert not stock.exists()
        asked.append(question.text)
        return "deny" if len(asked) == 1 else "allow"

    settings = fleet.settings_for("pantry", stock)
    done = asyncio.run(fleet.main("Take 100 grams of sugar.", settings, second_time, "pantry", backend))
    assert "There are 400 grams of sugar." in done.calls[0]
    assert "denied" in done.calls[1]
    assert "Took 100 grams of sugar; 300 grams are left." in done.calls[2]
    assert json.loads(stock.read_text())["sugar"] == 300
    assert str(done).splitlines()[0] == "300 grams are left."
    assert len(asked) == 2
    assert "pantry__take" in asked[0]
    offered = {tool.function.name for tool in backend.requests[0].tools}
    assert offered == {"pantry__how_much", "pantry__list_items", "pantry__take"}


def test_assistant_names_a_server_that_is_not_there(tmp_path: Path) -> None:
    """The program ends before it starts anything."""
    with pytest.raises(SystemExit, match=r"no \[mcp_servers.nope\]"):
        example("mcp_assistant").settings_for("nope", tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("random_chain")
def test_mcp_assistant_ends_on_random_weights(tmp_path: Path) -> None:
    """No call has an effect that was not allowed; the answer has its form, or the run says why not."""
    fleet = example("mcp_assistant")
    settings = fleet.settings_for("pantry", tmp_path / "pantry.json")
    try:
        done = asyncio.run(fleet.main("Take 100 grams of sugar.", settings, lambda _: "deny", "pantry"))
        assert 1 <= len(done.output["answer"]) <= 160
    except AgentError as error:
        assert "does not fit" in str(error)  # noqa: PT017 - it may also succeed
    assert not (tmp_path / "pantry.json").exists()
