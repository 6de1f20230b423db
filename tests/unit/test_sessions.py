"""Token logs: a conversation's prompts extend each other, whatever its template does to its history."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_templates import STYLES, byte_level_tokenizer, encode_chat, sentencepiece_tokenizer

from pyagent.core.messages import FunctionCall, FunctionDefinition, Message, Tool, ToolCall
from pyagent.infrastructure.engine.sessions.prompt_normalization import NormalizedPrompt
from pyagent.infrastructure.engine.sessions.sessions import Prompt, Sessions
from pyagent.infrastructure.engine.sessions.turns import conversation_keys
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

CONTEXT = 1 << 20
TOOLS = [Tool(function=FunctionDefinition("search", "finds things", {"type": "object"}))]
KEEPS_TEXT = ("chatml", "llama3", "gemma", "plain")
WITH_TOOL_RESULTS = ("chatml", "thinking", "llama3", "plain")
unchanged = NormalizedPrompt.unchanged
Turn = tuple[list[int] | str, list[Message]]
TOKENIZERS = {"byte level": byte_level_tokenizer, "sentencepiece": sentencepiece_tokenizer}


@cache
def tokenizer_of(kind: str, style: str) -> ModelTokenizer:
    return TOKENIZERS[kind](STYLES[style])


texts = st.text(st.sampled_from("the user is a .\n<|im_end|>é🎉</think>"), min_size=1, max_size=25)


@st.composite
def conversations(
    draw: st.DrawFn, *, has_results: bool
) -> tuple[list[Message], list[tuple[list[int] | str, list[Message]]]]:
    """The first messages, and for each turn an answer (tokens, or a text to be tokenised) and what follows it."""
    begins = [Message("system", draw(texts))] if draw(st.booleans()) else []
    begins.append(Message("user", "q" + draw(texts)))
    turns: list[Turn] = []
    for _ in range(draw(st.integers(1, 4))):
        thought = f"<think>\n{draw(texts)}\n</think>\n\n" if draw(st.booleans()) else ""
        answer: list[int] | str = thought + draw(texts)
        if draw(st.booleans()):
            answer = draw(st.lists(st.integers(20, 290), max_size=12))
        follows = [Message("user", "q" + draw(texts))]
        if has_results and draw(st.booleans()):
            follows = [Message("tool", "r" + draw(texts), tool_call_id=str(n)) for n in range(draw(st.integers(1, 2)))]
        turns.append((answer, follows))
    return begins, turns


def tokens_of(tokenizer: ModelTokenizer, answer: list[int] | str) -> list[int]:
    if isinstance(answer, str):
        return tokenizer.encode_continuation(tokenizer.markers.parted_answer(answer))
    return [token for token in answer if token < tokenizer.vocab_size]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_prompt_is_a_token_prefix_of_the_next(kind: str, style: str, data: st.DataObject) -> None:
    """Random conversations under every style of template: each prompt and its answer begin the next prompt."""
    tokenizer = tokenizer_of(kind, style)
    sessions = Sessions(tokenizer, CONTEXT)
    tools = TOOLS if data.draw(st.booleans()) else []
    session = data.draw(st.sampled_from(["", "a"]))
    messages, turns = data.draw(conversations(has_results=style in WITH_TOOL_RESULTS))
    before: list[int] = []
    for answer, follows in turns:
        prompt = sessions.prompt(unchanged(messages), tools, session)
        assert prompt.note == ""
        assert prompt.num_log_tokens == len(before)
        assert prompt.tokens[: len(before)] == before
        drawn = tokens_of(tokenizer, answer)
        sent = tokenizer.decode(drawn)
        sessions.record(prompt, sent, drawn)
        before = prompt.tokens + drawn
        messages = [*messages, Message("assistant", sent), *follows]
    assert sessions.prompt(unchanged(messages), tools, session).tokens[: len(before)] == before


@pytest.mark.parametrize("style", KEEPS_TEXT)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_text_of_a_log_is_the_whole_rendering(style: str, data: st.DataObject) -> None:
    """Where the template keeps what it wrote before, the log's text is what rendering everything anew gives."""
    tokenizer = tokenizer_of("byte level", style)
    sessions = Sessions(tokenizer, CONTEXT)
    messages, turns = data.draw(conversations(has_results=style in WITH_TOOL_RESULTS))
    for answer, follows in turns:
        prompt = sessions.prompt(unchanged(messages))
        assert tokenizer.shown(prompt.tokens) == tokenizer.shown(encode_chat(tokenizer, messages))
        drawn = tokens_of(tokenizer, answer if isinstance(answer, str) else "x" + "the" * len(answer))
        sent = tokenizer.decode(drawn)
        if sent != sent.strip():
            drawn = tokenizer.encode_text("is")
            sent = "is"
        sessions.record(prompt, sent, drawn)
        messages = [*messages, Message("assistant", sent), *follows]


