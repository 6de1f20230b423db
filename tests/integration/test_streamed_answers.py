"""What is streamed, put together, is what the same request has as a whole: with `auto` tools, in several dialects."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.calling_model import TAGS, TEMPLATE, write_calling_model
from support.dialect_texts import TOOLS
from support.native import NUM_TOKENS, options
from support.scripted_runner import Scripted, scripted_server

from pyagent.core.chain import Chain
from pyagent.core.dialects.registry import dialects
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

NAMES = ["hermes", "mistral", "qwen3_coder", "openai"]
FUNCTIONS = [
    {"type": "function", "function": {"name": one.function.name, "parameters": one.function.parameters}}
    for one in TOOLS
]
NUM_CASES = 4


def template_of(tags: list[str]) -> str:
    return (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ 'assistant: ' }}" + f"{{# {' '.join(tags)} #}}"
    )


def answered(url: str, **body: Any) -> dict[str, Any]:
    """One request both ways; the answer, which is the same but for ids."""
    whole, streamed = (_asked(url, body | {"stream": is_streamed}) for is_streamed in (False, True))
    assert streamed == whole
    return whole


def _asked(url: str, body: dict[str, Any]) -> dict[str, Any]:
    if not body["stream"]:
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        calls = {str(place): call["function"] for place, call in enumerate(choice["message"].get("tool_calls") or [])}
        return _told(choice["message"], calls, choice["finish_reason"], reply.json()["usage"])
    message: dict[str, Any] = {}
    calls = dict[str, dict[str, str]]()
    reason, usage = "", {}
    more = {"stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body | more, timeout=60) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
                for name in ("content", "reasoning_content"):
                    message[name] = message.get(name, "") + (choice["delta"].get(name) or "")
                for piece in choice["delta"].get("tool_calls") or []:
                    call = calls.setdefault(str(piece["index"]), {"name": "", "arguments": ""})
                    for name in call:
                        call[name] += piece["function"].get(name) or ""
    return _told(message, calls, reason, usage)


def _told(message: dict[str, Any], calls: dict[str, Any], reason: str, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [(call["name"], call["arguments"]) for call in calls.values()],
        "reason": reason,
        "tokens": (usage["prompt_tokens"], usage["completion_tokens"], usage.get("completion_tokens_details")),
    }


@pytest.mark.parametrize("name", NAMES)
def test_streamed_calls_are_those_of_the_whole_answer(tmp_path: Path, name: str) -> None:
    """What models of a dialect write, broken calls and tags within texts among it, comes out the same both ways."""
    tags = sorted(dialects()[name].markers) or [*TAGS]
    path = write_calling_model(
        tmp_path / "tiny.gguf", tags=tags, is_control=tags != [*TAGS], tokenizer__chat_template=template_of(tags)
    )
    texts = [case.text for case in import_module(f"support.dialect_texts.{name}").CASES if case.has_tools][:NUM_CASES]
    script = Scripted(lambda prompt: texts[int(prompt.rpartition("user: case ")[2].partition("\n")[0])])
    with scripted_server(script, path, **{"engine.dialect": name}) as url:
        num_calls = 0
        for number in range(len(texts)):
            asked: Any = {"model": str(path), "messages": [{"role": "user", "content": f"case {number}"}]}
            answer = answered(url, **asked, tools=FUNCTIONS, tool_choice="auto", seed=7)
            num_calls += len(answer["calls"])
        assert num_calls


def test_sampled_tags_come_out_the_same_both_ways(tmp_path: Path) -> None:
    """With a seed, a model that samples tags anywhere says the same streamed and as a whole."""
    template = TEMPLATE.rpartition("{% if enable_thinking")[0] + "{{ '<think>' }}"
    path = write_calling_model(tmp_path / "tiny.gguf", tokenizer__chat_template=template)
    backend = NativeBackend.of("tiny", lambda: path, options())
    hello = [{"role": "user", "content": "hi"}]
    seen: list[str] = []
    try:
        with serve(create_app(Chain([backend]))) as url:
            bias = {str(token): 12 for token in range(NUM_TOKENS - len(TAGS), NUM_TOKENS)}
            for seed in range(4):
                words = {"messages": hello, "max_tokens": 40, "temperature": 1.5, "logit_bias": bias}
                answer = answered(url, **words, tools=FUNCTIONS, tool_choice="auto", seed=seed)
                seen += [name for name in ("content", "reasoning") if answer[name]]
    finally:
        asyncio.run(backend.close())
    assert set(seen) == {"content", "reasoning"}
