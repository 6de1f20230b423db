"""What is found in trees of elements: faults against WCAG 2.2, elements by name; what words and drafts become."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyagent.logic.interfaces.audit import Rules, audit
from pyagent.logic.interfaces.colors import contrast, read_color
from pyagent.logic.interfaces.drafts import page_from_draft
from pyagent.logic.interfaces.elements import Element, walk
from pyagent.logic.interfaces.found import ElementCache, content_hash, find, stamp_of
from pyagent.logic.interfaces.frameworks import FRAMEWORKS, NAMES, FrameworkName, framework_in, framework_of
from pyagent.logic.interfaces.mending import mend
from pyagent.logic.interfaces.words import page_from_words

WEB = Rules(color="#000000", background="#ffffff")


def _page(*children: Element, **fields: str) -> Element:
    return Element(kind="page", text=fields.pop("text", "P"), language="en", children=children, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("#000000", "#ffffff", 21.0),
        ("#777777", "#ffffff", 4.48),
        ("#767676", "#ffffff", 4.54),
        ("#ff0000", "#ffffff", 4.0),
    ],
)
def test_contrast_is_that_of_wcag(one: str, other: str, ratio: float) -> None:
    """Ratios that WCAG's techniques and every checker give for these colours, in either order."""
    assert contrast(one, other) == contrast(other, one) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(
    ("written", "color"),
    [
        ("#FFF", "#ffffff"),
        ("rgb(1, 2, 3)", "#010203"),
        ("Red", "#ff0000"),
        ("#ff000080", ""),
        ("rgb(256,0,0)", ""),
        ("var(--x)", ""),
    ],
)
def test_colors_are_read_or_passed_over(written: str, color: str) -> None:
    """A colour that lets others through, is computed or is none is not guessed."""
    assert read_color(written) == color


@pytest.mark.parametrize(
    ("element", "criterion", "figure"),
    [
        (Element(kind="input"), "1.3.1, 3.3.2, 4.1.2", "the input has no label"),
        (Element(kind="button"), "4.1.2", "the button has no name"),
        (Element(kind="link"), "2.4.4, 4.1.2", "the link has no text"),
        (Element(kind="link", text="click here"), "2.4.4", "'click here' does not say"),
        (Element(kind="image"), "1.1.1", "no alternative text"),
        (Element(kind="image", text="IMG_1.png"), "1.1.1", "is a file's name"),
        (Element(kind="radio", options=("A", "B")), "1.3.1, 3.3.2", "2 radio buttons have no common label"),
        (Element(kind="table", rows=(("1",),)), "1.3.1", "1 rows have no head"),
        (Element(kind="heading", level=2), "1.3.1, 2.4.6", "the heading is empty"),
        (Element(kind="text", text="x", color="#999999"), "1.4.3", "#999999 on #ffffff has a contrast of 2.84"),
        (Element(kind="heading", text="x", level=1, color="#aaaaaa"), "1.4.3", "contrast of 2.32, expected 3"),
        (Element(kind="button", text="x", size=(23, 40)), "2.5.8", "23 by 40 pixels, expected 24 by 24"),
        (Element(kind="input", text="Email"), "1.3.5", "its purpose is not told"),
        (Element(kind="group", children=(Element(kind="text", text="x"),)), "1.3.1", "the group has no name"),
    ],
)  # fmt: skip
def test_each_fault_is_found_with_its_criterion_and_figure(element: Element, criterion: str, figure: str) -> None:
    """One faulty element in a page that is right otherwise is one finding."""
    findings = audit(_page(element), WEB)
    assert [finding.criterion for finding in findings] == [criterion]
    assert figure in findings[0].figure
    assert findings[0].mend


@pytest.mark.parametrize(
    "element",
    [
        Element(kind="image", decorative=True),
        Element(kind="text", text="x", color="#767676"),
        Element(kind="heading", text="x", level=1, color="#949494"),
        Element(kind="button", text="x", size=(24, 24)),
        Element(kind="button", text="x", color="#999999"),
        Element(kind="input", text="Email", type="email", autocomplete="email"),
        Element(kind="link", text="Read more about tea"),
    ],
)
def test_what_is_right_or_not_known_is_not_told(element: Element) -> None:
    """A decorative image, colours just enough, a button before a theme's colour: no finding."""
    assert audit(_page(element), WEB) == []


