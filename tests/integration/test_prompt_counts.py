"""What is told of a prompt beforehand is what answering it computes, also where tools and forms are told in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native import native_server
from support.tiny_model import write_tiny_model

from pyagent.cli.root import run as run_command

TOOL = {"name": "weather", "description": "tells the weather", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": TOOL}]
CALLED = [
    {"role": "user", "content": "how is it?"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
ASKED: list[dict[str, Any]] = [
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "messages": CALLED},
    {"tools": TOOLS, "response_format": {"type": "choice", "choice": ["a", "b"]}, "tool_choice": "none"},
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", llama__context_length=4096)
    with native_server(path) as url:
        yield url


def computed(url: str, body: dict[str, Any]) -> int:
    """The prompt's tokens as the answer's usage has them."""
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "max_tokens": 2}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("more", ASKED)
def test_cache_explain_counts_the_prompt_that_is_computed(
    url: str, more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pyagent cache explain` of a request with tools tells as many tokens as answering it uses."""
    body = {"messages": [{"role": "user", "content": "how is it?"}], **more}
    request = tmp_path / "request.json"
    request.write_text(json.dumps(body))
    assert run_command(["cache", "explain", str(request), "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == computed(url, body)


def test_anthropic_count_tokens_counts_tools(url: str) -> None:
    """POST /v1/messages/count_tokens of a request with tools tells as many as the answer's usage."""
    tool = {"name": "weather", "description": "tells the weather", "input_schema": {"type": "object"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "how is it?"}], "tools": [tool]}
    counted = httpx.post(f"{url}/v1/messages/count_tokens", json=body, timeout=60).json()["input_tokens"]
    usage = httpx.post(f"{url}/v1/messages", json={**body, "max_tokens": 2}, timeout=60).json()["usage"]
    assert counted == usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    assert counted > 100


def test_explain_of_what_is_refused_says_so(url: str) -> None:
    """A request that would be refused, as tools without emulation are, is refused when asked about, too."""
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "unsupported": "refuse"}
    answer = httpx.post(f"{url}/pyagent/cache/explain", json=body, timeout=60)
    assert (answer.status_code, "cannot do tools" in answer.text) == (400, True)
