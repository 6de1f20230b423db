"""Striking secrets out of what people read: logs, errors, `pyagent config show`.

A secret is known by the name it goes by, or by its looks. A reference to where one is kept (`env:NAME`, `file:PATH`) is
none. Pure; the one home of what counts as a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import cast

STRUCK = "[redacted]"
_NAME = re.compile(r"(^|[._-])(api[_-]?key|token|authorization|password|passwd|secret|passkey|cookie)$", re.IGNORECASE)
_LOOKS = (
    re.compile(r"(?i)\b(bearer |basic )\s*[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(r"\b()(?:sk|hf|ghp|gho|xox[bp])[-_][A-Za-z0-9:_-]{8,}"),
    re.compile(r"(?<=://)()[^\s/@]+(?=@)"),
    re.compile(r"(?i)([?&](?:api[_-]?key|key|access_token|token|secret|password|sig|signature)=)[^\s&#'\"]+"),
    re.compile(r"(?i)(--(?:[\w-]{0,40}[_-])?(?:api[_-]?key|key|token|secret|password|passwd)[= ])[^\s'\"]+"),
)
_MAX_DEPTH = 6


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret."""
    return _NAME.search(name) is not None


def is_reference(value: object) -> bool:
    """Whether a value says where a secret is kept, instead of being one."""
    return isinstance(value, str) and value.startswith(("env:", "file:"))


def strike_text(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without what looks like a secret, and without those `known`."""
    for secret in known:
        text = text.replace(secret, STRUCK) if secret else text
    for pattern in _LOOKS:
        text = pattern.sub(lambda match: f"{match[1]}{STRUCK}", text)
    return text


def strike_out(value: object, name: str = "", *, depth: int = 0) -> object:
    """Return a value that goes by `name`, fit for JSON and without secrets, at any depth."""
    if is_secret_name(name) and value is not None and not is_reference(value):
        return STRUCK
    if isinstance(value, bool | int | float | None):
        return value
    if depth >= _MAX_DEPTH:
        return strike_text(repr(value))
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {strike_text(str(key)): strike_out(inner, str(key), depth=depth + 1) for key, inner in entries.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _struck_items(list(cast("Iterable[object]", value)), depth + 1)
    return strike_text(value if isinstance(value, str) else str(value))


def _struck_items(items: list[object], depth: int) -> list[object]:
    """Return the items without secrets; what stands after a flag is its value, as in `--api-key`, `VALUE`."""
    flags = ["", *(item[2:] if isinstance(item, str) and item.startswith("--") else "" for item in items)]
    return [strike_out(item, flag, depth=depth) for item, flag in zip(items, flags, strict=False)]
