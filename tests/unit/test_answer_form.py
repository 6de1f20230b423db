"""What the flags of the command line ask an answer to be: read, checked, and refused by the flag's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from pyagent.cli.answer_form import answer_form
from pyagent.core.response_format import GrammarFormat, JsonSchemaFormat, ResponseFormat

GBNF = 'root ::= [1-9] "+" [1-9]'


def test_each_flag_asks_for_its_form(tmp_path: Path) -> None:
    """A schema stands there itself or in a file; choices are parted by commas, and may be repeated."""
    (tmp_path / "a.json").write_text('\n{"type": "null"}')
    (tmp_path / "sum.gbnf").write_text(GBNF)
    schema = ResponseFormat("json_schema", JsonSchemaFormat(schema={"type": "null"}))
    assert answer_form(None, None, [], None) is None
    assert answer_form(' {"type": "null"}', None, None, None) == schema
    assert answer_form(str(tmp_path / "a.json"), None, None, None) == schema
    assert answer_form(None, "a+", None, None) == ResponseFormat("regex", regex="a+")
    choice = ResponseFormat("choice", choice=["yes", "no", "may be"])
    assert answer_form(None, None, ["yes, no", "may be"], None) == choice
    grammar = ResponseFormat("grammar", grammar=GrammarFormat(GBNF, "gbnf"))
    assert answer_form(None, None, None, str(tmp_path / "sum.gbnf")) == grammar
    (tmp_path / "tokens.lark").write_text("start: <[7]>")  # only the model's engine can tell what that is
    assert answer_form(None, None, None, str(tmp_path / "tokens.lark")) is not None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("{", None, None, None), "a schema is a JSON object"),
        (("none.json", None, None, None), "none.json cannot be read: No such file"),
        (("list.json", None, None, None), "a schema is a JSON object"),
        (('{"$ref": "#"}', None, None, None), "leads back to itself"),
        (('{"pattern": "(a{999}){999}"}', None, None, None), "repetitions within repetitions"),
        ((None, "(?=a)b", None, None), "--regex cannot be enforced"),
        ((None, "", None, None), "it is empty"),
        ((None, None, ["a,,b"], None), "--choice needs at least one text"),
        ((None, "a", ["b"], None), "--regex and --choice exclude each other"),
        ((None, None, None, "bad.gbnf"), "line 1, column 10: this \\( is not closed"),
        ((None, None, None, "bytes.gbnf"), "is not UTF-8"),
        ((None, None, None, "/dev/zero"), "has more than 4,000,000 bytes"),
        ((None, None, None, "."), "cannot be read"),
    ],
)
def test_form_that_cannot_be_names_its_flag(
    flags: tuple[str | None, str | None, list[str] | None, str | None],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be read or enforced is wrong usage, told by the flag's name."""
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[]")
    Path("bad.gbnf").write_text("root ::= (")
    Path("bytes.gbnf").write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter, match=says):
        answer_form(*flags)
