"""The first token at which a prompt left what was computed: found, and traced to its message."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chat_templates import STYLES, byte_level_tokenizer

from pyagent.core.messages import CacheMiss, FunctionDefinition, Message, Tool
from pyagent.infrastructure.engine.sessions.cache_miss import explain_miss
from pyagent.infrastructure.engine.sessions.prompt_normalization import normalize
from pyagent.infrastructure.engine.sessions.sessions import Sessions
from pyagent.infrastructure.engine.sessions.turns import RenderedText, Turn
from pyagent.infrastructure.engine.tokens import ModelTokenizer

BLOCK = 16
LONG = " Say it in a few words, and say it well."
SYSTEM = "You are a careful agent that answers in few words. " * 2
TOOL = Tool(function=FunctionDefinition("search", "finds things", {"type": "object"}))


@pytest.fixture(scope="module", params=["chatml", "thinking", "llama3", "gemma"])
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    return byte_level_tokenizer(STYLES[request.param])


class Talks:
    """Conversations and a cache of all that was computed for them, in blocks."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.tokenizer = tokenizer
        self.sessions = Sessions(tokenizer, 1 << 20)
        self.computed: list[list[int]] = []

    def ask(self, messages: list[Message], session: str = "", tools: tuple[Tool, ...] = ()) -> CacheMiss | None:
        """A request answered with "yes"; the miss it is told of."""
        prompt = self.sessions.prompt(normalize(messages), tools, session)
        common = [num_common(prompt.tokens, tokens) for tokens in self.computed]
        num_cached = min(max(common, default=0), len(prompt.tokens) - 1) // BLOCK * BLOCK
        drawn = self.tokenizer.encode_text("yes")
        self.sessions.record(prompt, "yes", drawn)
        self.computed.append(prompt.tokens + drawn)
        return explain_miss(prompt, num_cached, BLOCK, self.tokenizer)


def num_common(left: list[int], right: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=4), st.lists(st.integers(0, 2), max_size=30)
)
def test_common_prefix_of_a_conversation(segments: list[list[int]], tokens: list[int]) -> None:
    """The common prefix of a conversation's turns and a prompt is what comparing token by token finds."""
    turn: Turn | None = None
    for segment in segments:
        turn = Turn(b"", turn, array("I", segment), 0, b"", RenderedText.of(""))
    assert turn is not None
    whole = [token for segment in segments for token in segment]
    for asked in (tokens, whole, [*whole, *tokens], whole[: len(tokens)] + tokens):
        assert turn.num_common(array("I", asked)) == num_common(whole, asked)


@pytest.mark.parametrize(
    ("place", "old", "new", "found", "expected"),
    [
        (0, SYSTEM + "It is 12:01.", SYSTEM + "It is 12:02.", "2.", "1."),
        (1, "Where is the sea of stones?", "Where is the sea of sand?", "and?", "tones?"),
        (2, "It is on the moon.", "It is at the moon.", "at the moon", "on the moon"),
    ],
)
def test_changed_message_is_named(
    tokenizer: ModelTokenizer, place: int, old: str, new: str, found: str, expected: str
) -> None:
    """A change in a system text, a question or an answer is traced to that message, with both texts from there on."""
    talks = Talks(tokenizer)
    messages = asking("Where is it?", "There.", "?")
    messages[place] = Message(messages[place].role, old)
    assert talks.ask(messages, "a") is None
    messages[place] = Message(messages[place].role, new)
    miss = talks.ask(messages, "a")
    assert miss is not None
    assert (miss.reason, miss.source) == ("changed", f"messages[{place}] ({messages[place].role})")
    assert miss.found.startswith(found), miss
    assert miss.expected.startswith(expected), miss


def asking(*texts: str) -> list[Message]:
    turns = [Message("user" if place % 2 == 0 else "assistant", text) for place, text in enumerate(texts)]
    return [Message("system", SYSTEM), *turns]


def test_conversation_that_goes_on_misses_nothing(tokenizer: ModelTokenizer) -> None:
    """A conversation's next turn, and the same request again, find all that there is."""
    talks = Talks(tokenizer)
    assert talks.ask(asking("Where is it?")) is None
    assert talks.ask(asking("Where is it?", "yes", "Why?")) is None
    assert talks.ask(asking("Where is it?", "yes", "Why?")) is None


def test_evicted_prompt_is_said_to_be(tokenizer: ModelTokenizer) -> None:
    """What is known but no longer in memory was evicted, from the first block missing."""
    talks = Talks(tokenizer)
    talks.ask(asking("Where is it?"))
    talks.computed[0] = talks.computed[0][:40]
    miss = talks.ask(asking("Where is it?", "yes", "Why?"))
    assert miss is not None
    assert (miss.reason, miss.position, miss.source) == ("evicted", 32, "messages[0] (system)")
    assert not miss.expected


def test_nearest_prompt_is_compared_when_there_is_no_session(tokenizer: ModelTokenizer) -> None:
    """Among many conversations the one that shares most is what a prompt is compared with."""
    talks = Talks(tokenizer)
    for text in ("Who?", "Where is the sea of stones?", "When?"):
        talks.ask(asking(text))
    miss = talks.ask(asking("Where is the sea of sand?" + LONG))
    assert miss is not None
    assert (miss.found[:4], miss.expected[:6]) == ("and?", "tones?")


def test_prompt_unlike_all_others_has_no_explanation_without_a_session() -> None:
    """A first prompt of its kind missed nothing; in a session it is compared all the same."""
    talks = Talks(byte_level_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}"))
    talks.ask([Message("user", "a" + LONG)], "mine")
    assert talks.ask([Message("user", "b" + LONG)]) is None
    miss = talks.ask([Message("user", "c" + LONG)], "mine")
    assert miss is not None
    assert (miss.found[:1], miss.expected[:1]) == ("c", "a")


@pytest.mark.parametrize("style", ["thinking", "llama3"])
def test_other_tools_are_named(style: str) -> None:
    """Where the tools offered are others, they are the source."""
    talks = Talks(byte_level_tokenizer(STYLES[style]))
    talks.ask(asking("Where is it?"), "a", (TOOL,))
    other = Tool(function=FunctionDefinition("search", "finds much", {"type": "object"}))
    miss = talks.ask(asking("Where is it?"), "a", (other,))
    assert miss is not None
    assert miss.source == "tools"


def test_place_is_that_of_the_conversation_as_it_came(tokenizer: ModelTokenizer) -> None:
    """Messages taken out before do not shift the name of the message at fault."""
    talks = Talks(tokenizer)
    line = Message("system", "x-anthropic-billing-header: cc_version=2.1.37; cch=36ee5;")
    talks.ask([line, *asking("Where is the sea of stones?")])
    miss = talks.ask([line, *asking("Where is the sea of sand?" + LONG)])
    assert miss is not None
    assert miss.source == "messages[2] (user)"
