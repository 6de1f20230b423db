"""A collector of traces that keeps what OpenTelemetry's real exporter sends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pyagent.core.settings import Server


class Collector:
    """A collector that keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [entry.value.string_value for entry in resource.resource.attributes if entry.key == "service.name"]
            self.services.update(names)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, *names: str) -> list[Any]:
        """The spans of these names, when all have come."""
        deadline = time.monotonic() + 60
        while True:
            found = {span.name: span for span in self.spans}
            if set(names) <= set(found):
                return [found[name] for name in names]
            assert time.monotonic() < deadline, f"only {sorted(found)} came"
            time.sleep(0.02)


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span that came, by their names."""
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, Server]]:
    """A collector, and settings that send to it."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collector, Server(otlp_endpoint=f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()
