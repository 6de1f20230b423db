"""Function calls of a real, small model over HTTP: the short form of `make function-calls`, over tools of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from support.server import connected, serving

from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions

pytestmark = pytest.mark.slow

TEXT = {"type": "string", "maxLength": 24}
DAYS = {"type": "integer", "description": "How many days"}
UNIT = {"enum": ["celsius", "fahrenheit"]}
PLACE = {"type": "object", "properties": {"city": TEXT, "country": TEXT}, "required": ["city"]}
WEATHER: dict[str, Any] = {"city": TEXT, "days": DAYS, "unit": UNIT}
SHAPES: dict[str, Mapping[str, Any]] = {
    "weather": WEATHER,
    "triangle_area": {"base": {"type": "number"}, "height": {"type": "number"}},
    "convert": {"amount": {"type": "number"}, "from": TEXT, "to": TEXT},
    "travel": {"from": PLACE, "to": PLACE, "is_fast": {"type": "boolean"}},
    "average": {"numbers": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 6}},
    "remember": {
        "note": TEXT,
        "tags": {"type": "array", "items": TEXT, "maxItems": 3},
        "day": {"type": ["string", "null"]},
    },
    "factorial": {"n": {"type": "integer", "minimum": 0, "maximum": 20}},
    "now": {},
}
QUESTIONS = [
    ("Will it rain in Rome for the next 3 days?", "weather"),
    ("Find the area of a triangle with a base of 10 and a height of 5.", "triangle_area"),
    ("How much are 150 Euros in Yen?", "convert"),
    ("Plan a fast journey from Paris, France to Bern.", "travel"),
    ("What is the average of 3, 4.5 and 6?", "average"),
    ("Remember to buy milk tomorrow.", "remember"),
    ("What is 6 factorial?", "factorial"),
    ("What time is it?", "now"),
    ("The weather in Oslo and in Lima, in celsius", "weather", "triangle_area"),
    ("Convert 3 dollars to pounds, and average 1 and 2.", "convert", "average", "now"),
]


def tools(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": schema(name)}} for name in names]


def schema(name: str) -> dict[str, Any]:
    kinds = SHAPES[name]
    return {"type": "object", "properties": dict(kinds), "required": [*kinds][:2]}


async def calls_of(client: openai.AsyncOpenAI, text: str, names: Sequence[str], **fields: Any) -> list[tuple[str, str]]:
    """The calls that a question is answered with, asked whole and in a stream, which must be the same."""
    fields |= {"model": "m", "tools": tools(names), "tool_choice": "required", "temperature": 0, "max_tokens": 400}
    messages: Any = [{"role": "user", "content": text}]
    create: Any = client.chat.completions.create
    answer = await create(messages=messages, **fields)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls: list[tuple[str, str]] = [
        (call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls
    ]
    pieces: dict[int, list[str]] = {}
    async for chunk in await create(messages=messages, stream=True, **fields):
        for piece in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            call = pieces.setdefault(piece.index, ["", ""])
            call[0] += piece.function.name or ""
            call[1] += piece.function.arguments or ""
    assert [tuple(call) for call in pieces.values()] == calls
    said = {"role": "assistant", "tool_calls": [call.model_dump() for call in answer.choices[0].message.tool_calls]}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in said["tool_calls"]]
    await create(messages=[*messages, said, *results], **fields | {"tool_choice": "auto", "max_tokens": 4})
    return calls


@pytest.mark.parametrize("is_parallel", [True, False])
def test_every_forced_call_of_a_small_model_follows_its_schema(smollm2_path: Path, *, is_parallel: bool) -> None:
    """SmolLM2 135M answers each question with calls that validate, streamed as whole, and takes their results."""

    async def work() -> None:
        options = EngineOptions(RunnerOptions(threads=2, kv_bytes=1 << 28))
        backend = NativeBackend.of("m", lambda: smollm2_path, options)
        try:
            async with serving(backend) as url, connected(url) as client:
                for text, *names in QUESTIONS:
                    calls = await calls_of(client, text, names, parallel_tool_calls=is_parallel)
                    assert len(calls) == 1 or (calls and is_parallel)
                    for name, arguments in calls:
                        jsonschema.validate(json.loads(arguments), schema(name))
        finally:
            await backend.close()

    asyncio.run(work())
