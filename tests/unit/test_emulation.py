"""What backends lack is emulated where an answer can be checked, else refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.abilities import ABILITIES, Abilities, needs
from pyagent.core.backends import Answer, collect
from pyagent.core.chain.structured_output import validate_answer
from pyagent.core.emulation import dialect, response_formats
from pyagent.core.emulation.cutting import cut
from pyagent.core.emulation.fulfil import EMULATED, fulfil
from pyagent.core.errors import BackendError, InvalidOutputError, RequestError, UnsupportedError
from pyagent.core.messages import (
    BeamSearch,
    ChatDelta,
    ChatRequest,
    FinishReason,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
    Tool,
    ToolCall,
    Usage,
)
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structural_tags import AnyText
from pyagent.core.structured_output.matching import fault_of_text
from pyagent.core.tool_call_deltas import as_deltas

ADD = Tool(
    FunctionDefinition("add", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
)
STRICT = Tool(msgspec.structs.replace(ADD.function, strict=True))
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SCHEMA = ResponseFormat(
    "json_schema",
    JsonSchemaFormat(schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
)
CHOICE = ResponseFormat("choice", choice=["yes", "no"])
NOTHING: Abilities = frozenset()


class Model:
    """Answers with its texts in turn, a character a piece."""

    def __init__(self, *texts: str, finish: str = "stop") -> None:
        self.texts = texts
        self.asked: list[ChatRequest] = []
        self.finish = finish
        self.num_closed = 0

    async def answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        text = self.texts[len(self.asked) - 1]
        is_done = False
        try:
            for character in text:
                await asyncio.sleep(0)
                yield ChatDelta(content=character, model="m", backend="b")
            is_done = True
            yield ChatDelta(finish_reason=self.finish, usage=Usage(3, len(text), 3 + len(text)), backend="b")  # type: ignore[arg-type]
        finally:
            self.num_closed += not is_done


def ask(
    model: Model | Calling | CallingTwice, request: ChatRequest, abilities: Abilities = NOTHING, **options: object
) -> Answer:
    async def main() -> Answer:
        return await collect(fulfil(request, model.answer, abilities, backend="b", **options))  # type: ignore[arg-type]

    return asyncio.run(main())


def chat(**fields: object) -> ChatRequest:
    return ChatRequest(messages=[Message("user", "hi")], **fields)  # type: ignore[arg-type]


def test_plain_requests_pass_untouched() -> None:
    """A request that needs nothing special reaches the backend as it is, and its deltas come back as they are."""
    model = Model("hello")
    answer = ask(model, chat())
    assert (answer.text, len(answer.deltas), model.asked) == ("hello", 6, [chat()])


@pytest.mark.parametrize(
    ("request_", "needed"),
    [
        (chat(), set[str]()),
        (ChatRequest(prompt="x"), {"prompt"}),
        (chat(tools=[ADD]), {"tools"}),
        (chat(tools=[ADD], tool_choice="auto"), {"tools"}),
        (chat(tools=[ADD], tool_choice={"type": "function", "function": {"name": "add"}}), {"tools", "tool_choice"}),
        (chat(tools=[STRICT]), {"tools", "strict"}),
        (chat(tools=[ADD], parallel_tool_calls=False), {"tools", "parallel_tool_calls"}),
        (chat(tools=[ADD], tool_choice="none", parallel_tool_calls=False), {"tools", "tool_choice"}),
        (chat(parallel_tool_calls=False, reasoning_effort="none"), set[str]()),
        (chat(reasoning_effort="low"), {"reasoning_effort"}),
        (chat(tools=[STRICT], tool_choice="none"), {"tools", "tool_choice"}),
        (ChatRequest(messages=[Message("tool", "2", tool_call_id="c")]), {"tools"}),
        (ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:,"))])]), {"images"}),
        (chat(response_format=ResponseFormat("text")), set[str]()),
        (chat(response_format=CHOICE, n=2, best_of=3, beam=BeamSearch(width=2)), {"choice", "n", "best_of", "beam"}),
        (chat(sampling=SamplingParams(seed=1, temperature=0)), {"temperature"}),
        (chat(sampling=SamplingParams(seed=1, top_logprobs=0, stop=("x",))), {"seed", "top_logprobs", "stop"}),
    ],
)
def test_needs_are_named_after_the_fields(request_: ChatRequest, needed: set[str]) -> None:
    """What a request needs is named after its fields; defaults need nothing, nor does the seed of a greedy draw."""
    assert needs(request_) == needed
    assert needs(request_) <= ABILITIES


def test_every_field_is_served_emulated_or_refused_by_name() -> None:
    """What cannot be emulated is refused by name before anything is asked; so is everything under `refuse`."""
    requests = {
        "images": ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:,"))])]),
        "prompt": ChatRequest(prompt="x"),
        "beam": chat(beam=BeamSearch(width=2)),
        "reasoning_effort": chat(reasoning_effort="high"),
        "best_of": chat(best_of=2),
        "logit_bias": chat(sampling=SamplingParams(logit_bias={1: 1.0})),
    }
    model = Model()
    for name, request in requests.items():
        with pytest.raises(BackendError, match=f"b cannot do {name}") as caught:
            ask(model, request)
        assert not caught.value.retryable
    seeded = chat(sampling=SamplingParams(seed=1))
    for request in (chat(n=2), chat(response_format=SCHEMA), chat(tools=[ADD]), seeded):
        with pytest.raises(BackendError, match="cannot do"):
            ask(model, request, unsupported="refuse")
    with pytest.raises(BackendError, match="cannot do n"):
        ask(model, chat(n=2, unsupported="refuse"), unsupported="emulate")
    assert model.asked == []
    assert EMULATED < ABILITIES


def test_sampling_hints_a_backend_lacks_are_left_out_and_named() -> None:
    """Temperature, penalties and a seed make no backend refused: it is asked without them, and the usage says so."""
    model = Model("hello")
    hints = SamplingParams(temperature=0.2, top_p=0.9, top_k=40, repetition_penalty=1.1, seed=3)
    answer = ask(model, chat(sampling=hints), {"top_p"})
    assert answer.text == "hello"
    assert answer.usage.ignored == ("repetition_penalty", "seed", "temperature", "top_k")
    assert model.asked[0].sampling == SamplingParams(top_p=0.9)


@pytest.mark.parametrize(
    "said",
    ['{"n": 4}', ' {"n": 4}\n', '```json\n{"n": 4}\n```', 'Sure! {"n": 4} is what you want.', 'So:\n```\n{"n": 4}```'],
)
def test_schema_is_said_and_checked(said: str) -> None:
    """A JSON schema goes into the system prompt; the JSON is taken out of what a model puts around it."""
    model = Model(said)
    assert ask(model, chat(response_format=SCHEMA)).text == '{"n": 4}'
    (asked,) = model.asked
    assert asked.response_format is None
    assert asked.messages[0].role == "system"
    assert json.dumps(SCHEMA.json_schema.schema) in asked.messages[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("said", ["no JSON", '{"n": "four"}', '{"n": 4', "[1]", "{}"])
def test_faulty_answer_is_repaired_once(said: str) -> None:
    """The model is told what is wrong and asked once more; both rounds are counted; a second fault is an error."""
    model = Model(said, '{"n": 1}')
    answer = ask(model, chat(response_format=SCHEMA))
    assert (answer.text, answer.usage.prompt_tokens, answer.usage.completion_tokens) == ('{"n": 1}', 6, len(said) + 8)
    assert model.asked[1].messages[-2] == Message("assistant", said)
    assert "cannot be used" in model.asked[1].messages[-1].text
    with pytest.raises(InvalidOutputError, match="the model's answers do not match response_format") as caught:
        ask(Model(said, said), chat(response_format=SCHEMA))
    assert (caught.value.param, caught.value.code) == ("response_format", "json_validate_failed")


def test_answer_cut_by_its_limit_is_told_as_it_is() -> None:
    """An answer that ended at its limit of tokens comes as it is with that reason, as a grammar's would."""
    answer = ask(Model('{"n": ', finish="length"), chat(response_format=SCHEMA))
    assert (answer.text, answer.last.finish_reason) == ('{"n": ', "length")


