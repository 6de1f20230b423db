"""Stop strings in a stream: found across the borders of its pieces, and never sent even in part.

Each stop string is matched by Knuth, Morris and Pratt's automaton (SIAM J. Comput. 6(2), 1977), so an answer costs time
in proportion to its length, whatever the stop strings are. Shared by the engine and by emulation; knows neither.
"""

from __future__ import annotations


class StopStrings:
    """Watches one answer for its stop strings.

    Text that may turn out to begin a stop string is held back until it is known; what was pushed and not held back or
    cut off is returned exactly once. A copy goes on by itself: the state is replaced, never changed in place.
    With `is_included` the answer ends with the stop string, so that nothing is held back.
    """

    __slots__ = ("_borders", "_initials", "_is_included", "_matched", "_stops")

    def __init__(self, stops: tuple[str, ...], *, is_included: bool = False) -> None:
        self._stops = stops
        self._is_included = is_included
        self._initials = frozenset(stop[0] for stop in stops)
        self._borders = tuple(_borders(stop) for stop in stops)
        self._matched = (0,) * len(stops)

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what may be sent, and whether a stop string was found (then the rest is dropped)."""
        if not self._stops:
            return text, False
        if self._is_included:
            return self._with_stop(text)
        holder, num_held = self._held()
        is_idle, num_sent, is_stopped = not num_held, 0, False
        for place, letter in enumerate(text, 1):
            if is_idle and letter not in self._initials:
                continue
            if num_chars := self._take(letter):
                num_sent, is_stopped = num_held + place - num_chars, True
                break
            is_idle = not any(self._matched)
        else:
            num_sent = num_held + len(text) - max(self._matched)
        return holder[: min(num_held, num_sent)] + text[: max(0, num_sent - num_held)], is_stopped

    def _with_stop(self, text: str) -> tuple[str, bool]:
        for place, letter in enumerate(text, 1):
            if self._take(letter):
                return text[:place], True
        return text, False

    def _take(self, letter: str) -> int:
        """Go on by a letter; return the length of the longest stop string that ends with it, 0 where none does."""
        self._matched = tuple(map(_advance, self._stops, self._borders, self._matched, letter * len(self._stops)))
        whole = [num for num, stop in zip(self._matched, self._stops, strict=True) if num == len(stop)]
        if whole:
            self._matched = (0,) * len(self._stops)
        return max(whole, default=0)

    def flush(self, text: str = "") -> str:
        """Return the end of the answer: what was held back, cut at a stop string that `text` completes."""
        sent, _ = self.push(text)
        holder, num_held = self._held()
        self._matched = (0,) * len(self._stops)
        return sent + holder[:num_held]

    def _held(self) -> tuple[str, int]:
        """The stop string whose beginning the answer ends with, the longest such, and that beginning's length."""
        num_held = 0 if self._is_included else max(self._matched, default=0)
        return (self._stops[self._matched.index(num_held)], num_held) if num_held else ("", 0)


def _borders(stop: str) -> list[int]:
    """For each beginning of the text, the length of its longest proper beginning that is also its end."""
    borders = [0] * len(stop)
    for end in range(1, len(stop)):
        borders[end] = _advance(stop, borders, borders[end - 1], stop[end])
    return borders


def _advance(stop: str, borders: list[int], num_matched: int, letter: str) -> int:
    """Return how many characters of `stop` the text ends with after `letter`; before it, `num_matched`."""
    while num_matched and stop[num_matched] != letter:
        num_matched = borders[num_matched - 1]
    return num_matched + 1 if stop[num_matched] == letter else 0
