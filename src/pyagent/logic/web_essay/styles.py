"""The six forms of an essay: how many statements, how they are parted, and under which headings they stand. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.logic.web_essay.checking import Check, Claim
from pyagent.logic.web_essay.sources import Source

StyleName = Literal["report", "news", "academic", "blog", "briefing", "explainer"]


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of the essay, and the numbers of the sources that say so."""

    text: str
    sources: tuple[int, ...]

    def __str__(self) -> str:
        cited = "".join(f"[{number}]" for number in self.sources)
        end = len(self.text.rstrip(".!?…。！？"))
        return f"{self.text[:end]} {cited}{self.text[end:] or '.'}"


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sentences below a heading, which may be empty."""

    sentences: list[Sentence]
    heading: str = ""


class Style(msgspec.Struct, frozen=True):
    """A form: what a model is told of its tone, how many statements it takes, and how many make a paragraph."""

    tone: str
    num_notes: int
    paragraph_size: int
    headings: tuple[str, ...]
    agreed: str
    disputed: str
    sources: str
    is_list: bool = False


STYLES: dict[StyleName, Style] = {
    "report": Style(
        "sober and plain, as in a report",
        12,
        3,
        ("Summary", "Findings"),
        "What sources agree on",
        "Where sources disagree",
        "Sources",
    ),
    "news": Style(
        "short sentences, the most important first, as in a news agency's text", 8, 2, (),
        "Confirmed by several sources", "Accounts differ", "Sources",
    ),
    "academic": Style(
        "precise and impersonal, as in a journal", 12, 4, ("Abstract", "Evidence"), "Corroboration",
        "Discussion: conflicting evidence", "References",
    ),
    "blog": Style(
        "friendly and clear, as in a blog", 9, 3, ("The short version", "A closer look"), "What you can rely on",
        "Not everybody agrees", "Read it yourself",
    ),
    "briefing": Style(
        "terse", 9, 1, ("Key points",), "Agreed", "Disputed", "Sources", is_list=True
    ),
    "explainer": Style(
        "simple words, for a reader who knows nothing of it", 9, 3, ("What is it?", "What else is there to know?"),
        "What do the figures say?", "What is not settled?", "Where is this from?",
    ),
}  # fmt: skip


def laid_out(
    title: str, style: StyleName, paragraphs: Sequence[Paragraph], checks: Sequence[Check], sources: Sequence[Source]
) -> str:
    """Return the essay in Markdown: what it says, what sources agree and disagree on with quotes, and the sources."""
    form = STYLES[style]
    blocks = [f"# {title}"]
    for paragraph in paragraphs:
        if paragraph.heading:
            blocks.append(f"## {paragraph.heading}")
        sentences = [str(sentence) for sentence in paragraph.sentences]
        blocks.append("\n".join(f"- {each}" for each in sentences) if form.is_list else " ".join(sentences))
    agreed = [_agreement(check) for check in checks if check.verdict == "agree"]
    disputed = [_dispute(check) for check in checks if check.verdict == "disagree"]
    if agreed:
        blocks += [f"## {form.agreed}", "\n".join(agreed)]
    if disputed:
        blocks += [f"## {form.disputed}", "\n".join(disputed)]
    return "\n\n".join([*blocks, f"## {form.sources}", "\n".join(f"{source}  " for source in sources)])


def _agreement(check: Check) -> str:
    numbers = "".join(f"[{claim.source}]" for claim in check.claims)
    return f"- {check.about}: {check.claims[0].value} {numbers}"


def _dispute(check: Check) -> str:
    return "\n".join([f"- {check.about}", *(f"  - {_claimed(claim)}" for claim in check.claims)])


def _claimed(claim: Claim) -> str:
    value = f"{claim.value}: " if claim.value else ""
    return f"{value}“{claim.quote}” [{claim.source}]"
