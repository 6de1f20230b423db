"""What an answer must look like, under all the names that clients of OpenAI's API send it by. Pure.

OpenAI has `response_format`; vLLM `structured_outputs` and the older `guided_*`; llama.cpp `grammar` and `json_schema`;
SGLang `regex` and `ebnf`. A request says it once: two of them are refused by both names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeVar, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import field_error, json_error
from pyagent.core.messages import JsonObject
from pyagent.core.response_format import (
    FormatType,
    GrammarFormat,
    GrammarSyntax,
    JsonSchemaFormat,
    ResponseFormat,
)
from pyagent.core.structural_tags import JsonSchemaContent, Tag, TagFormat, TriggeredTags
from pyagent.infrastructure.server.validation import Refused, refuse

_REFUSED: Refused = {
    "guided_whitespace_pattern": ((), "JSON is written with one space after `:` and `,`"),
}
_REFUSED_OUTPUTS: Refused = {
    "whitespace_pattern": ((), "JSON is written with one space after `:` and `,`"),
    "disable_additional_properties": ((False,), "say additionalProperties: false in the schema"),
}
_T = TypeVar("_T")
_OWN_NAME = re.compile(r"response_format(?:\.(?:grammar|regex|choice|json_schema|structural_tag))?\b")
_MAX_DEPTH = 8


class _Schema(msgspec.Struct, forbid_unknown_fields=True):
    name: str = "answer"
    schema: JsonObject = {}
    strict: bool | None = None
    description: str | None = None


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    schema: JsonObject
    end: str


class InputFormat(msgspec.Struct, forbid_unknown_fields=True):
    """What the answer must look like: OpenAI's, vLLM's structural tags, and what other servers have as types of it."""

    type: FormatType = "text"
    json_schema: _Schema | None = None
    schema: JsonObject | None = None
    """Of `json_object`, as llama.cpp has it."""
    choice: list[str] | None = None
    pattern: str | None = None
    grammar: str | None = None
    syntax: GrammarSyntax | None = None
    format: TagFormat | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None
    any_of: list[InputFormat] | None = None
    all_of: list[InputFormat] | None = None

    def form(self, where: str = "response_format") -> ResponseFormat:
        """As backends take it; raises `RequestError` for one without what its type needs, or with what it has not."""
        taken = _FIELDS[self.type]
        if where.count("_of[") > _MAX_DEPTH:
            raise RequestError(f"response_format combines formats more than {_MAX_DEPTH} deep", param="response_format")
        for name in self.__struct_fields__[1:]:
            if getattr(self, name) is not None and name not in taken:
                raise RequestError(f"{where} of type {self.type} takes no {name}", param=f"{where}.{name}")
        if self.type != "json_object" and taken and all(getattr(self, name) is None for name in taken):
            raise RequestError(f"{where} {self.type} needs its {taken[0]}", param=f"{where}.{taken[0]}")
        return self._form(where)

    def _form(self, where: str) -> ResponseFormat:  # noqa: PLR0911 - one for each type
        match self.type:
            case "text":
                return ResponseFormat()
            case "json_object":
                return _json(self.schema) if self.schema is not None else ResponseFormat("json_object")
            case "json_schema":
                spec = cast("_Schema", self.json_schema)
                schema = JsonSchemaFormat(spec.name, spec.schema, spec.strict, spec.description or "")
                return ResponseFormat("json_schema", schema)
            case "choice":
                return _choice(self.choice or [], f"{where}.choice")
            case "regex":
                return _regex(self.pattern or "")
            case "grammar":
                return _grammar(self.grammar or "", self.syntax)
            case "structural_tag":
                return ResponseFormat("structural_tag", structural_tag=self._tags(where))
            case "any_of":
                return ResponseFormat("any_of", any_of=_members(self.any_of, f"{where}.any_of"))
            case "all_of":
                return ResponseFormat("all_of", all_of=_members(self.all_of, f"{where}.all_of"))

    def _tags(self, where: str) -> TagFormat:
        """The tags of either shape: a format, or structures with triggers."""
        if self.format is not None:
            if self.structures or self.triggers:
                text = f"{where}.format and {where}.structures exclude each other; send one of them"
                raise RequestError(text, param=f"{where}.structures")
            return self.format
        tags = [Tag(one.begin, JsonSchemaContent(one.schema), one.end) for one in self.structures or ()]
        return TriggeredTags(self.triggers or [], tags)


_FIELDS: Mapping[FormatType, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    "choice": ("choice",),
    "regex": ("pattern",),
    "grammar": ("grammar", "syntax"),
    "structural_tag": ("format", "structures", "triggers"),
    "any_of": ("any_of",),
    "all_of": ("all_of",),
}
"""The fields that a type takes."""


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's field: one of the first seven."""

    json: str | JsonObject | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | JsonObject | None = None
    disable_any_whitespace: bool | None = None
    # refused
    disable_additional_properties: object = None
    whitespace_pattern: object = None


class FormatFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of a request that say what the answer must look like."""

    response_format: InputFormat | None = None
    # vLLM's
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | JsonObject | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    structural_tag: str | JsonObject | None = None
    # llama.cpp's, and SGLang's
    grammar: str | None = None
    json_schema: str | JsonObject | None = None
    regex: str | None = None
    ebnf: str | None = None
    # refused
    guided_whitespace_pattern: object = None

    def wanted_format(self) -> ResponseFormat | None:
        """Return what is asked for; raises `RequestError` naming two fields that both ask, or the one at fault."""
        refuse(self, _REFUSED)
        asked = [*self._asked()]
        if len(asked) > 1:
            first, second = asked[0][0], asked[1][0]
            raise RequestError(f"{first} and {second} exclude each other; send one of them", param=second)
        return asked[0][1]() if asked else None

    @property
    def format_name(self) -> str:
        """The field that asks for a format; empty where none does."""
        return next((name for name, _ in self._asked()), "")

    def _asked(self) -> Iterator[tuple[str, Callable[[], ResponseFormat]]]:
        """Yield the fields that are there, each with how it is read."""
        if self.response_format is not None and self.response_format.type != "text":
            yield "response_format", self.response_format.form
        elif self.response_format is not None:
            self.response_format.form()  # a text needs nothing, and takes nothing
        yield from _read(self, _READERS, "")
        if self.structured_outputs is not None:
            refuse(self.structured_outputs, _REFUSED_OUTPUTS, "structured_outputs.")
            asked = [*_read(self.structured_outputs, _OUTPUT_READERS, "structured_outputs.")]
            if not asked:
                names = ", ".join(_OUTPUT_READERS)
                raise RequestError(f"structured_outputs needs one of {names}", param="structured_outputs")
            yield from asked


def renamed(error: RequestError, name: str) -> RequestError:
    """Return an error about a format by the name that the request has for it."""
    if name in {"", "response_format"} or not (error.param or "").startswith("response_format"):
        return error
    return RequestError(_OWN_NAME.sub(name, str(error), count=1), param=name, code=error.code)


def _read(
    fields: msgspec.Struct, readers: Mapping[str, Callable[[object, str], ResponseFormat]], prefix: str
) -> Iterator[tuple[str, Callable[[], ResponseFormat]]]:
    for name, read in readers.items():
        value = cast("object", getattr(fields, name))
        if value is not None and value is not False:
            param = prefix + name
            yield param, lambda read=read, value=value, param=param: read(value, param)


def _members(members: list[InputFormat] | None, where: str) -> list[ResponseFormat]:
    return [member.form(f"{where}[{number}]") for number, member in enumerate(members or ())]


def _json(schema: JsonObject) -> ResponseFormat:
    return ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))


def _schema(given: object, param: str) -> ResponseFormat:
    """Read a schema, which may stand as JSON text."""
    return _json(_decoded(given, param, dict[str, object]))


def _regex(pattern: str) -> ResponseFormat:
    return ResponseFormat("regex", regex=pattern)


def _choice(texts: list[str], param: str) -> ResponseFormat:
    if not texts or not all(texts):
        raise RequestError(f"{param} needs at least one text, none of them empty", param=param)
    return ResponseFormat("choice", choice=texts)


def _grammar(definition: str, syntax: GrammarSyntax | None = None) -> ResponseFormat:
    grammar = GrammarFormat.of(definition)
    return ResponseFormat("grammar", grammar=grammar if syntax is None else GrammarFormat(definition, syntax))


def _structural_tag(given: object, param: str) -> ResponseFormat:
    """Read structural tags, which may stand as JSON text, with or without their type."""
    shape = _decoded(given, param, _TagShape)
    form = InputFormat("structural_tag", format=shape.format, structures=shape.structures, triggers=shape.triggers)
    return form.form(param)


class _TagShape(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["structural_tag"] = "structural_tag"
    format: TagFormat | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None


def _decoded(given: object, param: str, kind: type[_T]) -> _T:
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise field_error(error, kind, param) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        wrong = json_error(param, error, str(given).encode(errors="replace"))  # pyright: ignore[reportArgumentType]
        raise RequestError(str(wrong), param=param) from error


_READERS: Mapping[str, Callable[[object, str], ResponseFormat]] = {
    "guided_json": _schema,
    "guided_regex": lambda given, _: _regex(cast("str", given)),
    "guided_choice": lambda given, param: _choice(cast("list[str]", given), param),
    "guided_grammar": lambda given, _: _grammar(cast("str", given)),
    "structural_tag": _structural_tag,
    "grammar": lambda given, _: _grammar(cast("str", given)),
    "json_schema": _schema,
    "regex": lambda given, _: _regex(cast("str", given)),
    "ebnf": lambda given, _: _grammar(cast("str", given), "gbnf"),
}
_OUTPUT_READERS: Mapping[str, Callable[[object, str], ResponseFormat]] = {
    "json": _schema,
    "regex": _READERS["regex"],
    "choice": _READERS["guided_choice"],
    "grammar": _READERS["grammar"],
    "json_object": lambda _given, _param: ResponseFormat("json_object"),
    "structural_tag": _structural_tag,
}
