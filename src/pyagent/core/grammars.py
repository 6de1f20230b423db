"""What a grammar backend is: it compiles what an answer must match, and says which tokens may come next.

A plugin brings backends by `pyagent_register_grammar_backends`; llguidance is the built-in one. A mask has one bit a
token, set where the token is allowed, the least significant first, in whole 32-bit words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

GrammarKind = Literal["json_schema", "choice", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What an answer must match. `text` is a JSON schema as JSON, a JSON list of texts, a regex, or llguidance's Lark.

    JSON is written with one space after `:` and `,` and none elsewhere.
    """

    kind: GrammarKind
    text: str


class Vocabulary(Protocol):
    """A model's tokens, and how it reads text."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are: the length of a row of logits."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...

    def vocabulary(self) -> Sequence[bytes]:
        """Return the bytes of each token: of a control token those of its name, none of an id that stands for none."""
        ...

    def control_ids(self) -> Sequence[int]:
        """Return the ids of control tokens, which no text is read as."""
        ...

    def encode_further(self, text: str) -> list[int]:
        """Return the tokens of text in the middle of an answer."""
        ...


def mask_bytes(vocab_size: int) -> int:
    """Return the bytes of a mask."""
    return -(-vocab_size // 32) * 4


class GrammarMatcher(Protocol):
    """One answer's place in a grammar. What it raises ends that answer alone, with the reason."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end can follow."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token; raise where it is not allowed. An end token ends the grammar."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Go back by the last tokens accepted."""
        ...

    def copy(self) -> GrammarMatcher:
        """Return a matcher at the same place; neither moves the other."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars for one vocabulary, in several threads at once, and computes the masks of a step in one."""

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        """Return a matcher at the start. Raises `RequestError` for what it cannot enforce; the next is asked then."""
        ...

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        """Write each matcher's mask to its row of `masks`, whose rows have `mask_bytes` bytes each.

        Raises where one fails; each is asked alone then, and that one's answer ends.
        """
        ...


class GrammarBackendFactory(Protocol):
    """Opens a backend for a model's vocabulary. `name` is what `engine.structured_outputs_backend` calls it."""

    @property
    def name(self) -> str:
        """A word such as `guidance`."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return why it cannot be used here, such as a package that is not installed; None where it can."""
        ...

    def open(self, vocabulary: Vocabulary) -> GrammarBackend:
        """Return the backend for a model, when its first grammar is asked for."""
        ...
