"""Stop texts in a stream: found across token borders, and never sent even in part."""

from __future__ import annotations


class StopStrings:
    """Watches one answer for its stop texts.

    Text that may turn out to begin a stop text is held back until it is known; what was pushed and not held back or
    cut off is returned exactly once.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; returns what may be sent, and whether a stop text was found (then the rest is dropped)."""
        if not self._stops:
            return text, False
        held = self._held + text
        # The stop text that is whole first ends the answer, as it would had the text come letter by letter.
        found = [(start + len(stop), start) for stop in self._stops if (start := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)[1]], True
        keep = self._length_to_hold(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self, text: str = "") -> str:
        """The end of the answer: what was held back, cut at a stop text that `text` completes."""
        sent, is_stopped = self.push(text)
        rest = "" if is_stopped else self._held
        self._held = ""
        return sent + rest

    def _length_to_hold(self, text: str) -> int:
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
