"""What a request may hold before anything is computed with it, the same in all APIs. Pure.

More than this no model reads and no client means, but parsers, templates and grammars take minutes or gigabytes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, JsonObject, ResponseFormat
from pyagent.core.structural_tags import GrammarContent, JsonSchemaContent, RegexContent, TagFormat, parts_of

MAX_TOOLS = 1024
MAX_MESSAGES = 50_000
MAX_CHOICES = 2000
MAX_TEXTS = 2048
"""Texts to embed, rank or classify at once, as many as OpenAI takes."""
_MAX_FIELDS, _MAX_COMMAS, _MAX_ESCAPES = 200_000, 1_000_000, 2_000_000
"""Counted in the body's bytes, texts included. Reading keeps the interpreter's lock: 0.15 s for a million values."""
_MAX_DEPTH, _MAX_NODES = 128, 20_000
"""Of a JSON schema: objects and lists within each other, and all its values."""
MAX_PATTERN_CHARS, MAX_GRAMMAR_CHARS = 20_000, 1 << 20
_MAX_FORMATS, _MAX_FORMAT_DEPTH = 64, 8
_MAX_TAGS, _MAX_TAG_DEPTH = 1024, 16
"""Of structural tags: parts, and parts within each other."""
_SLICE_BYTES = 1_000_000
_TOO_LONG = "context_length_exceeded"


def check_body(body: bytes) -> None:
    """Raise `RequestError` for JSON of so many values that reading it would hold up all clients; texts may be long."""
    if _count(body, b'":') > _MAX_FIELDS:
        raise RequestError(f"the body has more than {_MAX_FIELDS} fields; send less", code=_TOO_LONG)
    if _count(body, b",") > _MAX_COMMAS:
        raise RequestError(f"the body has more than {_MAX_COMMAS} values; send less", code=_TOO_LONG)
    if _count(body, b"\\") > _MAX_ESCAPES:
        text = f"the body has more than {_MAX_ESCAPES} escaped characters; send less, or text in UTF-8 as it is"
        raise RequestError(text, code=_TOO_LONG)


def _count(body: bytes, what: bytes) -> int:
    """How often it occurs. One call for 32 MB would keep the interpreter's lock for all of its 50 ms."""
    return sum(
        body.count(what, start, start + _SLICE_BYTES + len(what) - 1) for start in range(0, len(body), _SLICE_BYTES)
    )


def check_request(request: ChatRequest) -> None:
    """Raise `RequestError` naming what there is too much of."""
    _check_count(request.messages, MAX_MESSAGES, "messages", _TOO_LONG)
    _check_count(request.tools, MAX_TOOLS, "tools", _TOO_LONG)
    schemas = [tool.function.parameters for tool in request.tools]
    _check_schemas(schemas, "tools", _MAX_FIELDS)
    if request.response_format is not None:
        _check_format(request.response_format)


def _check_format(form: ResponseFormat) -> None:
    """Look at formats within each other level by level; the schemas of all of them count together."""
    level, schemas, num_formats = [form], list[JsonObject](), 0
    for _ in range(_MAX_FORMAT_DEPTH):
        num_formats += len(level)
        if num_formats > _MAX_FORMATS:
            raise RequestError(f"response_format combines more than {_MAX_FORMATS} formats", param="response_format")
        for one in level:
            _check_count(one.choice or (), MAX_CHOICES, "response_format.choice")
            _check_chars(one.regex or "", MAX_PATTERN_CHARS, "response_format.regex")
            _check_chars(one.grammar.definition if one.grammar else "", MAX_GRAMMAR_CHARS, "response_format.grammar")
            schemas += [one.json_schema.schema] if one.json_schema else []
            schemas += _tag_schemas(one.structural_tag) if one.structural_tag else []
        level = [member for one in level for member in one.members]
        if not level:
            _check_schemas(schemas, "response_format.json_schema", _MAX_NODES)
            return
    text = f"response_format combines formats more than {_MAX_FORMAT_DEPTH} deep"
    raise RequestError(text, param="response_format")


def _tag_schemas(tag: TagFormat) -> list[JsonObject]:
    """Return the schemas of structural tags, looked at level by level."""
    param, level, num_parts, schemas = "response_format.structural_tag", [tag], 0, list[JsonObject]()
    for _ in range(_MAX_TAG_DEPTH):
        num_parts += len(level)
        _check_count(range(num_parts), _MAX_TAGS, param)
        for one in level:
            if isinstance(one, RegexContent):
                _check_chars(one.pattern, MAX_PATTERN_CHARS, param)
            if isinstance(one, GrammarContent):
                _check_chars(one.grammar, MAX_GRAMMAR_CHARS, param)
            if isinstance(one, JsonSchemaContent) and isinstance(one.json_schema, dict):
                schemas.append(one.json_schema)
        level = [inner for one in level for inner in parts_of(one)]
        if not level:
            return schemas
    raise RequestError(f"{param} is nested more than {_MAX_TAG_DEPTH} deep", param=param)


def _check_chars(text: str, most: int, param: str) -> None:
    if len(text) > most:
        raise RequestError(f"{param} has {len(text)} characters; {most} are taken at most", param=param)


def check_texts(texts: Sequence[str], param: str = "input") -> None:
    """Raise `RequestError` for too many texts at once."""
    _check_count(texts, MAX_TEXTS, param)


def _check_count(given: Sequence[object], most: int, param: str, code: str = "invalid_request") -> None:
    if len(given) > most:
        raise RequestError(f"{param} has {len(given)} entries; {most} are taken at most", param=param, code=code)


def _check_schemas(schemas: Sequence[JsonObject], param: str, most: int) -> None:
    """Look at all values level by level: a schema that is nested too deeply must not be walked by calls."""
    level, num_values = list[object](schemas), 0
    for _ in range(_MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        num_values += len(level)
        if num_values > most:
            raise RequestError(f"{param}: the schema has more than {most} values", param=param)
        if not level:
            return
    raise RequestError(f"{param}: the schema is nested more than {_MAX_DEPTH} deep", param=param)


def _inside(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return [*cast("dict[str, object]", value).values()]
    return cast("list[object]", value) if isinstance(value, list) else ()
