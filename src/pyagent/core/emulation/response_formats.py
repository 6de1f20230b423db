"""Response formats asked for in words, and the answers validated.

Pure: texts in, texts or an `InvalidOutputError` out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import cast

from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import InvalidOutputError
from pyagent.core.messages import JsonObject, JsonSchemaFormat, ResponseFormat, Tool, ToolCall
from pyagent.core.structured_output.matching import fault_of_text

_MAX_FENCES = 4
_FENCE = re.compile(r"```[\w-]*\n(.*?)```", re.DOTALL)


def instruction(wanted: ResponseFormat) -> str:  # noqa: PLR0911 - one for each kind
    """Return the instruction that asks a model for the format."""
    match wanted.type:
        case "text":
            return "Answer in plain text."
        case "choice":
            choices = ", ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice or [])
            return f"Answer with exactly one of these texts and nothing else, without quotes: {choices}"
        case "json_schema":
            schema = json.dumps(schema_of(wanted), ensure_ascii=False)
            purpose = wanted.json_schema.description if wanted.json_schema else ""
            text = f"Answer with one JSON value and nothing else. It must follow this JSON schema:\n{schema}"
            return f"{text}\nIt is for: {purpose}" if purpose else text
        case "regex":
            return (
                f"Answer with a text that matches this regular expression as a whole, and nothing else:\n{wanted.regex}"
            )
        case "grammar" if wanted.grammar is not None:
            syntax = {"lark": "Lark", "gbnf": "GBNF"}[wanted.grammar.syntax]
            words = f"Answer with a text of this grammar (written in {syntax}), and nothing else:"
            return f"{words}\n{wanted.grammar.definition}"
        case "any_of" | "all_of":
            which = "one of these instructions" if wanted.type == "any_of" else "all of these instructions"
            ways = (f"{number}. {instruction(member)}" for number, member in enumerate(wanted.members, 1))
            return "\n".join([f"Follow {which}:", *ways])
        case _:
            return "Answer with one JSON object and nothing else, no explanation."


def schema_of(wanted: ResponseFormat) -> JsonObject:
    """Return the JSON schema of a format; a choice is an object with one property, as OpenAI takes no other root."""
    if wanted.type == "json_schema":
        return wanted.json_schema.schema if wanted.json_schema else {}
    if wanted.type == "choice":
        one: JsonObject = {"type": "string", "enum": list(wanted.choice or [])}
        return {
            "type": "object",
            "properties": {"choice": one},
            "required": ["choice"],
            "additionalProperties": False,
        }
    return {"type": "object"}


def as_schema(wanted: ResponseFormat) -> ResponseFormat:
    """Return the format as a JSON schema, for a backend that knows those; `read` takes the answer back."""
    return ResponseFormat("json_schema", JsonSchemaFormat(name="answer", schema=schema_of(wanted), strict=True))


def read(text: str, wanted: ResponseFormat) -> str:
    """Return the answer without what models put around it; raise `InvalidOutputError` where it does not match."""
    if wanted.type == "choice":
        return _read_choice(text, wanted.choice or [])
    if wanted.type not in {"json_object", "json_schema"}:
        return _read_text(text, wanted)
    found = _json_in(text)
    if (fault := fault_of(json.loads(found), schema_of(wanted), "response_format")) is not None:
        raise InvalidOutputError(fault, param="response_format")
    return found


def _read_text(text: str, wanted: ResponseFormat) -> str:
    """Return the text that matches: as it is, without space around it, or in a code fence."""
    faults = list[str]()
    for candidate in dict.fromkeys(
        (text, text.strip(), *(found.strip() for found in _FENCE.findall(text)[:_MAX_FENCES]))
    ):
        fault = fault_of_text(candidate, wanted)
        if fault is None:
            return candidate
        faults.append(fault)
    raise InvalidOutputError(faults[min(1, len(faults) - 1)], param="response_format")


def fault_of_calls(calls: Iterable[ToolCall], tools: Iterable[Tool]) -> str | None:
    """Why calls of strict tools do not follow the tools' schemas; None when they do."""
    strict = {tool.function.name: tool.function.parameters for tool in tools if tool.function.strict}
    for name, arguments in ((call.function.name, call.function.arguments) for call in calls):
        if name not in strict:
            continue
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name} are not JSON: {error}"
        if (fault := fault_of(value, {"type": "object"} | strict[name], "tools")) is not None:
            return f"the arguments of {name} are wrong: {fault}"
    return None


def _json_in(text: str) -> str:
    """Return the JSON value a text is, or holds in a code fence, or begins somewhere in its middle."""
    for candidate in (text.strip(), *(found.strip() for found in _FENCE.findall(text))):
        try:
            json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return candidate
    start = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=-1)
    if start >= 0:
        try:
            end = json.JSONDecoder().raw_decode(text, start)[1]
        except (ValueError, RecursionError) as error:
            raise InvalidOutputError(f"it is not valid JSON: {error}", param="response_format") from error
        return text[start:end]
    raise InvalidOutputError("it holds no JSON", param="response_format")


def _read_choice(text: str, choices: list[str]) -> str:
    """Return the choice a text names: as it is, quoted, as a JSON string, or as our object's property."""
    plain = text.strip()
    if plain in choices:
        return plain
    try:
        value = cast("object", json.loads(_json_in(plain)))
    except InvalidOutputError:
        value = plain.strip("\"'`*.")
    if isinstance(value, dict):
        value = cast("JsonObject", value).get("choice")
    if value not in choices:
        raise InvalidOutputError(f"{plain[:80]!r} is none of the choices {choices}", param="response_format")
    return str(value)
