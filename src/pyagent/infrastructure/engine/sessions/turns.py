"""Turns of conversations: what was rendered and computed up to an answer, and the keys that identify them.

Each prefix of a conversation has a key: a hash of the tools and the messages up to there. Values only; `sessions`
stores and evicts turns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import msgspec

from pyagent.core.messages import Message, Tool

_OWN_BYTES = 1250
"""What a turn, its table entries and its session's name take beside its tokens, as measured."""


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A rendered text, by length and hash. `is_whole`: the template rendered the whole conversation at once."""

    num_chars: int
    hasher: blake2b
    is_whole: bool

    @classmethod
    def of(cls, text: str) -> RenderedText:
        """Return the text of a conversation that was rendered whole."""
        return cls(len(text), blake2b(text.encode(errors="surrogatepass"), digest_size=16), is_whole=True)

    def begins(self, text: str) -> bool:
        """Whether a text begins with this one."""
        return RenderedText.of(text[: self.num_chars]).hasher.digest() == self.hasher.digest()

    def plus(self, text: str, *, is_whole: bool = True) -> RenderedText:
        """Return this text with another appended."""
        hasher = self.hasher.copy()
        hasher.update(text.encode(errors="surrogatepass"))
        return RenderedText(self.num_chars + len(text), hasher, self.is_whole and is_whole)


@dataclass(slots=True, eq=False)
class Turn:
    """A conversation up to an answer: its parent turn, and the tokens since. `key` differs between tenants."""

    key: bytes
    parent: Turn | None
    tokens: array[int]
    num_messages: int
    tools_key: bytes
    text: RenderedText
    tenant: str = ""
    sessions: set[str] = field(default_factory=set[str])

    @property
    def num_bytes(self) -> int:
        """Return about how much memory it takes without its parents."""
        return _OWN_BYTES + len(self.tokens) * self.tokens.itemsize

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens from the conversation's start."""
        return sum(len(turn.tokens) for turn in self.lineage())

    def lineage(self) -> Iterator[Turn]:
        """Yield this turn and its ancestors, newest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def num_common(self, tokens: array[int]) -> int:
        """Return the length of the common prefix of this conversation and `tokens`."""
        start = 0
        for segment in (turn.tokens for turn in reversed([*self.lineage()])):
            part = tokens[start : start + len(segment)]
            if part != segment:
                return start + _num_equal(part, segment)
            start += len(segment)
        return start

    def all_tokens(self) -> list[int]:
        """Return the tokens from the conversation's start."""
        return [token for turn in reversed([*self.lineage()]) for token in turn.tokens]


def _num_equal(left: array[int], right: array[int]) -> int:
    """Return the length of the common prefix by halves, which arrays compare at once: token by token takes 0.1 ms."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def conversation_keys(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    tenant: str = "",
    template_kwargs: Mapping[str, object] | None = None,
) -> list[bytes]:
    """Return the key of each prefix of a tenant's conversation, from none of its messages to all."""
    keys = [blake2b(msgspec.json.encode((tenant, tools, template_kwargs or None)), digest_size=16).digest()]
    for message in messages:
        keys.append(next_key(keys[-1], message))
    return keys


def next_key(key: bytes, message: Message) -> bytes:
    """Return the key of a conversation with one more message."""
    text = message.text.strip() if message.role == "assistant" else message.text  # clients trim answers
    fields = (message.role, text, message.name, _calls(message), message.tool_call_id)
    return blake2b(key + msgspec.json.encode(fields), digest_size=16).digest()


def _calls(message: Message) -> list[tuple[str, object]]:
    """Return a message's calls as all APIs send them back: some write the arguments anew, and not all keep the ids."""
    return [(call.function.name, _value(call.function.arguments)) for call in message.tool_calls or ()]


def _value(arguments: str) -> object:
    try:
        return cast("object", msgspec.json.decode(arguments or "{}"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
