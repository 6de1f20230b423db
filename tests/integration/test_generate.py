"""`Engine.generate` and `validate_partial`: what a program asks for is what it gets."""

from __future__ import annotations

import asyncio
import re
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
import pydantic
import pytest

from pyagent import Engine, GrammarFormat, InvalidOutputError, RequestError, SamplingParams, validate_partial


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class City(pydantic.BaseModel, extra="forbid"):
    """A Pydantic model with an enum, a pattern and a nested model."""

    size: Size
    code: Annotated[str, pydantic.Field(pattern="^[A-Z]{2}$")]
    near: list[Annotated[int, pydantic.Field(ge=0, le=9)]] = pydantic.Field(max_length=2)


class Town(msgspec.Struct, forbid_unknown_fields=True):
    size: Size


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}


def test_engine_generates_what_a_program_asks_for(tiny_model_path: Path) -> None:
    """A model that talks nonsense gives validated objects, choices, and texts of regexes and grammars, in one line."""

    async def work() -> None:
        async with Engine(tiny_model_path, threads=1) as engine:
            sampling = SamplingParams(max_tokens=120, seed=3)
            city = await engine.generate("go", schema=City, sampling=sampling)
            assert isinstance(city, City)
            assert re.fullmatch("[A-Z]{2}", city.code)
            assert (await engine.generate("go", schema=Town, sampling=sampling)).size in Size
            assert await engine.generate("go", schema=SCHEMA) == {"a": 1}
            assert await engine.generate("go", choice=["yes", "no"]) in {"yes", "no"}
            assert re.fullmatch("[ab]{3}", await engine.generate("go", regex="[ab]{3}"))
            assert await engine.generate("go", grammar='root ::= "x" | "y"') in {"x", "y"}
            assert await engine.generate("go", grammar=GrammarFormat('start: "x" | "y"')) in {"x", "y"}
            assert await engine.generate("go", sampling=SamplingParams(max_tokens=5, temperature=0))
            with pytest.raises(InvalidOutputError, match="cut at max_tokens"):
                await engine.generate("go", regex="[ab]{30}", sampling=SamplingParams(max_tokens=2))
            with pytest.raises(RequestError, match="regex and grammar exclude each other"):
                await engine.generate("go", regex="a", grammar="b")  # pyright: ignore[reportCallIssue]

    asyncio.run(work())


@pytest.mark.parametrize(
    ("wanted", "partial", "whole", "wrong"),
    [
        ({"schema": SCHEMA}, ["", "{", '{ "a"', '{"a":'], ['{"a": 1}', '{"a":1}'], ['{"b', "[", '{"a": 1} x']),
        ({"schema": City}, ['{"size": "sm'], ['{"size": "small", "code": "DE", "near": []}'], ['{"size": "m']),
        ({"choice": ["yes", "yesterday"]}, ["", "ye"], ["yes", "yesterday"], ["yesx", "no"]),
        ({"regex": "[ab]{2}"}, ["", "a"], ["ab"], ["abb", "c"]),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, ["(", "((x)"], ["(x)"], ["(x))", "()"]),
    ],
)
def test_beginning_of_an_answer_is_told_from_a_wrong_one(
    wanted: dict[str, object], partial: list[str], whole: list[str], wrong: list[str]
) -> None:
    """A growing answer is false until it matches, true when it does, and an error where it never can."""
    assert [validate_partial(text, **wanted) for text in partial] == [False] * len(partial)  # type: ignore[arg-type]
    assert [validate_partial(text, **wanted) for text in whole] == [True] * len(whole)  # type: ignore[arg-type]
    for text in wrong:
        with pytest.raises(InvalidOutputError, match="does not match"):
            validate_partial(text, **wanted)  # type: ignore[arg-type]


def test_partial_validation_says_what_it_cannot_check() -> None:
    """Nothing to check by, a type without a schema, and a broken grammar are errors of the caller."""
    with pytest.raises(RequestError, match="give one of schema"):
        validate_partial("x")
    with pytest.raises(RequestError, match="has no JSON schema"):
        validate_partial("x", schema=asyncio.Lock)
    with pytest.raises(RequestError, match="line 1, column 10"):
        validate_partial("x", grammar="root ::= (")