def talked(
    sessions: Sessions, tokenizer: ModelTokenizer, answer: str = "is it", session: str = ""
) -> tuple[list[Message], Prompt]:
    """A conversation of one answer, recorded, with a next question."""
    messages = [Message("system", "sys"), Message("user", "the")]
    prompt = sessions.prompt(unchanged(messages), session=session)
    sessions.record(prompt, answer, tokenizer.encode_text(answer))
    return [*messages, Message("assistant", answer), Message("user", "and")], prompt


def test_answer_drawn_in_other_tokens_keeps_them() -> None:
    """An answer whose text would be tokenised otherwise stays in the tokens that were drawn."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    messages = [Message("user", "hi")]
    letters = [token for letter in "the" for token in tokenizer.encode_text(letter)]
    assert letters != tokenizer.encode_text("the")
    prompt = sessions.prompt(unchanged(messages))
    sessions.record(prompt, "the", letters)
    messages += [Message("assistant", "the"), Message("user", "and")]
    assert sessions.prompt(unchanged(messages)).tokens[: len(prompt.tokens) + 3] == prompt.tokens + letters
    assert encode_chat(tokenizer, messages)[: len(prompt.tokens) + 3] != prompt.tokens + letters


@pytest.mark.parametrize("style", STYLES)
def test_answer_cut_by_a_stop_text_goes_on_as_it_was_sent(style: str) -> None:
    """What was drawn but not sent is not in the next prompt; what was sent is, once."""
    tokenizer = tokenizer_of("byte level", style)
    sessions = Sessions(tokenizer, CONTEXT)
    messages = [Message("user", "hi")]
    prompt = sessions.prompt(unchanged(messages))
    drawn = tokenizer.encode_text("one 🎉 the end STOP now")
    sessions.record(prompt, "one 🎉 th", drawn)
    then = sessions.prompt(unchanged([*messages, Message("assistant", "one 🎉 th"), Message("user", "go on")]))
    assert then.tokens[: len(prompt.tokens)] == prompt.tokens
    text = tokenizer.shown(then.tokens[len(prompt.tokens) :])
    assert text.startswith("one 🎉 th")
    assert "the" not in text


def test_old_thoughts_stay_in_the_log() -> None:
    """A template that drops old thoughts writes the new turn as it would, after a log that has them."""
    tokenizer = tokenizer_of("byte level", "thinking")
    sessions = Sessions(tokenizer, CONTEXT)
    messages, _ = talked(sessions, tokenizer, "<think>\nhm\n</think>\n\nis it")
    text = tokenizer.shown(sessions.prompt(unchanged(messages)).tokens)
    tail = "<think>\nhm\n</think>\n\nis it<|im_end|>\n<|im_start|>user\nand<|im_end|>\n<|im_start|>assistant\n"
    assert text.endswith(tail)
    assert "hm" not in tokenizer.shown(encode_chat(tokenizer, messages))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages | reverse %}{{ m.role ~ m.content }}{% endfor %}",
        "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ messages | length }}{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    ],
)
def test_template_that_cannot_be_continued_is_rendered_whole(template: str) -> None:
    """Where neither the conversation's text nor a stand-in gives the new turn, all is rendered, and a note says so."""
    tokenizer = byte_level_tokenizer(template)
    sessions = Sessions(tokenizer, CONTEXT)
    messages, _ = talked(sessions, tokenizer)
    prompt = sessions.prompt(unchanged(messages))
    assert prompt.tokens == encode_chat(tokenizer, messages)
    assert prompt.num_log_tokens == 0
    assert "does not render new messages apart" in prompt.note


