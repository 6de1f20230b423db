"""What a program asks an answer to be (a type, a schema, a choice, a regex, a grammar), and the answer read as that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast  # Any: a type that the program chooses

import msgspec

from pyagent.core.errors import InvalidOutputError, RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_format import GrammarFormat, JsonSchemaFormat, ResponseFormat
from pyagent.core.structured_output.matching import Beginning, fault_of_text, told_of_stop
from pyagent.core.structured_output.work import checked_aside

Schema = type[Any] | JsonObject
"""A Pydantic model, a msgspec struct, any type that msgspec reads, or a JSON schema."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most one of them; none is any text."""

    schema: Schema | None = None
    choice: Sequence[str] | None = None
    regex: str | None = None
    grammar: str | GrammarFormat | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("schema", "choice", "regex", "grammar") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(f"{given[0]} and {given[1]} exclude each other; give one of them", param=given[1])

    @property
    def response_format(self) -> ResponseFormat | None:
        """The format to ask for; None for any text. Raises `RequestError` for a type that has no JSON schema."""
        if self.schema is not None:
            return ResponseFormat("json_schema", json_schema_of(self.schema))
        if self.choice is not None:
            return ResponseFormat("choice", choice=list(self.choice))
        if self.regex is not None:
            return ResponseFormat("regex", regex=self.regex)
        if self.grammar is not None:
            grammar = GrammarFormat.of(self.grammar) if isinstance(self.grammar, str) else self.grammar
            return ResponseFormat("grammar", grammar=grammar)
        return None

    async def read_aside(self, text: str, deadline: Deadline, tenant: str = "", *, stop: Sequence[str] = ()) -> object:
        """Read as `read` does, while the event loop goes on; types of the program's are read where it runs.

        `stop` are the texts at which the answer was to end: one that does not fit may have been cut there, and says so.
        """
        try:
            if self.schema is not None and not isinstance(self.schema, dict):
                return self.read(text)
            return await checked_aside(partial(self.read, text), deadline, tenant)
        except ValueError as error:
            if not stop or (wanted := self.response_format) is None:
                raise
            told = await checked_aside(partial(told_of_stop, str(error), text, wanted, stop), deadline, tenant)
            raise ValueError(told) from error

    def read(self, text: str) -> object:
        """Return an answer as what was asked for; raises `ValueError` saying what does not fit."""
        if isinstance(self.schema, dict):
            _check(fault_of_text(text, cast("ResponseFormat", self.response_format)))
            return cast("object", msgspec.json.decode(text))
        if self.schema is not None:
            return _read_as(self.schema, text)
        wanted = self.response_format
        text = text if self.regex is not None or self.grammar is not None else text.strip()
        if not text and (wanted is None or wanted.type == "choice"):
            raise ValueError("the answer is empty")
        _check(None if wanted is None else fault_of_text(text, wanted))
        return text


def json_schema_of(schema: Schema) -> JsonSchemaFormat:
    """Return a type's JSON schema under its name. Raises `RequestError` for a type that has none."""
    if isinstance(schema, dict):
        return JsonSchemaFormat(schema=schema)
    name = getattr(schema, "__name__", "answer")
    of_pydantic = cast("Callable[[], JsonObject] | None", getattr(schema, "model_json_schema", None))
    try:
        found = msgspec.json.schema(schema) if of_pydantic is None else of_pydantic()
    except (TypeError, ValueError) as error:
        raise RequestError(f"schema: {name} has no JSON schema: {error}", param="schema") from error
    return JsonSchemaFormat(name=name, schema=found)


def validate_partial(
    text: str,
    *,
    schema: Schema | None = None,
    choice: Sequence[str] | None = None,
    regex: str | None = None,
    grammar: str | GrammarFormat | None = None,
) -> bool:
    """Return whether the beginning of an answer matches as it is; False: it may yet, if more comes.

    For answers that are read while they are written. Raises `InvalidOutputError` where no text that begins so matches,
    and `RequestError` for what cannot be checked.
    """
    wanted = Wanted(schema, choice, regex, grammar).response_format
    if wanted is None:
        raise RequestError("give one of schema, choice, regex and grammar", param="schema")
    begun = Beginning.of(text, wanted)
    if begun.fault is not None:
        raise InvalidOutputError(begun.fault, param="response_format")
    return begun.is_whole


def _read_as(kind: type[Any], text: str) -> object:
    of_pydantic = cast("Callable[[str], object] | None", getattr(kind, "model_validate_json", None))
    if of_pydantic is not None:
        return of_pydantic(text)  # its errors are ValueErrors, as msgspec's are
    return cast("object", msgspec.json.decode(text, type=kind))


def _check(fault: str | None) -> None:
    if fault is not None:
        raise ValueError(fault)