def test_faults_of_the_whole_page_are_found() -> None:
    """A missing title and language, a skipped level, an id used twice, a mail asked for twice."""
    mail = Element(kind="input", id="mail", text="Email", type="email", autocomplete="email")
    levels = (Element(kind="heading", text="A", level=1), Element(kind="heading", text="B", level=3))
    findings = audit(Element(kind="page", children=(*levels, mail, mail)), WEB)
    assert [finding.criterion for finding in findings] == ["2.4.2", "3.1.1", "1.3.1", "3.3.7", "1.3.1, 4.1.2"]
    assert [
        finding.criterion for finding in audit(Element(kind="page", text="P"), Rules(frozenset({"language"})))
    ] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_we_write_has_no_finding(name: FrameworkName) -> None:
    """A described page passes our own audit in each framework, as its code is read back."""
    described = page_from_words("a sign up form with name, email, password, country (A, B), terms box and a logo")
    page = FRAMEWORKS[name].read(FRAMEWORKS[name].write(mend(described.page)[0]))
    assert audit(page, Rules(FRAMEWORKS[name].loses)) == []


@pytest.mark.parametrize(
    ("description", "elements"),
    [
        (
            "a login form with email, password and a remember me box",
            ["heading Log in", "input Email", "input Password", "checkbox Remember me", "button Log in"],
        ),
        ("a contact form", ["heading Contact", "input Name", "input Email", "area Message", "button Send"]),
        (
            "settings with a toggle for dark mode, volume (low; high), save and cancel buttons",
            ["heading Settings", "checkbox Dark mode", "select Volume", "row ", "button Save", "button Cancel"],
        ),
        (
            'a page with a heading "Fresh bread", a table of prices with columns Bread, Price and a link to the shop',
            ["heading Fresh bread", "table Prices", "link Shop"],
        ),
        (
            "a form with terms and conditions and age (required)",
            ["checkbox Terms and conditions", "input Age", "button Send"],
        ),
    ],
)
def test_words_become_what_they_name(description: str, elements: list[str]) -> None:
    """What a description names stands in the page, in its order, without a model."""
    found = page_from_words(description)
    assert found.is_named
    assert [f"{each.kind} {each.text}" for each in walk(found.page)][-len(elements) :] == elements


def test_words_that_name_nothing_say_so() -> None:
    """An aim without an element is for the model; hostile lengths end at once."""
    assert not page_from_words("plan my holiday").is_named
    assert page_from_words("a form with " + "x, " * 100_000).page.children
    assert page_from_words("(" * 100_000).page.text


def test_a_draft_adds_only_what_is_not_there() -> None:
    """What the description names comes first; copies of it, of the prompt's example, and broken lines are left out."""
    named = page_from_words("a form with email").page
    draft = "page: Order\nsection: More\ninput: Email\nnumber: Guests\nselect: Size (Small; Large)\n"
    draft += "select: Room (One; Two)\nx"
    page = page_from_draft(draft, named, is_named=True)
    shown = [f"{each.kind} {each.text}" for each in walk(page)]
    assert shown[-4:] == ["button Send", "heading More", "input Guests", "select Room"]
    alone = page_from_draft("page: Trip\nsection: Trip\ndate: Start\nend", page_from_words("plan").page, is_named=False)
    assert [f"{each.kind} {each.text}" for each in walk(alone)] == ["page Trip", "heading Trip", "input Start"]


def test_frameworks_are_told_by_words_files_and_code() -> None:
    """`in React`, a suffix, an import."""
    assert framework_in("make a form in React please") == "react"
    assert framework_in("a form about reactions") is None
    assert framework_of("a.vue", "") == "vue"
    assert framework_of("a.py", "import sys\nfrom textual.app import App") == "textual"
    assert framework_of("", "<!DOCTYPE html>") == "html"


def test_elements_are_found_by_name_role_and_hash() -> None:
    """The one that fits best, where it stands; a role that is asked for must be its own."""
    page = mend(page_from_words("a form with save, a save button, a link to saved pages").page)[0]
    pages = [("a.html", page)]
    assert [(each.kind, each.text) for each in find(pages, "where is the save button?")] == [("button", "Save")]
    assert [each.kind for each in find(pages, "links")] == ["link"]
    assert find(pages, "where is the delete button?") == []
    button = next(each for each in walk(page) if each.kind == "button")
    assert [each.text for each in find(pages, f"#{content_hash(button)}")] == ["Save"]


def test_a_cached_page_is_used_until_its_file_changes(tmp_path: Path) -> None:
    """A file as it was is not read again; one that changed is; what is least used goes first."""
    path, page = tmp_path / "a.html", _page()
    path.write_text("x")
    cache = ElementCache(max_bytes=400)
    cache.keep("html", "x", page, path, stamp_of(path))
    assert cache.page_of_file(path) is page
    assert cache.page_of_code("html", "x") is page
    assert cache.page_of_code("vue", "x") is None
    path.write_text("y")
    os.utime(path, ns=(1, 1))
    assert cache.page_of_file(path) is None
    for number in range(20):
        cache.keep("html", str(number), page, None, None)
    assert cache.page_of_code("html", "x") is None
