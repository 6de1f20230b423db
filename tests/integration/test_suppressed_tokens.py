"""Tokens that a model's files say it is not to write, as Gemma 4 12B's do of those that stand for pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.folder_tokenizer import NUM_TOKENS, write_model_folder
from support.native import chat, run, running
from support.tiny_model import write_tiny_model

from pyagent.core.backends import collect
from pyagent.infrastructure.engine.tokens import ModelTokenizer


def suppressing(kind: str, place: Path, tokens: list[object]) -> Path:
    """A small model that is not to write some tokens: a GGUF file, or a folder."""
    if kind == "gguf":
        return write_tiny_model(place / "m.gguf", tokenizer__ggml__suppress_tokens=tokens or None)
    folder = write_model_folder(place / "folder")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "suppress_tokens": tokens}))
    return folder


async def written(path: Path, **sampling: object) -> list[str]:
    """The tokens of a greedy answer."""
    async with running(path) as backend:
        greedy: dict[str, object] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "top_logprobs": 0}
        answer = await collect(backend.chat(chat("the user is at", **(greedy | sampling))))
        return [one.token for delta in answer.deltas for one in delta.logprobs]


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_a_model_does_not_write_what_its_files_suppress(kind: str, tmp_path: Path) -> None:
    """Not what it would write first; where a request has a bias of its own for the token, that holds."""

    async def work() -> None:
        path = suppressing(kind, tmp_path, [])
        free = await written(path)
        tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS + 3)
        ids: list[object] = [token for token in range(NUM_TOKENS) if tokenizer.token_text(token) == free[0]]
        assert ids
        beside: list[object] = [] if kind == "gguf" else [-1, "no token", 10**9, None]
        path = suppressing(kind, tmp_path, [*ids, *beside])
        held = await written(path)
        assert held[0] != free[0]
        assert free[0] not in held
        assert await written(path, logit_bias=dict.fromkeys(ids, 0.0)) == free

    run(work())
