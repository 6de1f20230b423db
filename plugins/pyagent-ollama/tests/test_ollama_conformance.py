"""The Ollama backend does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyagent_ollama.backend import OllamaBackend

from pyagent.testing import BackendConformance, Subject, ollama_server

DOWN = "http://127.0.0.1:9"


class TestOllama(BackendConformance):
    """Against a server true to the wire."""

    capabilities = ("completion", "tools", "vision", "embedding")

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        with ollama_server(delay_seconds=0.003, capabilities=self.capabilities) as server:
            yield Subject(
                lambda: OllamaBackend(server.url, connect_seconds=60.0),
                scheme="ollama",
                make_down=lambda: OllamaBackend(DOWN, model="m"),
                num_running=lambda: server.num_running,
                lacks=frozenset({"reasoning_effort"}),
            )
