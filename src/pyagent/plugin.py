"""All a plugin may import: the hook mark, backends, messages, errors, agents and tools. A test pins this list.

What lives in heavier modules is looked up when first used, so importing this costs what the messages cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.core.backends import Answer, Backend, BackendFactory, LinkSpec, collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.errors import (
    AgentError,
    BackendError,
    BudgetError,
    CapacityError,
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
    from pyagent.core.abilities import ABILITIES, Abilities
    from pyagent.core.config import Settings, read_headers
    from pyagent.core.emulation.cutting import estimated_usage
    from pyagent.core.emulation.fulfil import fulfil
    from pyagent.core.eviction import EvictionPolicy, EvictionPolicyFactory
    from pyagent.core.fleet.agent import Agent, Task
    from pyagent.core.fleet.context import Context
    from pyagent.core.fleet.file_access import readable_path
    from pyagent.core.fleet.scores import Score
    from pyagent.core.fleet.tool_providers import ToolProvider
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.hooks import Parts
    from pyagent.core.line_reader import LineReader, LineTooLongError
    from pyagent.core.scheduling import PreemptingPolicy, Queued, QueuePolicy, QueuePolicyFactory
    from pyagent.core.token_estimate import estimated_tokens
    from pyagent.http_pool import HttpPool, error_body

_LATER = {
    "ABILITIES": "pyagent.core.abilities",
    "Abilities": "pyagent.core.abilities",
    "Agent": "pyagent.core.fleet.agent",
    "Context": "pyagent.core.fleet.context",
    "EvictionPolicy": "pyagent.core.eviction",
    "EvictionPolicyFactory": "pyagent.core.eviction",
    "FleetTool": "pyagent.core.fleet.tools",
    "HttpPool": "pyagent.http_pool",
    "LineReader": "pyagent.core.line_reader",
    "LineTooLongError": "pyagent.core.line_reader",
    "Parts": "pyagent.core.hooks",
    "PreemptingPolicy": "pyagent.core.scheduling",
    "QueuePolicy": "pyagent.core.scheduling",
    "QueuePolicyFactory": "pyagent.core.scheduling",
    "Queued": "pyagent.core.scheduling",
    "Score": "pyagent.core.fleet.scores",
    "Settings": "pyagent.core.settings",
    "Task": "pyagent.core.fleet.agent",
    "ToolProvider": "pyagent.core.fleet.tool_providers",
    "error_body": "pyagent.http_pool",
    "estimated_tokens": "pyagent.core.token_estimate",
    "estimated_usage": "pyagent.core.emulation.cutting",
    "fulfil": "pyagent.core.emulation.fulfil",
    "read_headers": "pyagent.core.config",
    "readable_path": "pyagent.core.fleet.file_access",
}

__all__ = [
    "ABILITIES",
    "Abilities",
    "Agent",
    "AgentError",
    "Answer",
    "Backend",
    "BackendError",
    "BackendFactory",
    "BudgetError",
    "Capabilities",
    "CapacityError",
    "ChatDelta",
    "ChatRequest",
    "ConfigError",
    "Context",
    "ContextOverflowError",
    "Deadline",
    "DeadlineError",
    "Decline",
    "EmbedRequest",
    "EmbedResult",
    "EvictionPolicy",
    "EvictionPolicyFactory",
    "FailedAttempt",
    "FinishReason",
    "FleetTool",
    "FunctionCall",
    "FunctionDefinition",
    "Health",
    "Hint",
    "HttpPool",
    "ImagePart",
    "ImageUrl",
    "JsonSchemaFormat",
    "LineReader",
    "LineTooLongError",
    "LinkSpec",
    "Message",
    "ModelError",
    "ModelInfo",
    "Origin",
    "Parts",
    "PluginError",
    "PreemptingPolicy",
    "PromptTokensDetails",
    "PyAgentError",
    "QueuePolicy",
    "QueuePolicyFactory",
    "Queued",
    "ReasoningEffort",
    "RequestError",
    "ResponseFormat",
    "Role",
    "SamplingParams",
    "Score",
    "Settings",
    "Task",
    "TextPart",
    "Timings",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolProvider",
    "Unsupported",
    "UnsupportedError",
    "Usage",
    "WireError",
    "collect",
    "error_body",
    "estimated_tokens",
    "estimated_usage",
    "fulfil",
    "hookimpl",
    "read_headers",
    "readable_path",
    "trace_headers",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"pyagent.plugin has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LATER[name]), name)
