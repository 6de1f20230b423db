"""Schemas that dialects meet: references, constants, and what is no schema at all."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from support.dialect_texts import arguments_of

from pyagent.core.dialects.dialect import TagDialect
from pyagent.core.dialects.formats import FUNCTION_GEMMA
from pyagent.core.dialects.json_calls import JsonCalls
from pyagent.core.dialects.lark import MAX_CHARS, Lark
from pyagent.core.dialects.python_calls import PythonCalls
from pyagent.core.dialects.registry import dialects
from pyagent.core.dialects.schemas import closed, types_of
from pyagent.core.dialects.xml_calls import XmlCalls
from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionDefinition, Tool
from pyagent.infrastructure.engine.models.chat_format import WORDS

from .test_grammars import Walk, grammar_of, read

TOKENIZER = LLTokenizer("byte")
REFERRING = {
    "$defs": {
        "Unit": {"enum": ["celsius", "kelvin"]},
        "Place": {"type": "object", "properties": {"unit": {"$ref": "#/$defs/Unit"}}, "additionalProperties": False},
    },
    "type": "object",
    "properties": {
        "unit": {"$ref": "#/$defs/Unit"},
        "kind": {"const": "fast"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/Unit"}, "maxItems": 3},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mixed": {"enum": ["a", 1, None]},
    },
    "required": ["unit", "kind", "many", "maybe", "mixed"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {"Node": {"type": "object", "properties": {n: {"$ref": "#/$defs/Node"} for n in "abcdef"}}},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
}
NO_SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": [1], "required": "x"},
    {"type": "object", "properties": {"a": True, "b": None, "c": 3}, "required": [1, None]},
    {"type": "object", "properties": {"a": {"type": [{}]}, "b": {"enum": 3}, "c": {"anyOf": {"x": 1}}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}, "b": {"$ref": 7}, "c": {"items": 4}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    TREE,
]


OPEN = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "place": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        "many": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "null"}}}, "maxItems": 2},
    },
    "required": ["size", "place", "many"],
}
LEFT: list[dict[str, Any]] = [
    {"type": "object"},
    {"properties": {"a": {}}, "additionalProperties": True},
    {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
    {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
    {"properties": {"a": {}}, "required": ["b"]},
    {"properties": {"a": {}}, "minProperties": 2},
    {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    {"properties": {"a": {"properties": {"x": {}}}}, "anyOf": [{"required": ["b"]}]},
    {"properties": {"a": {"properties": {"x": {}}}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}},
    {"properties": {"a": {"$ref": "#/$defs/b"}, "c": {"allOf": [{"$ref": "#/$defs/b"}]}}, "$defs": {"b": {}}},
    {"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
]


def walked(name: str, schema: dict[str, Any], num_walks: int) -> list[dict[str, Any]]:
    """The arguments that random walks through a dialect's grammar write for a function with this schema."""
    dialect, tool, found = dialects()[name], Tool(FunctionDefinition("go", "", schema)), list[dict[str, Any]]()
    grammar, control = grammar_of(dialect, [tool], is_required=True, is_parallel=False, is_control=name == "openai")
    for seed in range(num_walks):
        ((_, text),) = read(dialect, Walk(grammar, control, seed).text(), [tool])[1]
        found.append(arguments_of(text))
    return found


@pytest.mark.parametrize("name", dialects())
def test_objects_have_no_properties_but_those_they_name(name: str) -> None:
    """Where a tool's schema says nothing of other properties, a held call has none, at no depth.

    Left free to invent them, SmolLM2 went on until `max_tokens` in 20 of 200 calls.
    """
    for arguments in walked(name, OPEN, 4):
        assert arguments.keys() == {"size", "place", "many"}
        assert all(one.keys() <= {"y"} for one in arguments["many"])
        assert arguments["place"].keys() <= {"x"}


