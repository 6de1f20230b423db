"""Server-sent events, read from bytes as they come (WHATWG HTML, section 9.2.6, "Interpreting an event stream").

Pure: bytes in, the data of finished events out. Only `data` matters here; names, ids and comments are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyagent.core.line_reader import LineReader

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventTooLargeError(ValueError):
    """A single event that grew past `MAX_EVENT_BYTES`: not something to buffer for a stranger."""


@dataclass(slots=True)
class SseDecoder:
    """Feed it chunks cut anywhere, also inside a character or a line end."""

    _lines: LineReader = field(default_factory=LineReader)
    _data: list[bytes] = field(default_factory=list[bytes])
    _num_bytes: int = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that `chunk` finishes. Raises `EventTooLargeError`, `LineTooLongError`."""
        events: list[bytes] = []
        for line in self._lines.feed(chunk):
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data, self._num_bytes = [], 0
            elif line.startswith(b"data:"):
                self._add(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._add(b"")
        return events

    def _add(self, data: bytes) -> None:
        self._data.append(data)
        self._num_bytes += len(data) + 1
        if self._num_bytes > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event of the stream is larger than {MAX_EVENT_BYTES} bytes")
