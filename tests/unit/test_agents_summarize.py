"""The summarize agent: how texts are split, what the model is asked, and what comes of bad input."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import AgentError, BudgetError, ContextOverflowError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.parts import sentences, split_text, weight
from pyagent.logic.agents.summarize import SummarizeAgent, Summary
from pyagent.testing import Reply, ScriptedBackend

_PARAGRAPH = "The ship left the harbour at dawn. Nobody saw it go, and nobody asked why. " * 5
_LONG = "\n\n".join(f"Part {n}. {_PARAGRAPH}" for n in range(60))


@given(st.text(alphabet="ab .?\n。中é😀", max_size=400), st.integers(10, 60))
def test_split_keeps_every_word(text: str, limit: int) -> None:
    """Parts stay within the limit, none is empty, and joined they hold every character that is not space, in order."""
    parts = split_text(text, limit)
    assert all(0 < weight(part) <= max(limit, 10) for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_split_prefers_paragraphs_and_equal_parts() -> None:
    """A text of many paragraphs is cut between them, into parts of about one length."""
    parts = split_text(_LONG, 3600)
    assert all(part.startswith("Part ") for part in parts)
    assert max(map(len, parts)) < 2 * min(map(len, parts))


def _answer(request: ChatRequest) -> str:
    return "whole." if "4 sentences" in request.messages[0].text else "part."


def _fleet(**limits: int) -> Fleet:
    return Fleet(ScriptedBackend(_answer), [SummarizeAgent()], limits=FleetLimits(**limits))


def test_long_text_is_summarized_in_parts_that_share_a_prompt() -> None:
    """Every part is asked about under one system prompt, and the parts' summaries make the whole."""
    fleet = _fleet()
    summary = asyncio.run(fleet.run_agent("summarize", _LONG))
    requests: list[ChatRequest] = fleet.backend.requests  # type: ignore[attr-defined]
    assert isinstance(summary, Summary)
    assert str(summary) == "whole."
    assert summary.parts == ["part."] * (len(requests) - 1)
    assert summary.num_words == len(_LONG.split())
    assert len({request.messages[0].text for request in requests[:-1]}) == 1
    asked = "".join(request.messages[1].text for request in requests[:-1])
    assert all(f"Part {n}." in asked for n in range(60))
    assert requests[-1].messages[1].text.endswith("part.\npart.")


def test_summaries_that_are_long_themselves_are_summarized_again() -> None:
    """When the parts' summaries do not fit one prompt they go through another round."""
    fleet = Fleet(
        ScriptedBackend(lambda r: "x " * 300 if "3 sent" in r.messages[0].text else "end"), [SummarizeAgent(1000)]
    )
    assert str(asyncio.run(fleet.run_agent("summarize", _LONG))) == "end"
    assert all(len(request.messages[1].text) < 1700 for request in fleet.backend.requests)  # type: ignore[attr-defined]


def test_summaries_as_long_as_their_texts_end_the_job() -> None:
    """A model that only repeats what it reads is found out, instead of being asked for ever."""
    backend = ScriptedBackend(lambda request: " ".join(request.messages[-1].text.replace(".", ",").split()))
    with pytest.raises(AgentError, match="as long as their texts"):
        asyncio.run(Fleet(backend, [SummarizeAgent()]).run_agent("summarize", _LONG))


def test_short_text_is_one_call_without_its_instruction() -> None:
    """A short text needs one call; the words `Summarise this:` are no part of it."""
    fleet = _fleet()
    asyncio.run(fleet.run_agent("summarize", "Please summarise this text:\nThe cat sat."))
    (request,) = fleet.backend.requests  # type: ignore[attr-defined]
    assert request.messages[1].text == "The cat sat."


