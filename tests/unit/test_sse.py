"""Server-sent events, however their bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_sse_decoder_bounds_an_event() -> None:
    """An event without an end is refused before it fills the memory."""
    decoder = SseDecoder()
    for _ in range(MAX_EVENT_BYTES // 2**20):
        assert decoder.feed(b"x" * 2**20) == []
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"x")
