"""Fakes for the tests of agents, chains and plugins, and what every backend must do, as a suite (`conformance`).

Fakes stand only for paid services and for software that is absent; everything else runs for real. The servers listen on
a free loopback port, in a thread, for the time of a `with` block. Imported on first use, as they bring a web server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.testing.backends import EchoBackend, Reply, ScriptedBackend
    from pyagent.testing.conformance import BackendConformance, Subject
    from pyagent.testing.lmstudio import LMStudioServer, lmstudio_server
    from pyagent.testing.ollama import OllamaServer, ollama_server
    from pyagent.testing.openai import OpenAIServer, openai_server
    from pyagent.testing.recorded import RecordedBackend
    from pyagent.testing.runner_conformance import RunnerConformance
    from pyagent.testing.runs import Played, play
    from pyagent.testing.servers import Fault, serve

__all__ = [
    "BackendConformance",
    "EchoBackend",
    "Fault",
    "LMStudioServer",
    "OllamaServer",
    "OpenAIServer",
    "Played",
    "RecordedBackend",
    "Reply",
    "RunnerConformance",
    "ScriptedBackend",
    "Subject",
    "lmstudio_server",
    "ollama_server",
    "openai_server",
    "play",
    "serve",
]

_HOMES = {
    "BackendConformance": "conformance",
    "EchoBackend": "backends",
    "Fault": "servers",
    "LMStudioServer": "lmstudio",
    "OllamaServer": "ollama",
    "OpenAIServer": "openai",
    "Played": "runs",
    "RecordedBackend": "recorded",
    "Reply": "backends",
    "RunnerConformance": "runner_conformance",
    "ScriptedBackend": "backends",
    "Subject": "conformance",
    "lmstudio_server": "lmstudio",
    "ollama_server": "ollama",
    "openai_server": "openai",
    "play": "runs",
    "serve": "servers",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"pyagent.testing has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"pyagent.testing.{_HOMES[name]}"), name)
