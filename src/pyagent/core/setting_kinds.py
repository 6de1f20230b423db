"""What a setting may be: each kind reads what a file, the environment or a flag gives, or says what it expects.

Knows no setting. Invariant: a kind raises nothing but `ValueError`, whose text begins with "expected".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)
_UNITS: dict[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)
}
_LONGEST_NUMBER = 40
_LARGEST_SIZE = 2**62
_TRUTHS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
_URL = re.compile(r"https?://[^\s/]")
_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)")


class Kind(msgspec.Struct, frozen=True):
    """A kind of setting: its name on the reference page, how it is read, and how an environment variable writes it."""

    text: str
    read: Callable[[object], object]
    written: Literal["word", "list", "table"] = "word"


def parse_size(value: object) -> int:
    """Return bytes from `"12GB"` (10⁹), `"12GiB"` (2³⁰) or a whole number; raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) < _LONGEST_NUMBER else None
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _UNITS:
        raise ValueError('expected a size such as "12GB", "512MiB" or a number of bytes')
    return int(float(match[1]) * _UNITS[unit])


def whole(least: int = 1, most: int = 2**31 - 1) -> Kind:
    """Return a whole number within bounds."""

    def read(value: object) -> object:
        found = _whole(value)
        if found is None or not least <= found <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return found

    return Kind("whole number", read)


def number(most: float = 10.0**9) -> Kind:
    """Return a number above zero."""

    def read(value: object) -> object:
        found = _number(value)
        if found is None or not 0 < found <= most:  # nor is NaN within them
            raise ValueError(f"expected a number above 0, at most {int(most) if most == int(most) else most}")
        return found

    return Kind("number", read)


def choice(*words: object) -> Kind:
    """Return one of these words or numbers."""
    text_to_word = {str(word): word for word in words}
    shown = [repr(word) for word in words]
    expected = f"expected {', '.join(shown[:-1])} or {shown[-1]}"

    def read(value: object) -> object:
        if isinstance(value, bool) or str(value) not in text_to_word:
            raise ValueError(expected)
        return text_to_word[str(value)]

    return Kind(" or ".join(f"`{word}`" for word in words), read)


def or_word(kind: Kind, word: str) -> Kind:
    """Return the kind, or a word that stands for None, as TOML has no null."""

    def read(value: object) -> object:
        if value is None or value == word:
            return None
        try:
            return kind.read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {word!r}") from error

    return Kind(kind.text, read, kind.written)


def _whole(value: object) -> int | None:
    """Return the whole number that a value is or writes; None for any other."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < _LONGEST_NUMBER:
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    """Return the number that a value is or writes; None for any other."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and len(value) < _LONGEST_NUMBER):
        return None
    try:
        return float(cast("str | float", value))
    except (ValueError, OverflowError):
        return None


def _read_size(value: object) -> object:
    size = parse_size(value)
    if not 1 <= size <= _LARGEST_SIZE:
        raise ValueError(f"expected a size from 1 byte to {_LARGEST_SIZE} bytes")
    return size


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a text")  # noqa: TRY004 - as above
    return value


def _read_url(value: object) -> str:
    text = _read_text(value)
    if not _URL.match(text):
        raise ValueError("expected a URL such as http://127.0.0.1:4318")
    return text


def _read_truth(value: object) -> object:
    found = _TRUTHS.get(str(value).strip().lower()) if isinstance(value, bool | int | str) else None
    if found is None:
        raise ValueError("expected true or false")
    return found


def _read_texts(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of texts")  # noqa: TRY004 - as above
    return [_read_text(entry) for entry in cast("list[object]", value)]


def _read_path(value: object) -> object:
    if not isinstance(value, str | Path):
        raise ValueError("expected a path")  # noqa: TRY004 - as above
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"expected a path that can be found: {error}") from error


def read_table(value: object) -> dict[str, object]:
    """Return a table with keys that are text."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a table")  # noqa: TRY004 - as above
    return {_read_text(key): entry for key, entry in cast("Mapping[object, object]", value).items()}


def _read_tables(value: object) -> dict[str, dict[str, object]]:
    return {name: read_table(entry) for name, entry in read_table(value).items()}


def counts(most_names: int, most: int, longest_name: int) -> Kind:
    """Return a table of names, each on one line, and whole numbers from 1."""
    one = whole(1, most)

    def read(value: object) -> object:
        table = read_table(value)
        if len(table) > most_names:
            raise ValueError(f"expected at most {most_names} names, got {len(table)}")
        return {name: read_one(name, entry) for name, entry in table.items()}

    def read_one(name: str, entry: object) -> object:
        if not 0 < len(name) <= longest_name or not name.isprintable():
            raise ValueError(f"expected names of 1 to {longest_name} characters on one line, got {name[:80]!r}")
        try:
            return one.read(entry)
        except ValueError as error:
            raise ValueError(f"{error} as the number of {name!r}") from error

    return Kind("table of whole numbers", read, "table")


def _read_references(value: object) -> dict[str, str]:
    references = {host: _read_text(reference) for host, reference in read_table(value).items()}
    if not all(_REFERENCE.fullmatch(reference) for reference in references.values()):
        raise ValueError("expected env:NAME or file:PATH")
    return references


COUNT = whole()
NUMBER = number()
SIZE = Kind("size", _read_size)
TEXT = Kind("text", _read_text)
URL = Kind("URL", _read_url)
TRUTH = Kind("true or false", _read_truth)
TEXTS = Kind("list of text", _read_texts, "list")
PATH = Kind("path", _read_path)
TABLE = Kind("table", read_table, "table")
TABLES = Kind("tables", _read_tables, "table")
REFERENCES = Kind("table", _read_references, "table")
