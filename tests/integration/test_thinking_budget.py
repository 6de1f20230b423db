"""A bound on thinking, in every API: after so many tokens what ends reasoning is forced, and the answer goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from support.calling_model import TEMPLATE, saying, write_calling_model
from support.native import engine_of, run
from support.server import serving

from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.messages import BeamSearch, ChatRequest, FunctionDefinition, Message, SamplingParams, Tool
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.engine.options import ThinkingLimits
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.plugin import JsonCalls, Reasoning, TagDialect

THOUGHT = "abcdefghij"
TEXT = f"<think>\n{THOUGHT}</think>\n\nTwo."
USER = [{"role": "user", "content": "hi"}]
PLAIN = {"model": "tiny", "messages": USER, "max_tokens": 60, "temperature": 0}
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")


async def answered(model: Path, *asked: tuple[str, dict[str, Any]], **options: Any) -> list[Any]:
    """The bodies of answers to requests over HTTP, each by a model that would think all of its thought."""
    async with (
        saying(model, *[TEXT] * len(asked), **options) as backend,
        serving(backend) as url,
        httpx.AsyncClient(timeout=60) as http,
    ):
        replies = [await http.post(url + path, json=PLAIN | fields) for path, fields in asked]
    return [reply.json() if reply.status_code == 200 else (reply.status_code, reply.json()) for reply in replies]


def chat_of(body: Any) -> tuple[str, str, int]:
    """An answer's reasoning and content, and how many tokens the reasoning took."""
    message = body["choices"][0]["message"]
    details = body["usage"].get("completion_tokens_details", {})
    return message.get("reasoning_content") or "", message["content"], details.get("reasoning_tokens", 0)


def test_thinking_ends_at_its_budget(model: Path) -> None:
    """By vLLM's, Qwen's and llama.cpp's names; what the model says then is the answer."""
    fields: list[dict[str, Any]] = [
        {"thinking_token_budget": 4},
        {"thinking_budget": 4},
        {"thinking_budget_tokens": 4},
        {"reasoning_budget": 4, "reasoning_budget_tokens": 4},
        {"chat_template_kwargs": {"thinking_budget": 4}},
    ]

    async def main() -> None:
        free, *bounded = await answered(model, *(("/v1/chat/completions", one) for one in ({}, *fields)))
        assert chat_of(free)[:2] == (THOUGHT, "Two.")
        for thought, content, num_tokens in map(chat_of, bounded):
            assert THOUGHT.startswith(thought)
            assert 0 < len(thought) < len(THOUGHT)
            assert num_tokens == 5  # the tag that ends it is one of them
            assert content.endswith("Two.")

    run(main())


def test_budget_holds_in_the_other_apis(model: Path) -> None:
    """Anthropic's `budget_tokens`, the Responses API, and by effort Ollama's `think`."""
    limits = ThinkingLimits(by_effort={"low": 3})
    anthropic = {"thinking": {"type": "enabled", "budget_tokens": 3}}
    responses = {"input": "hi", "thinking_token_budget": 3, "max_output_tokens": 60}
    ollama = {"think": "low", "stream": False}

    async def main() -> None:
        async with (
            saying(model, *[TEXT] * 4, thinking=limits) as backend,
            serving(backend) as url,
            httpx.AsyncClient(timeout=60) as http,
        ):
            sent = [("/v1/messages", {"model": "tiny", "messages": USER, "max_tokens": 60} | anthropic)]
            sent += [("/v1/responses", {"model": "tiny", "temperature": 0} | responses)]
            sent += [("/api/chat", {"model": "tiny", "messages": USER} | ollama)]
            sent += [("/v1/chat/completions", PLAIN | {"reasoning_effort": "low"})]
            replies = [(await http.post(url + path, json=body)) for path, body in sent]
        assert [reply.status_code for reply in replies] == [200] * 4
        messages, response, chat, completion = (reply.json() for reply in replies)
        thoughts = [
            messages["content"][0]["thinking"],
            response["output"][0]["content"][0]["text"],
            chat["message"]["thinking"],
            completion["choices"][0]["message"]["reasoning_content"],
        ]
        assert {len(thought) for thought in thoughts} == {len(thoughts[0])}
        assert len(thoughts[0]) < len(THOUGHT)
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 4

    run(main())