@pytest.mark.parametrize("shown", ["{{ ns.called }}", "{{ raise_exception('no call') if not ns.called }}"])
def test_result_that_is_told_by_its_call_is_rendered_after_it(shown: str) -> None:
    """A template that tells with a result which function was called, as gpt-oss', never tells it without."""
    template = (
        "{% set ns = namespace(called='') %}{% for m in messages %}"
        "{% for call in m.tool_calls or [] %}{% set ns.called = call.function.name %}{% endfor %}"
        f"{{% if m.role == 'tool' %}}{shown}{{% endif %}}{{{{ '<|im_start|>' ~ m.content ~ '<|im_end|>' }}}}"
        "{% endfor %}"
    )
    tokenizer = byte_level_tokenizer(template)
    sessions = Sessions(tokenizer, CONTEXT)
    messages = [Message("user", "q")]
    said = Message("assistant", None, tool_calls=[ToolCall(id="a", function=FunctionCall("search"))])
    prompt = sessions.prompt(unchanged(messages))
    sessions.record(prompt, "CALL search", tokenizer.encode_text("CALL search"), said)
    messages += [said, Message("tool", "r", tool_call_id="a")]
    assert sessions.prompt(unchanged(messages)).tokens == encode_chat(tokenizer, messages)


@pytest.mark.parametrize("change", ["system", "answer", "tools"])
def test_conversation_that_was_changed_is_rendered_whole(change: str) -> None:
    """Another system text, answer or set of tools is another conversation."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    messages, _ = talked(sessions, tokenizer, session="a")
    if change != "tools":
        place = {"system": 0, "answer": 2}[change]
        messages[place] = Message(messages[place].role, "changed")
    prompt = sessions.prompt(unchanged(messages), TOOLS if change == "tools" else [], "a")
    assert prompt.num_log_tokens == 0
    assert prompt.tokens == encode_chat(tokenizer, messages, TOOLS if change == "tools" else [])


def test_answer_that_came_back_trimmed_is_known() -> None:
    """Clients that strip an answer's outer whitespace go on from its tokens all the same."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    messages, first = talked(sessions, tokenizer, "\n is it \n")
    messages[2] = Message("assistant", "is it")
    prompt = sessions.prompt(unchanged(messages))
    assert prompt.tokens[: prompt.num_log_tokens] == first.tokens + tokenizer.encode_text("\n is it \n")


def test_branches_share_what_they_have_in_common() -> None:
    """Two questions after one answer both go on from it, and an earlier turn can be taken up again."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    messages, first = talked(sessions, tokenizer, session="a")
    log = len(first.tokens) + len(tokenizer.encode_text("is it"))
    for question in ("and", "er", "on"):
        asked = [*messages[:-1], Message("user", question)]
        prompt = sessions.prompt(unchanged(asked), session="a")
        assert prompt.num_log_tokens == log
        sessions.record(prompt, question, tokenizer.encode_text(question))
        again = sessions.prompt(unchanged([*asked, Message("assistant", question), Message("user", "?")]), session="a")
        assert again.num_log_tokens == len(prompt.tokens) + len(tokenizer.encode_text(question))


def test_session_prefers_its_own_log() -> None:
    """Two sessions whose answers read alike but were drawn in other tokens each keep their own."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    messages = [Message("user", "hi")]
    letters = [token for letter in "the" for token in tokenizer.encode_text(letter)]
    drawn = {"a": letters, "b": tokenizer.encode_text("the")}
    prompts = {name: sessions.prompt(unchanged(messages), session=name) for name in drawn}
    for name, tokens in drawn.items():
        sessions.record(prompts[name], "the", tokens)
    messages += [Message("assistant", "the"), Message("user", "and")]
    for name, tokens in drawn.items():
        prompt = sessions.prompt(unchanged(messages), session=name)
        assert prompt.tokens[: prompt.num_log_tokens] == prompts[name].tokens + tokens


