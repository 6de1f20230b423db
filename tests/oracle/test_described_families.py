"""Families that plugins describe, and score functions of theirs, on the CPU runner against transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.described_folders import EXAONE, Exaone, write_as_exaone
from support.logit_sequences import TOKENS, Sequences, expect_same, reference_logits
from support.torch_logits import compute, runner_of

from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import BroughtArchitecture

pytestmark = pytest.mark.oracle

HEADS = 4


def write_llama(folder: Path) -> Any:
    """Write a random Llama by transformers, attention sharp; returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    config = LlamaConfig(
        vocab_size=250,
        num_hidden_layers=3,
        max_position_embeddings=512,
        rope_parameters=rope,
        rms_norm_eps=1e-4,
        **shape,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.add_(torch.randn_like(values) * (0.1 if "norm" in name else 0.15))
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The model, and its folder as EXAONE's."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "llama").mkdir()
    return write_llama(folder / "llama"), write_as_exaone(folder / "llama", folder / "exaone")


def scored(functions: list[Any]) -> dict[str, BroughtArchitecture]:
    """EXAONE's description, with functions of its layers."""
    describe: Callable[[Any], Any] = lambda config: replace(Exaone().describe(config), score_functions=functions)  # noqa: E731
    return {"exaone": BroughtArchitecture(SimpleNamespace(name="exaone", describe=describe), "mine")}


def test_renamed_family_is_transformers(llama: tuple[Any, Path]) -> None:
    """EXAONE's folder by the example's description: as `expect_same`."""
    model, folder = llama
    expect_same(folder, reference_logits(model), EXAONE)


def t5_buckets(head: Any, distance: Any) -> Any:
    """As T5's: exact up to 8, then by logarithm, the last for all farther; made-up numbers for each head and bucket."""
    import numpy as np

    far = 8 + (np.log(np.maximum(distance, 8) / 8) / np.log(16) * 8).astype(int)
    return np.sin(1.7 * np.where(distance < 8, distance, np.minimum(far, 15)) + head)


def dilated(head: Any, distance: Any) -> Any:
    """Every `head + 1`-th key."""
    import numpy as np

    return np.where(distance % (head + 1) == 0, 0.0, -np.inf)


def near(head: Any, distance: Any) -> Any:
    """A window of each head's own."""
    import numpy as np

    return np.where(distance < 7 + 40 * head, 0.0, -np.inf)


def alibi(head: Any, distance: Any) -> Any:
    return -(2.0 ** (-8 * (head + 1) / len(head))) * distance


def decay(head: Any, distance: Any) -> Any:
    """The same of all heads: broadcast."""
    import numpy as np

    return -np.log1p(distance.astype(float))


@pytest.mark.parametrize("functions", [[t5_buckets, dilated, None], [alibi, decay, near]])
def test_functions_of_layers_are_masks_of_transformers(functions: list[Any], llama: tuple[Any, Path]) -> None:
    """Buckets, masks, a decay, ALiBi beside rotary positions, each in a layer of its own: as `expect_same`."""
    import numpy as np
    import torch

    model, folder = llama
    places = np.arange(len(TOKENS))
    distance = places[:, None] - places

    def mask(function: Any) -> torch.Tensor:
        heads = np.arange(HEADS)[:, None]
        table = np.zeros((HEADS, len(TOKENS))) if function is None else function(heads, places[None])
        table = np.broadcast_to(table, (HEADS, len(TOKENS)))
        seen = np.where(distance < 0, -np.inf, table[:, np.maximum(distance, 0)])
        return torch.tensor(seen[None], dtype=torch.float32)

    def add(function: Any) -> Callable[..., Any]:
        masked = mask(function)
        return lambda module, told, named: (told, {**named, "attention_mask": masked})

    layers = zip(model.model.layers, functions, strict=True)
    hooks = [layer.self_attn.register_forward_pre_hook(add(one), with_kwargs=True) for layer, one in layers]
    expected = reference_logits(model)
    for hook in hooks:
        hook.remove()
    assert np.abs(expected - reference_logits(model)).max() > 1
    expect_same(folder, expected, scored(functions))


def test_torch_runner_reads_the_same_description(llama: tuple[Any, Path]) -> None:
    """It computes the described family's logits; score functions it takes from `shape` alone."""
    import numpy as np

    model, folder = llama
    expected = reference_logits(model)
    lengths = [1, 2, 17, 50]
    rows = compute(runner_of(folder, EXAONE), *((length, TOKENS[:length]) for length in lengths))
    assert np.abs(rows - expected[np.array(lengths) - 1]).max() < 1e-4
    with pytest.raises(ModelError, match="takes score functions from an architecture's `shape` alone"):
        runner_of(folder, scored([decay, None, None]))


@pytest.mark.parametrize("form", ["gptq-order", "awq", "packed", "packed-zeros", "fp8-block", "nvfp4"])
def test_quantised_checkpoint_is_read_by_the_same_names(form: str, tmp_path: Path) -> None:
    """Packed matrices, scales and zero points are renamed with their matrix: the family's logits, bit for bit."""
    import numpy as np
    from support.quantised_folder import write_quantised

    llama = write_quantised(tmp_path, form).path
    folder = write_as_exaone(llama, tmp_path / "exaone")
    tokens = [token % 90 for token in TOKENS[:30]]
    plain, ours = (Sequences(path, EXAONE).logits((0, tokens)) for path in (llama, folder))
    assert np.array_equal(ours, plain)
