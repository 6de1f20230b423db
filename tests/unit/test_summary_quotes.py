"""Summaries of any language with quotes of what they rest on, of texts, HTML and PDF; and how files are read."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.documents import Document, read_documents
from pyagent.logic.agents.languages import language_of
from pyagent.logic.agents.parts import is_finished, sentence_spans
from pyagent.logic.agents.quotes import Point, QuoteFinder
from pyagent.logic.agents.summarize import SummarizeAgent, Summary
from pyagent.logic.reading.asked import Bytes
from pyagent.logic.reading.charsets import page_text
from pyagent.logic.reading.worker import answer
from pyagent.testing import ScriptedBackend

TEXTS = {
    "German": (
        "Fasse das zusammen: ",
        "Der Leuchtturm wurde 1911 eröffnet. Er ist 330 Meter hoch. Die Laterne wiegt 12 Tonnen und ist aus Messing.",
        "Die Laterne aus Messing wiegt 12 Tonnen.",
        "Die Laterne wiegt 12 Tonnen und ist aus Messing.",
    ),
    "Chinese": (
        "总结：",
        "维尔姆灯塔于1911年开放。灯塔高330米，位于港口。灯笼重12吨，由黄铜制成。每年有许多游客来参观。",
        "灯笼由黄铜制成，重12吨。",
        "灯笼重12吨，由黄铜制成。",
    ),
    "Japanese": (
        "要約：",
        "ヴェルム灯台は1911年に開業しました。高さは330メートルです。ランタンの重さは12トンで、真鍮でできています。",
        "ランタンは真鍮製で、重さは12トンです。",
        "ランタンの重さは12トンで、真鍮でできています。",
    ),
    "Arabic": (
        "لخص: ",
        "افتتحت منارة فيلم عام 1911. هل يبلغ ارتفاعها 330 مترا؟ يزن الفانوس 12 طنا وهو مصنوع من النحاس.",
        "الفانوس مصنوع من النحاس ويزن 12 طنا.",
        "يزن الفانوس 12 طنا وهو مصنوع من النحاس.",
    ),
    "Hindi": (
        "सारांश: ",
        "वेल्म का प्रकाशस्तंभ 1911 में खुला। यह 330 मीटर ऊँचा है। लालटेन का वजन 12 टन है और वह पीतल की बनी है।",
        "लालटेन पीतल की बनी है और वजन 12 टन है।",
        "लालटेन का वजन 12 टन है और वह पीतल की बनी है।",
    ),
    "Thai": (
        "สรุป: ",
        "ประภาคารเวล์มเปิดในปี 1911 หลังจากก่อสร้างนานหกปีโดยวิศวกรจากสามประเทศ "
        "มีความสูง 330 เมตรและตั้งอยู่ในท่าเรือเก่าของเมืองริมทะเลทางตอนเหนือ โคมไฟหนัก 12 ตันและทำจากทองเหลือง",
        "โคมไฟทำจากทองเหลืองหนัก 12 ตัน",
        "โคมไฟหนัก 12 ตันและทำจากทองเหลือง",
    ),
    "Korean": (
        "요약: ",
        "벨름 등대는 1911년에 문을 열었다. 높이는 330미터이다. 등롱은 무게가 12톤이고 황동으로 만들어졌다.",
        "등롱은 황동으로 만들어졌고 무게가 12톤이다.",
        "등롱은 무게가 12톤이고 황동으로 만들어졌다.",
    ),
}


@pytest.mark.parametrize("language", TEXTS)
def test_summary_is_asked_for_and_quoted_in_the_language_of_the_text(language: str) -> None:
    """The model is told the language, the wish is no part of the text, and each point has its sentence as a quote."""
    wish, text, said, quote = TEXTS[language]
    asked: list[ChatRequest] = []

    def model(request: ChatRequest) -> str:
        asked.append(request)
        return said

    fleet = Fleet(ScriptedBackend(model), [SummarizeAgent()])
    summary = asyncio.run(fleet.run_agent("summarize", wish + text))
    assert isinstance(summary, Summary)
    assert asked[0].messages[0].text.endswith(f"Write it in {language}.")
    assert asked[0].messages[1].text == text
    assert summary.language == language_of(text) == language
    (point,) = summary.points
    assert point.quote is not None
    assert quote in point.quote.text
    assert text[point.quote.start : point.quote.start + len(point.quote.text)] == point.quote.text


def test_english_is_asked_for_as_ever() -> None:
    """An English text adds nothing to what the model is told, and words of others in it change nothing."""
    assert (
        language_of("The house is at the end of the street, and it was built by the mayor for the town.") == "English"
    )
    assert (
        language_of("Le train est à la gare, et les gens qui sont dans la salle ne sont pas pour le départ.")
        == "French"
    )
    assert language_of("x = 1\ny = 2") == ""
    assert language_of("") == ""
    assert language_of("यह 你 текст of the and is it to the and of") == "English"


@given(st.text(alphabet='aB .?!\n。？।؟-*1ก ข中"”', max_size=300))
def test_sentences_are_pieces_of_the_text(text: str) -> None:
    """Sentences are where they are said to be, in order, on one line each, and all words but bullets are in one."""
    spans = sentence_spans(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    assert all("\n" not in text[start:end] and text[start:end].strip() == text[start:end] for start, end in spans)
    kept = "".join(text[start:end] for start, end in spans)
    assert "".join(kept.split()).count("中") == text.count("中")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Ito went. He slept!", ["Dr. Ito went.", "He slept!"]),
        ("他来了。他走了！", ["他来了。", "他走了！"]),
        ("वह आया। वह गया।", ["वह आया।", "वह गया।"]),
        ("هل جاء؟ نعم.", ["هل جاء؟", "نعم."]),
        ("- One.\n2) Two. Three", ["One.", "Two.", "Three"]),
    ],
)
def test_sentences_end_as_each_script_has_it(text: str, sentences: list[str]) -> None:
    """Full stops of other scripts end a sentence; an abbreviation and a bullet do not."""
    assert [text[start:end] for start, end in sentence_spans(text)] == sentences
    assert is_finished("वह गया।")
    assert is_finished("สวัสดี")
    assert not is_finished("and then")


ENGLISH = Document(
    "a.txt", "The lighthouse of Velm opened in 1911.\nIt is 330 metres tall. The lantern weighs 12 tonnes."
)


def test_point_that_no_sentence_says_has_no_quote() -> None:
    """Another figure or other words are not made to fit; two neighbouring sentences may say it together."""
    finder = QuoteFinder([ENGLISH])
    for said in ("The lighthouse of Velm opened in 1912.", "Aliens landed on the moon.", "", "?!"):
        assert finder.point(said) == Point(said)
    both = finder.point("The lantern weighs 12 tonnes and it is 330 metres tall.").quote
    assert both is not None
    assert both.text == "It is 330 metres tall. The lantern weighs 12 tonnes."
    assert both.place == "a.txt, line 2"


def test_quotes_of_a_long_text_are_found_quickly() -> None:
    """A text of a million characters takes seconds, and one without an end to its sentence too."""
    long = "\n".join(f"Ship {number} brought {number} boxes of tea to the harbour of Velm." for number in range(20_000))
    begun = time.monotonic()
    found = QuoteFinder([Document("", long)]).point("Ship 13417 brought 13417 boxes of tea.").quote
    assert found is not None
    assert found.line == 13_418
    QuoteFinder([Document("", "a b c " * 100_000)]).point("a b c d")
    assert time.monotonic() - begun < 30


def pdf(pages: list[str]) -> bytes:
    """A PDF whose pages have these lines, in Helvetica."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, text in enumerate(pages):
        shown = f"BT /F1 12 Tf 30 180 Td ({text}) Tj ET"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 210]/Contents {5 + 2 * number} 0 R"
                       "/Resources<</Font<</F1 3 0 R>>>>>>")  # fmt: skip
        objects.append(f"<</Length {len(shown)}>>stream\n{shown}\nendstream")
    body = "".join(f"{number} 0 obj\n{each}\nendobj\n" for number, each in enumerate(objects, 1))
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R>>".encode()


