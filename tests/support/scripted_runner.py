"""A runner of a plugin whose model answers a prompt with what a script makes of it; all around it is the real engine.

The script sees the prompt's text as the model's own template and tokenizer made it, and returns the answer with its
tags. Each step's logits prefer the script's next token; the engine's samplers and grammars choose.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyagent.assembly import make_chain
from pyagent.core.chain.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine import plugin as engine
from pyagent.infrastructure.engine.scheduler import policies
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.api_keys import ApiKey
from pyagent.infrastructure.server.app import create_app
from pyagent.plugin import (
    Batch,
    KvReservation,
    LargestStep,
    ModelNeeds,
    ModelRunner,
    PagedRunner,
    RunnerFactory,
    RunnerInfo,
    RunnerOptions,
    StepOutput,
    describe_model,
    hookimpl,
)
from pyagent.testing import serve

Script = Callable[[str], str]
NUM_PAGES = 1 << 15


@dataclass
class Answer:
    """What the script has for one sequence, from the place where its prompt ends."""

    num_prompt: int
    tokens: list[int]

    def next(self, sampled: Sequence[int], end_id: int) -> int:
        """Return the script's next token; what a grammar chose instead is passed over."""
        place = 0
        for token in sampled:
            place += place < len(self.tokens) and self.tokens[place] == token
        return self.tokens[place] if place < len(self.tokens) else end_id


@dataclass
class Scripted:
    """Brings the runner `scripted`. `prompts` are those answered, in their order."""

    script: Script
    name: str = "scripted"
    prompts: list[str] = field(default_factory=list[str])

    @hookimpl
    def pyagent_register_runners(self) -> Sequence[RunnerFactory]:
        return [self]

    def unavailable_reason(self) -> str | None:
        return None

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        model = describe_model(path)
        return ModelNeeds(model.vocab_size, model.context_length, weight_bytes=0, workspace_bytes=0, page_bytes=0)

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        needs = self.estimate(path, options, step)
        info = RunnerInfo("scripted", needs.vocab_size, needs.context_length, 0, num_pages=NUM_PAGES, page_bytes=0)
        return _ScriptedRunner(self, ModelTokenizer.load(path, vocab_size=needs.vocab_size), info, options)

    def answer(self, tokenizer: ModelTokenizer, tokens: list[int]) -> Answer:
        prompt = tokenizer.shown(tokens)
        self.prompts.append(prompt)
        return Answer(len(tokens), tokenizer.encode_continuation(self.script(prompt)))


class _ScriptedRunner(PagedRunner):
    def __init__(self, scripted: Scripted, tokenizer: ModelTokenizer, info: RunnerInfo, options: RunnerOptions) -> None:
        super().__init__(info, options)
        self._scripted = scripted
        self._tokenizer = tokenizer
        self._answers: dict[int, Answer] = {}

    def execute(self, batch: Batch) -> StepOutput:
        logits = array("f", bytes(4 * self.vocab_size * len(batch.samplers)))
        start = 0
        for row in range(len(batch.samplers)):
            end = start + batch.lengths[row]
            token = self._next(batch.sequence_ids[row], batch.tokens[start:end])
            logits[row * self.vocab_size + token] = 100.0
            start = end
        return self.finish_step(batch, logits)

    def _next(self, sequence_id: int, new: list[int]) -> int:
        tokens = [*self.pool.tokens(sequence_id), *new]
        answer = self._answers.get(sequence_id)
        if answer is None:
            answer = self._answers[sequence_id] = self._scripted.answer(self._tokenizer, tokens)
        return answer.next(tokens[answer.num_prompt :], min(self._tokenizer.end_ids))


@contextmanager
def scripted_server(
    scripted: Scripted, *models: Path, api_keys: Sequence[ApiKey] = (), **settings: object
) -> Iterator[str]:
    """The URL of a server whose embedded engine runs these models as scripted; a model is called by its path."""
    chosen: dict[str, object] = {"engine.models": [*map(str, models)], "engine.runner": scripted.name}
    chain = scripted_chain(scripted, load_settings(overrides=chosen | settings).settings)
    with serve(create_app(chain, api_keys=api_keys)) as url:
        yield url


def scripted_chain(scripted: Scripted, settings: Settings) -> Chain:
    """The chain of the embedded engine with the plugin; also where PyAgent is on the path, and not installed."""
    host = PluginHost()
    for name, plugin in {scripted.name: scripted, "native": engine, "queues": policies}.items():
        host.register(plugin, name)
    return make_chain(settings, host, ["native"])
