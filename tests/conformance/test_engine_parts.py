"""What the engine is made of does what every implementer of its hook must: the built-in parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.chat_templates import byte_level_tokenizer
from support.suites import add_suites
from support.tiny_model import write_tiny_model
from support.vocabulary_files import CONTROLS, RANKS, sentencepiece_model, write_ranks, write_tekken

from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Plugins
from pyagent.infrastructure.engine.tokens.loading import READERS
from pyagent.testing import (
    GrammarBackendConformance,
    QueuePolicyConformance,
    TokenizerConformance,
)

HOST = PluginHost.discover(Plugins())
GRAMMARS = {name: one for name, one in HOST.grammar_backends().items() if one.unavailable_reason() is None}
add_suites(QueuePolicyConformance, HOST.queue_policies())
add_suites(GrammarBackendConformance, {name: (lambda one=one: one) for name, one in GRAMMARS.items()})


class Written(TokenizerConformance):
    """A vocabulary that is written for each test."""

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = WRITERS[self.make().name](tmp_path)

    def model(self) -> Path:
        return self.path


def _gguf(folder: Path) -> Path:
    return write_tiny_model(folder / "tiny.gguf")


def _huggingface(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text(byte_level_tokenizer("").tokenizer.inner.to_str(), encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": 1}')
    return folder


def _tekken(folder: Path) -> Path:
    write_tekken(folder)
    return folder


def _tiktoken(folder: Path) -> Path:
    write_ranks(folder / "gpt2.tiktoken")
    added = {str(len(RANKS) + place): {"content": text, "special": True} for place, text in enumerate(CONTROLS)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return folder


def _sentencepiece(folder: Path) -> Path:
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    return folder


WRITERS = {
    "gguf": _gguf,
    "huggingface": _huggingface,
    "tekken": _tekken,
    "tiktoken": _tiktoken,
    "sentencepiece": _sentencepiece,
}
add_suites(Written, {one.name: (lambda one=one: one) for one in READERS})
del Written
