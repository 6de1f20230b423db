"""How long a prompt is and what context it needs, so that Ollama never cuts it in silence. Pure.

Ollama has no tokenizer to ask, so lengths are bounds: no tokenizer makes fewer tokens than there are words, none in use
makes more than one for two bytes of text. What Ollama counted afterwards is compared with the lower one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyagent.plugin import ChatRequest, ContextOverflowError, ImagePart

_WORD = re.compile(r"[^\W\d_]+")
_SMALLEST = 4096
_MESSAGE_TOKENS = 12
_IMAGE_TOKENS = 1024
_SURE_TOKENS = 256
_HALF_SLACK = 8
_ANSWER_TOKENS = 2048
"""Room for an answer without a limit."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """Tokens of a prompt: surely so many, about so many, surely no more than so many."""

    least: int
    about: int
    most: int

    @classmethod
    def of(cls, request: ChatRequest, extra: str = "") -> PromptSize:
        """The size of a request; `extra` is what goes with it besides its messages (tools as JSON)."""
        texts = [message.text for message in request.messages] or [request.prompt or ""]
        calls = [call.function.arguments for message in request.messages for call in message.tool_calls or []]
        num_images = sum(
            isinstance(part, ImagePart)
            for message in request.messages
            if isinstance(message.content, list)
            for part in message.content
        )
        num_bytes = sum(len(text.encode(errors="replace")) for text in (*texts, *calls, extra))
        frame = _MESSAGE_TOKENS * (len(request.messages) + 1) + _IMAGE_TOKENS * num_images
        return cls(
            least=sum(len(_WORD.findall(text)) for text in texts),
            about=num_bytes // 3 + frame,
            most=num_bytes // 2 + frame + _IMAGE_TOKENS * num_images,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """The context that a prompt of some size gets."""

    size: PromptSize
    num_ctx: int

    @property
    def is_sure(self) -> bool:
        """Whether the prompt fits for certain, so that nothing needs to be held back."""
        return self.size.most < self.num_ctx

    def overflow(self, backend: str, counted: int = 0) -> ContextOverflowError:
        """The error of a prompt that does not fit."""
        num_tokens = max(counted, self.size.about)
        text = f"{backend}: the prompt has about {num_tokens} tokens, its context {self.num_ctx}; shorten the prompt"
        return ContextOverflowError(text, num_tokens=num_tokens, limit=self.num_ctx)

    def was_cut(self, num_counted: int) -> bool:
        """Whether Ollama worked on less than the prompt: what does not fit, it cuts to half of the context.

        Old versions count 0 for a prompt that they had computed before.
        """
        is_half = not self.is_sure and abs(num_counted - self.num_ctx // 2) <= _HALF_SLACK
        return is_half or num_counted >= self.num_ctx or 0 < num_counted < self.size.least


def room_for(request: ChatRequest, size: PromptSize, limit: int | None, loaded: int, fixed: int | None) -> Room:
    """The context to ask for: powers of two, as another one loads the model anew; what is loaded is kept if it fits."""
    if fixed is not None:
        return Room(size, min(fixed, limit or fixed))
    answer = min(request.sampling.max_tokens or _ANSWER_TOKENS, 4 * _ANSWER_TOKENS)
    wanted = max(size.most + _SURE_TOKENS, size.about + answer)
    if loaded >= wanted:
        return Room(size, loaded)
    num_ctx = max(_SMALLEST, 1 << (wanted - 1).bit_length())
    return Room(size, min(num_ctx, limit or num_ctx))