def test_wrong_budgets_are_refused_by_name(model: Path) -> None:
    """A budget below -1, one that is no number, names that disagree, and Anthropic's without a token."""
    chats: list[tuple[str, dict[str, Any]]] = [
        ("thinking_token_budget", {"thinking_token_budget": -2}),
        ("reasoning_budget", {"reasoning_budget": 2**40}),
        ("thinking_token_budget", {"thinking_token_budget": 4, "thinking_budget": 5}),
        ("thinking_token_budget", {"thinking_token_budget": "4"}),
    ]
    responses = {"model": "tiny", "input": "hi", "thinking_token_budget": -7}
    messages = {"model": "tiny", "messages": USER, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 0}}

    async def main() -> None:
        async with saying(model) as backend, serving(backend) as url, httpx.AsyncClient() as http:
            for param, fields in chats:
                reply = await http.post(f"{url}/v1/chat/completions", json=PLAIN | fields)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
            reply = await http.post(f"{url}/v1/responses", json=responses)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "thinking_token_budget")
            reply = await http.post(f"{url}/v1/messages", json=messages)
            assert (reply.status_code, "thinking.budget_tokens" in reply.text) == (400, True)

    run(main())


def test_settings_bound_thinking_and_requests_decide(model: Path) -> None:
    """`engine.thinking_token_budget` is for requests that say nothing, -1 lifts it, and the message is thought last."""
    limits = ThinkingLimits(num_tokens=2, message=" Enough.\n")
    path = "/v1/chat/completions"

    async def main() -> None:
        bodies = await answered(
            model,
            (path, {}),
            (path, {"thinking_token_budget": -1}),
            (path, {"thinking_token_budget": 0}),
            thinking=limits,
        )
        bounded, free, none = map(chat_of, bodies)
        assert bounded[0].endswith(" Enough.")
        assert len(bounded[0]) < len(THOUGHT)
        assert free[:2] == (THOUGHT, "Two.")
        assert none[0] == "Enough."

    run(main())


def test_settings_of_thinking_are_read() -> None:
    """Each of the three, and efforts that are none are refused."""
    given: dict[str, Any] = {
        "engine.thinking_token_budget": 5,
        "engine.effort_budgets": {"low": 1, "high": 0},
        "engine.thinking_budget_message": "so",
    }
    options = options_of(load_settings(overrides=given).settings, PluginHost())
    assert options.thinking == ThinkingLimits(5, {"low": 1, "high": 0}, "so")
    for wrong in ({"lots": 3}, {"low": -1}, {"low": "x"}):
        with pytest.raises(ConfigError, match=r"engine\.effort_budgets"):
            load_settings(overrides={"engine.effort_budgets": wrong})


def ask(budget: int | None, **fields: Any) -> ChatRequest:
    sampling = SamplingParams(temperature=0, max_tokens=120, thinking_token_budget=budget, top_logprobs=1)
    return ChatRequest(messages=[Message("user", "hi")], **({"sampling": sampling} | fields))


def test_budget_is_for_models_that_were_told_not_to_think(model: Path) -> None:
    """One that thinks all the same is bounded too."""

    async def main() -> None:
        async with saying(model, TEXT) as backend:
            answer = await collect(backend.chat(ask(3, reasoning_effort="none")))
        assert answer.usage.reasoning_tokens == 4

    run(main())


@pytest.mark.parametrize("budget", [0, 5])
def test_each_beam_thinks_within_the_budget(tmp_path: Path, budget: int) -> None:
    """Asked for or set: the thoughts of each of several beams end after so many tokens, once."""
    template = TEMPLATE.rpartition("{% if enable_thinking")[0] + "{{ '<think>' }}"
    path = write_calling_model(tmp_path / "tiny.gguf", tokenizer__chat_template=template)
    plain = SamplingParams(max_tokens=14, ignore_eos=True)
    beams: dict[str, Any] = {"beam": BeamSearch(width=3), "n": 2}

    async def main() -> None:
        async with engine_of(path, process=False, **{"engine.thinking_token_budget": budget}) as backend:
            answers = [
                await collect(backend.chat(ask(None, sampling=sampling, **beams)))
                for sampling in (plain, replace(plain, thinking_token_budget=budget))
            ]
            free = await collect(backend.chat(ask(None, sampling=replace(plain, thinking_token_budget=-1), **beams)))
        for answer in answers:
            assert answer.usage.reasoning_tokens == 2 * (budget + 1)
            assert answer.usage.completion_tokens == 28
            contents = ["".join(delta.content for delta in answer.deltas if delta.index == index) for index in (0, 1)]
            assert contents[0] != contents[1]
            assert "</think>" not in "".join(contents)
        assert free.usage.reasoning_tokens == 28

    run(main())


