"""What `from pyagent import ...` gives, and that examples need no more."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import pyagent
from pyagent import ConfigError, Engine, ModelError

ROOT = Path(__file__).parents[2]
NAMES = """
Agent AgentAwayError AgentDeclined AgentError AgentFailed AgentFinished AgentStarted Answer AnswerDoubted AwayError
Backend BackendError BudgetError CapacityError Chain ChatDelta ChatRequest ClusterError ConfigError Context
ContextOverflowError DeadlineError Decline Engine FailureTolerated FlatLogprobs Fleet FleetTool FunctionDefinition
GrammarFormat GuardrailError HistoryCompacted InvalidOutputError JsonSchemaFormat LoadProgress LoopEnded Message
ModelCalled ModelError NeedsAnswerError NoteTaken NotesRead OptionChosen PenaltySchedule PluginError Progress
PyAgentError Question QuestionAnswered QuestionAsked RateLimited Repeat ReplayError ReplayReport RequestError
ResponseFormat Retries RouteChosen RunBudget RunFailed RunFinished RunResumed RunStarted RunSummary RunView
SamplingParams ScoreReported Settings StalledError Step StepBudget StepRetried StepSkipped SyncChain SyncEngine
SyncFleet Task TemperatureSchedule TextDelta Tool ToolCall ToolCalled ToolResultFlagged ToolStarted UnsupportedError
Usage WireError follow idempotency_key load_settings tool validate_partial __version__
"""


def test_public_names_are_pinned() -> None:
    """The package exports this list: a change to it is a change for users."""
    assert pyagent.__all__ == NAMES.split()
    assert all(getattr(pyagent, name) is not None for name in pyagent.__all__)


PROGRAMS = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "fleets").glob("*.py")])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_examples_import_from_the_package_alone(program: Path) -> None:
    """A program needs nothing of PyAgent but its first level."""
    tree = ast.parse(program.read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in modules if module.startswith("pyagent.")]


def test_engine_says_what_is_wrong() -> None:
    """An unknown option and a missing file are errors of their own kinds."""
    with pytest.raises(ConfigError, match="thread"):
        Engine("m.gguf", treads=2)

    async def missing() -> None:
        async with Engine("/nowhere/m.gguf") as engine:
            with pytest.raises(ModelError):
                await engine.load()
            with pytest.raises(ModelError, match=r"/nowhere/m\.gguf does not exist"):
                await engine.embed(["a"])

    asyncio.run(missing())