def test_pdf_is_quoted_with_its_page(tmp_path: Path) -> None:
    """A PDF's pages are read in a process of its own; a quote tells the page that it is on."""
    (tmp_path / "a.pdf").write_bytes(
        pdf(["The tower opened in 1911.", "The lantern weighs 12 tonnes.", "It is green."])
    )
    fleet = Fleet(ScriptedBackend(["The lantern has a weight of 12 tonnes."]), [SummarizeAgent()])
    task = Task(text="Summarize", files=(str(tmp_path / "a.pdf"),), arguments={"quotes": True})
    summary = asyncio.run(fleet.run_agent("summarize", task))
    assert isinstance(summary, Summary)
    assert str(summary).endswith("a.pdf, page 2)")
    assert "“The lantern weighs 12 tonnes.”" in str(summary)


def test_html_file_is_read_without_its_frame(tmp_path: Path) -> None:
    """A page on disk is read as its article, without navigation, scripts and what is hidden."""
    (tmp_path / "a.html").write_text(
        "<html><nav><a href=/>Home</a></nav><article><h1>Tower</h1><p>The tower of Velm opened in 1911 and stands in "
        "the harbour.</p><p style='display:none'>Ignore this</p><script>evil()</script></article></html>"
    )
    [document] = asyncio.run(read_documents([str(tmp_path / "a.html")]))
    assert "opened in 1911" in document.text
    assert "evil" not in document.text
    assert "Ignore this" not in document.text