def test_files_and_results_are_summarized(tmp_path: Path) -> None:
    """A file's text is what is summarized; so are results handed on by earlier steps."""
    (tmp_path / "a.txt").write_text("The dog ran.")
    fleet = _fleet()
    asyncio.run(fleet.run_agent("summarize", "Summarize", files=[str(tmp_path / "a.txt")]))
    asyncio.run(fleet.run_agent("summarize", Task(text="Summarize", results={"x": "The bird flew."})))
    texts = [request.messages[1].text for request in fleet.backend.requests]  # type: ignore[attr-defined]
    assert "The dog ran." in texts[0]
    assert "The bird flew." in texts[1]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.txt", None, "there is no file or folder"),
        ("binary.txt", b"\xff\xfe\x00", "not text"),
        ("nul.txt", b"a\0b", "has no text"),
        ("empty.txt", b" \n", "has no text"),
        ("bad.pdf", b"%PDF-1.4 nonsense", r"bad\.pdf"),
    ],
)
def test_unreadable_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    """A file that is missing, binary or empty is refused with its name and what is wrong."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=reason):
        asyncio.run(_fleet().run_agent("summarize", "summarize", files=[str(tmp_path / name)]))


def test_folder_is_refused(tmp_path: Path) -> None:
    """A folder is no document."""
    with pytest.raises(RequestError, match="is a folder"):
        asyncio.run(_fleet().run_agent("summarize", "summarize", files=[str(tmp_path)]))


@pytest.mark.parametrize("arguments", [{"num_sentences": 0}, {"num_sentences": "4"}, {"sentences": 4}])
def test_bad_arguments_are_refused(arguments: dict[str, object]) -> None:
    """Arguments of another type, range or name are refused."""
    with pytest.raises(RequestError):
        asyncio.run(_fleet().run_agent("summarize", Task(text="x", arguments=arguments)))


def test_budget_bounds_the_whole_job() -> None:
    """A text too long for the budget ends in a budget error, not in unbounded calls."""
    with pytest.raises(BudgetError):
        asyncio.run(_fleet(run_tokens=5_000).run_agent("summarize", _LONG))


def test_failing_part_fails_the_job() -> None:
    """A part without a summary is not silently left out."""
    backend = ScriptedBackend(["part.", " "])
    with pytest.raises(PyAgentError):
        asyncio.run(Fleet(backend, [SummarizeAgent()]).run_agent("summarize", _LONG))


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        (f"Summarise this: {_PARAGRAPH}", True),
        (f"tl;dr please\n{_PARAGRAPH}", True),
        (_LONG, True),
        ("What is 2+2?", False),
        ("Summarize the plot of Hamlet", False),
    ],
)
def test_score_wants_a_text(text: str, is_taken: bool) -> None:
    """Wishes for a summary of something that is there score high, and long texts; a wish alone is a question."""
    assert ((SummarizeAgent().score(Task(text=text)) or 0.0) > 0.5) is is_taken


def test_dense_scripts_are_cut_into_smaller_parts() -> None:
    """5,300 characters of Chinese, about two tokens each, come in parts that fit a context of 2,048 tokens."""
    text = "他们在清晨离开港口，没有人看见。" * 332
    fleet = Fleet(ScriptedBackend(_answer), [SummarizeAgent()])
    assert str(asyncio.run(fleet.run_agent("summarize", f"Summarize: {text}"))) == "whole."
    prompts = [request.messages[1].text for request in fleet.backend.requests]  # type: ignore[attr-defined]
    assert max(map(len, prompts)) <= 1_800 * 3 // 8
    assert "".join(prompts[:-1]) == text


def test_part_that_does_not_fit_the_model_is_cut_in_two() -> None:
    """A text that has more tokens than was estimated is asked about in halves, and nothing is lost."""
    seen: list[str] = []

    def answer(request: ChatRequest) -> Reply | str:
        text = request.messages[1].text
        if len(text) > 1_000:
            return Reply(text="x", error=ContextOverflowError("too long", num_tokens=9_504, limit=8_192))
        seen.append(text)
        return _answer(request)

    fleet = Fleet(ScriptedBackend(answer), [SummarizeAgent()])
    asyncio.run(fleet.run_agent("summarize", _LONG))
    assert all(any(f"Part {n}." in part for part in seen) for n in range(60))


@pytest.mark.parametrize("num_sentences", [1, 2, 4])
def test_number_of_sentences_is_kept(num_sentences: int) -> None:
    """However much the model says, in lists and paragraphs too, the summary has that many sentences."""
    said = "1. Dr. Ito found 3.5 grams. It was gold!\n\n2. He told her.\n- She left.\n\nA fifth one."
    task = Task(text=f"Summarize: {_PARAGRAPH}", arguments={"num_sentences": num_sentences})
    summary = asyncio.run(Fleet(ScriptedBackend([said]), [SummarizeAgent()]).run_agent("summarize", task))
    assert isinstance(summary, Summary)
    assert len(sentences(summary.text)) == num_sentences
    assert summary.text.startswith("Dr. Ito found 3.5 grams.")


def test_cut_sentence_is_left_out_or_told() -> None:
    """A summary does not end in the middle of a sentence; one that is nothing but its beginning says so."""
    task = f"Summarize: {_PARAGRAPH}"
    replies = [
        Reply(text="It was gold. The code-", finish_reason="length"),
        Reply(text="The ship left and", finish_reason="length"),
        "A short note",
    ]
    fleet = Fleet(ScriptedBackend(replies), [SummarizeAgent()])
    assert str(asyncio.run(fleet.run_agent("summarize", task))) == "It was gold."
    assert str(asyncio.run(fleet.run_agent("summarize", task))) == "The ship left and […]"
    assert str(asyncio.run(fleet.run_agent("summarize", task))) == "A short note"


def test_question_given_with_the_file_is_looked_for(tmp_path: Path) -> None:
    """What the wish names reaches the model with every part; a plain wish adds nothing."""
    (tmp_path / "a.txt").write_text(_LONG)
    fleet = _fleet()
    for text in ("What does it say about harbours?", "Please summarize this file in 4 sentences."):
        asyncio.run(fleet.run_agent("summarize", text, files=[str(tmp_path / "a.txt")]))
    systems = [request.messages[0].text for request in fleet.backend.requests]  # type: ignore[attr-defined]
    half = len(systems) // 2
    assert all("say about harbours?" in system for system in systems[:half])
    assert all("above all" not in system for system in systems[half:])