def test_answer_cut_by_a_stop_string_is_told_as_it_is() -> None:
    """A beginning of what was asked for is no fault where the request has texts to stop at; another text is one."""
    request = chat(response_format=SCHEMA, sampling=SamplingParams(stop=("4",)))
    model = Model('{"n": 4}')
    answer = ask(model, request)
    assert (answer.text, answer.last.finish_reason, len(model.asked)) == ('{"n": ', "stop", 1)
    assert validate_answer([*answer.deltas], request) == ""
    assert "is not JSON" in validate_answer([*answer.deltas], chat(response_format=SCHEMA))
    with pytest.raises(InvalidOutputError, match="do not match response_format"):
        ask(Model("no 4", "no 4"), request)


@pytest.mark.parametrize("said", ["yes", ' "yes"\n', "'yes'.", '{"choice": "yes"}', "**yes**"])
def test_choice_by_words_or_by_schema(said: str) -> None:
    """A choice is asked in words, or as a schema where the backend knows those; it comes back as one of the texts."""
    model = Model(said)
    assert ask(model, chat(response_format=CHOICE)).text == "yes"
    assert '"yes", "no"' in model.asked[0].messages[0].text
    by_schema = Model(said)
    request = chat(response_format=CHOICE, unsupported="refuse")
    assert ask(by_schema, request, frozenset({"json_schema"})).text == "yes"
    assert by_schema.asked[0].messages == request.messages
    assert by_schema.asked[0].response_format == response_formats.as_schema(CHOICE)
    with pytest.raises(InvalidOutputError, match="none of the choices"):
        ask(Model("maybe", "perhaps"), chat(response_format=CHOICE))


