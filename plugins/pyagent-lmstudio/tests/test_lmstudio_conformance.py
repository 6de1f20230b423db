"""The LM Studio backend does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyagent_lmstudio.backend import LMStudioBackend

from pyagent.testing import BackendConformance, Subject, lmstudio_server

DOWN = "http://127.0.0.1:9"


class TestLMStudio(BackendConformance):
    """Against a server true to the wire."""

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        with lmstudio_server(delay_seconds=0.003, embedding_models=("nomic",)) as server:
            yield Subject(
                lambda: LMStudioBackend(
                    server.url, connect_seconds=60.0
                ),  # four websockets, on a machine that may be busy
                scheme="lmstudio",
                make_down=lambda: LMStudioBackend(DOWN, model="m"),
                num_running=lambda: server.num_running,
            )
