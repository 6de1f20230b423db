"""Interfaces: any tree is mended, written for nine frameworks, and read back as it was; what is hostile stays text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.elements import CONTAINERS, KINDS, MAX_DEPTH, Element, check_bounds, walk, without_lines
from pyagent.logic.interfaces.frameworks import FRAMEWORKS, NAMES, FrameworkName, carried
from pyagent.logic.interfaces.layouts import read_layout
from pyagent.logic.interfaces.mending import mend

SAMPLES = Path(__file__).parents[1] / "data" / "interfaces"
HOSTILE = [
    '"; alert(1) //', "</script><script>alert(1)</script>", "{{x}}", "\\(x)", "$x", "${x}", "{x}", "[red]x[/]",
    "&amp; &", "'''", '"""', "<b>bold</b>", "a\\", "*/ }", "`${1}`", "%s %@", "#{x}", "-->", "&&", "_a_", "\\u0041",
    "\\n", "é 中 🙂", "* star *",
]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=12), st.sampled_from(["Email", "Save", "Your name", "Password"])
)
COLORS = st.sampled_from(["", "", "#fff", "#123456", "red", "#ABCDEF"])
IDS = st.one_of(st.just(""), st.sampled_from(["a", "save", "class", "Bad Id", "x-1", "a_1", "self", "values"]))


def _leaves() -> st.SearchStrategy[Element]:
    fields: dict[str, Any] = {
        "kind": st.sampled_from([kind for kind in KINDS if kind not in CONTAINERS]),
        "id": IDS,
        "text": TEXTS,
        "level": st.integers(0, 7),
        "type": st.sampled_from(["text", "email", "password", "number", "date", "search", "url", "tel"]),
        "required": st.booleans(),
        "checked": st.booleans(),
        "decorative": st.booleans(),
        "value": st.one_of(TEXTS, st.just("12"), st.just("2026-01-31")),
        "percent": st.integers(-5, 200),
        "options": st.lists(TEXTS, max_size=3).map(tuple),
        "head": st.lists(TEXTS, max_size=3).map(tuple),
        "rows": st.lists(st.lists(TEXTS, max_size=3).map(tuple), max_size=3).map(tuple),
        "source": st.sampled_from(["", "logo.png", "https://example.com/a.png?x=1&y=2", "javascript:alert(1)"]),
        "target": st.sampled_from(
            ["", "#", "/a?b=1&c=2", "https://example.com/", "JaVaScript:alert(1)", "data:text/html,x"]
        ),
        "color": COLORS,
        "background": COLORS,
        "size": st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    }
    return st.fixed_dictionaries(fields).map(lambda given: Element(**given))


def _boxes(inside: st.SearchStrategy[Element]) -> st.SearchStrategy[Element]:
    fields: dict[str, Any] = {
        "kind": st.sampled_from(sorted(CONTAINERS)),
        "id": IDS,
        "text": TEXTS,
        "columns": st.integers(0, 4),
        "language": st.sampled_from(["", "de", "en-GB", "x y"]),
        "color": COLORS,
        "background": COLORS,
        "children": st.lists(inside, max_size=4).map(tuple),
    }
    return st.fixed_dictionaries(fields).map(lambda given: Element(**given))


TREES = st.recursive(_leaves(), _boxes, max_leaves=10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=TREES)
def test_any_tree_is_read_back_from_each_framework_as_it_was_written(tree: Element) -> None:
    """What is written for a framework is read as the mended tree, but for fields that its code cannot say."""
    page, _ = mend(tree)
    assert mend(page) == (page, []), "mending a mended tree changes nothing"
    ids = [each.id for each in walk(page) if each.id]
    assert len(ids) == len(set(ids))
    for name, framework in FRAMEWORKS.items():
        code = framework.write(page)
        assert without_lines(framework.read(code)) == carried(page, framework), f"{name}\n{code}"


def _parsed(language: str, code: str) -> Any:
    tree_sitter = pytest.importorskip("tree_sitter")
    grammar = pytest.importorskip(f"tree_sitter_{language}")
    return tree_sitter.Parser(tree_sitter.Language(grammar.language())).parse(code.encode()).root_node


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=TREES)
def test_code_is_right_by_parsers_that_are_not_ours(tree: Element) -> None:
    """Python compiles; Swift, Dart and JSX have no fault for the grammars of tree-sitter."""
    page, _ = mend(tree)
    for name in ("tkinter", "pyside6", "textual"):
        compile(FRAMEWORKS[name].write(page), name, "exec")
    assert not _parsed("swift", FRAMEWORKS["swiftui"].write(page)).has_error
    assert not _parsed("dart_orchard", FRAMEWORKS["flutter"].write(page)).has_error


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_text_stays_text(name: FrameworkName, text: str) -> None:
    """A label that would end a string, a tag or an expression is one label when the code is read, and nothing more."""
    button = Element(kind="button", text=f"x{text}x")
    page, _ = mend(Element(kind="page", text="P", children=(button, Element(kind="checkbox", text=f"x{text}x"))))
    read = FRAMEWORKS[name].read(FRAMEWORKS[name].write(page))
    assert [each.kind for each in walk(read)] == ["page", "heading", "button", "checkbox"]
    assert [each.text for each in walk(read)][2:] == [f"x{text}x", f"x{text}x"]


