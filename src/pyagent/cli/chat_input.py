"""Reads what is typed, pasted or piped into `pyagent chat`: a message at a time, however many lines it has.

A paste is one message: GNU readline says where it ends (bracketed paste); with another line editor it ends where no
more is waiting. Three quotes begin and end a text of several lines, on a terminal as in a pipe.
"""

from __future__ import annotations

import select
import sys
from contextlib import suppress
from importlib import import_module

_QUOTES = '"""'
_PASTE_SECONDS = 0.03
"""A terminal delivers a paste at once; no line is typed in this time."""


class Prompt:
    """Reads messages from standard input. `is_terminal` says whether somebody types them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._is_bracketed = False
        if self.is_terminal:
            with suppress(ImportError):  # without it, input() has no line editing and no history
                readline = import_module("readline")
                readline.parse_and_bind("set enable-bracketed-paste on")
                self._is_bracketed = "GNU" in (readline.__doc__ or "")

    def read(self) -> str:
        """Return the next message, stripped; raises `EOFError` at the end of the input."""
        text = self._line("> ")
        if text.lstrip().startswith(_QUOTES):
            return self._quoted(text.lstrip()[len(_QUOTES) :])
        while self.is_terminal and not self._is_bracketed and select.select([sys.stdin], [], [], _PASTE_SECONDS)[0]:
            text += "\n" + self._line("")
        return text.strip()

    def _quoted(self, text: str) -> str:
        """Return all up to the closing quotes, or to the end of a pipe."""
        lines = [text]
        while not lines[-1].rstrip().endswith(_QUOTES):
            try:
                lines.append(self._line("... "))
            except EOFError:
                break
        return "\n".join(lines).rstrip().removesuffix(_QUOTES).strip()

    def _line(self, prompt: str) -> str:
        return input(prompt if self.is_terminal else "")
