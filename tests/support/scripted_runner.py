"""A runner of a plugin whose model answers a prompt with what a script makes of it; all around it is the real engine.

The script sees the prompt's text as the model's own template and tokenizer made it, and returns the answer with its
tags. Each step's logits prefer the script's next token; the engine's samplers and grammars choose. Built on the example
of a runner, `examples/pyagent-parrot`.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
    KvReservation,
    LargestStep,
    ModelRunner,
    RunnerFactory,
    RunnerInfo,
    RunnerOptions,
    hookimpl,
)
from pyagent.testing import serve

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/pyagent-parrot/pyagent_parrot.py"))
Parrot: Any = _EXAMPLE["Parrot"]
ParrotRunner: Any = _EXAMPLE["ParrotRunner"]
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
class Scripted(Parrot):
    """Brings the runner `scripted`. `prompts` are those answered, in their order."""

    script: Script
    name: str = "scripted"
    prompts: list[str] = field(default_factory=list[str])

    @hookimpl
    def pyagent_register_runners(self) -> Sequence[RunnerFactory]:
        return [self]

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        info = replace(super().load(path, options, step, kv).info, num_pages=NUM_PAGES)
        return _ScriptedRunner(self, ModelTokenizer.load(path, vocab_size=info.vocab_size), info, options)

    def answer(self, tokenizer: ModelTokenizer, tokens: list[int]) -> Answer:
        prompt = tokenizer.shown(tokens)
        self.prompts.append(prompt)
        return Answer(len(tokens), tokenizer.encode_continuation(self.script(prompt)))


class _ScriptedRunner(ParrotRunner):
    def __init__(self, scripted: Scripted, tokenizer: ModelTokenizer, info: RunnerInfo, options: RunnerOptions) -> None:
        super().__init__(info, options)
        self._scripted = scripted
        self._tokenizer = tokenizer
        self._answers: dict[int, Answer] = {}

    def next_token(self, sequence_id: int, tokens: list[int]) -> int:
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
