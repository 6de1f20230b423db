"""Forced calls and reasoning in dialects other than Qwen's, whose tags are control tokens, through the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
from support.calling_model import saying, write_calling_model
from support.native import run
from support.server import serving

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

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD = Tool(FunctionDefinition("add", "", SCHEMA))
GREEDY = SamplingParams(temperature=0, max_tokens=200)
MISTRAL = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")


def write_model(folder: Path, tags: Sequence[str], shown: str = "") -> Path:
    """Write a model whose template knows tools and shows these tags."""
    template = (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ 'assistant: ' }}"
        f"{{# {shown or ' '.join(tags)} #}}"
    )
    path = folder / "tiny.gguf"
    return write_calling_model(path, tags=tags, is_control=True, tokenizer__chat_template=template)


def asked(**fields: object) -> ChatRequest:
    given: dict[str, object] = {"messages": [Message("user", "Add.")], "tools": [ADD], "sampling": GREEDY}
    return ChatRequest(**(given | fields))  # type: ignore[arg-type]


def test_forced_call_may_begin_inside_of_thoughts(tmp_path: Path) -> None:
    """A model that begins the call it owes without closing its thoughts makes that call, and one only."""

    async def main() -> None:
        text = '[THINK]hm[TOOL_CALLS]add[ARGS]{"a": 1}'
        async with saying(write_model(tmp_path, MISTRAL), text) as backend:
            answer = await collect(backend.chat(asked(tool_choice="required", parallel_tool_calls=False)))
        (call,) = answer.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        assert "".join(delta.reasoning for delta in answer.deltas) == "hm"
        assert (answer.text, answer.last.finish_reason) == ("", "tool_calls")

    run(main())


def test_harmony_is_held_from_its_first_token(tmp_path: Path) -> None:
    """A forced call of gpt-oss may follow analysis, follows its schema, and ends the answer."""
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    calls = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"

    async def main() -> None:
        texts = (f'{thought}{calls}{{"a": 1}}', f"{thought}<|channel|>commentary to=functions.no", f'{calls}{{"b": 1}}')
        async with saying(write_model(tmp_path, HARMONY), *texts) as backend:
            for text in texts:
                answer = await collect(backend.chat(asked(tool_choice="required")))
                (call,) = answer.tool_calls
                assert (call.function.name, [*json.loads(call.function.arguments)]) == ("add", ["a"])
                assert "".join(delta.reasoning for delta in answer.deltas) == ("hm" if thought in text else "")
                assert (answer.text, answer.last.finish_reason) == ("", "tool_calls")

    run(main())


def test_harmony_calls_or_answers_in_a_form(tmp_path: Path) -> None:
    """With `auto` and a response format gpt-oss thinks or not, then calls, or answers in the form."""
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
    final = "<|channel|>final<|message|>"
    form = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=SCHEMA))
    texts = [head + end for end in (call, f'{final}{{"a": 2}}') for head in (thought, "")]

    async def main() -> None:
        async with saying(
            write_model(tmp_path, HARMONY), *texts, preamble + call, f"{final}Two.", f'{{"a": 3}}{call}'
        ) as backend:
            for text in texts:
                answer = await collect(backend.chat(asked(tool_choice="auto", response_format=form)))
                assert "".join(delta.reasoning for delta in answer.deltas) == ("hm" if thought in text else "")
                assert answer.text == ('{"a": 2}' if final in text else "")
                assert [one.function.arguments for one in answer.tool_calls] == [[], ['{"a": 1}']][call in text]
                assert answer.last.finish_reason == ("stop" if final in text else "tool_calls")
            commented = await collect(backend.chat(asked(tool_choice="auto", response_format=form)))
            assert (commented.text, len(commented.tool_calls)) == ("Let me see.", 1)
            for _ in range(2):  # no other text, and none outside of a channel
                answer = await collect(backend.chat(asked(tool_choice="auto", response_format=form)))
                assert answer.tool_calls or [*json.loads(answer.text)] == ["a"]

    run(main())


def test_harmony_ends_at_the_tags_of_its_ends(tmp_path: Path) -> None:
    """A call or an answer of gpt-oss is over at `<|call|>` or `<|return|>`, also where the file does not say so."""
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'

    async def main() -> None:
        texts = (f"{call}<|start|>assistant{call}", "<|channel|>final<|message|>Two.<|return|><|start|>more")
        async with saying(write_model(tmp_path, HARMONY), *texts) as backend:
            first = await collect(backend.chat(asked()))
            second = await collect(backend.chat(asked()))
        assert (len(first.tool_calls), first.last.finish_reason) == (1, "tool_calls")
        assert (second.text, second.last.finish_reason) == ("Two.", "stop")

    run(main())


def test_bare_call_after_text_is_text_under_a_grammar(tmp_path: Path) -> None:
    """Where a grammar holds calls that stand without tags, one that it took for text is text and not a call."""
    strict = Tool(FunctionDefinition("add", "", SCHEMA, strict=True))
    late = 'Sure:\n{"name": "add", "parameters": {"oops": "x"}}'

    async def main() -> None:
        model = write_model(tmp_path, ("<|start_header_id|>",), '<|start_header_id|> "parameters"')
        async with saying(model, late, '{"name": "add", "parameters": {"a": 1}}', late) as backend:
            text = await collect(backend.chat(asked(tools=[strict])))
            call = await collect(backend.chat(asked(tools=[strict])))
            free = await collect(backend.chat(asked()))
        assert (text.text, text.tool_calls, text.last.finish_reason) == (late, [], "stop")
        assert [one.function.arguments for one in call.tool_calls] == ['{"a": 1}']
        assert len(free.tool_calls) == 1

    run(main())


def test_reasoning_between_texts_of_any_kind_comes_apart(tmp_path: Path) -> None:
    """Without tools too, whether a tag has a colon, is two words long or is a sentence."""
    seed = ("<seed:think>hm</seed:think>Two.", "<seed:think> <seed:tool_call>", ("<seed:think>", "</seed:think>"))
    begin, end = "Here is my thought process:", "Here is my response:"
    granite = (f"{begin} hm\n{end} Two.", f"{begin} {end}", ("<|x|>",))
    gemma = (
        "<|channel>thought\nhm<channel|>Two.",
        '<|channel>thought <|tool_call> <|"|>',
        ("<|channel>", "<channel|>"),
    )

    async def main() -> None:
        for text, shown, tags in (seed, granite, gemma):
            async with saying(write_model(tmp_path, tags, shown), text) as backend:
                answer = await collect(backend.chat(asked(tools=[])))
            assert (answer.text, "".join(delta.reasoning for delta in answer.deltas)) == ("Two.", "hm")

    run(main())


def test_wrong_call_reaches_clients_as_json(tmp_path: Path) -> None:
    """A call written like Python is JSON over HTTP: whole, streamed, and in Anthropic's API."""
    path = write_calling_model(tmp_path / "tiny.gguf")
    wrong = "<tool_call>{'name': 'add', 'arguments': {a: 1 'b': [True, None,], # two\n}"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "temperature": 0}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    theirs = [{"name": "add", "input_schema": {"type": "object"}}]
    meant = {"a": 1, "b": [True, None]}

    async def main() -> None:
        async with (
            saying(path, *[wrong.replace("# two", "// two")] * 4) as backend,
            serving(backend) as url,
            httpx.AsyncClient(timeout=60) as http,
        ):
            chats = f"{url}/v1/chat/completions"
            whole = (await http.post(chats, json=body | {"tools": tools})).json()["choices"][0]
            streamed = (await http.post(chats, json=body | {"tools": tools, "stream": True})).text
            cut = (await http.post(chats, json=body | {"tools": tools, "max_tokens": 30})).json()["choices"][0]
            message = (await http.post(f"{url}/v1/messages", json=body | {"tools": theirs})).json()
        (call,) = whole["message"]["tool_calls"]
        assert (json.loads(call["function"]["arguments"]), whole["finish_reason"]) == (meant, "tool_calls")
        chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        pieces = [call for chunk in chunks for one in chunk["choices"] for call in one["delta"].get("tool_calls") or ()]
        assert json.loads("".join(piece["function"].get("arguments") or "" for piece in pieces)) == meant
        assert cut["finish_reason"] == "length"
        assert [block["input"] for block in message["content"] if block["type"] == "tool_use"] == [meant]

    run(main())
