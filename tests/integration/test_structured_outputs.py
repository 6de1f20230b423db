"""Every way to ask for a constrained answer over HTTP, answered by a model that talks nonsense."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

ASK: Any = [{"role": "user", "content": "go"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
GBNF = 'root ::= "<" root ">" | [0-9]{1,3} # llama.cpp\'s'
LARK = 'start: "<" start ">" | /[0-9]{1,3}/'
TAG = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [{"begin": "<f=x>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}],
    "at_least_one": True,
    "stop_after_first": True,
}
OLDER_TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


def _is_nested(text: str) -> bool:
    while text.startswith("<") and text.endswith(">"):
        text = text[1:-1]
    return bool(re.fullmatch("[0-9]{1,3}", text))


def _is_json(text: str) -> bool:
    return json.loads(text) in ({"a": 1}, {"a": 2})


def _is_tag(text: str) -> bool:
    return text.startswith("<f=x>") and text.endswith("</f>") and _is_json(text[5:-4])


def _is_choice(text: str) -> bool:
    return text in {"yes", "no"}


def _is_regex(text: str) -> bool:
    return bool(re.fullmatch(r"[ab]{2,4}/\d", text))


def _form(schema: dict[str, object]) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


KEYWORDS: dict[str, object] = {
    "properties": {
        "default": {"$ref": "#/$defs/examples"},
        "const": {"$ref": "#/$defs/examples"},
        "enum": {"$ref": "#/$defs/examples"},
        "examples": {"enum": [1]},
    },
    "required": ["default", "const", "enum", "examples"],
    "additionalProperties": False,
    "$defs": {
        "examples": {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/const"}},
            "required": ["n"],
            "additionalProperties": False,
        },
        "const": {"const": 1},
    },
}
"""Properties and definitions named as keywords whose values are no schemas."""
REGEX = r"[ab]{2,4}/\d"
FORMS: list[tuple[dict[str, object], Callable[[str], bool]]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, _is_json),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, _is_json),
    ({"response_format": {"type": "choice", "choice": ["yes", "no"]}}, _is_choice),
    ({"response_format": {"type": "regex", "pattern": REGEX}}, _is_regex),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, _is_nested),
    ({"response_format": {"type": "structural_tag", "format": TAG}}, _is_tag),
    (
        {
            "response_format": {
                "type": "any_of",
                "any_of": [{"type": "regex", "pattern": "[0-9]{3}"}, {"type": "choice", "choice": ["none"]}],
            }
        },
        lambda text: text == "none" or bool(re.fullmatch("[0-9]{3}", text)),
    ),
    (
        {
            "response_format": {
                "type": "all_of",
                "all_of": [{"type": "regex", "pattern": "[a-z]{4}"}, {"type": "regex", "pattern": ".*foo.*"}],
            }
        },
        lambda text: bool(re.fullmatch("[a-z]foo|foo[a-z]", text)),
    ),
    (
        {"response_format": {"type": "all_of", "all_of": [_form(KEYWORDS), _form({"type": "object"})]}},
        lambda text: json.loads(text) == {"default": {"n": 1}, "const": {"n": 1}, "enum": {"n": 1}, "examples": 1},
    ),
    ({"structured_outputs": {"json": SCHEMA}}, _is_json),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}}, _is_json),
    ({"structured_outputs": {"regex": REGEX}}, _is_regex),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, _is_choice),
    ({"structured_outputs": {"grammar": LARK}}, _is_nested),
    ({"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": TAG})}}, _is_tag),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "guidance"}, _is_json),
    ({"guided_regex": REGEX, "guided_decoding_backend": "llguidance:no-fallback"}, _is_regex),
    ({"guided_regex": REGEX, "guided_decoding_backend": "auto"}, _is_regex),
    ({"guided_choice": ["yes", "no"]}, _is_choice),
    ({"guided_grammar": LARK}, _is_nested),
    ({"json_schema": SCHEMA}, _is_json),
    ({"json_schema": json.dumps(SCHEMA)}, _is_json),
    ({"regex": REGEX}, _is_regex),
    ({"grammar": GBNF}, _is_nested),
    ({"ebnf": GBNF}, _is_nested),
    ({"guided_grammar": GBNF}, _is_nested),
    ({"response_format": {"type": "grammar", "grammar": GBNF, "syntax": "gbnf"}}, _is_nested),
]


@pytest.fixture(scope="module")
def url(tiny_model_path: Path) -> Iterator[str]:
    with serve(create_app(NativeBackend.of("tiny", lambda: tiny_model_path))) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        yield client


def asked(client: openai.OpenAI, body: dict[str, object], **more: Any) -> str:
    answer: Any = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=300, temperature=1, extra_body=body, **more
    )
    assert answer.choices[0].finish_reason == "stop", answer.choices[0].message.content
    return answer.choices[0].message.content


def refused(client: openai.OpenAI, body: dict[str, object]) -> tuple[str | None, str]:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK, max_tokens=30, extra_body=body)
    return caught.value.param, str(caught.value)


@pytest.mark.parametrize(("body", "fits"), FORMS, ids=[json.dumps(body)[:60] for body, _ in FORMS])
def test_answer_matches_what_is_asked_for_in_any_form(
    client: openai.OpenAI, body: dict[str, object], fits: Callable[[str], bool]
) -> None:
    """Each field that clients of vLLM, llama.cpp, SGLang and OpenAI send is honoured, whatever the weights."""
    for seed in (1, 2):
        text = asked(client, body, seed=seed)
        assert fits(text), text


def test_completions_take_the_same_fields(client: openai.OpenAI) -> None:
    """A completion without a chat template is held to its format likewise."""
    answer = client.completions.create(model="tiny", prompt="x", max_tokens=30, extra_body={"guided_regex": REGEX})
    assert _is_regex(answer.choices[0].text)


def test_older_structural_tags_leave_text_free(client: openai.OpenAI) -> None:
    """In vLLM's older shape any text may come, and what begins as a tag follows the tag's schema."""
    body: dict[str, object] = {"response_format": {"type": "structural_tag", **OLDER_TAGS}}
    answer: Any = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=20, extra_body=body)
    assert answer.choices[0].message.content
    for found in re.findall("<f>(.*?)</f>", answer.choices[0].message.content):
        assert _is_json(found)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex and guided_choice exclude"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "response_format and structured_outputs.regex exclude",
        ),
        (
            {"structured_outputs": {"regex": "a", "json_object": True}},
            "structured_outputs.json_object",
            "structured_outputs.regex and structured_outputs.json_object exclude",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "needs one of json, regex"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "",
        ),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "one space after"),
        (
            {"guided_regex": "a", "guided_decoding_backend": "outlines"},
            "guided_decoding_backend",
            "is one of auto, guidance (engine.structured_outputs_backend), got 'outlines'",
        ),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", "is one of auto, guidance"),
        (
            {"guided_regex": "a", "guided_decoding_backend": "guidance:fast"},
            "guided_decoding_backend",
            "takes 'no-fallback' after a colon",
        ),
        ({"guided_json": "{"}, "guided_json", "guided_json is not valid JSON: it ends too early"),
        ({"guided_json": "[1]"}, "guided_json", "guided_json must be an object, got an array"),
        ({"response_format": {"type": "regex"}}, "response_format.pattern", "regex needs its pattern"),
        (
            {"response_format": {"type": "json_object", "choice": ["a"]}},
            "response_format.choice",
            "of type json_object takes no choice",
        ),
        ({"response_format": {"type": "any_of", "any_of": []}}, "response_format.any_of", "needs formats"),
        (
            {"response_format": {"type": "any_of", "any_of": [{"type": "choice"}]}},
            "response_format.any_of[0].choice",
            "needs its choice",
        ),
        (
            {
                "response_format": {
                    "type": "all_of",
                    "all_of": [{"type": "json_object"}, {"type": "regex", "pattern": "a"}],
                }
            },
            "response_format.all_of",
            "got json_object, regex",
        ),
        ({"grammar": "root ::= ("}, "grammar", "line 1, column 10: this ( is not closed"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_regex": "a{1,3"}, "guided_regex", "cannot be enforced"),
        ({"guided_grammar": 'start: FOO "x"'}, "guided_grammar", "unknown name"),
        ({"guided_grammar": 'start[temperature=2]: "x"'}, "guided_grammar", "line 1: the option 'temperature'"),
        ({"guided_grammar": 'start: a\na: a "x"'}, "guided_grammar", "contradiction"),
        (
            {"guided_grammar": 'start: %json {"$ref": "#"}'},
            "guided_grammar",
            "leads back to itself",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": TAG | {"triggers": ["<g"]}}},
            "response_format.structural_tag",
            "'<f=x>' begins with none of the triggers",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "magic"}}},
            "response_format.format.type",
            "'magic' is not supported",
        ),
    ],
)
def test_format_that_cannot_be_is_refused_by_name(
    client: openai.OpenAI, body: dict[str, object], param: str, words: str
) -> None:
    """Options that exclude each other, lack something or cannot be enforced are a 400 that names the field."""
    named, text = refused(client, body)
    assert words in text
    assert named == param


def _nested(inner: dict[str, object], depth: int) -> dict[str, object]:
    for _ in range(depth):
        inner = {"type": "any_of", "any_of": [inner]}
    return inner


def _nested_tags(depth: int) -> dict[str, object]:
    inner: dict[str, object] = {"type": "any_text"}
    for _ in range(depth):
        inner = {"type": "tag", "begin": "<", "content": inner, "end": ">"}
    return inner


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"guided_regex": "a" * 70_000}, "20000 are taken"),
        ({"guided_choice": ["a"] * 2001}, "2000 are taken"),
        ({"response_format": _nested({"type": "choice", "choice": ["a"]}, 200)}, "more than 8 deep"),
        ({"response_format": {"type": "any_of", "any_of": [{"type": "choice", "choice": ["a"]}] * 65}}, "more than 64"),
        ({"response_format": {"type": "structural_tag", "format": _nested_tags(100)}}, "more than 16 deep"),
        ({"grammar": "root ::= " + "(" * 100_000}, "nested more than 40 deep"),
        ({"guided_grammar": "start: " + '"a" ' * 300_000}, "are taken at most"),
        ({"guided_grammar": 'start: %json {"not": {}}'}, "cannot be enforced"),
        ({"guided_grammar": "start: <no_such_token>"}, "unknown special token"),
        ({"guided_regex": "\u0000[^\u0000-\U0010ffff]"}, "contradiction"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_hostile_format_is_refused_and_the_next_request_is_served(
    client: openai.OpenAI, body: dict[str, object], words: str
) -> None:
    """What is too long, too deep or impossible is a 400; the server goes on."""
    assert words in refused(client, body)[1]
    assert _is_choice(asked(client, {"guided_choice": ["yes", "no"]}))
