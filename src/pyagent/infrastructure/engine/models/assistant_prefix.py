"""The beginning of an answer as its caller wrote it: a part of the prompt, from which text, form and log go on.

Nothing of it is sampled, counted as output, repeated, or searched for stop strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyagent.core.errors import RequestError
from pyagent.infrastructure.engine.request import Output

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.tokens import Detokenizer, ModelTokenizer


@dataclass(frozen=True, slots=True)
class AssistantPrefix:
    """A text, and its tokens after a rendered prompt."""

    text: str = ""
    tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str, tokenizer: ModelTokenizer) -> AssistantPrefix:
        """Return the beginning in a tokenizer's tokens; control tokens written in it stay text."""
        return (
            cls(text, tuple(tokenizer.encode_continuation(tokenizer.markers.parted_answer(text))))
            if text
            else NO_PREFIX
        )

    @property
    def told(self) -> Output:
        """Return the text that the client has before the answer's first output."""
        return Output(self.text, tokens=self.tokens)

    def after(self, stream: Detokenizer) -> Detokenizer:
        """Return a stream of an answer's text, at its start, to go on after it."""
        for token in self.tokens:
            stream.push(token)
        return stream

    def accepted(self, grammar: Grammar | None) -> Grammar | None:
        """Return the grammar after it. Raises `RequestError` where the format does not begin so, or ends with it."""
        if grammar is None or not self.tokens:
            return grammar
        try:
            for token in self.tokens:
                grammar.accept(token)
        except ValueError as error:
            text = f"the answer's beginning does not match response_format: {error}"
            raise RequestError(text, param="messages") from error
        if grammar.is_finished:
            raise RequestError("the answer's beginning is all that response_format allows already", param="messages")
        return grammar


NO_PREFIX = AssistantPrefix()