ENDLESS = ("1" * 40, "0." + "3" * 40, "1e" + "5" * 40)
NUMBERS = ("0", "-3", "2.5", "6.02e23", "1.38E-23", "-9000000000000000000")


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_numbers_of_calls_come_to_an_end(kind: str) -> None:
    """A model may write an integer of 64 bits, or a number with an exponent, but not digits until `max_tokens`.

    Gemma 3 270M did so in 38 of 200 calls. A number that its schema bounds is held to that.
    """
    kinds = {"a": {"type": kind}, "b": {"type": "number", "maximum": 7}, "c": {"type": "string"}}
    schema = {"type": "object", "properties": kinds, "required": ["a"]}
    grammar = JsonCalls().lark(Tool(FunctionDefinition("go", "", schema)), "call", lark := Lark({}))
    lark.rule("start", grammar)

    def is_taken(text: str) -> bool:
        tokens = TOKENIZER.tokenize_bytes(f'{{"name": "go", "arguments": {text}'.encode())
        return LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(str(lark))).validate_tokens(tokens) == len(tokens)

    assert [text for text in ENDLESS if is_taken(f'{{"a": {text}')] == []
    wanted = [text for text in NUMBERS if kind == "number" or set(text) <= set("-0123456789")]
    assert [text for text in wanted if not is_taken(f'{{"a": {text}, "b": 7, "c": "x"}}}}')] == []
    assert is_taken('{"a": 1, "c": "x"}}')
    assert is_taken('{"a": 1}}')
    assert not is_taken('{"b": 7')
    assert not is_taken('{"a": 1, "b": 8')


@pytest.mark.parametrize("schema", LEFT, ids=str)
def test_objects_that_say_more_stay_as_they_are(schema: dict[str, Any]) -> None:
    """Where a schema speaks of other properties, or another keyword may name some, it is held to as it is."""
    assert closed(schema) == schema


def test_alternatives_are_closed_one_by_one() -> None:
    """What follows one of several closed alternatives follows the schema as it was sent."""
    schema: dict[str, Any] = {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/b"}}}], "$defs": {"b": OPEN}}
    shut = closed(schema)
    assert shut["anyOf"][0]["additionalProperties"] is False  # pyright: ignore[reportIndexIssue]
    assert shut["$defs"]["b"]["properties"]["place"]["additionalProperties"] is False  # pyright: ignore[reportIndexIssue]
    assert "additionalProperties" not in OPEN
    jsonschema.Draft202012Validator.check_schema(shut)


@pytest.mark.parametrize("name", dialects())
def test_references_and_constants_are_held_to(name: str) -> None:
    """An enum behind a reference, a constant, lists and unions come out of each grammar as the schema has them."""
    for arguments in walked(name, REFERRING, 3):
        jsonschema.validate(arguments, REFERRING)


@pytest.mark.parametrize("name", dialects())
@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=str)
def test_what_is_no_schema_raises_nothing(name: str, schema: dict[str, Any]) -> None:
    """A grammar is written, and calls are read, whatever a client sent; the grammar's compiler says what is wrong."""
    dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", schema))
    grammar = dialect.grammar([tool], is_required=True, is_parallel=True)
    assert len(grammar) < 1_000_000
    LLMatcher.grammar_from_lark(grammar)
    parser = dialect.parser([tool])
    parser.push("<tool_call><function=go><parameter=a>1</parameter></function></tool_call>[go(1)]")
    parser.finish()


def test_types_behind_references_are_found() -> None:
    """References are followed a bounded number of times, through unions too."""
    schema = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "string"}}}
    assert types_of(schema) == {"string", "null"}
    crossed = {"anyOf": [{"$ref": "#/$defs/a"}, {"enum": [1, True]}, {"$ref": "#/$defs/b"}]}
    shared = {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 3}, "b": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}
    assert types_of({**crossed, "$defs": shared}) == {"integer", "boolean", "null"}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        deep = {"anyOf": [deep]}
    assert types_of(deep) == set()


@pytest.mark.parametrize("name", dialects())
def test_alternatives_that_name_themselves_are_looked_at_once(name: str) -> None:
    """A schema of 800 bytes, whose 30 alternatives are itself, holds up neither the grammar nor the reading of a call.

    Both would take years.
    """
    alternatives = {"anyOf": [{"$ref": "#/$defs/A"}] * 30}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": alternatives}}
    dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", schema))
    assert "go" in dialect.grammar([tool], is_required=True, is_parallel=True)
    begin, _, end = dialect.calls.group if isinstance(dialect, TagDialect) else ("", "", "")
    parser = dialect.parser([tool])
    parser.push(f"{begin}<function=go>\n<parameter=x>\n1\n</parameter>\n</function>{end}")
    parser.finish()


