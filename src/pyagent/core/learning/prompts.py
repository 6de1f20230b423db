"""Variants of an agent's system prompt, and which one a run gets: by weight, equal whenever it is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from pyagent.core.messages import Message

OWN = "{system}"
"""In a variant's text this stands for the agent's own system prompt."""
_DIGITS = 6


class PromptVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant: its name, its text (empty: the agent's own prompt as it is), and its share of runs."""

    name: str
    text: str = ""
    weight: float = 1.0

    @property
    def arm(self) -> str:
        """Return its name in outcomes: a text that changes is another arm, of which nothing is known."""
        return f"{self.name}#{blake2b(self.text.encode(errors='surrogatepass'), digest_size=_DIGITS // 2).hexdigest()}"


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Return a conversation whose system prompt is the text; `{system}` in it is what the agent says there."""
    if not text:
        return [*messages]
    own = "\n\n".join(message.text for message in messages if message.role == "system")
    rest = [message for message in messages if message.role != "system"]
    return [Message("system", text.replace(OWN, own)), *rest]


def assigned(variants: Sequence[PromptVariant], *parts: str) -> PromptVariant:
    """Return the variant of what the parts name (a seed, a run, an agent): a point of the weights by their hash."""
    said = "\0".join(parts).encode(errors="surrogatepass")
    point = int.from_bytes(blake2b(said, digest_size=8).digest()) / 2**64 * sum(each.weight for each in variants)
    for each in variants:
        point -= each.weight
        if point < 0:
            return each
    return variants[-1]
