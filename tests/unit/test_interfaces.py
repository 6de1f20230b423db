"""Interfaces: any tree is mended, written for nine frameworks, and read back as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyagent.logic.interfaces.elements import CONTAINERS, KINDS, Element, walk, without_lines
from pyagent.logic.interfaces.frameworks import FRAMEWORKS, carried
from pyagent.logic.interfaces.mending import mend

HOSTILE = [
    '"; alert(1) //', "</script><script>alert(1)</script>", "{{x}}", "\\(x)", "$x", "${x}", "{x}", "[red]x[/]", "&amp; &", "'''", '"""',
    "<b>bold</b>", "a\\", "*/ }", "`${1}`", "%s %@", "#{x}", "-->", "&&", "_a_", "\\u0041", "\\n", "é 中 🙂", "* star *",
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