def test_harmony_ends_its_message_of_thoughts(tmp_path: Path) -> None:
    """gpt-oss ends the message, and begins its answer, or what it likes where it may call."""
    template = (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ 'assistant: ' }}"
        f"{{# {' '.join(HARMONY)} #}}"
    )
    path = write_calling_model(tmp_path / "tiny.gguf", tags=HARMONY, is_control=True, tokenizer__chat_template=template)
    tool = Tool(FunctionDefinition("add", "", {"type": "object"}))
    call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}<|call|>"
    thought = "<|channel|>analysis<|message|>abcdef"

    async def main() -> None:
        async with saying(path, f"{thought}Two.<|return|>", thought + call) as backend:
            said = await collect(backend.chat(ask(6)))
            called = await collect(backend.chat(ask(8, tools=[tool])))
        for answer in (said, called):
            assert any(delta.reasoning for delta in answer.deltas)
        assert (said.text[-4:], said.last.finish_reason) == ("Two.", "stop")
        assert called.last.finish_reason in {"stop", "tool_calls"}

    run(main())


def test_form_begins_after_forced_end(model: Path) -> None:
    """A forced call, and text in a form, are held from the tag on that ends the thought, in each of several answers."""
    tool = Tool(FunctionDefinition("time", "", {"type": "object", "additionalProperties": False}))

    async def main() -> None:
        async with saying(model, *["<think>\nabcdefghij"] * 3) as backend:
            one = await collect(backend.chat(ask(3, tools=[tool], tool_choice="required")))
            two = await collect(backend.chat(ask(3, tools=[tool], tool_choice="required", n=2)))
        assert [call.function.name for call in one.tool_calls] == ["time"]
        assert json.loads(one.tool_calls[0].function.arguments) == {}
        thoughts = ["".join(delta.reasoning for delta in two.deltas if delta.index == index) for index in (0, 1)]
        assert 0 < len(thoughts[0]) < len(THOUGHT)
        assert thoughts[0] == thoughts[1]
        assert len(two.tool_calls) == 2
        logprobs = [one for delta in one.deltas for one in delta.logprobs]
        assert all(logprob.logprob <= 0 for logprob in logprobs)

    run(main())


def test_template_that_knows_the_budget_is_told(tmp_path: Path) -> None:
    """Seed OSS' template has a variable for it, which says the same as the bound."""
    template = TEMPLATE + "{% if thinking_budget is defined %}{{ 'think: ' ~ thinking_budget }}{% endif %}"
    path = write_calling_model(tmp_path / "tiny.gguf", tokenizer__chat_template=template)

    async def main() -> None:
        async with saying(path, TEXT, TEXT) as backend:
            counts = [(await collect(backend.chat(ask(budget)))).usage.prompt_tokens for budget in (None, 6)]
        assert counts[1] > counts[0]

    run(main())


@pytest.mark.parametrize("changes", [{"engine.async_scheduling": "on"}, {"engine.process": True}], ids=str)
def test_budget_holds_however_steps_are_scheduled(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Planned ahead, and in a process of its own, beside others: a prompt that opens thoughts has so many of them."""
    template = TEMPLATE.rpartition("{% if enable_thinking")[0] + "{{ '<think>' }}"
    path = write_calling_model(tmp_path / "tiny.gguf", tokenizer__chat_template=template)
    sampling = SamplingParams(temperature=0, max_tokens=30, thinking_token_budget=5, ignore_eos=True)

    async def main() -> None:
        async with engine_of(path, **{"engine.process": False, **changes}) as backend:
            asked = [ask(None, sampling=sampling), ask(None), ask(0), ask(None, sampling=sampling)]
            bounded, _, none, same = await asyncio.gather(*(collect(backend.chat(request)) for request in asked))
        assert (bounded.usage.reasoning_tokens, none.usage.reasoning_tokens) == (6, 1)
        assert bounded.usage.completion_tokens == 30
        assert bounded.text == same.text

    run(main())


class Speaker:
    """A dialect of a plugin's own class, whose thoughts stand between words."""

    name = "speaker"
    markers: frozenset[str] = frozenset()
    reasoning = Reasoning("I think:", "I say:")
    spans_reasoning = False

    def __init__(self) -> None:
        self._tags = TagDialect(name="tags", models="", reasoning=self.reasoning, calls=JsonCalls("<tool_call>"))

    def matches(self, template: str) -> bool:
        return "I think:" in template

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tags, name)


def test_dialect_of_any_class_names_its_thoughts(tmp_path: Path) -> None:
    """A plugin's class says what stands around reasoning: it is seen without tools, and ends at its budget."""
    path = write_calling_model(tmp_path / "tiny.gguf", tokenizer__chat_template=TEMPLATE + "{# I think: #}")

    async def main() -> None:
        async with saying(path, *["I think: abcdefgh I say: Two."] * 2, dialects=[Speaker()]) as backend:
            free = await collect(backend.chat(ask(None)))
            bounded = await collect(backend.chat(ask(3)))
        assert ("".join(delta.reasoning for delta in free.deltas), free.text) == ("abcdefgh", "Two.")
        assert "abcdefgh".startswith("".join(delta.reasoning for delta in bounded.deltas))
        assert len(bounded.text) > len(free.text)

    run(main())
