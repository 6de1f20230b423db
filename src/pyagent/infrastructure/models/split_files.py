"""Names of GGUF models split over several files, as llama.cpp's gguf-split has them: `NAME-00001-of-00003.gguf`."""

from __future__ import annotations

import re

_SPLIT = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


def set_of(name: str) -> tuple[str, str] | None:
    """Return what the names of all files of a split model share, its stem and count; None for another name."""
    found = _SPLIT.fullmatch(name)
    return (found["stem"], found["count"]) if found else None


def first_of(name: str) -> str:
    """Return the name of a split model's first file, which has its metadata; a name that is no part's as it is."""
    found = set_of(name)
    return f"{found[0]}-00001-of-{found[1]}.gguf" if found else name


def stem_of(name: str) -> str:
    """Return a model's name without its number and ending."""
    found = set_of(name)
    return found[0] if found else name.removesuffix(".gguf")
