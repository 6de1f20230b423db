"""Heads of EAGLE-3 against the paper's layer in float64, on transformers' models."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from oracle.test_mtp_heads import Drafting, drafted
from support.converted_models import random_family
from support.eagle_reference import FORMS, EagleHead
from support.hybrid_reference import expect_near
from support.sparse_models import random_model

pytestmark = pytest.mark.oracle

NUM_POSITIONS = 230


@pytest.mark.parametrize("name", FORMS)
def test_heads_agree_with_the_paper(name: str, tmp_path: Path) -> None:
    """The first draft after each of 100 positions and more, and of some three, each after the head's own last one.

    Of Llama's form by SpecForge, of Qwen 3's by speculators with a width, an embedding and a window of its own, and for
    gpt-oss with the whole vocabulary.
    """
    import torch

    form = FORMS[name]
    make = random_model if form.family == "gpt_oss" else random_family
    head = EagleHead(make(form.family, tmp_path / "model"), form)
    folder = head.save(tmp_path / "head")
    draw = random.Random(1)
    tokens = [draw.randrange(3, head.vocab_size) for _ in range(NUM_POSITIONS)]
    outputs = head.outputs(tokens)
    _, expected = head.compute(tokens[1:], outputs[:-1])
    runner = Drafting(tmp_path / "model", folder)
    found = drafted(runner, tokens)
    assert len(found) > 100
    assert found[0][1].shape == (head.num_drafted,)
    expect_near(np.stack([logits for _, logits in found]), expected[[place - 1 for place, _ in found]].numpy())
    runner.pool.release(1)
    runner.pool.clear_index()
    known = NUM_POSITIONS - 7
    runner.step((2, tokens[:known]))
    for place in range(known, NUM_POSITIONS - 1):
        log, before = tokens[1 : place + 1], outputs[:place]
        for length in range(1, 4):
            chained, expected = head.compute(log, before)
            token, logits = runner.draft(2, log[place - 1 :], None if length == 1 else 0)
            expect_near(logits[None], expected[-1:].numpy())
            assert token == head.tokens[logits.argmax()]
            log, before = [*log, token], torch.cat([before, chained[-1:]])
        runner.step((2, [tokens[place]]))
