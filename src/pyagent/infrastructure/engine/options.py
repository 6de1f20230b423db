"""What can be chosen of the engine; settings are checked with it before anything of a model is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyagent.core.dialects.dialect import Dialect
from pyagent.core.grammars import GrammarBackendFactory
from pyagent.core.runners.factory import LargestStep, ModelNeeds, RunnerFactory, RunnerOptions
from pyagent.core.runners.kv_connector import KvConnectorFactory
from pyagent.core.settings import Engine
from pyagent.core.tokenizers import NO_OPTIONS, TokenizerOptions
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.logits.processors import LogitsOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.scheduler.queues import RequestQueues, make_queues
from pyagent.infrastructure.engine.step_executor import AsyncScheduling

if TYPE_CHECKING:
    from pyagent._rust import LoadProgress

SessionScope = Literal["auto", "named", "off"]
_DEFAULTS = Engine()


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Requests that run at once, tokens computed in a step, requests that may wait, and how long decoding ones wait.

    `decode_latency` is the time in seconds between two tokens that prompts may cost decoding requests; None is `auto`.
    `kv_settings` are what to raise for more KV memory.
    """

    max_num_seqs: int = _DEFAULTS.max_num_seqs
    max_num_batched_tokens: int = _DEFAULTS.max_num_batched_tokens
    max_num_waiting: int = _DEFAULTS.max_num_waiting
    decode_latency: float | None = None
    kv_settings: tuple[str, ...] = ("engine.memory",)

    @property
    def most_running(self) -> int:
        """Sequences of a step: each takes a token of the budget at least."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class ThinkingLimits:
    """Tokens of reasoning before an answer, by effort and where a request says nothing; None is no bound.

    `message` is what a model thinks last when they are spent.
    """

    num_tokens: int | None = None
    by_effort: Mapping[str, int] = field(default_factory=dict[str, int])
    message: str = ""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the native engine runs a model: on which of `runners`, and with which options for them.

    `max_model_len` shortens the model's own context, in tokens; `kv_tokens` bounds KV memory, as `runner.kv_bytes`
    does. `session_scope` says which conversations continue their token logs: all, those with a name, or none.
    `normalizes_prompts` takes known volatile spans out of system prompts; `takes_hints` lets the fleet say what is
    worth keeping. `dialect` is how models write calls and reasoning: by name, `none`, or as their chat templates
    show (`auto`), looking first among the plugins' `dialects`; `thinking` bounds their reasoning. Of an answer the
    text of `stream_interval` tokens goes out together. `tokenizer` says how vocabularies and chat templates are
    found; `trusts_request_templates` lets requests bring their own. `grammar_backends` compile structured output,
    `logits` says which logits processors there are. `kv_connector` moves KV from and to other engines; without one,
    a node of a cluster may bring its own where `takes_kv_connector`. With `drafts`, steps verify proposed tokens.
    `adapters` are paths by names, `MODEL:NAME` for those of one model.
    """

    runner: RunnerOptions = field(default_factory=RunnerOptions)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    max_model_len: int | None = None
    kv_tokens: int | None = None
    queues: Callable[[], RequestQueues] = lambda: make_queues({})
    async_scheduling: AsyncScheduling = "auto"
    session_scope: SessionScope = "auto"
    normalizes_prompts: bool = True
    takes_hints: bool = True
    dialect: str = "auto"
    dialects: Sequence[Dialect] = ()
    thinking: ThinkingLimits = field(default_factory=ThinkingLimits)
    stream_interval: int = 1
    tokenizer: TokenizerOptions = NO_OPTIONS
    trusts_request_templates: bool = False
    runners: RunnerChoice = field(default_factory=RunnerChoice)
    grammar_backends: Sequence[GrammarBackendFactory] = (GUIDANCE,)
    logits: LogitsOptions = field(default_factory=LogitsOptions)
    kv_connector: KvConnectorFactory | None = None
    takes_kv_connector: bool = True
    drafts: DraftOptions | None = None
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])

    def of_model(self, name: str) -> EngineOptions:
        """Return the options of one model."""
        has_mtp = self.drafts is not None and self.drafts.has_mtp(name)
        return replace(self, tokenizer=self.tokenizer.of_model(name), runner=replace(self.runner, mtp=has_mtp))

    def counting(self, progress: LoadProgress) -> EngineOptions:
        """Return the options of a model whose load is counted."""
        return replace(self, runner=replace(self.runner, progress=progress))

    def with_head(self, head: Path | None) -> EngineOptions:
        """Return the options of a model whose pages have room for the head in a folder, or for none."""
        return replace(self, runner=replace(self.runner, head=head))

    @property
    def largest_step(self) -> LargestStep:
        """Bounds of every step of a model."""
        running, most_tokens = self.limits.most_running, self.limits.max_num_batched_tokens
        most_outputs = running if self.drafts is None else self.drafts.most_rows(running, most_tokens)
        return LargestStep(most_tokens, most_outputs, self.max_model_len)

    def runner_for(self, path: Path) -> tuple[RunnerFactory, ModelNeeds]:
        """Return the runner that a model gets, and what the model will take there.

        Raises `ConfigError` when no runner is available, `ModelError` or `PluginError` when none can run the model.
        """
        return self.runners.runner_for(path, self.runner, self.largest_step)
