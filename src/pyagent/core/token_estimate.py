"""About how many tokens a text or a prompt has, where no tokenizer is at hand: for budgets, routing and price.

Tokenises nothing and counts no text twice. English has about four bytes a token, code and other scripts fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from pyagent.core.messages import ChatRequest, ImagePart, Message, Tool

BYTES_A_TOKEN = 4
"""Of an answer's text: about right for English, too low a count for other scripts."""
_PROMPT_BYTES_A_TOKEN = 3.5
"""Of a prompt, which may be code or JSON: rather too many tokens than too few."""
_TOKENS_PER_MESSAGE = 6
"""What a chat template puts around a message."""
_TOKENS_PER_IMAGE = 800


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has; never zero for some text."""
    return -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN)


def estimated_request_tokens(request: ChatRequest) -> int:
    """Return about how many tokens a request's prompt has, tools and images included."""
    begun = len(((request.prompt or "") + request.assistant_prefix).encode(errors="surrogatepass"))
    return len(request.prompt_token_ids) + estimated_prompt_tokens(request.messages, request.tools, begun)


def estimated_prompt_tokens(messages: Sequence[Message], tools: Sequence[Tool] = (), num_bytes: int = 0) -> int:
    """Return about how many tokens messages and tools have, with `num_bytes` of text beside them."""
    num_tokens = 0
    for message in messages:
        num_bytes += len(message.text.encode(errors="surrogatepass"))
        num_tokens += _TOKENS_PER_MESSAGE + _TOKENS_PER_IMAGE * num_images(message.content)
        for call in message.tool_calls or ():
            num_bytes += len(call.function.name) + len(call.function.arguments)
    if tools:
        num_bytes += len(msgspec.json.encode(tools))
    return num_tokens + int(num_bytes / _PROMPT_BYTES_A_TOKEN + 0.999)


def num_images(content: object) -> int:
    """Return how many images a message's content has."""
    parts = cast("list[object]", content) if isinstance(content, list) else ()
    return sum(isinstance(part, ImagePart) for part in parts)
