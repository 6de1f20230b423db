"""Every hook a plugin may fill, on one screen.

A plugin is a module (or object) named in the entry-point group ``pyagent`` as ``<plugin>.<noun> = "module"``, where the
noun is the last word of a hook below: ``haiku.agents = "pyagent_haiku"``. The names alone tell the host what a plugin
brings, so that it is imported only when that is needed. Hooks run at start-up and at the borders of a request, never
per token: the loop holds what they returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pluggy

if TYPE_CHECKING:
    from pyagent.core.backends import BackendFactory
    from pyagent.core.dialects.dialect import Dialect
    from pyagent.core.eviction import EvictionPolicyFactory
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.executor import ExecutorFactory
    from pyagent.core.fleet.guardrails import Guardrail
    from pyagent.core.fleet.tool_providers import ToolProvider
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.grammars import GrammarBackendFactory
    from pyagent.core.logits_processors import (
        BatchLogitsProcessorFactory,
        BroughtLogitsProcessor,
        LogitsProcessorFactory,
    )
    from pyagent.core.runners.architecture import Architecture, BroughtArchitecture, DescribedArchitecture
    from pyagent.core.runners.attention import AttentionBackend
    from pyagent.core.runners.factory import RunnerFactory
    from pyagent.core.runners.kv_connector import KvConnectorFactory
    from pyagent.core.runners.rank_executor import RankExecutorFactory
    from pyagent.core.scheduling import QueuePolicyFactory
    from pyagent.core.tokenizers import TokenizerFactory
    from pyagent.core.web_search import SearchProviderFactory

PROJECT_NAME = "pyagent"
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


class Parts(Protocol):
    """What plugins bring for backends to be made of, by name; looked up when a backend is made, not before."""

    def queue_policies(self) -> Mapping[str, QueuePolicyFactory]:
        """Orders of waiting requests."""
        ...

    def eviction_policies(self) -> Mapping[str, EvictionPolicyFactory]:
        """Orders in which cached KV blocks are given up."""
        ...

    def dialects(self) -> Mapping[str, Dialect]:
        """How models write reasoning and tool calls, besides the built-in dialects."""
        ...

    def tokenizers(self) -> Mapping[str, TokenizerFactory]:
        """Vocabularies of models, besides those that the built-in readers know."""
        ...

    def runners(self) -> Mapping[str, RunnerFactory]:
        """Devices that models run on."""
        ...

    def attention_backends(self) -> Mapping[str, AttentionBackend]:
        """Ways in which the torch runner computes attention."""
        ...

    def architectures(self) -> Mapping[str, BroughtArchitecture]:
        """Kinds of models that the torch runner runs, besides those of the CPU runner."""
        ...

    def kv_connectors(self) -> Mapping[str, KvConnectorFactory]:
        """What moves KV between engines."""
        ...

    def rank_executors(self) -> Mapping[str, RankExecutorFactory]:
        """What starts the processes among which a model is divided."""
        ...

    def grammar_backends(self) -> Mapping[str, GrammarBackendFactory]:
        """What compiles structured output to masks."""
        ...

    def logits_processors(self) -> Mapping[str, BroughtLogitsProcessor]:
        """What requests may name to change the logits that they are sampled from."""
        ...


class HookSpecs:
    """The hook specifications; `core.plugins` checks every implementation against them at registration."""

    @hookspec
    def pyagent_register_backends(self, parts: Parts) -> Mapping[str, BackendFactory]:
        """Return backends by scheme: `{"ollama": make_backend}`; the scheme is what a chain entry starts with.

        `parts` gives what other plugins bring for backends to be made of; an implementation may leave it out.
        """
        ...

    @hookspec
    def pyagent_register_agents(self) -> Sequence[Agent]:
        """Return specialist agents, ready to run; the router reads their descriptions."""
        ...

    @hookspec
    def pyagent_register_tools(self) -> Sequence[FleetTool]:
        """Return tools that agents may call by name through their context."""
        ...

    @hookspec
    def pyagent_register_tool_providers(self) -> Sequence[ToolProvider]:
        """Return what brings tools only once it is open, such as the client of a tool server.

        A fleet opens its providers on its first run and closes them with itself; one that fails is left out.
        """
        ...

    @hookspec
    def pyagent_register_guardrails(self) -> Sequence[Guardrail]:
        """Return what looks at tasks, calls of tools and results of agents, and may refuse them.

        No fleet begins while a plugin that brings one is broken.
        """
        ...

    @hookspec
    def pyagent_register_executors(self) -> Mapping[str, ExecutorFactory]:
        """Return places where agents run: `{"ray": make_executor}`; `fleet.executor` names one."""
        ...

    @hookspec
    def pyagent_register_search_providers(self) -> Mapping[str, SearchProviderFactory]:
        """Return what searches the web: `{"searxng": make_provider}`; `web.provider` names one."""
        ...

    @hookspec
    def pyagent_register_queue_policies(self) -> Mapping[str, QueuePolicyFactory]:
        """Return orders in which the engine takes waiting requests: `{"fair": make_policy}`; settings name them."""
        ...

    @hookspec
    def pyagent_register_eviction_policies(self) -> Mapping[str, EvictionPolicyFactory]:
        """Return orders in which cached KV blocks are given up: `{"lru": make_policy}`; settings name them."""
        ...

    @hookspec
    def pyagent_register_dialects(self) -> Sequence[Dialect]:
        """Return how models write reasoning and tool calls: a parser, a grammar, and the chat templates that show it.

        They come before the built-in dialects, whose names they may take; the first that matches a template is used.
        """
        ...

    @hookspec
    def pyagent_register_tokenizers(self) -> Sequence[TokenizerFactory]:
        """Return vocabularies of models: what knows a model's files by their looks, and loads its tokenizer.

        They come before the built-in ones, whose names they may take; `engine.tokenizer` names one, or takes the first
        that knows the files.
        """
        ...

    @hookspec
    def pyagent_register_runners(self) -> Sequence[RunnerFactory]:
        """Return devices that the engine's models run on; `engine.runner` names one, or takes the first that can."""
        ...

    @hookspec
    def pyagent_register_architectures(self) -> Sequence[Architecture | DescribedArchitecture]:
        """Return kinds of models, by the `model_type` of their `config.json`, that runners are to run."""
        ...

    @hookspec
    def pyagent_register_rank_executors(self) -> Mapping[str, RankExecutorFactory]:
        """Return what starts the processes of a model divided among GPUs: `{"ray": make_ranks}`.

        `engine.distributed_executor_backend` names one.
        """
        ...

    @hookspec
    def pyagent_register_kv_connectors(self) -> Sequence[KvConnectorFactory]:
        """Return what brings KV from other engines before a prompt is computed, and takes it there.

        `engine.kv_connector` names one.
        """
        ...

    @hookspec
    def pyagent_register_attention_backends(self) -> Sequence[AttentionBackend]:
        """Return ways in which the `torch` runner computes attention; `engine.attention` names one.

        With `auto` a backend is taken where a trial finds it right and quicker than the others.
        """
        ...

    @hookspec
    def pyagent_register_logits_processors(self) -> Sequence[LogitsProcessorFactory | BatchLogitsProcessorFactory]:
        """Return what changes the logits before a token is sampled, for the requests and settings that name it.

        One has `make`, for a function of each request, or `make_batch`, for one object that sees all rows of a step.
        """
        ...

    @hookspec
    def pyagent_register_grammar_backends(self) -> Sequence[GrammarBackendFactory]:
        """Return what compiles structured output to masks; `engine.structured_outputs_backend` says in which order."""
        ...

    @hookspec
    def pyagent_register_commands(self) -> Mapping[str, Callable[..., object]]:
        """Return sub-commands of the command line: `{"greet": greet}` is `pyagent greet`.

        A function's parameters become its arguments and options (typer reads their annotations), the first line of its
        docstring its help; a `typer.Typer` is a group of commands. Built-in names cannot be taken.
        """
        ...