@pytest.mark.parametrize(
    ("scope", "session", "is_found"),
    [("auto", "", True), ("named", "", False), ("named", "a", True), ("off", "a", False)],
)
def test_scope_says_which_conversations_are_kept(scope: str, session: str, is_found: bool) -> None:
    """All, those with a name, or none."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT, scope=scope)  # type: ignore[arg-type]
    messages, _ = talked(sessions, tokenizer, session=session)
    assert (sessions.prompt(unchanged(messages), session=session).num_log_tokens > 0) == is_found
    assert (sessions.num_bytes > 0) == is_found


def test_log_near_the_context_starts_anew_when_that_is_shorter() -> None:
    """Thoughts kept in a log do not use up the context: rendered anew, the conversation has room again."""
    tokenizer = tokenizer_of("byte level", "thinking")
    sessions = Sessions(tokenizer, 400)
    messages, _ = talked(sessions, tokenizer, "<think>\n" + "hm " * 110 + "\n</think>\n\nis it")
    prompt = sessions.prompt(unchanged(messages))
    assert prompt.tokens == encode_chat(tokenizer, messages)
    assert "near the model's context" in prompt.note


def test_memory_is_bounded_and_ancestors_outlive_their_turns() -> None:
    """However much is said, the logs stay within their bytes; what is kept can still be continued in full."""
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT, max_bytes=20_000)
    draw = random.Random(3)
    running: dict[int, list[Message]] = {}
    logs: dict[int, list[int]] = {}
    num_found = 0
    for _ in range(400):
        who = draw.randrange(12)
        messages = running.setdefault(who, [Message("user", f"begin {who}")])
        prompt = sessions.prompt(unchanged(messages), session=f"s{who}" if who % 2 else "")
        num_found += prompt.num_log_tokens > 0
        assert prompt.tokens[: prompt.num_log_tokens] == logs.get(who, [])[: prompt.num_log_tokens]
        answer = f"answer {draw.randrange(10**6)}"
        sessions.record(prompt, answer, tokenizer.encode_text(answer))
        logs[who] = prompt.tokens + tokenizer.encode_text(answer)
        assert sessions.num_bytes <= 20_000
        running[who] = [*messages, Message("assistant", answer), Message("user", "more")]
        if len(running[who]) > 11:
            del running[who]
    assert 50 < num_found < 300


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_tokenizers_continue(model: str, request: pytest.FixtureRequest) -> None:
    """SmolLM2 and Gemma 3: each prompt begins the next, and the text is the template's."""
    path: Path = request.getfixturevalue(model)
    tokenizer = ModelTokenizer.load(path, vocab_size=1 << 20)
    tokenizer.template = tokenizer.template or ChatTemplate(STYLES["gemma"], {"bos_token": "<bos>"}, "m")
    sessions = Sessions(tokenizer, CONTEXT)
    messages = [Message("system", "Be brief."), Message("user", "What is <end_of_turn>?")]
    before: list[int] = []
    for answer in ("It  is 12.\n\n\tSo.", "naïve 🎉", "the end"):
        prompt = sessions.prompt(unchanged(messages))
        assert prompt.tokens[: len(before)] == before
        assert tokenizer.shown(prompt.tokens) == tokenizer.shown(encode_chat(tokenizer, messages))
        drawn = [token for letter in answer for token in tokenizer.tokenizer.inner.encode(letter).ids]
        assert tokenizer.decode(drawn) == answer
        sessions.record(prompt, answer, drawn)
        before = prompt.tokens + drawn
        messages += [Message("assistant", answer), Message("user", "And then?")]


CALL = ToolCall(id="c", function=FunctionCall(name="search"))
OTHERS: list[tuple[list[Message], list[Tool]]] = [
    ([Message("system", "the user"), Message("assistant", "is")], []),
    ([Message("user", "the user"), Message("user", "is")], []),
    ([Message("user", "the user"), Message("assistant", "is")], TOOLS),
    ([Message("user", "the user", name="a"), Message("assistant", "is")], []),
    ([Message("user", "the user"), Message("assistant", "is", tool_calls=[CALL])], []),
    ([Message("user", "the user"), Message("tool", "is", tool_call_id="c")], []),
    ([Message("user", "the user is")], []),
]


@pytest.mark.parametrize(("messages", "tools"), OTHERS)
def test_a_conversation_of_other_roles_tools_or_names_is_another(messages: list[Message], tools: list[Tool]) -> None:
    """Equal texts are not an equal conversation: who said them, with which tools and calls, tells them apart."""
    first = [Message("user", "the user"), Message("assistant", "is")]
    assert conversation_keys(messages, tools)[-1] != conversation_keys(first, [])[-1]
    tokenizer = tokenizer_of("byte level", "chatml")
    sessions = Sessions(tokenizer, CONTEXT)
    asked = sessions.prompt(unchanged(first[:1]))
    sessions.record(asked, "is", tokenizer.encode_continuation("is"))
    question = Message("user", "and?")
    continued = sessions.prompt(unchanged([*first, question]))
    assert continued.num_log_tokens > 0
    other = sessions.prompt(unchanged([*messages, question]), tools)
    assert other.num_log_tokens == 0
    assert other.tokens == encode_chat(tokenizer, [*messages, question], tools)
