"""Conversations with tools, held by OpenAI's, Anthropic's and Ollama's own clients against the embedded engine.

The models are scripted (`support.scripted_runner`); all around them is the real engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import ollama
import openai
import pytest
from support.scripted_runner import Scripted, scripted_server
from support.tool_conversation import (
    ABOUT,
    DIALECTS,
    FAILING,
    FINAL,
    LLAMA3,
    PARAMETERS,
    QUESTION,
    QWEN3,
    RESULTS,
    TASK,
    Dialect,
    Toolbox,
    Turn,
    UnknownCityError,
)

TALK = "Call something."
FUNCTIONS: Any = [{"name": name, "description": about, "parameters": PARAMETERS} for name, about in ABOUT.items()]


@dataclass
class Held:
    """What a client got: of each answer its thought, its text, its calls' names and why it ended."""

    turns: list[tuple[str, str, list[str], str]] = field(default_factory=list[tuple[str, str, list[str], str]])
    usages: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(frozen=True)
class Place:
    """A server with a scripted model of each dialect."""

    url: str
    scripted: Scripted
    paths: dict[str, str]
    is_streamed: bool


@pytest.fixture(scope="module", params=["auto", "off"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Conversations go on with their token logs, or are rendered anew from what the clients send back."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: dialect.model(folder) for name, dialect in DIALECTS.items()}
    scripted = Scripted(_script)
    with scripted_server(scripted, *paths.values(), **{"engine.sessions": request.param}) as url:
        yield Place(url, scripted, {name: str(path) for name, path in paths.items()}, request.param == "off")


def _script(prompt: str) -> str:
    if TALK in prompt:
        return "<think>\nNo.\n</think>\n\nI would rather talk."
    return DIALECTS[_dialect_of(prompt)].script(prompt)


def _dialect_of(prompt: str) -> str:
    if "<|start_header_id|>" in prompt:
        return "llama3"
    return "harmony" if "<|channel|>" in prompt or "<|message|>" in prompt else "qwen3"


def run_tool(box: Toolbox, name: str, arguments: Any) -> tuple[str, bool]:
    """Return a tool's result and whether it failed."""
    try:
        return box.run(name, arguments), False
    except UnknownCityError as error:
        return f"Error: {error}", True


def hold_chat(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """With OpenAI's client over chat completions; the client's own message goes back as it is."""
    held, messages = Held(), [{"role": "user", "content": question}]
    kwargs: Any = {"model": model, "tools": [{"type": "function", "function": function} for function in FUNCTIONS]}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        while True:
            if is_streamed:
                more: Any = {"stream_options": {"include_usage": True}}
                with client.chat.completions.stream(messages=messages, **kwargs, **more) as stream:
                    answer: Any = stream.get_final_completion()
            else:
                answer = client.chat.completions.create(messages=messages, **kwargs)
            choice = answer.choices[0]
            said = choice.message
            calls = said.tool_calls or []
            thought = getattr(said, "reasoning_content", None) or ""
            held.turns.append(
                (thought, said.content or "", [call.function.name for call in calls], choice.finish_reason)
            )
            held.usages.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
            if not calls:
                return held
            messages.append(said)
            for call in calls:
                result, _ = run_tool(box, call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def hold_responses(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """With OpenAI's client over responses, none kept by the server: all items go back as they came."""
    return _hold_items(url, model, question, box, lambda item: item, is_streamed, store=False, reasoning={})


def hold_kept(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """Likewise with responses that the server keeps: only results go back."""
    held = Held()
    kwargs: Any = {"model": model, "tools": [{"type": "function"} | function for function in FUNCTIONS]}
    kwargs["input"] = question
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        while True:
            answer, calls = _response(client, kwargs, held, is_streamed=is_streamed)
            if not calls:
                return held
            kwargs |= {"previous_response_id": answer.id, "input": []}
            for call in calls:
                result, _ = run_tool(box, call.name, json.loads(call.arguments))
                kwargs["input"].append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def hold_references(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """As Vercel's `ai` does: what the server keeps goes back as references, with the calls and results between."""
    return _hold_items(url, model, question, box, lambda item: {"type": "item_reference", "id": item.id}, is_streamed)


def hold_sealed(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """As clients do that read summaries only: of a reasoning item its sealed text goes back."""
    sealed = {"store": False, "include": ["reasoning.encrypted_content"]}
    return _hold_items(
        url,
        model,
        question,
        box,
        lambda item: {"type": "reasoning", "summary": [], "encrypted_content": item.encrypted_content},
        is_streamed,
        **sealed,
    )


def _hold_items(
    url: str, model: str, question: str, box: Toolbox, thought: Callable[[Any], Any], is_streamed: bool, **more: Any
) -> Held:
    held, items = Held(), [{"role": "user", "content": question}]
    tools = [{"type": "function"} | function for function in FUNCTIONS]
    kwargs: Any = {"model": model, "tools": tools, "reasoning": {"summary": "auto"}} | more
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        while True:
            answer, calls = _response(client, {"input": items} | kwargs, held, is_streamed=is_streamed)
            if not calls:
                return held
            items += [thought(item) if item.type == "reasoning" else item for item in answer.output]
            for call in calls:
                result, _ = run_tool(box, call.name, json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def _response(client: openai.OpenAI, kwargs: Any, held: Held, *, is_streamed: bool) -> tuple[Any, list[Any]]:
    if is_streamed:
        with client.responses.stream(**kwargs) as stream:
            answer: Any = stream.get_final_response()
    else:
        answer = client.responses.create(**kwargs)
    reasoning = [item for item in answer.output if item.type == "reasoning"]
    thoughts = [part.text for item in reasoning for part in (item.summary or item.content)]
    calls = [item for item in answer.output if item.type == "function_call"]
    reason = "tool_calls" if calls else {"completed": "stop"}[answer.status]
    held.turns.append(("".join(thoughts), answer.output_text, [call.name for call in calls], reason))
    held.usages.append((answer.usage.input_tokens, answer.usage.output_tokens))
    return answer, calls


def hold_messages(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """With Anthropic's client, thinking asked for; all blocks go back as they came, errors as errors."""
    held, messages = Held(), [{"role": "user", "content": question}]
    tools = [{"input_schema" if key == "parameters" else key: of[key] for key in of} for of in FUNCTIONS]
    kwargs: Any = {"model": model, "tools": tools, "max_tokens": 4000}
    kwargs["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    with anthropic.Anthropic(base_url=url, api_key="x") as client:
        while True:
            if is_streamed:
                with client.messages.stream(messages=messages, **kwargs) as stream:
                    answer: Any = stream.get_final_message()
            else:
                answer = client.messages.create(messages=messages, **kwargs)
            thought = "".join(block.thinking for block in answer.content if block.type == "thinking")
            assert all(block.signature for block in answer.content if block.type == "thinking")
            text = "".join(block.text for block in answer.content if block.type == "text")
            calls = [block for block in answer.content if block.type == "tool_use"]
            reason = {"tool_use": "tool_calls", "end_turn": "stop"}[answer.stop_reason]
            held.turns.append((thought, text, [call.name for call in calls], reason))
            usage = answer.usage
            held.usages.append((usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens))
            if not calls:
                return held
            messages.append({"role": "assistant", "content": answer.content})
            results: list[Any] = []
            for call in calls:
                result, is_error = run_tool(box, call.name, call.input)
                result = result.removeprefix("Error: ")
                block = {"type": "tool_result", "tool_use_id": call.id, "content": result, "is_error": is_error}
                results.append(block)
            messages.append({"role": "user", "content": results})


def hold_ollama(url: str, model: str, question: str, box: Toolbox, *, is_streamed: bool) -> Held:
    """With Ollama's client; results go back with their tool's name alone, as its documentation shows."""
    held, messages = Held(), [{"role": "user", "content": question}]
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]

    with ollama.Client(url) as client:
        while True:
            if is_streamed:
                lines = list(client.chat(model, messages, tools=tools, stream=True))
                said: Any = ollama.Message(role="assistant")
                said.content = "".join(line.message.content or "" for line in lines)
                said.thinking = "".join(line.message.thinking or "" for line in lines)
                said.tool_calls = [call for line in lines for call in line.message.tool_calls or ()]
                last: Any = lines[-1]
            else:
                last = client.chat(model, messages, tools=tools)
                said = last.message
            calls = said.tool_calls or []
            reason = "tool_calls" if calls else last.done_reason
            held.turns.append((said.thinking or "", said.content or "", [call.function.name for call in calls], reason))
            held.usages.append((last.prompt_eval_count, last.eval_count))
            if not calls:
                return held
            messages.append(said)
            for call in calls:
                result, _ = run_tool(box, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_name": call.function.name, "content": result})


CLIENTS = {
    "chat": hold_chat,
    "responses": hold_responses,
    "kept": hold_kept,
    "references": hold_references,
    "sealed": hold_sealed,
    "messages": hold_messages,
    "ollama": hold_ollama,
}


WIRES = ("chat", "responses", "messages", "ollama")


def expected(dialect: Dialect, turns: tuple[Turn, ...]) -> list[tuple[str, str, list[str], str]]:
    """The turns as clients see them; Llama 3 has no thoughts, and no text beside calls."""
    plain = dialect is LLAMA3
    return [
        (
            "" if plain else turn.thought,
            "" if plain and turn.calls else turn.text,
            [name for name, _ in turn.calls],
            "tool_calls" if turn.calls else "stop",
        )
        for turn in turns
    ]


@pytest.mark.parametrize(
    ("name", "client"),
    [(name, client) for name in DIALECTS for client in (CLIENTS if name == "qwen3" else WIRES)],
)
def test_client_holds_a_conversation_with_tools(name: str, client: str, place: Place) -> None:
    """Tools run with the model's arguments, and the last prompt has calls and results as the template writes them."""
    dialect, box, first = DIALECTS[name], Toolbox(), len(place.scripted.prompts)
    held = CLIENTS[client](place.url, place.paths[name], QUESTION, box, is_streamed=place.is_streamed)
    assert held.turns == expected(dialect, tuple(dialect.turns))
    assert box.ran == [call for turn in dialect.turns for call in turn.calls]
    assert held.turns[-1][1] == FINAL
    prompts = place.scripted.prompts[first:]
    assert len(prompts) == len(dialect.turns)
    assert prompts[-1].partition(QUESTION)[2] == dialect.conversation(dialect.turns)
    for (num_prompt, num_output), prompt, turn in zip(held.usages, prompts, dialect.turns, strict=True):
        assert num_prompt > len(prompt) / 8
        assert num_output > len(turn.thought) / 8


@pytest.mark.parametrize("client", WIRES)
def test_tool_that_fails_is_told_to_the_model(client: str, place: Place) -> None:
    """What a tool raised reaches the model as its result, and the conversation goes on."""
    box, first = Toolbox(), len(place.scripted.prompts)
    held = CLIENTS[client](place.url, place.paths["qwen3"], TASK, box, is_streamed=place.is_streamed)
    assert held.turns == expected(QWEN3, FAILING)
    assert box.ran == [("weather", "Atlantis")]
    prompts = place.scripted.prompts[first:]
    assert [prompt.partition(TASK)[2] for prompt in prompts] == [
        QWEN3.conversation(FAILING[:number]) for number in (1, 2)
    ]


def test_results_stand_in_the_order_of_their_calls(place: Place) -> None:
    """Results sent as they came in, as Claude Code does, are told in the calls' order: Qwen's template shows no ids."""
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"city": city})},
        }
        for number, (name, city) in enumerate(QWEN3.turns[1].calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{number}", "content": RESULTS[call]}
        for number, call in enumerate(QWEN3.turns[1].calls)
    ]
    said: list[Any] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "tool_calls": calls}]
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="x") as client:
        for order in (results, results[::-1]):
            client.chat.completions.create(model=place.paths["qwen3"], messages=[*said, *order], max_tokens=1)
    first, second = place.scripted.prompts[-2:]
    assert first == second
    assert first.find("snow") < first.find("12:00")


def test_forced_call_comes_over_each_api(place: Place) -> None:
    """A model that would rather talk thinks, and then makes the one call that a request insists on."""
    ask: Any = [{"role": "user", "content": TALK}]
    chat_tools: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
    plain: Any = {"model": place.paths["qwen3"]}
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="x") as client:
        kwargs: Any = {"messages": ask, "tools": chat_tools, "tool_choice": "required", "parallel_tool_calls": False}
        answer: Any = client.chat.completions.create(**plain, **kwargs)
        (called,) = answer.choices[0].message.tool_calls
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)
        inputs = [json.loads(called.function.arguments)]
        tools: Any = [{"type": "function"} | function for function in FUNCTIONS]
        named: Any = {"type": "function", "name": "clock"}
        response: Any = client.responses.create(**plain, input=ask, tools=tools, tool_choice=named, store=False)
        assert [item.type for item in response.output] == ["reasoning", "function_call"]
        assert response.output[1].name == "clock"
        inputs.append(json.loads(response.output[1].arguments))
    with anthropic.Anthropic(base_url=place.url, api_key="x") as client:
        tools = [{"name": function["name"], "input_schema": PARAMETERS} for function in FUNCTIONS]
        kwargs = {"messages": ask, "tools": tools, "max_tokens": 500, "thinking": {"type": "adaptive"}}
        choice: Any = {"type": "any", "disable_parallel_tool_use": True}
        with client.messages.stream(**plain, **kwargs, tool_choice=choice) as stream:
            message: Any = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "tool_use"]
    assert message.stop_reason == "tool_use"
    for arguments in (*inputs, message.content[1].input):
        assert arguments["city"] in {"Rome", "Oslo", "Atlantis"}
