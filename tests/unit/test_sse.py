"""Server-sent events, however their bytes are cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.line_reader import MAX_LINE_BYTES, LineReader, LineTooLongError
from pyagent.infrastructure.backends.sse import MAX_EVENT_BYTES, EventTooLargeError, SseDecoder

line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(
        st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n")), min_size=1, max_size=3),
        max_size=5,
    ),
    line_end,
    st.data(),
)
def test_sse_decoder_reads_any_cut_alike(events: list[list[str]], end: bytes, data: st.DataObject) -> None:
    """However the bytes are cut, and whatever ends the lines, the same events come out."""
    text = b": comment" + end + end
    for lines in events:
        text += b"event: x" + end + b"".join(b"data: " + line.encode() + end for line in lines) + end
    text += end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    decoder, found = SseDecoder(), list[bytes]()
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += decoder.feed(text[start:stop])
    found += decoder.feed(b": end\n")
    assert found == ["\n".join(lines).encode() for lines in events]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_sse_decoder_takes_any_bytes(chunks: list[bytes]) -> None:
    """No bytes make it fail."""
    decoder = SseDecoder()
    for chunk in chunks:
        decoder.feed(chunk)


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", b""]), max_size=30))
def test_line_reader_reads_what_splitlines_reads(chunks: list[bytes]) -> None:
    """Lines in pieces are those of the whole text, whatever ends them and wherever they are cut."""
    reader, found = LineReader(), list[bytes]()
    for chunk in chunks:
        found += reader.feed(chunk)
    whole = b"".join(chunks).splitlines()
    assert [*found, *filter(None, [reader.rest()])] == whole


def test_line_reader_bounds_a_line() -> None:
    """A line without an end is refused before it fills the memory."""
    reader = LineReader()
    for _ in range(MAX_LINE_BYTES // 2**20):
        assert reader.feed(b"x" * 2**20) == []
    with pytest.raises(LineTooLongError):
        reader.feed(b"x")


def test_line_reader_takes_linear_time() -> None:
    """A chunk after 12 MB of one line costs what the first did: nothing is joined anew."""
    reader = LineReader()
    reader.feed(b"x" * 12_000_000)
    started = time.process_time()
    for _ in range(20_000):
        reader.feed(b"yyyy")
    assert time.process_time() - started < 5, "joined anew for each chunk it takes a minute"


def test_sse_decoder_bounds_an_event() -> None:
    """An event of many lines without an end is refused before it fills the memory."""
    decoder = SseDecoder()
    for _ in range(MAX_EVENT_BYTES // 2**20 - 1):
        assert decoder.feed(b"data:" + b"x" * 2**20 + b"\n") == []
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"data:" + b"x" * 2**20 + b"\n")


def test_sse_decoder_forgets_comments() -> None:
    """Comments, of which a gateway sends one every few seconds, do not add up to an event that is too large."""
    decoder = SseDecoder()
    for _ in range(MAX_EVENT_BYTES // 2**20 + 2):
        assert decoder.feed(b":" + b"x" * 2**20 + b"\n") == []
    assert decoder.feed(b"data: 1\n\n") == [b"1"]
