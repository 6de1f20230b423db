"""Heads of Medusa against the paper's formula in float64, on transformers' models."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.converted_models import random_family
from support.hybrid_reference import expect_near
from support.medusa_reference import FORMS, MedusaHeads

from pyagent import _rust

pytestmark = pytest.mark.oracle

NUM_POSITIONS = 200


@pytest.mark.parametrize("name", FORMS)
def test_heads_agree_with_the_paper(name: str, tmp_path: Path) -> None:
    """All heads after 80 positions and more, as a text is computed in chunks and then token by token.

    Of the file that torch saved and of safetensors, with a bias and without, of all tokens and of some, and behind a
    model whose last norm adds one to its weights.
    """
    form = FORMS[name]
    heads = MedusaHeads(random_family(form.family, tmp_path / "model"), form)
    draw = random.Random(1)
    tokens = [draw.randrange(3, heads.vocab_size) for _ in range(NUM_POSITIONS)]
    expected = heads.compute(tokens).numpy()
    model = _rust.CpuModel.load(tmp_path / "model", threads=2, kv_bytes=1 << 24, kv_type="f32")
    model.attach_drafter(heads.save(tmp_path / "heads"))
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(1, tokens)
    start, ends, found = 0, [], []
    while start < NUM_POSITIONS - 1:
        chunk = tokens[start : start + (draw.choice([1, 17, 33]) if start < 90 else 1)]
        start += len(chunk)
        pool.reserve(1, start)
        _, _, errors, *_ = model.execute(pool, [1], [len(chunk)], chunk, [_rust.SamplerState(temperature=0.0)], [0])
        assert not errors
        ends.append(start - 1)
        token, before, logits = tokens[0], None, []
        for head in range(form.num_heads):
            (likeliest,), errors = model.draft(pool, [1], [token], [head], [before])
            assert not errors
            assert likeliest is not None
            token, before = likeliest[0], 0
            logits.append(np.frombuffer(model.logits(), dtype="<f4").copy())
            assert token == heads.tokens[logits[-1].argmax()]
        found.append(np.stack(logits))
    assert len(ends) > 80
    for head in range(form.num_heads):
        expect_near(np.stack([one[head] for one in found]), expected[ends, head])
