"""What a server's tool answers, as text for a model: bounded, and data whatever it says."""

from __future__ import annotations

import json
from collections.abc import Iterable

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from pyagent.core.errors import BackendError

MAX_RESULT_CHARACTERS = 200_000
_MAX_BLOCKS = 1_000
_MAX_SHOWN = 300


def text_of_result(name: str, result: CallToolResult) -> str:
    """Return the answer as text. Raises `BackendError` when the tool says that it failed."""
    blocks = result.content[:_MAX_BLOCKS]
    parts = [_text(block) for block in blocks]
    if len(result.content) > len(blocks):
        parts.append(f"[{len(result.content) - len(blocks)} more parts are not shown]")
    if not any(isinstance(block, TextContent) for block in blocks) and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = _bounded(parts) or "[the tool answered without content]"
    if result.is_error:
        raise BackendError(f"{name} failed: {text}", backend="mcp", retryable=False)
    return text


def _text(block: object) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            kind = "image" if isinstance(block, ImageContent) else "sound"
            return f"[{kind} of {block.mime_type:.80}, about {len(block.data) * 3 // 4:,} bytes, which is not shown]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[resource {resource.uri!s:.{_MAX_SHOWN}}]\n{resource.text}"
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            size = len(resource.blob) * 3 // 4
            return f"[resource {resource.uri!s:.{_MAX_SHOWN}}, about {size:,} bytes, which are not shown]"
        case ResourceLink():
            return f"[link to the resource {block.name:.{_MAX_SHOWN}}: {block.uri!s:.{_MAX_SHOWN}}]"
        case _:
            return f"[a {type(block).__name__}, which is not shown]"


def _bounded(parts: Iterable[str]) -> str:
    text = "\n".join(part for part in parts if part)
    num_left = len(text) - MAX_RESULT_CHARACTERS
    return text if num_left <= 0 else f"{text[:MAX_RESULT_CHARACTERS]}\n[cut: {num_left:,} characters more]"
