"""Lines out of bytes that come in pieces: JSON lines, server-sent events. Pure, linear in time, bounded in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LINE_BYTES = 16 * 1024 * 1024


class LineTooLongError(ValueError):
    """A line grew past `MAX_LINE_BYTES`: not something to buffer for a stranger."""


@dataclass(slots=True)
class LineReader:
    """Feed it chunks cut anywhere; lines end with LF, CR LF or CR."""

    _tail: bytearray = field(default_factory=bytearray)
    _ended_with_cr: bool = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` finishes, without their ends. Raises `LineTooLongError`."""
        if not chunk:
            return []
        if self._ended_with_cr and chunk[:1] == b"\n":  # the second half of a CR LF
            self._ended_with_cr = False
            return self.feed(chunk[1:])
        self._ended_with_cr = chunk[-1:] == b"\r"
        lines = chunk.splitlines()  # of bytes: at LF, CR LF and CR alone
        tail = b"" if chunk[-1:] in {b"\n", b"\r"} else lines.pop()
        if lines and self._tail:
            lines[0] = bytes(self._tail + lines[0])
            self._tail.clear()
        self._tail += tail  # in place: joining bytes anew for each chunk takes quadratic time
        if len(self._tail) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise LineTooLongError(f"a line is longer than {MAX_LINE_BYTES // 2**20} MiB")
        return lines

    def rest(self) -> bytes:
        """Return the last line, which had no end, and forget it."""
        rest = bytes(self._tail)
        self._tail.clear()
        return rest
