"""PyAgent: a fleet of AI agents on your own machines, with the inference engine inside.

What a program needs is here: `Fleet`, `Chain`, `Engine`, requests and answers, steps, events and errors. A test pins
the list. Importing this package is cheap: names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.chains import Chain as Chain
    from pyagent.chains import Engine as Engine
    from pyagent.core.backends import Answer as Answer
    from pyagent.core.backends import Backend as Backend
    from pyagent.core.config import load_settings as load_settings
    from pyagent.core.errors import AgentAwayError as AgentAwayError
    from pyagent.core.errors import AgentError as AgentError
    from pyagent.core.errors import AwayError as AwayError
    from pyagent.core.errors import BackendError as BackendError
    from pyagent.core.errors import BudgetError as BudgetError
    from pyagent.core.errors import CapacityError as CapacityError
    from pyagent.core.errors import ClusterError as ClusterError
    from pyagent.core.errors import ConfigError as ConfigError
    from pyagent.core.errors import ContextOverflowError as ContextOverflowError
    from pyagent.core.errors import DeadlineError as DeadlineError
    from pyagent.core.errors import Decline as Decline
    from pyagent.core.errors import GuardrailError as GuardrailError
    from pyagent.core.errors import InvalidOutputError as InvalidOutputError
    from pyagent.core.errors import ModelError as ModelError
    from pyagent.core.errors import NeedsAnswerError as NeedsAnswerError
    from pyagent.core.errors import PluginError as PluginError
    from pyagent.core.errors import PyAgentError as PyAgentError
    from pyagent.core.errors import ReplayError as ReplayError
    from pyagent.core.errors import RequestError as RequestError
    from pyagent.core.errors import StalledError as StalledError
    from pyagent.core.errors import UnsupportedError as UnsupportedError
    from pyagent.core.errors import WireError as WireError
    from pyagent.core.flat_logprobs import FlatLogprobs as FlatLogprobs
    from pyagent.core.fleet.agent import Agent as Agent
    from pyagent.core.fleet.agent import Task as Task
    from pyagent.core.fleet.context import Context as Context
    from pyagent.core.fleet.events import AgentDeclined as AgentDeclined
    from pyagent.core.fleet.events import AgentFailed as AgentFailed
    from pyagent.core.fleet.events import AgentFinished as AgentFinished
    from pyagent.core.fleet.events import AgentStarted as AgentStarted
    from pyagent.core.fleet.events import AnswerDoubted as AnswerDoubted
    from pyagent.core.fleet.events import FailureTolerated as FailureTolerated
    from pyagent.core.fleet.events import HistoryCompacted as HistoryCompacted
    from pyagent.core.fleet.events import LoopEnded as LoopEnded
    from pyagent.core.fleet.events import ModelCalled as ModelCalled
    from pyagent.core.fleet.events import NotesRead as NotesRead
    from pyagent.core.fleet.events import NoteTaken as NoteTaken
    from pyagent.core.fleet.events import OptionChosen as OptionChosen
    from pyagent.core.fleet.events import Progress as Progress
    from pyagent.core.fleet.events import Question as Question
    from pyagent.core.fleet.events import QuestionAnswered as QuestionAnswered
    from pyagent.core.fleet.events import QuestionAsked as QuestionAsked
    from pyagent.core.fleet.events import RateLimited as RateLimited
    from pyagent.core.fleet.events import RouteChosen as RouteChosen
    from pyagent.core.fleet.events import RunFailed as RunFailed
    from pyagent.core.fleet.events import RunFinished as RunFinished
    from pyagent.core.fleet.events import RunResumed as RunResumed
    from pyagent.core.fleet.events import RunStarted as RunStarted
    from pyagent.core.fleet.events import ScoreReported as ScoreReported
    from pyagent.core.fleet.events import StepRetried as StepRetried
    from pyagent.core.fleet.events import StepSkipped as StepSkipped
    from pyagent.core.fleet.events import TextDelta as TextDelta
    from pyagent.core.fleet.events import ToolCalled as ToolCalled
    from pyagent.core.fleet.events import ToolResultFlagged as ToolResultFlagged
    from pyagent.core.fleet.events import ToolStarted as ToolStarted
    from pyagent.core.fleet.journal import RunSummary as RunSummary
    from pyagent.core.fleet.limits import RunBudget as RunBudget
    from pyagent.core.fleet.replay_check import ReplayReport as ReplayReport
    from pyagent.core.fleet.run_view import RunView as RunView
    from pyagent.core.fleet.step_options import Repeat as Repeat
    from pyagent.core.fleet.step_options import Retries as Retries
    from pyagent.core.fleet.step_options import StepBudget as StepBudget
    from pyagent.core.fleet.steps import Step as Step
    from pyagent.core.fleet.tool_functions import tool as tool
    from pyagent.core.fleet.tool_run import idempotency_key as idempotency_key
    from pyagent.core.fleet.tools import FleetTool as FleetTool
    from pyagent.core.load_progress import LoadProgress as LoadProgress
    from pyagent.core.messages import ChatDelta as ChatDelta
    from pyagent.core.messages import ChatRequest as ChatRequest
    from pyagent.core.messages import FunctionDefinition as FunctionDefinition
    from pyagent.core.messages import Message as Message
    from pyagent.core.messages import SamplingParams as SamplingParams
    from pyagent.core.messages import Tool as Tool
    from pyagent.core.messages import ToolCall as ToolCall
    from pyagent.core.messages import Usage as Usage
    from pyagent.core.response_format import GrammarFormat as GrammarFormat
    from pyagent.core.response_format import JsonSchemaFormat as JsonSchemaFormat
    from pyagent.core.response_format import ResponseFormat as ResponseFormat
    from pyagent.core.sampling_schedules import PenaltySchedule as PenaltySchedule
    from pyagent.core.sampling_schedules import TemperatureSchedule as TemperatureSchedule
    from pyagent.core.settings import Settings as Settings
    from pyagent.core.structured_output.wanted import validate_partial as validate_partial
    from pyagent.fleet import Fleet as Fleet
    from pyagent.following import follow as follow
    from pyagent.sync import SyncChain as SyncChain
    from pyagent.sync import SyncEngine as SyncEngine
    from pyagent.sync import SyncFleet as SyncFleet

__version__ = "0.1.0"

_NAMES = {
    "pyagent.chains": "Chain Engine",
    "pyagent.core.backends": "Answer Backend",
    "pyagent.core.config": "load_settings",
    "pyagent.core.errors": "AgentAwayError AgentError AwayError BackendError BudgetError CapacityError ClusterError "
    "ConfigError ContextOverflowError DeadlineError Decline GuardrailError InvalidOutputError ModelError "
    "NeedsAnswerError PluginError PyAgentError ReplayError RequestError StalledError UnsupportedError WireError",
    "pyagent.core.flat_logprobs": "FlatLogprobs",
    "pyagent.core.fleet.agent": "Agent Task",
    "pyagent.core.fleet.context": "Context",
    "pyagent.core.fleet.events": "AgentDeclined AgentFailed AgentFinished AgentStarted AnswerDoubted "
    "FailureTolerated HistoryCompacted LoopEnded ModelCalled NoteTaken NotesRead OptionChosen Progress Question "
    "QuestionAnswered QuestionAsked RateLimited RouteChosen RunFailed RunFinished RunResumed RunStarted "
    "ScoreReported StepRetried StepSkipped TextDelta ToolCalled ToolResultFlagged ToolStarted",
    "pyagent.core.fleet.journal": "RunSummary",
    "pyagent.core.fleet.limits": "RunBudget",
    "pyagent.core.fleet.replay_check": "ReplayReport",
    "pyagent.core.fleet.run_view": "RunView",
    "pyagent.core.fleet.step_options": "Repeat Retries StepBudget",
    "pyagent.core.fleet.steps": "Step",
    "pyagent.core.fleet.tool_run": "idempotency_key",
    "pyagent.core.fleet.tool_functions": "tool",
    "pyagent.core.fleet.tools": "FleetTool",
    "pyagent.core.load_progress": "LoadProgress",
    "pyagent.core.messages": "ChatDelta ChatRequest FunctionDefinition Message SamplingParams Tool ToolCall Usage",
    "pyagent.core.response_format": "GrammarFormat JsonSchemaFormat ResponseFormat",
    "pyagent.core.sampling_schedules": "PenaltySchedule TemperatureSchedule",
    "pyagent.core.settings": "Settings",
    "pyagent.core.structured_output.wanted": "validate_partial",
    "pyagent.fleet": "Fleet",
    "pyagent.following": "follow",
    "pyagent.sync": "SyncChain SyncEngine SyncFleet",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*sorted(_HOME), "__version__"]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
