"""The words of docs/contributing/language.md: those that are out stay out, and texts for users are understood alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyagent.core.settings import Section, Settings, sections_in, settings_in

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/contributing/language.md").read_text()
PLACES = {
    "everywhere": ("src", "plugins", "rust_core", "examples"),
    "the engine's Python": ("src/pyagent/infrastructure/engine",),
    "PyAgent's Python": ("src",),
    "the chain": ("src/pyagent/core/chain", "src/pyagent/core/resilience"),
    "the server": ("src/pyagent/infrastructure/server",),
}
QUOTED_WORDS = {"injection_rules.py", "manipulation_rules.py", "mood.py", "queries.py", "styles.py"}
"""Files that list what other people write, to find it, or name a style of texts as people do."""
VAGUE = re.compile(r"^(of (these|it|them)|these|those|they|it|its|what|until|from|between|such)\b", re.IGNORECASE)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page."""
    lines = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def words_that_are_out() -> list[tuple[str, str]]:
    return [(word.strip(" `"), place) for out, _, place in rows("Words that are out") for word in out.split(",")]


def sources(place: str) -> Iterator[Path]:
    for folder in PLACES[place]:
        for suffix in ("*.py", "*.pyi", "*.rs"):
            yield from (
                path
                for path in (ROOT / folder).rglob(suffix)
                if not {"target"} & {*path.parts} and path.name not in QUOTED_WORDS
            )


@pytest.mark.parametrize(("word", "place"), words_that_are_out())
def test_word_that_is_out_is_not_used(word: str, place: str) -> None:
    """No source file where the page says so has the word."""
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    found = [str(path.relative_to(ROOT)) for path in sources(place) if pattern.search(path.read_text())]
    assert not found, f"{word!r} is out"


def test_glossary_is_sorted_and_in_the_index() -> None:
    """Each term of the glossary stands once, in order, and the documentation's first page leads there."""
    terms = [term.casefold() for term, _ in rows("Glossary")]
    assert terms == sorted(set(terms))
    assert "contributing/language.md" in (ROOT / "docs/index.md").read_text()


def settings_of(section: type[Section], path: str = "") -> Iterator[tuple[str, str]]:
    for name, setting in settings_in(section).items():
        yield f"{path}{name}", setting.meaning
    for name, inner in sections_in(section).items():
        yield from settings_of(inner, f"{path}{name}.")


@pytest.mark.parametrize(("name", "text"), list(settings_of(Settings)))
def test_setting_is_understood_alone(name: str, text: str) -> None:
    """A setting's description has a noun of its own: it leans on no other setting's."""
    assert len(text.split()) >= 5, f"{name}: {text}"
    assert not re.match(r"(its?|these|those|they|of (it|these|them))\b", text, re.IGNORECASE), f"{name}: {text}"
    assert not re.search(r"\b(for them|such a response|so long)\b", text), f"{name}: {text}"


def help_texts() -> list[str]:
    """The HELP texts of all metrics, as the exporters' sources have them."""
    folder = ROOT / "src/pyagent/infrastructure/observability"
    code = "\n".join(path.read_text() for path in folder.glob("*metrics.py"))
    named = re.findall(
        r'(?:\(\s*"[a-z_]+"|MetricFamily\(\s*f?"[^"]+"|_(?:gauge|counter)\(\s*"[a-z_]+"),\s*"([^"]{4,})"', code
    )
    return sorted({text for text in named if " " in text or text.endswith(".")})


@pytest.mark.parametrize("text", help_texts())
def test_help_of_a_metric_is_understood_alone(text: str) -> None:
    """A metric's HELP text names what it counts, is a sentence's length, and points to no other metric."""
    assert len(text.split()) >= 3
    assert text.endswith(".")
    assert not VAGUE.match(text)


def test_help_texts_are_found() -> None:
    """The exporters' texts are all read by the test above."""
    assert len(help_texts()) >= 35


def test_advice_installs_what_is_on_an_index() -> None:
    """No message and no page tells anybody to install PyAgent's own distributions, which no package index has yet."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *sources("everywhere")]
    advice = re.compile(r"pip install ['\"]?pyagent")
    assert not [str(page.relative_to(ROOT)) for page in pages if advice.search(page.read_text())]
