"""Gemma 4's assistants against transformers' `Gemma4AssistantForCausalLM`, asked by its own candidate generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.assistant_reference import NUM_DRAFTS, Assisted
from support.logit_sequences import TOKENS

from pyagent import _rust

pytestmark = pytest.mark.oracle


class Drafting:
    """A model with an assistant, and a sequence whose steps sample."""

    def __init__(self, folder: Path) -> None:
        self.model = _rust.CpuModel.load(folder / "model", threads=2, kv_bytes=1 << 24, kv_type="f32")
        self.model.attach_drafter(folder / "assistant")
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self.sampler = _rust.SamplerState(temperature=0.0)
        self.pool.add(1, TOKENS)

    def step(self, tokens: list[int]) -> None:
        self.pool.reserve(1, self.pool.num_tokens(1) + len(tokens))
        _, _, errors, *_ = self.model.execute(self.pool, [1], [len(tokens)], tokens, [self.sampler], [0])
        assert not errors

    def draft(self, token: int) -> tuple[list[int], list[Any]]:
        tokens, logits, before = [token], [], None
        for ahead in range(NUM_DRAFTS):
            (likeliest,), errors = self.model.draft(self.pool, [1], tokens[-1:], [ahead], [before])
            assert not errors
            assert likeliest is not None
            tokens.append(likeliest[0])
            logits.append(np.frombuffer(self.model.logits(), dtype="<f4").copy())
            row = logits[-1].astype(np.float64)
            assert abs(likeliest[1] + np.log(np.exp(row - row.max()).sum())) < 1e-4
            before = 0
        return tokens[1:], logits


@pytest.mark.parametrize(
    ("form", "has_clusters", "starts"),
    [
        ("31B", False, [2, 17, *range(24, 40), 300]),
        ("E2B", True, [5, 24, 39, 200]),
        ("26B-A4B", False, [9, 40]),
    ],
)
def test_drafts_agree_with_transformers(form: str, has_clusters: bool, starts: list[int], tmp_path: Path) -> None:
    """Rounds of three drafts before, at and past windows' borders, at all places of a block: logits within 1e-4."""
    reference, drafting = Assisted(form, tmp_path, has_clusters=has_clusters), Drafting(tmp_path)
    tokens, done = [token % 256 for token in TOKENS], 0
    for position in starts:
        drafting.step(tokens[done:position])
        done = position
        expected, expected_logits = reference.draft(tokens[: position + 1])
        found, logits = drafting.draft(tokens[position])
        for ours, theirs in zip(logits, expected_logits, strict=True):
            pair = (np.sort(ours), np.sort(theirs)[-64:]) if has_clusters else (ours, theirs)
            assert np.abs(pair[0] - pair[1]).max() < 1e-4, position
        assert found == expected, position


def test_gemma_4_12bs_assistant_is_called_otherwise(tmp_path: Path) -> None:
    """Its names and its text part's: the same drafts."""
    reference = Assisted("31B", tmp_path)
    path = tmp_path / "assistant" / "config.json"
    config = json.loads(path.read_text())
    config["model_type"] = "gemma4_unified_assistant"
    config["text_config"]["model_type"] = "gemma4_unified_text"
    del config["text_config"]["hidden_size_per_layer_input"]
    path.write_text(json.dumps(config))
    tokens, drafting = [token % 256 for token in TOKENS], Drafting(tmp_path)
    drafting.step(tokens[:30])
    assert drafting.draft(tokens[30])[0] == reference.draft(tokens[:31])[0]