@pytest.mark.parametrize("name", dialects())
@pytest.mark.parametrize("refers", [False, True])
def test_grammar_has_definitions_only_where_they_are_named_and_a_bound(name: str, *, refers: bool) -> None:
    """Of 3,000 properties beside 10 kB of definitions a grammar of moderate length is made, or none; never 30 MB."""
    big, number = {"enum": ["x" * 100] * 100}, {"type": "integer"}
    properties = {f"p{at}": {"anyOf": [number, {"$ref": "#/$defs/big"}]} if refers else number for at in range(3000)}
    schema = {"type": "object", "properties": properties, "$defs": {"big": big}}
    dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", schema))
    writes_each = "gemma" in name or isinstance(getattr(dialect, "calls", None), XmlCalls | PythonCalls)
    if refers and writes_each:
        with pytest.raises(RequestError, match="more than 1048576 characters"):
            dialect.grammar([tool], is_required=True, is_parallel=True)
    else:
        assert len(dialect.grammar([tool], is_required=True, is_parallel=True)) < MAX_CHARS


@pytest.mark.parametrize("name", ["hermes", "lfm2", "gemma4"])
def test_thousands_of_properties_do_not_end_the_process(name: str) -> None:
    """A grammar of 3,000 required numbers compiles; rules nested so deep overflowed the stack."""
    kinds = {f"p{at}": {"type": "number"} for at in range(3000)}
    schema = {"type": "object", "properties": kinds, "required": [*kinds]}
    grammar = dialects()[name].grammar([Tool(FunctionDefinition("go", "", schema))], is_required=True, is_parallel=True)
    assert not LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar), log_level=0).is_error()