@pytest.mark.parametrize(
    "schema", [{"type": 7}, {"$ref": "http://127.0.0.1:9/x.json"}, {"type": "string", "pattern": "("}]
)
def test_broken_schema_is_the_callers_fault(schema: dict[str, object]) -> None:
    """A schema that is none, or points elsewhere, is refused; nothing is fetched."""
    wanted = ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))
    with pytest.raises(RequestError, match="the JSON schema cannot be checked"):
        ask(Model('"x"'), chat(response_format=wanted))


def test_tools_are_told_in_words_and_called_in_tags() -> None:
    """Tools stand in the system prompt; text before a call streams; the calls come with the last delta, checked."""
    model = Model(f"Let me see. {CALL}\n{CALL}")
    answer = ask(model, chat(tools=[ADD]))
    assert answer.text == "Let me see."
    assert len(answer.deltas) > 5
    assert [call.function for call in answer.tool_calls] == [FunctionCall("add", '{"a": 1}')] * 2
    assert len({call.id for call in answer.tool_calls}) == 2
    assert answer.last.finish_reason == "tool_calls"
    assert model.asked[0].tools == []
    assert '"name": "add"' in model.asked[0].messages[0].text


def test_earlier_calls_and_results_are_written_out() -> None:
    """A conversation with calls and results reaches the model as text of the same dialect."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"a": 1}'))
    messages = [
        Message("system", "be brief"),
        Message("user", "1+1"),
        Message("assistant", "", tool_calls=[call]),
        Message("tool", "2", tool_call_id="c1"),
    ]
    model = Model("two")
    assert ask(model, ChatRequest(messages=messages, tools=[ADD])).text == "two"
    told = model.asked[0].messages
    assert [message.role for message in told] == ["system", "user", "assistant", "user"]
    assert told[0].text.startswith("be brief\n\n")
    assert dialect.read(told[2].text, [ADD])[1][0].function == call.function
    assert told[3].text == '<tool_response>{"name": "add", "content": "2"}</tool_response>'


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("<tool_call>{oops}</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "mul", "arguments": {}}</tool_call>', "no function 'mul'"),
        ('<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>', "arguments of add are wrong"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ("<tool_call>7</tool_call>", "not valid JSON, or has no name"),
    ],
)
def test_faulty_calls_are_repaired_once(said: str, fault: str) -> None:
    """A call that cannot be made goes back to the model with the reason; text shown before is not shown twice."""
    model = Model(f"Hm. {said}", CALL)
    answer = ask(model, chat(tools=[ADD]))
    assert answer.text == "Hm."
    assert len(answer.tool_calls) == 1
    assert fault in model.asked[1].messages[-1].text


@pytest.mark.parametrize(
    ("wanted", "wrong", "right", "told"),
    [
        (ResponseFormat("regex", regex="[0-9]+"), "about 12", " 12\n", "regular expression as a whole"),
        (ResponseFormat("regex", regex="[0-9]+"), "twelve", "Here:\n```text\n12\n```", "regular expression"),
        (ResponseFormat("grammar", grammar=GrammarFormat('root ::= "12" root?', "gbnf")), "13", "12", "in GBNF"),
        (ResponseFormat("grammar", grammar=GrammarFormat('start: "12"')), "121", "12", "in Lark"),
        (ResponseFormat("any_of", any_of=[CHOICE, ResponseFormat("regex", regex="1.")]), "maybe", "12", "one of these"),
        (ResponseFormat("all_of", all_of=[SCHEMA, ResponseFormat("json_object")]), '{"n": "x"}', '{"n": 12}', "all of"),
    ],
)
def test_text_that_can_be_checked_is_asked_for_in_words(
    wanted: ResponseFormat, wrong: str, right: str, told: str
) -> None:
    """A regex, a grammar or a combination is told in words; an answer that does not match is asked for once more."""
    model = Model(wrong, right)
    answer = ask(model, chat(response_format=wanted))
    assert "12" in answer.text
    assert validate_answer([ChatDelta(content=answer.text, finish_reason="stop")], chat(response_format=wanted)) == ""
    assert told in model.asked[0].messages[0].text
    assert "cannot be used" in model.asked[1].messages[-1].text
    with pytest.raises(InvalidOutputError, match="also when asked again"):
        ask(Model(wrong, wrong), chat(response_format=wanted))


def test_plain_text_among_several_forms_is_told_as_such() -> None:
    """Where text is one of the forms that will do, the model is not told that it has to be JSON."""
    told = response_formats.instruction(ResponseFormat("any_of", any_of=[ResponseFormat(), SCHEMA]))
    assert told.splitlines()[1] == "1. Answer in plain text."
    assert told.splitlines()[2].startswith("2. Answer with one JSON value")


def test_structural_tags_are_refused_where_no_grammar_is() -> None:
    """Tags in free text cannot be asked for in words, alone or within others."""
    tag = ResponseFormat("structural_tag", structural_tag=AnyText())
    for wanted in (tag, ResponseFormat("any_of", any_of=[CHOICE, tag])):
        with pytest.raises(UnsupportedError, match="cannot do structural_tag"):
            ask(Model("x"), chat(response_format=wanted))


def test_tool_choice_is_seen_to() -> None:
    """`none` hides the tools, a name leaves that one, `required` insists; on a backend with tools it is checked too."""
    two = [ADD, Tool(FunctionDefinition("mul"))]
    hidden = Model("plain")
    assert ask(hidden, chat(tools=two, tool_choice="none")).text == "plain"
    assert hidden.asked[0].messages == chat().messages
    named = Model(CALL)
    choice = {"type": "function", "function": {"name": "add"}}
    assert ask(named, chat(tools=two, tool_choice=choice)).tool_calls
    assert '"mul"' not in named.asked[0].messages[0].text
    insisting = Model("no thanks", "still no")
    with pytest.raises(InvalidOutputError, match="calls no function"):
        ask(insisting, chat(tools=two, tool_choice="required"), frozenset({"tools"}))
    assert insisting.asked[0].tools == two
    assert insisting.asked[0].tool_choice is None


class Calling:
    """Calls `add` with its arguments in turn."""

    def __init__(self, *arguments: str, finish: FinishReason = "tool_calls") -> None:
        self.arguments, self.finish = arguments, finish
        self.asked: list[ChatRequest] = []

    async def answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        function = FunctionCall("add", self.arguments[len(self.asked)])
        self.asked.append(request)
        calls = as_deltas([ToolCall(id="c", function=function)])
        yield ChatDelta(tool_calls=calls, finish_reason=self.finish, backend="b")


def test_strict_arguments_are_seen_to_where_the_backend_does_not() -> None:
    """Its calls are checked and repaired once; it is not told of `strict`. Calls of other tools are not looked at."""
    abilities: Abilities = frozenset({"tools"})
    model = Calling('{"a": "x"}', '{"a": 1}')
    answer = ask(model, chat(tools=[STRICT]), abilities)
    assert [call.function.arguments for call in answer.tool_calls] == ['{"a": 1}']
    assert model.asked[0].tools == [ADD]
    told, fault = (message.text for message in model.asked[1].messages[-2:])
    assert (told, "'x' is not of type 'integer'" in fault) == ('add({"a": "x"})', True)
    with pytest.raises(InvalidOutputError, match="the arguments of add are not JSON"):
        ask(Calling("{", "{"), chat(tools=[STRICT]), abilities)
    with pytest.raises(InvalidOutputError, match="is not of type 'object'"):
        ask(Calling("[]", "[]"), chat(tools=[STRICT]), abilities)
    assert ask(Calling("{"), chat(tools=[ADD]), abilities).tool_calls
    assert ask(Calling("{"), chat(tools=[STRICT]), abilities | {"strict"}).tool_calls


@pytest.mark.parametrize("arguments", ["", "{"])
def test_strict_call_that_was_cut_says_so(arguments: str) -> None:
    """A call cut at `max_tokens` comes as it is, in an answer that ends with `length`."""
    answer = ask(Calling(arguments, finish="length"), chat(tools=[STRICT]), frozenset({"tools"}))
    assert [call.function.arguments for call in answer.tool_calls] == [arguments]
    assert answer.last.finish_reason == "length"


def test_tools_and_a_form_together() -> None:
    """With both, an answer is a call, or text of the form."""
    request = chat(tools=[ADD], response_format=SCHEMA)
    assert ask(Model(CALL), request, frozenset({"json_schema"})).tool_calls
    assert ask(Model('{"n": 1}'), request, frozenset({"json_schema"})).text == '{"n": 1}'


class CallingTwice:
    """Calls `add` twice in each of two answers, as models do that were not told otherwise."""

    async def answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        assert request.n == 2
        for index in (0, 1):
            for number in (1, 2):
                call = ToolCall(id=f"c{index}{number}", function=FunctionCall("add", f'{{"a": {number}}}'))
                yield ChatDelta(index=index, tool_calls=as_deltas([call], number - 1), backend="b")
            yield ChatDelta(index=index, finish_reason="tool_calls", backend="b")


def test_calls_are_held_to_one_at_a_time() -> None:
    """Of several calls each answer keeps its first; a model that calls in tags is told so too."""
    one = chat(tools=[ADD], parallel_tool_calls=False)
    answer = ask(Model(CALL + CALL.replace("1", "2")), one)
    assert [call.function.arguments for call in answer.tool_calls] == ['{"a": 1}']
    model = Model(CALL)
    ask(model, one)
    assert "Make one call at a time" in model.asked[0].messages[0].text

    several = msgspec.structs.replace(one, n=2)
    abilities: Abilities = frozenset({"tools", "n"})
    answer = ask(CallingTwice(), several, abilities)
    assert [call.id for call in answer.tool_calls] == ["c01", "c11"]
    assert [delta.index for delta in answer.deltas if delta.finish_reason] == [0, 1]
    answer = ask(CallingTwice(), several, abilities | {"parallel_tool_calls"})
    assert len(answer.tool_calls) == 4
    with pytest.raises(BackendError, match="cannot do parallel_tool_calls"):
        ask(CallingTwice(), several, abilities, unsupported="refuse")


def test_several_answers_come_one_after_another() -> None:
    """`n` answers have their index and a seed of their own; the last delta counts the tokens of all."""
    model = Model("a", "bb", "ccc")
    answer = ask(model, chat(n=3, sampling=SamplingParams(seed=5)), frozenset({"seed"}))
    texts = ["".join(d.content for d in answer.deltas if d.index == index) for index in range(3)]
    assert texts == ["a", "bb", "ccc"]
    assert [request.sampling.seed for request in model.asked] == [5, 6, 7]
    assert [delta.index for delta in answer.deltas if delta.finish_reason] == [0, 1, 2]
    assert [bool(delta.usage) for delta in answer.deltas if delta.finish_reason] == [False, False, True]
    assert answer.usage.completion_tokens == 6


def test_stop_texts_and_limits_are_kept() -> None:
    """An answer ends before a text to stop at, or after so many estimated tokens, and the backend's work with it."""
    model = Model("one STOP two" * 50)
    answer = ask(model, chat(sampling=SamplingParams(stop=("STOP", "zzz"))))
    assert (answer.text, answer.last.finish_reason, model.num_closed) == ("one ", "stop", 1)
    assert answer.usage.completion_tokens > 0
    limited = Model("x" * 100)
    answer = ask(limited, chat(sampling=SamplingParams(max_tokens=2)))
    assert (answer.text, answer.last.finish_reason, limited.num_closed) == ("x" * 8, "length", 1)


