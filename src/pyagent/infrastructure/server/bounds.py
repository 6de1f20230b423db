"""What a request may hold before anything is computed with it, the same in all APIs. Pure.

More than this no model reads and no client means, but parsers, templates and grammars take minutes or gigabytes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, JsonObject

MAX_TOOLS = 1024
MAX_MESSAGES = 50_000
MAX_CHOICES = 2000
MAX_TEXTS = 2048
"""Texts to embed at once, as many as OpenAI takes."""
_MAX_FIELDS, _MAX_COMMAS, _MAX_ESCAPES = 200_000, 1_000_000, 2_000_000
"""Counted in the body's bytes, texts included. Reading keeps the interpreter's lock: 0.15 s for a million values."""
_MAX_DEPTH, _MAX_NODES = 128, 20_000
"""Of a JSON schema: objects and lists within each other, and all its values."""
_SLICE_BYTES = 1_000_000
_TOO_LONG = "context_length_exceeded"


def check_body(body: bytes) -> None:
    """Raise `RequestError` for JSON of so many values that reading it would hold up everybody; texts may be long."""
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
    if (form := request.response_format) is None:
        return
    _check_count(form.choice or (), MAX_CHOICES, "response_format.choice")
    if form.json_schema is not None:
        _check_schemas([form.json_schema.schema], "response_format.json_schema", _MAX_NODES)


def check_texts(texts: Sequence[str]) -> None:
    """Raise `RequestError` for too many texts to embed."""
    _check_count(texts, MAX_TEXTS, "input")


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
