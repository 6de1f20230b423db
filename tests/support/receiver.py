"""An HTTP server on loopback that takes webhooks, and answers as a test says: by a status, or not as HTTP has it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Play = int | str | tuple[int, dict[str, str]]


@dataclass
class Receiver:
    """What came, each with its headers by lower-case names; `plays` are answers in turn, then `otherwise`."""

    url: str = ""
    plays: list[Play] = field(default_factory=list[Play])
    otherwise: Play = 204
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])
    may_answer: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.came]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many may come at once


@contextmanager
def receiver() -> Generator[Receiver]:
    """Serve until the end of the block. `hold` waits for `may_answer`, `garbage` is no HTTP, `drop` says nothing."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
            play = kept.plays.pop(0) if kept.plays else kept.otherwise
            if play == "hold":
                kept.may_answer.wait(30)
                play = 204
            if isinstance(play, str):
                self.wfile.write(b"\x00\xff no HTTP\r\n\r\n" * (play == "garbage"))
                self.close_connection = True
                return
            status, headers = play if isinstance(play, tuple) else (play, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class has it so
            return

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield kept
    finally:
        kept.may_answer.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
