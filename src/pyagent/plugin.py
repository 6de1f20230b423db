"""All a plugin may import: the hook mark, backends, messages, errors, agents and tools. A test pins this list.

What lives in heavier modules is looked up when first used, so importing this costs what the messages cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.core.backends import Answer, Backend, BackendFactory, LinkSpec, collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.errors import (
    AgentError,
    AwayError,
    BackendError,
    BudgetError,
    CapacityError,
    ClusterError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    Decline,
    ModelError,
    PluginError,
    PyAgentError,
    RequestError,
    UnsupportedError,
    WireError,
)
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FailedAttempt,
    FinishReason,
    FunctionCall,
    FunctionDefinition,
    Health,
    Hint,
    ImagePart,
    ImageUrl,
    JsonSchemaFormat,
    Message,
    ModelInfo,
    Origin,
    PromptTokensDetails,
    ReasoningEffort,
    ResponseFormat,
    Role,
    SamplingParams,
    TextPart,
    Timings,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    Unsupported,
    Usage,
)
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.trace_context import trace_headers

if TYPE_CHECKING:
    from pyagent.assembly import make_backend, make_host
    from pyagent.core.abilities import ABILITIES, FURTHER_SAMPLING, TOKEN_FIELDS, Abilities
    from pyagent.core.chain.chain import Chain
    from pyagent.core.cluster.prefixes import WarmPrefixes, num_warm_tokens, prefix_keys
    from pyagent.core.cluster.routing import Balancer, Node, Policy
    from pyagent.core.config import Settings, read_headers
    from pyagent.core.dialects.dialect import Dialect, OutputParser, TagDialect
    from pyagent.core.dialects.json_calls import JsonCalls
    from pyagent.core.dialects.named_calls import NamedCalls
    from pyagent.core.dialects.output import Parsed
    from pyagent.core.dialects.python_calls import PythonCalls
    from pyagent.core.dialects.text import Reasoning
    from pyagent.core.dialects.xml_calls import XmlCalls
    from pyagent.core.emulation.cutting import estimated_usage
    from pyagent.core.emulation.fulfil import fulfil
    from pyagent.core.eviction import EvictionPolicy, EvictionPolicyFactory
    from pyagent.core.fleet.agent import Agent, Task, is_pure
    from pyagent.core.fleet.context import Context
    from pyagent.core.fleet.executor import Executor, ExecutorFactory
    from pyagent.core.fleet.file_access import readable_path
    from pyagent.core.fleet.remote.calls import RunCalls
    from pyagent.core.fleet.remote.context import run_remote
    from pyagent.core.fleet.remote.messages import AgentCall, AgentView
    from pyagent.core.fleet.scores import Score
    from pyagent.core.fleet.tool_providers import ToolProvider
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.grammars import (
        GrammarBackend,
        GrammarBackendFactory,
        GrammarMatcher,
        GrammarSource,
        GrammarVocabulary,
    )
    from pyagent.core.hooks import Parts
    from pyagent.core.line_reader import LineReader, LineTooLongError
    from pyagent.core.logits_processors import (
        AddedRow,
        BatchLogitsProcessor,
        BatchLogitsProcessorFactory,
        BatchUpdate,
        LogitsProcessorFactory,
        RequestLogitsProcessor,
        Vocabulary,
    )
    from pyagent.core.messages import CacheReport
    from pyagent.core.plugin_options import plugin_options
    from pyagent.core.prompt_cache import (
        CachedPrompt,
        CachePages,
        CacheQuery,
        CacheQueryResult,
        ExplainPrompt,
        ModelCache,
        PinPrompt,
        UnpinPrompt,
        ViewCache,
    )
    from pyagent.core.runners.attention import AttentionBackend, AttentionShape
    from pyagent.core.runners.batch import BLOCK_TOKENS, Batch, Likelihood, PrefixKey, StepOutput
    from pyagent.core.runners.factory import KvReservation, LargestStep, ModelNeeds, RunnerFactory, RunnerOptions
    from pyagent.core.runners.kv_connector import (
        HeldKv,
        KvCache,
        KvConnector,
        KvConnectorFactory,
        KvLayers,
        KvLayout,
        KvMatch,
        KvPages,
        KvPrompt,
        KvShape,
    )
    from pyagent.core.runners.runner import ModelRunner, RunnerInfo
    from pyagent.core.sampling_params import LogitsProcessorSpec
    from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
    from pyagent.core.scheduling import PreemptingPolicy, Queued, QueuePolicy, QueuePolicyFactory
    from pyagent.core.token_estimate import estimated_request_tokens, estimated_tokens
    from pyagent.core.tokenizers import Tokenizer, TokenizerFactory
    from pyagent.http_pool import HttpPool, error_body
    from pyagent.infrastructure.engine.runners.paged import PagedRunner
    from pyagent.infrastructure.models.describe import describe_model
    from pyagent.infrastructure.wire.codec import Codec
    from pyagent.infrastructure.wire.fault import Fault

_LATER = {
    "ABILITIES": "pyagent.core.abilities",
    "Abilities": "pyagent.core.abilities",
    "AddedRow": "pyagent.core.logits_processors",
    "Agent": "pyagent.core.fleet.agent",
    "AgentCall": "pyagent.core.fleet.remote.messages",
    "AgentView": "pyagent.core.fleet.remote.messages",
    "AttentionBackend": "pyagent.core.runners.attention",
    "AttentionShape": "pyagent.core.runners.attention",
    "BLOCK_TOKENS": "pyagent.core.runners.batch",
    "Balancer": "pyagent.core.cluster.routing",
    "Batch": "pyagent.core.runners.batch",
    "BatchLogitsProcessor": "pyagent.core.logits_processors",
    "BatchLogitsProcessorFactory": "pyagent.core.logits_processors",
    "BatchUpdate": "pyagent.core.logits_processors",
    "CachePages": "pyagent.core.prompt_cache",
    "CacheQuery": "pyagent.core.prompt_cache",
    "CacheQueryResult": "pyagent.core.prompt_cache",
    "CacheReport": "pyagent.core.messages",
    "CachedPrompt": "pyagent.core.prompt_cache",
    "Chain": "pyagent.core.chain.chain",
    "Codec": "pyagent.infrastructure.wire.codec",
    "Context": "pyagent.core.fleet.context",
    "Dialect": "pyagent.core.dialects.dialect",
    "EvictionPolicy": "pyagent.core.eviction",
    "EvictionPolicyFactory": "pyagent.core.eviction",
    "Executor": "pyagent.core.fleet.executor",
    "ExecutorFactory": "pyagent.core.fleet.executor",
    "ExplainPrompt": "pyagent.core.prompt_cache",
    "FURTHER_SAMPLING": "pyagent.core.abilities",
    "Fault": "pyagent.infrastructure.wire.fault",
    "FleetTool": "pyagent.core.fleet.tools",
    "GrammarBackend": "pyagent.core.grammars",
    "GrammarBackendFactory": "pyagent.core.grammars",
    "GrammarMatcher": "pyagent.core.grammars",
    "GrammarSource": "pyagent.core.grammars",
    "GrammarVocabulary": "pyagent.core.grammars",
    "HeldKv": "pyagent.core.runners.kv_connector",
    "HttpPool": "pyagent.http_pool",
    "JsonCalls": "pyagent.core.dialects.json_calls",
    "KvCache": "pyagent.core.runners.kv_connector",
    "KvConnector": "pyagent.core.runners.kv_connector",
    "KvConnectorFactory": "pyagent.core.runners.kv_connector",
    "KvLayers": "pyagent.core.runners.kv_connector",
    "KvLayout": "pyagent.core.runners.kv_connector",
    "KvMatch": "pyagent.core.runners.kv_connector",
    "KvPages": "pyagent.core.runners.kv_connector",
    "KvPrompt": "pyagent.core.runners.kv_connector",
    "KvReservation": "pyagent.core.runners.factory",
    "KvShape": "pyagent.core.runners.kv_connector",
    "LargestStep": "pyagent.core.runners.factory",
    "Likelihood": "pyagent.core.runners.batch",
    "LineReader": "pyagent.core.line_reader",
    "LineTooLongError": "pyagent.core.line_reader",
    "LogitsProcessorFactory": "pyagent.core.logits_processors",
    "LogitsProcessorSpec": "pyagent.core.sampling_params",
    "ModelCache": "pyagent.core.prompt_cache",
    "ModelNeeds": "pyagent.core.runners.factory",
    "ModelRunner": "pyagent.core.runners.runner",
    "NamedCalls": "pyagent.core.dialects.named_calls",
    "Node": "pyagent.core.cluster.routing",
    "OutputParser": "pyagent.core.dialects.dialect",
    "PagedRunner": "pyagent.infrastructure.engine.runners.paged",
    "Parsed": "pyagent.core.dialects.output",
    "Parts": "pyagent.core.hooks",
    "PenaltySchedule": "pyagent.core.sampling_schedules",
    "PinPrompt": "pyagent.core.prompt_cache",
    "Policy": "pyagent.core.cluster.routing",
    "PreemptingPolicy": "pyagent.core.scheduling",
    "PrefixKey": "pyagent.core.runners.batch",
    "PythonCalls": "pyagent.core.dialects.python_calls",
    "QueuePolicy": "pyagent.core.scheduling",
    "QueuePolicyFactory": "pyagent.core.scheduling",
    "Queued": "pyagent.core.scheduling",
    "Reasoning": "pyagent.core.dialects.text",
    "RequestLogitsProcessor": "pyagent.core.logits_processors",
    "RunCalls": "pyagent.core.fleet.remote.calls",
    "RunnerFactory": "pyagent.core.runners.factory",
    "RunnerInfo": "pyagent.core.runners.runner",
    "RunnerOptions": "pyagent.core.runners.factory",
    "Score": "pyagent.core.fleet.scores",
    "Settings": "pyagent.core.settings",
    "StepOutput": "pyagent.core.runners.batch",
    "TOKEN_FIELDS": "pyagent.core.abilities",
    "TagDialect": "pyagent.core.dialects.dialect",
    "Task": "pyagent.core.fleet.agent",
    "TemperatureSchedule": "pyagent.core.sampling_schedules",
    "Tokenizer": "pyagent.core.tokenizers",
    "TokenizerFactory": "pyagent.core.tokenizers",
    "ToolProvider": "pyagent.core.fleet.tool_providers",
    "UnpinPrompt": "pyagent.core.prompt_cache",
    "ViewCache": "pyagent.core.prompt_cache",
    "Vocabulary": "pyagent.core.logits_processors",
    "WarmPrefixes": "pyagent.core.cluster.prefixes",
    "XmlCalls": "pyagent.core.dialects.xml_calls",
    "describe_model": "pyagent.infrastructure.models.describe",
    "error_body": "pyagent.http_pool",
    "estimated_request_tokens": "pyagent.core.token_estimate",
    "estimated_tokens": "pyagent.core.token_estimate",
    "estimated_usage": "pyagent.core.emulation.cutting",
    "fulfil": "pyagent.core.emulation.fulfil",
    "is_pure": "pyagent.core.fleet.agent",
    "make_backend": "pyagent.assembly",
    "make_host": "pyagent.assembly",
    "num_warm_tokens": "pyagent.core.cluster.prefixes",
    "plugin_options": "pyagent.core.plugin_options",
    "prefix_keys": "pyagent.core.cluster.prefixes",
    "read_headers": "pyagent.core.config",
    "readable_path": "pyagent.core.fleet.file_access",
    "run_remote": "pyagent.core.fleet.remote.context",
}

__all__ = [
    "ABILITIES",
    "BLOCK_TOKENS",
    "FURTHER_SAMPLING",
    "TOKEN_FIELDS",
    "Abilities",
    "AddedRow",
    "Agent",
    "AgentCall",
    "AgentError",
    "AgentView",
    "Answer",
    "AttentionBackend",
    "AttentionShape",
    "AwayError",
    "Backend",
    "BackendError",
    "BackendFactory",
    "Balancer",
    "Batch",
    "BatchLogitsProcessor",
    "BatchLogitsProcessorFactory",
    "BatchUpdate",
    "BudgetError",
    "CachePages",
    "CacheQuery",
    "CacheQueryResult",
    "CacheReport",
    "CachedPrompt",
    "Capabilities",
    "CapacityError",
    "Chain",
    "ChatDelta",
    "ChatRequest",
    "ClusterError",
    "Codec",
    "ConfigError",
    "Context",
    "ContextOverflowError",
    "Deadline",
    "DeadlineError",
    "Decline",
    "Dialect",
    "EmbedRequest",
    "EmbedResult",
    "EvictionPolicy",
    "EvictionPolicyFactory",
    "Executor",
    "ExecutorFactory",
    "ExplainPrompt",
    "FailedAttempt",
    "Fault",
    "FinishReason",
    "FleetTool",
    "FunctionCall",
    "FunctionDefinition",
    "GrammarBackend",
    "GrammarBackendFactory",
    "GrammarMatcher",
    "GrammarSource",
    "GrammarVocabulary",
    "Health",
    "HeldKv",
    "Hint",
    "HttpPool",
    "ImagePart",
    "ImageUrl",
    "JsonCalls",
    "JsonSchemaFormat",
    "KvCache",
    "KvConnector",
    "KvConnectorFactory",
    "KvLayers",
    "KvLayout",
    "KvMatch",
    "KvPages",
    "KvPrompt",
    "KvReservation",
    "KvShape",
    "LargestStep",
    "Likelihood",
    "LineReader",
    "LineTooLongError",
    "LinkSpec",
    "LogitsProcessorFactory",
    "LogitsProcessorSpec",
    "Message",
    "ModelCache",
    "ModelError",
    "ModelInfo",
    "ModelNeeds",
    "ModelRunner",
    "NamedCalls",
    "Node",
    "Origin",
    "OutputParser",
    "PagedRunner",
    "Parsed",
    "Parts",
    "PenaltySchedule",
    "PinPrompt",
    "PluginError",
    "Policy",
    "PreemptingPolicy",
    "PrefixKey",
    "PromptTokensDetails",
    "PyAgentError",
    "PythonCalls",
    "QueuePolicy",
    "QueuePolicyFactory",
    "Queued",
    "Reasoning",
    "ReasoningEffort",
    "RequestError",
    "RequestLogitsProcessor",
    "ResponseFormat",
    "Role",
    "RunCalls",
    "RunnerFactory",
    "RunnerInfo",
    "RunnerOptions",
    "SamplingParams",
    "Score",
    "Settings",
    "StepOutput",
    "TagDialect",
    "Task",
    "TemperatureSchedule",
    "TextPart",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerFactory",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolProvider",
    "UnpinPrompt",
    "Unsupported",
    "UnsupportedError",
    "Usage",
    "ViewCache",
    "Vocabulary",
    "WarmPrefixes",
    "WireError",
    "XmlCalls",
    "collect",
    "describe_model",
    "error_body",
    "estimated_request_tokens",
    "estimated_tokens",
    "estimated_usage",
    "fulfil",
    "hookimpl",
    "is_pure",
    "make_backend",
    "make_host",
    "num_warm_tokens",
    "plugin_options",
    "prefix_keys",
    "read_headers",
    "readable_path",
    "run_remote",
    "trace_headers",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"pyagent.plugin has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LATER[name]), name)
