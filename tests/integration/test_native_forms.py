"""Answers of the embedded engine held to schemas and choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.native import (
    assert_idle,
    at_once,
    run,
    running,
)
from support.watching import logged

from pyagent.core.messages import (
    ChatRequest,
    JsonObject,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
)
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve


@pytest.mark.model
def test_real_model_follows_a_schema_and_a_choice(smollm2_path: Path) -> None:
    """Among other requests, an answer that must follow a form follows it, at temperature 1."""
    schema: JsonObject = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    forms = [
        ResponseFormat(type="choice", choice=["positive", "negative"]),
        ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema)),
    ]

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            sampling = SamplingParams(max_tokens=60)
            asked = [
                ChatRequest(messages=[Message("user", "Paris?")], response_format=form, sampling=sampling)
                for form in forms
            ]
            choice, answer = await at_once(backend, asked)
            assert choice.text in {"positive", "negative"}
            value = json.loads(answer.text)
            assert set(value) == {"city", "size"}
            assert value["size"] in {"small", "large"}

    run(work())


SCHEMAS: list[tuple[JsonObject, Callable[[object], bool]]] = [
    ({"type": "boolean"}, lambda value: isinstance(value, bool)),
    ({"type": "null"}, lambda value: value is None),
    ({"type": "integer", "minimum": 3, "maximum": 17}, lambda value: isinstance(value, int) and 3 <= value <= 17),
    ({"type": "integer", "minimum": -5, "maximum": 5}, lambda value: isinstance(value, int) and -5 <= value <= 5),
    ({"type": "number", "minimum": 0, "maximum": 1}, lambda value: isinstance(value, int | float) and 0 <= value <= 1),
    ({"enum": ["a", 1, None]}, lambda value: value in ("a", 1, None)),
    ({"const": {"a": [1]}}, lambda value: value == {"a": [1]}),
    ({"type": "string", "maxLength": 4}, lambda value: isinstance(value, str) and len(value) <= 4),
    ({"type": "string", "minLength": 2, "maxLength": 3}, lambda value: isinstance(value, str) and 2 <= len(value) <= 3),
    (
        {"type": "string", "pattern": "^[ab]{3}$"},
        lambda value: value in {a + b + c for a in "ab" for b in "ab" for c in "ab"},
    ),
    ({"type": "string", "format": "date"}, lambda value: isinstance(value, str) and len(value) == 10),
    (
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        lambda value: isinstance(value, list) and len(value) <= 3 and all(isinstance(item, bool) for item in value),
    ),
    (
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4},
        lambda value: isinstance(value, list) and 2 <= len(value) <= 4 and set(value) <= {1, 2},
    ),
    (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}], "items": False, "minItems": 2},
        lambda value: value == [1, "x"],
    ),
    ({"anyOf": [{"const": 1}, {"type": "boolean"}]}, lambda value: value == 1 or isinstance(value, bool)),
    (
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
        lambda value: value == {"a": 1},
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False},
        lambda value: isinstance(value, dict) and value.items() <= {"a": 1, "b": 2}.items(),
    ),
    (
        {
            "type": "object",
            "properties": {
                "in": {
                    "type": "object",
                    "properties": {"x": {"const": None}},
                    "required": ["x"],
                    "additionalProperties": False,
                }
            },
            "required": ["in"],
            "additionalProperties": False,
        },
        lambda value: value == {"in": {"x": None}},
    ),
    (
        {"$defs": {"bit": {"enum": [0, 1]}}, "type": "array", "items": {"$ref": "#/$defs/bit"}, "maxItems": 5},
        lambda value: isinstance(value, list) and set(value) <= {0, 1},
    ),
    (
        {"type": ["string", "null"], "maxLength": 3},
        lambda value: value is None or (isinstance(value, str) and len(value) <= 3),
    ),
]


def test_twenty_schemas_are_followed_by_a_model_that_talks_nonsense(tiny_model_path: Path) -> None:
    """Random weights at temperature 1 give JSON that fits each of twenty schemas, all in one batch, thrice."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            for seed in range(3):
                asked = [
                    ChatRequest(
                        messages=[Message("user", "go")],
                        response_format=ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema)),
                        sampling=SamplingParams(seed=seed, max_tokens=200),
                    )
                    for schema, _ in SCHEMAS
                ]
                answers = await at_once(backend, asked)
                for (schema, fits), answer in zip(SCHEMAS, answers, strict=True):
                    assert answer.last.finish_reason == "stop", (schema, answer.text)
                    assert fits(json.loads(answer.text)), (schema, answer.text)
            await assert_idle(backend)

    run(work())


def _asked(url: str, schema: JsonObject, **more: object) -> httpx.Response:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": form,
        "max_tokens": 40,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body | more, timeout=60)


def test_schema_that_refers_to_itself_is_refused_over_http(tiny_model_path: Path) -> None:
    """`{"$ref": "#"}` is a 400 that names the place and what to do; the log has no traceback, and others go on."""
    with logged() as log, serve(create_app(NativeBackend.of("tiny", lambda: tiny_model_path))) as url:
        refused = _asked(url, {"$ref": "#"})
        assert _asked(url, {"type": "boolean"}).status_code == 200
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "response_format.json_schema.schema")
    assert "in the schema at #: $ref '#' leads back to itself" in error["message"]
    assert "raceback" not in log.getvalue()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_grammar_that_fails_in_the_middle_ends_its_request_alone(tiny_model_path: Path, is_streamed: bool) -> None:
    """A form found too complex after some tokens is told as that; one line of the log, without traceback or text."""
    names = [f"secret{number}" for number in range(2400)]
    ways = [{"type": "object", "required": [name]} for name in names]
    either = {"anyOf": [{"anyOf": ways[:1200]}, {"anyOf": ways[1200:]}]}
    schema: JsonObject = {"type": "object", "properties": {"a": either}, "required": ["a"]}
    with logged() as log, serve(create_app(NativeBackend.of("tiny", lambda: tiny_model_path))) as url:
        failed = _asked(url, schema, stream=is_streamed)
        assert _asked(url, {"type": "boolean"}).status_code == 200
    assert "it is too complex" in failed.text
    assert is_streamed or failed.status_code == 400
    lines = [line for line in log.getvalue().splitlines() if "the grammar of request" in line]
    assert len(lines) == 1
    assert "raceback" not in log.getvalue()
    assert "secret" not in log.getvalue()