@pytest.mark.parametrize("required", [[], ["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]], ids=str)
@pytest.mark.parametrize("name", ["hermes", "lfm2", "gemma4", "openai"])
def test_members_not_required_may_be_left_out_and_no_others(name: str, required: list[str]) -> None:
    """Walks through the grammar of three numbers write all that are required, in order, and now and then the others."""
    schema = {"type": "object", "properties": {key: {"type": "number"} for key in "abc"}, "required": required}
    found = {"".join(arguments) for arguments in walked(name, schema, 12)}
    for written in found:
        assert written == "".join(sorted(written))
        assert set(required) <= set(written) <= set("abc")
    assert len(found) == 1 or len(required) < 3


def test_keys_of_any_text_are_written_as_letters() -> None:
    """A property's name with quotes, line ends, no letters or the text of a control token stands in JSON as text."""
    keys = ['a"b\\', "<|im_end|>", "", "é\x7f\n"]
    schema = {"type": "object", "properties": {key: {"type": "number"} for key in keys}, "required": keys}
    lark = Lark({"<|im_end|>": 7})
    lark.rule("start", lark.arguments(schema, "all"))
    tokens = TOKENIZER.tokenize_bytes(json.dumps(dict.fromkeys(keys, 1), ensure_ascii=False).encode())
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(str(lark)), log_level=0)
    assert matcher.consume_tokens(tokens), matcher.get_error()
    assert matcher.is_accepting()


def test_grammar_of_nested_lists_has_each_item_once() -> None:
    """The grammar of lists in lists grows with their depth, not twofold with each level."""
    schema: dict[str, Any] = {"enum": ["x" * 1000]}
    for _ in range(11):
        schema = {"type": "array", "items": schema}
    tool = Tool(FunctionDefinition("go", "", {"type": "object", "properties": {"a": schema}}))
    assert len(FUNCTION_GEMMA.grammar([tool], is_required=True, is_parallel=False)) < 10_000


@pytest.mark.parametrize("name", dialects())
def test_a_delete_character_in_a_schema_is_written(name: str) -> None:
    """U+007F, which JSON leaves as it is and grammars do not take, may stand in an enum and a description."""
    kinds = {"a": {"enum": ["x\x7fy"]}, "b": {"type": "integer", "description": "\x7f"}}
    schema = {"type": "object", "properties": kinds, "required": ["a", "b"], "additionalProperties": False}
    dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", schema))
    grammar, control = grammar_of(dialect, [tool], is_required=True, is_parallel=False, is_control=name == "openai")
    ((_, arguments),) = read(dialect, Walk(grammar, control, 0).text(), [tool])[1]
    assert arguments_of(arguments)["a"] == "x\x7fy"


FREE = {"type": "object"}
"""Also what is left of a schema that no grammar can hold."""
WRITTEN = {
    "qwen3_coder": "<tool_call>\n<function=go>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="go">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "glm45": "<tool_call>go\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "pythonic": '[go(city="Oslo", days=3)]',
    "functiongemma": "<start_function_call>call:go{city:<escape>Oslo<escape>,days:3}<end_function_call>",
    "hermes": '<tool_call>\n{"name": "go", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
}


@pytest.mark.parametrize("name", WRITTEN)
def test_objects_that_name_no_properties_take_any(name: str) -> None:
    """A tool whose schema is any object is called with arguments, and they are read as they are meant."""
    dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", FREE))
    grammar, _ = grammar_of(dialect, [tool], is_required=True, is_parallel=True, is_control=False)
    assert is_taken(grammar, WRITTEN[name])
    ((_, arguments),) = read(dialect, WRITTEN[name], [tool])[1]
    assert arguments_of(arguments) == {"city": "Oslo", "days": 3}


@pytest.mark.parametrize("name", dialects())
@pytest.mark.parametrize("others", [True, {"type": "integer"}, False])
def test_additional_properties_are_held_to_their_schema(name: str, others: object) -> None:
    """Whatever is written for an object of any names follows what the schema says of them, none if it says so."""
    inside = {"type": "object", "additionalProperties": others}
    for schema in (inside, {"type": "object", "properties": {"in": inside}, "required": ["in"]}):
        dialect, tool = dialects()[name], Tool(FunctionDefinition("go", "", schema))
        for seed in range(3):
            is_control = name == "openai"
            grammar, control = grammar_of(dialect, [tool], is_required=True, is_parallel=False, is_control=is_control)
            ((_, arguments),) = read(dialect, Walk(grammar, control, seed).text(), [tool])[1]
            jsonschema.validate(arguments_of(arguments), schema)


def test_free_objects_hold_objects() -> None:
    """Gemma writes a property that is any object with any values in it, lists and objects too."""
    schema = {"type": "object", "properties": {"h": FREE}, "required": ["h"]}
    text = "<start_function_call>call:go{h:{a:[1,<escape>x<escape>],b:{c:null}}}<end_function_call>"
    tool = Tool(FunctionDefinition("go", "", schema))
    assert is_taken(FUNCTION_GEMMA.grammar([tool], is_required=True, is_parallel=False), text)
    ((_, arguments),) = read(FUNCTION_GEMMA, text, [tool])[1]
    assert arguments_of(arguments) == {"h": {"a": [1, "x"], "b": {"c": None}}}


def is_taken(grammar: str, text: str) -> bool:
    """Whether a grammar lets a text through, and lets it end there."""
    matcher, letters = Walk(grammar, [], 0).matcher, list(text.encode())
    return (
        matcher.validate_tokens(letters) == len(letters) and matcher.consume_tokens(letters) and matcher.is_accepting()
    )


@pytest.mark.parametrize("is_parallel", [True, False])
def test_calls_told_in_words_end_the_answer(*, is_parallel: bool) -> None:
    """Text may stand before a call, and another call after it where that is allowed, but no text.

    Gemma 3 270M, which is a base model, went on until `max_tokens` after each of its calls.
    """
    tool = Tool(FunctionDefinition("go", "", {"type": "object", "properties": {"a": {"type": "integer"}}}))
    grammar = WORDS.grammar([tool], is_required=False, is_parallel=is_parallel)
    call = '<tool_call>{"name": "go", "arguments": {"a": 1}}</tool_call>'

    def num_taken(text: str) -> int:
        matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar), log_level=0)
        return matcher.validate_tokens(TOKENIZER.tokenize_bytes(text.encode()))

    assert num_taken("only text") == len("only text")
    assert num_taken(f"I look. {call}") == len(f"I look. {call}")
    assert num_taken(f"I look. {call} more") == len(f"I look. {call}")
    assert num_taken(call + call) == len(call) * (1 + is_parallel)


class Watched(dict[str, Any]):
    """Definitions that count how often they are looked through."""

    num_walks = 0

    def values(self) -> Any:
        Watched.num_walks += 1
        return super().values()


@pytest.mark.parametrize("name", ["hermes", "lfm2", "gemma4", "qwen3_coder"])
def test_definitions_that_nothing_means_are_not_walked_for_each_property(name: str) -> None:
    """Beside 3,000 definitions 900 properties took 34 s of the interpreter's time, in which nobody else is answered."""
    kinds = {f"p{at}": {"type": "integer" if at else "number"} for at in range(50)}
    schema = {"type": "object", "properties": kinds, "$defs": Watched(big={"enum": ["x"]})}
    Watched.num_walks = 0
    dialects()[name].grammar([Tool(FunctionDefinition("go", "", schema))], is_required=True, is_parallel=True)
    assert Watched.num_walks < 10
