"""What an MCP server sends is read however deep it is nested."""

from __future__ import annotations

import json
import time

import pytest
from pydantic_core import from_json

from pyagent.infrastructure.mcp.nesting import MAX_DEPTH, shallow


def nested_list(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


TREES = ["a", '"]}\\', 7, [], {}, [[1], {"[": ["\\]"]}], {"ü": {"}": None}}, nested_list(140)]


def nested(depth: int, inner: object) -> str:
    return '{"[\\"": [' * depth + json.dumps(inner) + "]}" * depth


@pytest.mark.parametrize("tree", TREES[:-1])
@pytest.mark.parametrize("depth", [76, 101, 2_000])
def test_what_is_too_deep_is_cut_and_the_rest_stays(tree: object, depth: int) -> None:
    """Beside a value that is too deep all others stay as they are, and where it was cut is told."""
    value = from_json(shallow(f"[{json.dumps(tree)}, {nested(depth, tree)}, {json.dumps(tree)}]".encode()))
    if depth > 100:
        assert "cut: nested too deep" in str(value[1])
    assert (value[0], value[2]) == (tree, tree)


@pytest.mark.parametrize("tree", TREES)
def test_what_can_be_read_stays(tree: object) -> None:
    """A message within the bound is the same bytes."""
    message = json.dumps(tree).encode()
    assert shallow(message) is message


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 100_000,
        b"]" * 1_000,
        b'{"a": "' + b"[" * 1_000,
        b"[" * 300 + b'"\\',
        b'"\\"' * 30_000 + b"[" * 200,
        b"\xff[" * 300,
    ],
)
def test_what_is_no_json_is_left_in_time(message: bytes) -> None:
    """A message that is none is left as it is, however it is written, in time that grows with its length."""
    began = time.process_time()
    assert shallow(message) == message
    assert time.process_time() - began < 5


def test_bound_is_below_the_packages() -> None:
    """A message of the greatest depth is one that the package reads."""
    from_json(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