def test_html_is_read_without_trafilatura(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra `web` is not installed, a page's words are read by the plain reader."""
    monkeypatch.setattr("pyagent.logic.reading.worker.find_spec", lambda _: None)
    read = answer(Bytes(b"<title>T</title><p>Hello <b>you</b></p><script>x()</script>", "html"))
    assert read.text == "T\nHello you"  # type: ignore[union-attr]


def test_missing_pdf_reader_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pypdfium2 a PDF is refused with how to install it."""
    (tmp_path / "a.pdf").write_bytes(pdf(["x"]))
    monkeypatch.setattr("pyagent.logic.reading.reader.find_spec", lambda _: None)
    with pytest.raises(RequestError, match="pip install pypdfium2"):
        asyncio.run(read_documents([str(tmp_path / "a.pdf")]))


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("Käse".encode(), "koi8-r", "Käse"),
        ("Käse".encode("latin-1"), "", "Käse"),
        ("сыр".encode("koi8-r"), "KOI8-R", "сыр"),
        ("<meta charset='windows-1251'>сыр".encode("cp1251"), "", "<meta charset='windows-1251'>сыр"),
        ("\ufeffKäse".encode("utf-16-le"), "utf-8", "Käse"),
        (b"plain", "zip", "plain"),
        (b"\xe9t\xe9", "no-such-charset", "été"),
    ],
)
def test_charset_is_found_whatever_is_said(data: bytes, charset: str, text: str) -> None:
    """Byte order marks and valid UTF-8 go before what the server says, and that before what the page says."""
    assert page_text(data, charset) == text


def test_bytes_that_are_no_text_are_known() -> None:
    """Bytes with control characters all over are no text."""
    assert page_text(bytes(range(256)) * 40) is None


def test_summary_tells_points_as_json() -> None:
    """Programs have each point with its quote and place."""
    fleet = Fleet(ScriptedBackend(["The lantern weighs 12 tonnes."]), [SummarizeAgent()])
    summary = asyncio.run(fleet.run_agent("summarize", f"Summarize this: {ENGLISH.text}"))
    assert isinstance(summary, Summary)
    assert str(summary) == "The lantern weighs 12 tonnes."
    (point,) = json.loads(msgspec.json.encode(summary))["points"]
    assert point["quote"] == {"text": "The lantern weighs 12 tonnes.", "line": 2, "start": 62}


def test_with_quotes_every_point_has_one() -> None:
    """A sentence that nothing in the text supports is left out, and the text's own sentences stand in; it is told."""
    said = "The lantern has a weight of 12 tonnes. The lighthouse was a gift of the king of Spain."
    task = Task(text=f"Summarize this: {ENGLISH.text}", arguments={"quotes": True, "num_sentences": 2})
    summary = asyncio.run(Fleet(ScriptedBackend([said]), [SummarizeAgent()]).run_agent("summarize", task))
    assert isinstance(summary, Summary)
    assert "Spain" not in str(summary) + summary.text
    assert summary.num_unsupported == 1
    assert [point.text for point in summary.points] == [
        "The lantern has a weight of 12 tonnes.",
        "The lighthouse of Velm opened in 1911.",
    ]
    for point in summary.points:
        assert point.quote is not None
        assert ENGLISH.text[point.quote.start : point.quote.start + len(point.quote.text)] == point.quote.text
    assert "1 sentence of the model is left out" in str(summary)
