"""Fakes for the tests of agents, chains and plugins: backends that follow a script, servers true to the wire.

Fakes stand only for paid services and for software that is absent; everything else runs for real. The servers listen on
a free loopback port, in a thread, for the time of a `with` block. Imported on first use, as they bring a web server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.testing.backends import EchoBackend, Reply, ScriptedBackend
    from pyagent.testing.lmstudio import LMStudioServer, lmstudio_server
    from pyagent.testing.ollama import OllamaServer, ollama_server
    from pyagent.testing.servers import Fault, serve

__all__ = [
    "EchoBackend",
    "Fault",
    "LMStudioServer",
    "OllamaServer",
    "Reply",
    "ScriptedBackend",
    "lmstudio_server",
    "ollama_server",
    "serve",
]

_HOMES = {
    "EchoBackend": "backends",
    "Fault": "servers",
    "LMStudioServer": "lmstudio",
    "OllamaServer": "ollama",
    "Reply": "backends",
    "ScriptedBackend": "backends",
    "lmstudio_server": "lmstudio",
    "ollama_server": "ollama",
    "serve": "servers",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"pyagent.testing has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"pyagent.testing.{_HOMES[name]}"), name)
