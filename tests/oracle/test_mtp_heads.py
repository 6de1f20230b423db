"""Heads that draft further tokens against transformers' layer for them, in float64."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hybrid_conversion import write_hybrid_as_gguf
from support.hybrid_reference import Runner, expect_near, reference_model
from support.mtp_reference import Head
from support.sparse_models import random_model, tensors_of, write_as_gguf

from pyagent import _rust

pytestmark = pytest.mark.oracle

NUM_POSITIONS = 200
FILE = "model.safetensors"


class Drafting(Runner):
    """A model whose head is asked after every step."""

    def draft(self, sequence: int, tokens: list[int], before: int | None = None) -> tuple[int, Any]:
        """Return the head's likeliest token after `tokens`, of which all but the first are drafts, and its logits."""
        known = self.pool.num_tokens(sequence)
        self.pool.reserve(sequence, known + len(tokens))
        ((token, _),), errors = self.model.draft(self.pool, [sequence], tokens[-1:], [len(tokens) - 1], [before])
        assert not errors
        return token, np.frombuffer(self.model.logits(), dtype="<f4").copy()


def drafted(runner: Drafting, tokens: list[int]) -> list[Any]:
    """Return a head's logits by position, as a text is computed in chunks and then token by token."""
    draw, start, logits = random.Random(1), 0, []
    while start < len(tokens) - 1:
        count = draw.choice([1, 17, 33]) if start < 120 else 1
        chunk = tokens[start : start + count][: len(tokens) - 1 - start]
        runner.step((1, chunk))
        start += len(chunk)
        logits.append((start, runner.draft(1, [tokens[start]])[1]))
    return logits


def headed(family: str, folder: Path) -> Head:
    """Write a family's model with a head; return it."""
    head = Head(reference_model(family) if family.startswith("qwen") else random_model(family, folder))
    head.save(folder)
    return head


@pytest.mark.parametrize(
    "family",
    ["qwen3_5", "qwen3_next", "glm4_moe", "deepseek_v3", pytest.param("glm4_moe_lite", marks=pytest.mark.slow)],
)
def test_heads_agree_with_transformers(family: str, tmp_path: Path) -> None:
    """The first draft after each of 200 positions, and of some positions three, each after the head's own last one."""
    import torch

    head = headed(family, tmp_path)
    draw = random.Random(1)
    tokens = [draw.randrange(250) for _ in range(NUM_POSITIONS)]
    outputs = head.outputs(tokens)
    _, expected = head.compute(tokens[1:], outputs[:-1])
    runner = Drafting(tmp_path)
    found = drafted(runner, tokens)
    assert len(found) > 60
    expect_near(np.stack([logits for _, logits in found]), expected[[place - 1 for place, _ in found]].numpy())
    runner.pool.release(1)
    runner.pool.clear_index()
    known = NUM_POSITIONS - 9
    runner.step((2, tokens[:known]))
    for place in range(known, NUM_POSITIONS - 1):
        log, before = tokens[1 : place + 1], outputs[:place]
        for length in range(1, 4):
            chained, expected = head.compute(log, before)
            token, logits = runner.draft(2, log[place - 1 :], None if length == 1 else 0)
            expect_near(logits[None], expected[-1:].numpy())
            assert token == logits.argmax()
            log, before = [*log, token], torch.cat([before, chained[-1:]])
        runner.step((2, [tokens[place]]))


@pytest.mark.parametrize("lost", ["eh_proj.weight", "shared_head.norm.weight", "mlp.experts.3.up_proj.weight"])
def test_a_folder_with_a_part_of_a_head_is_refused_by_name(lost: str, tmp_path: Path) -> None:
    """And one from which the whole head was taken has none, whatever `config.json` says."""
    from safetensors.torch import save_file

    headed("glm4_moe", tmp_path)
    tensors = tensors_of(tmp_path)
    save_file({name: one for name, one in tensors.items() if name != f"model.layers.4.{lost}"}, tmp_path / FILE)
    with pytest.raises(_rust.ModelFileError, match=f"model.layers.4.{lost}"):
        Drafting(tmp_path)
    save_file({name: one for name, one in tensors.items() if ".layers.4." not in name}, tmp_path / FILE)
    assert not Drafting(tmp_path).model.info()["has_mtp"]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_gguf_files_under_the_names_of_llama_cpp_have_the_same_head(family: str, tmp_path: Path) -> None:
    """The head as llama.cpp's converter arranges it: a block behind the others, norms with the 1 that they lack."""
    head = Head(reference_model(family))
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    path = write_hybrid_as_gguf(tmp_path / "model.gguf", head.float_model, head.written)
    _, expected = head.compute(tokens[1:], head.outputs(tokens)[:-1])
    found = drafted(Drafting(path), tokens)
    expect_near(np.stack([logits for _, logits in found]), expected[[place - 1 for place, _ in found]].numpy())


@pytest.mark.parametrize("family", ["glm4_moe", "glm4_moe_lite"])
def test_gguf_files_of_sparse_families_have_the_same_head(family: str, tmp_path: Path) -> None:
    """With grouped experts, and with latent attention whose matrices are apart."""
    head = headed(family, tmp_path)
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    path = write_as_gguf(tmp_path / "model.gguf", family, tensors_of(tmp_path))
    _, expected = head.compute(tokens[1:], head.outputs(tokens)[:-1])
    found = drafted(Drafting(path), tokens)
    expect_near(np.stack([logits for _, logits in found]), expected[[place - 1 for place, _ in found]].numpy())
