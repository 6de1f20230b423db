"""Command lines that need no parser: a command whose flags all have values, written plainly.

typer, and pydantic with which it reads values, take half of the time in which a server should be ready. Invariant:
what is read here typer reads alike. Whatever is not plain (help, an unknown flag, a wrong value) is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence


def read_plain(arguments: Sequence[str], flags: Mapping[str, Callable[[str], object]]) -> dict[str, object] | None:
    """Return the values by name of flag, without its dashes; None when a parser has to look."""
    values: dict[str, object] = {}
    words = _words(arguments)
    for flag in words:
        text = next(words, "-")
        if flag not in flags or text.startswith("-"):
            return None
        try:
            values[flag.removeprefix("--").replace("-", "_")] = flags[flag](text)
        except ValueError:
            return None
    return values


def _words(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments, `--flag=value` as two."""
    for argument in arguments:
        flag, sign, text = argument.partition("=")
        yield from (flag, text) if sign and flag.startswith("--") else (argument,)


def whole_number(most: int) -> Callable[[str], object]:
    """Reads a whole number from 0, in plain digits."""

    def read(text: str) -> object:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
            raise ValueError(text)
        return int(text)

    return read
