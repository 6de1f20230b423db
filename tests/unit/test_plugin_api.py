"""What plugins may import: the list, its weight, and that the shipped plugins keep to it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyagent.plugin
from pyagent.core.plugin_checks import NOUNS
from pyagent.core.plugins import PluginHost

ROOT = Path(__file__).parents[2]


API = (
    "ABILITIES BLOCK_TOKENS FURTHER_SAMPLING TOKEN_FIELDS Abilities AddedRow Agent AgentCall AgentError AgentView "
    "Answer Architecture AttentionBackend AttentionShape AwayError Backend BackendError BackendFactory Balancer "
    "Batch BatchLogitsProcessor BatchLogitsProcessorFactory BatchUpdate BudgetError CachePages CacheQuery "
    "CacheQueryResult CacheReport CachedPrompt Capabilities CapacityError Chain ChatDelta ChatRequest "
    "ClusterError Codec ConfigError Context ContextOverflowError Deadline DeadlineError Decline DescribedArchitecture "
    "Dialect EmbedRequest EmbedResult EvictionPolicy EvictionPolicyFactory Executor ExecutorFactory ExplainPrompt "
    "FailedAttempt FamilyDescription Fault FinishReason FleetTool FlexAttention ForwardPass FunctionCall "
    "FunctionDefinition GrammarBackend GrammarBackendFactory GrammarMatcher GrammarSource GrammarVocabulary Guardrail "
    "GuardrailError Health HeldKv Hint HttpPool ImagePart ImageUrl JsonCalls JsonSchemaFormat KvCache KvConnector "
    "KvConnectorFactory KvLayers KvLayout KvMatch KvPages KvPrompt KvReservation KvShape LargestStep Likelihood "
    "LineReader LineTooLongError LinkSpec LogitsProcessorFactory LogitsProcessorSpec Message ModelCache "
    "ModelError ModelInfo ModelLayers ModelNeeds ModelRunner ModelShape Module NamedCalls Network Node Origin "
    "OutputParser PagedRunner Parsed Parts PenaltySchedule PinPrompt PluginError Policy PreemptingPolicy "
    "PrefixKey PromptTokensDetails PyAgentError PythonCalls QueuePolicy QueuePolicyFactory Queued RankExecutor "
    "RankExecutorFactory RankProcess Reasoning ReasoningEffort RequestError RequestLogitsProcessor ResponseFormat "
    "Role RunCalls RunnerFactory RunnerInfo RunnerLostError RunnerOptions SamplingParams Score SearchHit "
    "SearchProvider SearchProviderFactory Settings StalledError StepOutput TagDialect Task TemperatureSchedule "
    "Tensor TextPart Timings TokenLogprob Tokenizer TokenizerFactory Tool ToolCall ToolCallDelta ToolProvider "
    "TreeBounds UnpinPrompt Unsupported UnsupportedError Usage ViewCache Vocabulary WarmPrefixes WireError "
    "XmlCalls chain_of_thought collect debate describe_model error_body estimated_request_tokens estimated_tokens "
    "estimated_usage fulfil hookimpl idempotency_key is_pure make_backend make_host num_warm_tokens "
    "plugin_options prefix_keys read_headers readable_path reflection run_rank run_remote self_consistency tool "
    "trace_headers tree_of_thoughts"
)


def test_plugin_api_is_pinned() -> None:
    """What plugins may import is this list; a change here is a change for their authors."""
    assert pyagent.plugin.__all__ == API.split()
    for name in pyagent.plugin.__all__:
        assert getattr(pyagent.plugin, name) is not None
    with pytest.raises(AttributeError, match="has no 'Nothing'"):
        _ = pyagent.plugin.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", sorted((ROOT / "plugins").iterdir()), ids=lambda folder: folder.name)
def test_shipped_plugins_use_the_public_api_alone(folder: Path) -> None:
    """The plugins in this repository import only `pyagent.plugin`, and in their tests `pyagent.testing`."""
    for file in folder.rglob("*.py"):
        nodes = [
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        ours = {name for name in names if name.partition(".")[0] == "pyagent"}
        assert ours <= ({"pyagent.plugin", "pyagent.testing"} if "tests" in file.parts else {"pyagent.plugin"})


def test_plugin_api_is_light() -> None:
    """Importing the plugin API brings neither settings, nor HTTP, nor logs with it."""
    heavy = ("pydantic", "httpx", "structlog", "starlette", "rich", "sympy", "torch")
    code = f"import pyagent.plugin, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.strip() == "[]"


def test_every_noun_has_a_method() -> None:
    """Each hook's noun is a method of the host."""
    assert all(callable(getattr(PluginHost, noun)) for noun in NOUNS)
