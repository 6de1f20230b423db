"""The text of an answer as it comes: what is not understood yet, and tags found in it across the borders of its pieces.

Invariant: modes leave a bounded tail unread (a part of a tag, a name), so that a push costs its own length.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SPACE = re.compile(r"\s*")


class Source:
    """The unread text; `is_last` says that no more will come, `is_cut` that the answer was to go on."""

    __slots__ = ("at", "is_cut", "is_last", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_last = False
        self.is_cut = False

    def extend(self, text: str) -> None:
        """Add a piece."""
        self.text = self.text[self.at :] + text
        self.at = 0

    @property
    def num_left(self) -> int:
        """Unread characters."""
        return len(self.text) - self.at

    @property
    def first(self) -> str:
        """The next character; empty when there is none yet."""
        return self.text[self.at : self.at + 1]

    def take(self, num_chars: int) -> str:
        """Read so many characters."""
        taken = self.text[self.at : self.at + num_chars]
        self.at += len(taken)
        return taken

    def take_space(self) -> str:
        """Read white space."""
        return self.take(_end(_SPACE, self.text, self.at) - self.at)

    def any_of(self, texts: tuple[str, ...]) -> str | None:
        """Return which of the texts stands here, unread; empty for none, None while more text must tell."""
        may_come = False
        for text in texts:
            if text[0] != self.first:
                continue
            if self.text.startswith(text, self.at):
                return text
            may_come = may_come or text.startswith(self.text[self.at : self.at + len(text)])
        return None if may_come and not self.is_last else ""

    def take_rest(self) -> str:
        """Read all there is."""
        return self.take(self.num_left)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


class Tags:
    """Texts to look for; none begins with another."""

    __slots__ = ("_initials", "_num_held", "_pattern", "tags")

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags = tags
        self._initials = frozenset(tag[0] for tag in tags)
        self._num_held = max(map(len, tags), default=1) - 1
        self._pattern = re.compile("|".join(map(re.escape, tags))) if tags else None

    def __deepcopy__(self, memo: object) -> Tags:
        return self

    def read(self, source: Source) -> tuple[str, str]:
        """Read the text up to the first tag, and the tag; "" for none. What may become a tag stays unread."""
        match = self._pattern.search(source.text, source.at) if self._pattern else None
        if match is not None:
            before = source.take(match.start() - source.at)
            return before, source.take(len(match.group()))
        return source.take(self._held_at(source) - source.at), ""

    def _held_at(self, source: Source) -> int:
        """Return where the text's end may begin a tag."""
        text, num_chars = source.text, len(source.text)
        if source.is_last:
            return num_chars
        for start in range(max(source.at, num_chars - self._num_held), num_chars):
            if text[start] in self._initials and any(tag.startswith(text[start:]) for tag in self.tags):
                return start
        return num_chars


@lru_cache(maxsize=256)
def tags_of(*tags: str) -> Tags:
    """Return the tags made ready, the empty ones left out."""
    return Tags(tuple(dict.fromkeys(filter(None, tags))))
