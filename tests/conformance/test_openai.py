"""The backend for OpenAI-compatible servers does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.testing import BackendConformance, Subject, openai_server


class TestOpenAI(BackendConformance):
    """Against a server true to the wire."""

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        with openai_server(delay_seconds=0.005) as server:
            yield Subject(
                lambda: OpenAIBackend(server.url),
                scheme="openai",
                make_down=lambda: OpenAIBackend("http://127.0.0.1:9/v1", model="m"),
                num_running=lambda: server.num_running,
            )
