"""Stop texts in a stream of pieces."""

from __future__ import annotations

from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.stop_strings import StopStrings

texts = st.text("abc ", max_size=30)
stop_texts = st.lists(st.text("abc ", min_size=1, max_size=5), max_size=4).map(tuple)


def whole(text: str, stops: tuple[str, ...]) -> str:
    """What is left of a text: everything before the stop text that is whole first."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


def streamed(pieces: list[str], stops: tuple[str, ...], *, last: str = "") -> list[str]:
    watch = StopStrings(stops)
    sent: list[str] = []
    for piece in pieces:
        text, is_stopped = watch.push(piece)
        sent.append(text)
        if is_stopped:
            return sent
    return [*sent, watch.flush(last)]


@given(st.lists(st.text("abc ", max_size=4), max_size=12), stop_texts, texts)
def test_any_split_of_a_text_gives_what_searching_the_whole_gives(
    pieces: list[str], stops: tuple[str, ...], last: str
) -> None:
    """However an answer is cut into pieces, what is sent is the text before the stop text that is whole first."""
    assert "".join(streamed(pieces, stops, last=last)) == whole("".join([*pieces, last]), stops)


@given(texts, stop_texts)
def test_nothing_of_a_stop_text_is_ever_sent(text: str, stops: tuple[str, ...]) -> None:
    """Letter by letter, what was sent at any moment is a beginning of the result: nothing is taken back."""
    sent = ""
    for piece in streamed(list(text), stops):
        sent += piece
        assert whole(text, stops).startswith(sent)


@given(st.lists(texts, max_size=5))
def test_without_stop_texts_pieces_pass_at_once(pieces: list[str]) -> None:
    """With nothing to look for, nothing is held back."""
    assert streamed(pieces, ())[:-1] == pieces


@given(texts, texts, stop_texts)
def test_copy_goes_on_by_itself(before: str, after: str, stops: tuple[str, ...]) -> None:
    """What is pushed to a copy leaves the original as it was: beams share a beginning."""
    watch = StopStrings(stops)
    watch.push(before)
    copy(watch).push(after)
    twin = StopStrings(stops)
    twin.push(before)
    assert watch.push(after) == twin.push(after)


def test_long_stop_string_missed_at_its_end_is_sent_whole() -> None:
    """A stop string of one letter many times, missed by its last letter again and again, holds no more than itself."""
    size = 20_000
    watch = StopStrings(("a" * size + "b",))
    sent = "".join(watch.push("a" * 10)[0] for _ in range(size))
    assert sent == "a" * 9 * size
    assert watch.flush() == "a" * size
