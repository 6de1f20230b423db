"""Why a prompt missed the prefix cache: the first token that differs from an earlier prompt, and its source.

Compares token logs; of KV memory it knows only how many tokens of the prompt were cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyagent.core.messages import CacheMiss

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.sessions.sessions import Prompt
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

_SHOWN_TOKENS, _SHOWN_CHARS = 24, 80


def explain_miss(prompt: Prompt, num_cached: int, block_tokens: int, tokenizer: ModelTokenizer) -> CacheMiss | None:
    """Return where the prompt differs from what is cached; None when all that could be cached is (`num_cached`)."""
    usable = (len(prompt.tokens) - 1) // block_tokens * block_tokens
    turns = (*((prompt.own,) if prompt.own else ()), *prompt.recent)
    if num_cached >= usable or not turns:
        return None
    tokens = array("I", prompt.tokens)
    lengths = [turn.num_common(tokens) for turn in turns]
    common = max(lengths)
    nearest = turns[lengths.index(common)]
    is_changed = num_cached >= min(common // block_tokens * block_tokens, usable)
    is_near = common >= block_tokens or nearest is prompt.own
    if is_changed and not (is_near and num_cached <= common < nearest.num_tokens):
        return None
    position = common if is_changed else num_cached
    source, is_message = _source(prompt, position, tokenizer)
    if is_changed and not is_message and nearest.tools_key != prompt.tools_key:
        source = "tools"
    return CacheMiss(
        reason="changed" if is_changed else "evicted",
        position=position,
        found=_excerpt(tokenizer, tokens[position:]),
        expected=_excerpt(tokenizer, nearest.all_tokens()[position:]) if is_changed else "",
        source=source,
    )


def _excerpt(tokenizer: ModelTokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.shown(tokens[:_SHOWN_TOKENS])[:_SHOWN_CHARS]


def _source(prompt: Prompt, position: int, tokenizer: ModelTokenizer) -> tuple[str, bool]:
    """Return what the token at `position` was rendered from, and whether that is the text of a message."""
    pieces = tokenizer.shown_pieces(prompt.tokens)
    text = b"".join(pieces).decode(errors="replace")
    at, end = len(b"".join(pieces[:position]).decode(errors="replace")), 0
    for place, message in zip(prompt.normalized.places, prompt.normalized.messages, strict=True):
        needle = message.text.strip()
        start = text.find(needle, end) if needle else -1
        if start < 0:
            continue
        end = start + len(needle)
        if at < end:
            name = f"messages[{place}] ({message.role})"
            return (name, True) if at >= start else (f"the template, before {name}", False)
    return "the template, at its end", False
