"""Formats beside thinking, tools, several answers and resumed ones, on the embedded engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.calling_model import saying
from support.native import assert_idle, at_once, run, running

from pyagent.core.backends import collect
from pyagent.core.messages import (
    ChatRequest,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
    Tool,
)
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structural_tags import JsonSchemaContent, RegexContent, Tag, TriggeredTags
from pyagent.core.structured_output.matching import fault_of_text

TIME = Tool(FunctionDefinition("time", "now", {"type": "object", "properties": {}, "additionalProperties": False}))
CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
BIT = ResponseFormat("regex", regex="[01]{4}")
FORMS = [
    BIT,
    ResponseFormat("choice", choice=["yes", "no"]),
    ResponseFormat("grammar", grammar=GrammarFormat('start: "<" start ">" | /[0-9]{1,3}/')),
    ResponseFormat("grammar", grammar=GrammarFormat('root ::= "<" root ">" | [0-9]{1,3}', "gbnf")),
    ResponseFormat("json_schema", JsonSchemaFormat(schema={"type": "integer", "minimum": 0, "maximum": 99})),
    ResponseFormat("structural_tag", structural_tag=Tag("<n>", RegexContent("[0-9]{1,4}"), "</n>")),
    ResponseFormat("any_of", any_of=[BIT, ResponseFormat("choice", choice=["none"])]),
    ResponseFormat("all_of", all_of=[BIT, ResponseFormat("regex", regex=".*11.*")]),
]


def asked(**fields: object) -> ChatRequest:
    fields.setdefault("sampling", SamplingParams(max_tokens=200, seed=5))
    return ChatRequest(messages=[Message("user", "go")], **fields)  # type: ignore[arg-type]


def test_format_begins_where_thinking_ends(model: Path) -> None:
    """Thoughts are free words under every format; the content after them matches."""

    async def work() -> None:
        async with saying(model, *(["<think>\nfree words, {not} 1\n</think>Never so"] * len(FORMS))) as backend:
            for form in FORMS:
                answer = await collect(backend.chat(asked(response_format=form)))
                assert "".join(delta.reasoning for delta in answer.deltas).strip() == "free words, {not} 1"
                assert answer.last.finish_reason == "stop", answer.text
                assert fault_of_text(answer.text, form) is None

    run(work())


def test_tools_and_a_format_give_a_call_or_the_format(model: Path) -> None:
    """With both, an answer is a call of an offered tool or text in the format, after thoughts too."""
    scripts = [f"<think>\nhm\n</think>{CALL}", "<think>\nhm\n</think>~", "~"]

    async def work() -> None:
        async with saying(model, *scripts * len(FORMS)) as backend:
            for form in FORMS:
                called = await collect(backend.chat(asked(response_format=form, tools=[TIME])))
                assert [call.function.name for call in called.tool_calls] == ["time"]
                for _ in range(2):
                    answer = await collect(backend.chat(asked(response_format=form, tools=[TIME])))
                    assert answer.tool_calls or fault_of_text(answer.text, form) is None, answer.text

    run(work())


def test_all_formats_share_a_batch(model: Path) -> None:
    """Every kind at once, several answers each, matches its own format; alone and together they are the same."""
    requests = [asked(response_format=form, n=2, sampling=SamplingParams(max_tokens=200, seed=3)) for form in FORMS]

    async def work() -> None:
        async with running(model) as backend:
            alone = [await collect(backend.chat(request)) for request in requests]
            together = await at_once(backend, requests)
            for form, one, other in zip(FORMS, alone, together, strict=True):
                for index in (0, 1):
                    texts = ["".join(d.content for d in answer.deltas if d.index == index) for answer in (one, other)]
                    assert texts[0] == texts[1]
                    assert fault_of_text(texts[0], form) is None, (form.type, texts[0])
            await assert_idle(backend)

    run(work())


@pytest.mark.parametrize("form", [FORMS[2], FORMS[3], FORMS[5]], ids=["lark", "gbnf", "tag"])
def test_answer_that_has_begun_goes_on_in_its_format(model: Path, form: ResponseFormat) -> None:
    """With `answer_prefix`, as a chain resumes answers elsewhere, what is there and what follows match together."""
    begun = "<n>1" if form.type == "structural_tag" else "<"

    async def work() -> None:
        async with running(model) as backend:
            answer = await collect(backend.chat(asked(response_format=form, answer_prefix=begun)))
            assert fault_of_text(begun + answer.text, form) is None

    run(work())


def test_cancelled_answer_leaves_the_engine_idle(model: Path) -> None:
    """A client that leaves in the middle of free text with tags frees what its request held."""
    tag = Tag("<f>", JsonSchemaContent({"type": "object"}), "</f>")
    form = ResponseFormat("structural_tag", structural_tag=TriggeredTags(["<f"], [tag]))

    async def work() -> None:
        async with running(model) as backend:
            stream = backend.chat(asked(response_format=form, sampling=SamplingParams(max_tokens=2000)))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            async with asyncio.timeout(30):
                await assert_idle(backend)
            answer = await collect(backend.chat(asked(response_format=FORMS[4])))
            assert 0 <= json.loads(answer.text) <= 99

    run(work())