@pytest.mark.parametrize("text", ["</script>", "{{x}}", "${x}"])
def test_a_hostile_title_ends_no_script(text: str) -> None:
    """A title that Vue sets by a script neither ends the script nor is computed."""
    page, _ = mend(Element(kind="page", text=f"a{text}b"))
    code = FRAMEWORKS["vue"].write(page)
    assert code.count("</script>") == 1
    assert FRAMEWORKS["vue"].read(code).text == f"a{text}b"


def test_scripts_are_no_addresses() -> None:
    """Addresses that would run a script become none."""
    link = Element(kind="link", text="Go", target="\x01java\tscript:alert(1)")
    page, notes = mend(
        Element(kind="page", text="P", children=(link, Element(kind="image", source="data:text/html,x")))
    )
    assert [(each.target, each.source) for each in page.children[1:]] == [("#", ""), ("", "image.png")]
    assert any("the address of go became '#'" in note for note in notes)


def test_mending_fills_in_what_is_missing() -> None:
    """Names, labels, unique ids, the order of headings, values that are no options: all by rules, and told."""
    page, notes = mend(
        Element(
            kind="column",
            children=(
                Element(kind="heading", text="One", level=3),
                Element(kind="heading", text="Two", level=5),
                Element(kind="input", id="user_name"),
                Element(kind="select", text="Size *", options=("S", "S", ""), value="M"),
                Element(kind="button", text="Go", id="go"),
                Element(kind="button", text="Go too", id="go"),
                Element(kind="radio", text="Nothing"),
                Element(kind="table", rows=(("A", "B"), ("1",))),
                Element(kind="tab", text="Lost"),
                Element(kind="row"),
            ),
        )
    )
    column = page.children[0]
    assert [each.kind for each in column.children] == [
        "heading", "heading", "input", "select", "button", "button", "input", "table",
    ]  # fmt: skip
    assert [each.level for each in column.children[:2]] == [1, 2]
    assert column.children[2].text == "User name"
    assert (column.children[3].text, column.children[3].required, column.children[3].options) == ("Size", True, ("S",))
    assert [each.id for each in column.children[4:6]] == ["go", "go_2"]
    assert (column.children[7].head, column.children[7].rows) == (("A", "B"), (("1", ""),))
    assert page.text == "One"
    assert "a radio without options became an input" in notes


def test_mending_bounds_values() -> None:
    """No password, unknown option, unsafe address, or number past its bounds is written; headings rise by one."""
    given = (
        Element(kind="heading", text="One"),
        Element(kind="heading", text="Deep", level=6),
        Element(kind="input", text="Secret", type="password", value="hunter2"),
        Element(kind="radio", text="Size", options=("S", "L"), value="M"),
        Element(kind="progress", text="Done", percent=400),
        Element(kind="grid", columns=500, children=(Element(kind="text", text="x"),)),
        Element(kind="button", text="Big", size=(90_000, -3)),
        Element(kind="link", text="Go", target="javascript:alert(1)"),
    )
    page, _ = mend(Element(kind="page", text="P", children=given))
    _, deep, secret, size, done, grid, big, link = page.children
    assert (deep.level, secret.value, size.value, done.percent) == (2, "", "", 100)
    assert (grid.columns, big.size, link.target) == (12, (4_000, 1), "#")
    assert mend(page) == (page, [])


def test_a_tree_past_the_bounds_is_refused() -> None:
    """Too deep, too many, too long, children of what has none: each is one error that says it."""
    deep = Element(kind="text", text="x")
    for _ in range(MAX_DEPTH):
        deep = Element(kind="row", children=(deep,))
    with pytest.raises(RequestError, match="nested more than 16 deep"):
        mend(deep)
    with pytest.raises(RequestError, match="more than 5,000 elements"):
        check_bounds(Element(kind="page", children=(Element(kind="text", text="x"),) * 5_000))
    with pytest.raises(RequestError, match="more than 2,000 characters"):
        check_bounds(Element(kind="text", text="x" * 2_001))
    with pytest.raises(RequestError, match="more than 200 options"):
        check_bounds(Element(kind="list", options=("x",) * 201))
    with pytest.raises(RequestError, match="a button holds no other elements"):
        check_bounds(Element(kind="button", children=(Element(kind="text", text="x"),)))


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        ('{"kind": "page", "children": [{"kind": "buton"}]}', "buton"),
        ('{"kind": "page", "colour": "red"}', "colour"),
        ("{" * 200_000, "neither JSON nor TOML|nested"),
        ("kind = ", "neither JSON nor TOML"),
        (
            '{"kind": "page", "children": ' + '[{"kind": "row", "children": ' * 3_000 + "[]" + "}]" * 3_000 + "}",
            "nested",
        ),
        ("x" * 400_001, "the most is 400,000"),
    ],
)
def test_a_layout_that_is_none_is_named(layout: str, fault: str) -> None:
    """A wrong kind or field, a text that ends too soon, one too deep and one too large are each one error."""
    with pytest.raises(RequestError, match=fault):
        read_layout(layout)