@given(st.text(alphabet="abS TOP", max_size=40), st.lists(st.text(alphabet="abST", min_size=1, max_size=3), max_size=3))
def test_stop_texts_never_show(text: str, stop: Sequence[str]) -> None:
    """However an answer is cut into pieces, what shows is the text up to the first stop text in it."""
    request = chat(sampling=SamplingParams(stop=tuple(stop)))

    async def main() -> str:
        return (await collect(cut(request, Model(text).answer, frozenset({"stop"})))).text

    places = [place for place in (text.find(one) for one in stop) if place >= 0]
    shown = asyncio.run(main())
    first_ends = [text.find(one) + len(one) for one in stop if one in text]
    # the stream ends as soon as some stop text is whole, which may be before one that begins earlier is
    assert text.startswith(shown)
    assert (len(shown) == len(text)) if not places else min(places) <= len(shown) < min(first_ends)


def test_text_held_back_is_sent_when_the_stream_ends_without_a_reason() -> None:
    """A backend that just ends loses nothing: what may have begun a stop string is told after all."""

    async def answer(request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta(content=f"{request.model}one ST")

    async def main() -> str:
        request = chat(sampling=SamplingParams(stop=("STOP",)))
        return "".join([delta.content async for delta in cut(request, answer, frozenset({"stop"}))])

    assert asyncio.run(main()) == "one ST"


@given(st.text(alphabet='<tool_cal>/x{}" \n', max_size=60))
def test_any_text_is_calls_or_a_fault(text: str) -> None:
    """No text of a model raises anything but a fault to tell it, and what was shown is a beginning of the answer."""
    reader = dialect.TagReader([ADD])
    shown = "".join(reader.push(letter) for letter in text)
    try:
        content, _ = dialect.read(text, [ADD])
    except InvalidOutputError:
        return
    assert content.startswith(shown)
    assert reader.finish()[0] == content


def test_text_after_a_call_is_kept() -> None:
    """Text around calls is the answer's text; a call that ends before what it must have is a fault, not a call."""
    answer = ask(Model(f"Hm. {CALL}\n{CALL} So."), chat(tools=[ADD]))
    assert (answer.text, len(answer.tool_calls)) == ("Hm. \n So.", 2)
    with pytest.raises(InvalidOutputError, match="'a' is a required property"):
        dialect.read('<tool_call>{"name": "add"', [ADD])


def test_call_cut_at_max_tokens_is_a_fault() -> None:
    """What the limit of tokens left of a call is not made whole, and asked for again."""
    reader = dialect.TagReader([ADD])
    reader.push('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 23')
    with pytest.raises(InvalidOutputError, match="not valid JSON"):
        reader.finish(is_cut=True)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a": 1e999}', True),
        ('{"a": -1E999999}', True),
        ('{"a": 1e999, "b": "', False),
        ('{"a": 1e999, "b": NaN}', False),
    ],
)
def test_number_beyond_floats_is_json(text: str, is_right: bool) -> None:
    """JSON bounds no exponent (RFC 8259): what a grammar lets pass is not refused by the check after it."""
    assert (fault_of_text(text, ResponseFormat("json_object")) is None) == is_right
