"""Server-sent events, read from bytes as they come (WHATWG HTML, section 9.2.6, "Interpreting an event stream").

Pure: bytes in, the data of finished events out. Only `data` matters here; names, ids and comments are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventTooLargeError(ValueError):
    """A single event that grew past `MAX_EVENT_BYTES`: not something to buffer for a stranger."""


@dataclass(slots=True)
class SseDecoder:
    """Feed it chunks cut anywhere, also inside a character or a line end."""

    _tail: bytes = b""
    _data: list[bytes] = field(default_factory=list[bytes])
    _num_bytes: int = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` finishes. Raises `EventTooLargeError`."""
        text = self._tail + chunk
        held = b"\r" if text.endswith(b"\r") else b""  # may be half of a CR LF
        text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, tail = text.split(b"\n")
        self._tail = tail + held
        self._num_bytes += len(chunk)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._data.append(b"")
        if events:
            self._num_bytes = len(self._tail)
        if self._num_bytes > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event of the stream is larger than {MAX_EVENT_BYTES} bytes")
        return events