def test_json_and_toml_say_the_same() -> None:
    """A layout is read from either."""
    toml = 'kind = "page"\ntext = "P"\n[[children]]\nkind = "input"\ntext = "Email"\ntype = "email"\n'
    json = '{"kind": "page", "text": "P", "children": [{"kind": "input", "text": "Email", "type": "email"}]}'
    assert read_layout(toml) == read_layout(json)


@pytest.mark.parametrize(
    ("name", "code", "fault"),
    [
        ("tkinter", "def f(:\n", "line 1: this is not Python"),
        ("textual", "x = 1", "no class with `compose`"),
        ("pyside6", "(" * 5_000, "not Python"),
        ("react", "return (<div>", "line 1: this is not JSX"),
        ("svelte", "<p>{unclosed</p>", "line 1: a { is not closed"),
        ("flutter", "class A {}", "no widget"),
        ("flutter", "Widget build() { return Column(children: [", "is not closed"),
        ("swiftui", "import SwiftUI", "no `body`"),
        ("swiftui", "var body: some View { VStack {", "is not closed"),
        ("flutter", "return A(" + "b: [" * 5_000, "nested more than"),
        ("swiftui", "var body: some View {" + "VStack {" * 5_000, "nested more than"),
        ("html", "<div>" * 5_000, "nested more than 200 deep"),
    ],
)
def test_code_that_cannot_be_read_is_told_by_line(name: FrameworkName, code: str, fault: str) -> None:
    """What is broken, of another framework or too deep is one error with its place."""
    with pytest.raises(RequestError, match=re.escape(fault)):
        FRAMEWORKS[name].read(code)


def _texts(page: Element) -> list[str]:
    return [f"{each.kind}:{each.text}" for each in walk(page)]


def _sample(name: FrameworkName, file: str) -> Element:
    return FRAMEWORKS[name].read((SAMPLES / file).read_text(encoding="utf-8"))


def test_html_of_others_is_read_by_its_meaning() -> None:
    """Labels by `for`, by wrapping and by ARIA, roles, unclosed tags, hidden inputs, style sheets."""
    page = _sample("html", "shop.html")
    assert _texts(page)[1:9] == [
        "row:", "link:A", "link:B", "heading:Tea & more", "text:Dim text", "input:Name", "input:Your mail",
        "input:Phone",
    ]  # fmt: skip
    assert _texts(page)[9:] == ["list:", "button:Press", "image:", "button:Submit"]
    found = {each.text: each for each in walk(page)}
    assert (page.text, page.language, found["Dim text"].color) == ("Shop", "de", "#999999")
    assert found["Your mail"].required
    assert found["Phone"].required
    assert [each.options for each in walk(page) if each.kind == "list"] == [("one", "two")]
    assert found["Phone"].line == 5


def test_react_of_others_is_read_with_what_it_shows_by_conditions() -> None:
    """Components by their names, what `&&` and `map` show, texts that are computed, styles as objects."""
    page = _sample("react", "app.jsx")
    assert _texts(page)[1:4] == ["column:", "heading:{title}", "button:Save"]
    assert _texts(page)[4:] == ["text:{i.name}", "input:{t('mail')}", "button:x"]
    last = page.children[0].children[-1]
    assert (last.color, last.size, last.line) == ("#777777", (20, 20), 8)


def test_python_of_others_is_read_by_its_calls() -> None:
    """Labels that stand before their entries, widgets of `self`, `pack` in a chain, grids by their places, forms."""
    page = _sample("tkinter", "tkinter_form.txt")
    assert (page.text, _texts(page)[1:]) == ("Form", ["grid:", "input:Name", "input:Mail", "button:{label}"])
    page = _sample("pyside6", "qt_form.txt")
    assert page.text == "Form"
    assert _texts(page)[-4:] == ["input:Name", "text:A && B", "checkbox:Salt & pepper", "button:Save"]


def test_swift_and_dart_of_others_are_read() -> None:
    """Titles as first arguments, `if` within views and lists, trailing closures, `MaterialApp` around."""
    page = _sample("swiftui", "view.swift")
    assert page.text == "Title"
    assert _texts(page)[1:] == ["input:Name", "text:Empty", "text:Full", "button:Save", "checkbox:On"]
    page = _sample("flutter", "page.dart")
    assert page.text == "T"
    assert _texts(page)[-3:] == ["text:{'Hi $name'}", "input:Name", "button:Go"]
