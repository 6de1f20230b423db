"""Flags that say what answers must look like: read and checked before a model is asked."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject

if TYPE_CHECKING:
    from pyagent.core.response_format import ResponseFormat

Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="FILE|JSON", help="Answers are JSON that follows this schema: a file, or itself."),
]
Regex = Annotated[
    str | None, typer.Option("--regex", metavar="R", help="Answers match this regular expression as a whole.")
]
Choice = Annotated[
    list[str] | None, typer.Option("--choice", metavar="A,B", help="Answers are one of these texts. May be repeated.")
]
Grammar = Annotated[
    str | None, typer.Option("--grammar", metavar="FILE", help="Answers follow the grammar in this file: Lark or GBNF.")
]
_MAX_BYTES = 4_000_000
_OWN_NAME = re.compile(r"response_format(?:\.\w+)*")


def answer_form(
    schema: str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> ResponseFormat | None:
    """Return what the flags ask for; None for any text. Raises `typer.BadParameter` naming the flag at fault."""
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None, "--grammar": grammar}
    flags = [flag for flag, value in given.items() if value is not None]
    if not flags:
        return None
    if len(flags) > 1:
        raise typer.BadParameter(f"{flags[0]} and {flags[1]} exclude each other; give one of them")
    if given[flags[0]] == "":
        raise typer.BadParameter("it is empty", param_hint=flags[0])
    from pyagent.core.structured_output.matching import ModelTokensError, check_format
    from pyagent.core.structured_output.wanted import Wanted

    try:
        found = Wanted(
            schema=None if schema is None else _schema(schema),
            regex=regex,
            choice=None if not choice else [text.strip() for one in choice for text in one.split(",")],
            grammar=None if grammar is None else _text(grammar),
        ).response_format
        assert found is not None
        with suppress(ModelTokensError):  # what those are, only the model's engine can tell
            check_format(found)
    except RequestError as error:
        raise typer.BadParameter(_OWN_NAME.sub(flags[0], str(error)), param_hint=flags[0]) from error
    return found


def _schema(given: str) -> JsonObject:
    text = given if given.lstrip().startswith("{") else _text(given)
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(f"a schema is a JSON object: {error}") from error


def _text(file: str) -> str:
    try:
        with Path(file).expanduser().open("rb") as opened:
            read = opened.read(_MAX_BYTES + 1)
        text = read.decode()
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{file} is not UTF-8 text: {error.reason}") from error
    if len(read) > _MAX_BYTES or not text.strip():
        raise RequestError(f"{file} is empty" if not text.strip() else f"{file} has more than {_MAX_BYTES:,} bytes")
    return text
