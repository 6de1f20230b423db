"""Conversations as one text, written by the chat template of an encoder's files, which are hostile input.

Unlike a chat's, the messages may have marks of the model: a process reward model scores steps at theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import Message

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.tokens.templates import ChatTemplate


class Conversations:
    """Writes messages as one model was trained on them. Any thread may call it; the template is read when asked for."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._path = path
        self._vocab_size = vocab_size

    def text(self, messages: Sequence[Message], *, begins_answer: bool) -> str:
        """Return messages as a text, with `begins_answer` up to where an answer would begin.

        Raises `RequestError` for a model without a chat template, or one that refuses the messages.
        """
        template = self._template
        if template is None or isinstance(template, str) or template.built_in:
            why = f" that can be read ({template})" if isinstance(template, str) else ""
            text = f"the model has no chat template{why}, by which messages are one text; send input in their place"
            raise RequestError(text, param="messages")
        rendered = [{"role": message.role, "content": message.text} for message in messages]
        return template.render(rendered, begins_answer=begins_answer)

    @cached_property
    def _template(self) -> ChatTemplate | str | None:
        """The template, or why there is none: an encoder's texts need less of its files than a chat does."""
        # Imported only now: a server that starts need not wait for what it may never be asked.
        from pyagent.infrastructure.engine.tokens import ModelTokenizer

        try:
            return ModelTokenizer.load(self._path, vocab_size=self._vocab_size).template
        except ModelError as error:
            return str(error)
