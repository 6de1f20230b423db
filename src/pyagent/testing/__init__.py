"""Fakes for the tests of agents, chains and plugins, and what an implementer of each hook must do, as suites.

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
    from pyagent.testing.suites.agents import AgentConformance
    from pyagent.testing.suites.architectures import ArchitectureConformance
    from pyagent.testing.suites.attention import AttentionBackendConformance
    from pyagent.testing.suites.commands import CommandConformance
    from pyagent.testing.suites.dialects import DialectConformance
    from pyagent.testing.suites.executors import ExecutorConformance, RankExecutorConformance
    from pyagent.testing.suites.grammars import GrammarBackendConformance
    from pyagent.testing.suites.guardrails import GuardrailConformance
    from pyagent.testing.suites.kv_connectors import KvConnectorConformance
    from pyagent.testing.suites.logits_processors import LogitsProcessorConformance
    from pyagent.testing.suites.policies import EvictionPolicyConformance, QueuedRequest, QueuePolicyConformance
    from pyagent.testing.suites.search_providers import SearchProviderConformance
    from pyagent.testing.suites.tokenizers import TokenizerConformance
    from pyagent.testing.suites.tools import ToolConformance, ToolProviderConformance
    from pyagent.testing.suites.vocabulary import ByteVocabulary

__all__ = [
    "AgentConformance",
    "ArchitectureConformance",
    "AttentionBackendConformance",
    "BackendConformance",
    "ByteVocabulary",
    "CommandConformance",
    "DialectConformance",
    "EchoBackend",
    "EvictionPolicyConformance",
    "ExecutorConformance",
    "Fault",
    "GrammarBackendConformance",
    "GuardrailConformance",
    "KvConnectorConformance",
    "LMStudioServer",
    "LogitsProcessorConformance",
    "OllamaServer",
    "OpenAIServer",
    "Played",
    "QueuePolicyConformance",
    "QueuedRequest",
    "RankExecutorConformance",
    "RecordedBackend",
    "Reply",
    "RunnerConformance",
    "ScriptedBackend",
    "SearchProviderConformance",
    "Subject",
    "TokenizerConformance",
    "ToolConformance",
    "ToolProviderConformance",
    "lmstudio_server",
    "ollama_server",
    "openai_server",
    "play",
    "serve",
]

_HOMES = {
    "AgentConformance": "suites.agents",
    "ArchitectureConformance": "suites.architectures",
    "AttentionBackendConformance": "suites.attention",
    "BackendConformance": "conformance",
    "ByteVocabulary": "suites.vocabulary",
    "CommandConformance": "suites.commands",
    "DialectConformance": "suites.dialects",
    "EchoBackend": "backends",
    "EvictionPolicyConformance": "suites.policies",
    "ExecutorConformance": "suites.executors",
    "Fault": "servers",
    "GrammarBackendConformance": "suites.grammars",
    "GuardrailConformance": "suites.guardrails",
    "KvConnectorConformance": "suites.kv_connectors",
    "LMStudioServer": "lmstudio",
    "LogitsProcessorConformance": "suites.logits_processors",
    "OllamaServer": "ollama",
    "OpenAIServer": "openai",
    "Played": "runs",
    "QueuePolicyConformance": "suites.policies",
    "QueuedRequest": "suites.policies",
    "RankExecutorConformance": "suites.executors",
    "RecordedBackend": "recorded",
    "Reply": "backends",
    "RunnerConformance": "runner_conformance",
    "ScriptedBackend": "backends",
    "SearchProviderConformance": "suites.search_providers",
    "Subject": "conformance",
    "TokenizerConformance": "suites.tokenizers",
    "ToolConformance": "suites.tools",
    "ToolProviderConformance": "suites.tools",
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
