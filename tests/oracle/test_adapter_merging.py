"""Merged adapters against peft's `merge_and_unload`, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from oracle.test_adapters import ALL, ATTENTION, CASES, adapted, load, model_of, our_logits

from pyagent import _rust
from pyagent.infrastructure.models.merging import merge_adapters

pytestmark = [
    pytest.mark.oracle,
    # of transformers, which peft asks for what it renames
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


def merged(folder: Path, *names: str) -> Path:
    """What is written of the model in a folder with adapters in it."""
    out = folder / "-".join(("merged", *names))
    adapters = [folder / name for name in names]
    merge_adapters(folder / "model", adapters, out, threads=2, progress=lambda done, total: None)
    return out


def tensors_in(folder: Path) -> dict[str, Any]:
    """All tensors of a folder's safetensors files."""
    from safetensors.torch import load_file

    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def by_peft(model: Any, out: Path, *adapters: Path) -> dict[str, Any]:
    """What peft writes of a model with adapters merged."""
    from peft import PeftModel

    with_adapters = PeftModel.from_pretrained(model, adapters[0], adapter_name=adapters[0].name)
    for path in adapters[1:]:
        with_adapters.load_adapter(path, adapter_name=path.name)
    names = [path.name for path in adapters]
    with_adapters.merge_and_unload(adapter_names=names).save_pretrained(out)
    return tensors_in(out)


@pytest.mark.parametrize("case", CASES)
def test_a_merged_model_has_the_weights_of_peft_and_the_logits_of_the_adapter(case: str, tmp_path: Path) -> None:
    """Each weight is within 1e-6 of peft's largest; each logit within 1e-4 of the engine's with the adapter."""
    import numpy as np

    family, config = CASES[case]
    base = model_of(family, tmp_path / "model")
    base, _ = adapted(base, tmp_path / "adapter", 3, **config)
    out = merged(tmp_path, "adapter")
    expected, got = by_peft(base, tmp_path / "peft", tmp_path / "adapter"), tensors_in(out)
    assert got.keys() == expected.keys()
    before = tensors_in(tmp_path / "model")
    assert any(not before[name].equal(got[name]) for name in got)
    for name, values in expected.items():
        assert (got[name] - values).abs().max() <= 1e-6 * max(1.0, values.abs().max().item()), name
    model = load(tmp_path / "model")
    _rust.AdapterFile.open(model, tmp_path / "adapter").load(model, 5)
    assert np.abs(our_logits(model, [5]) - our_logits(load(out), [0])).max() < 1e-4


def test_several_adapters_are_merged_as_by_peft(tmp_path: Path) -> None:
    """Two of other ranks, scales and matrices; the logits are those of the engine with both named."""
    import numpy as np

    base = model_of("llama", tmp_path / "model")
    base, _ = adapted(base, tmp_path / "first", 3, r=8, lora_alpha=12, target_modules=ALL)
    base, _ = adapted(base, tmp_path / "second", 4, r=3, lora_alpha=5, use_rslora=True, target_modules=[*ATTENTION])
    out = merged(tmp_path, "first", "second")
    expected = by_peft(base, tmp_path / "peft", tmp_path / "first", tmp_path / "second")
    for name, values in tensors_in(out).items():
        assert (values - expected[name]).abs().max() <= 2e-6, name
    model = load(tmp_path / "model")
    _rust.AdapterFile.open(model, tmp_path / "first", tmp_path / "second").load(model, 5)
    assert np.abs(our_logits(model, [5]) - our_logits(load(out), [0])).max() < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_rounded_once(dtype: str, tmp_path: Path) -> None:
    """In several files: each number is the nearest to the sum in float64, peft's is at most one more rounding away."""
    import torch

    base = model_of("llama", tmp_path / "wide").to(getattr(torch, dtype))
    base.save_pretrained(tmp_path / "model", max_shard_size="60KB")
    assert len([*(tmp_path / "model").glob("*.safetensors")]) > 2
    base, _ = adapted(base, tmp_path / "adapter", 3, r=8, lora_alpha=12, target_modules=ALL)
    out, before = merged(tmp_path, "adapter"), tensors_in(tmp_path / "model")
    expected, got = by_peft(base, tmp_path / "peft", tmp_path / "adapter"), tensors_in(out)
    factors = tensors_in(tmp_path / "adapter")
    bits = {"bfloat16": 8, "float16": 11}[dtype]
    index = "model.safetensors.index.json"
    assert (out / index).read_bytes() == (tmp_path / "model" / index).read_bytes()
    for name, values in got.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" not in factors:
            assert values.equal(before[name])
            continue
        down, up = (factors[f"{module}.lora_{role}.weight"].double() for role in "AB")
        exact = before[name].double() + 12 / 8 * (up @ down)
        half = exact.abs() * 2.0**-bits * 1.001 + 1e-6
        assert values.dtype == before[name].dtype
        assert ((values.double() - exact).abs() <= half).all(), name
        assert ((values.double() - expected[name].double()).abs() <= 4 * half).all(), name


def test_experts_that_steps_cannot_adapt_are_merged(tmp_path: Path) -> None:
    """Matrices are found by their names: an expert's, which the engine refuses to add to, is merged as W + s B A."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(2)
    (tmp_path / "model").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    weight, down, up = torch.randn(48, 32), torch.randn(4, 32), torch.randn(48, 4)
    module = "model.layers.0.mlp.experts.3.up_proj"
    save_file({f"{module}.weight": weight}, tmp_path / "model/model.safetensors")
    factors = {f"base_model.model.{module}.lora_A.weight": down, f"base_model.model.{module}.lora_B.weight": up}
    save_file(factors, tmp_path / "adapter/adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 4, "lora_alpha": 2}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(told))
    got = tensors_in(merged(tmp_path, "adapter"))[f"{module}.weight"]
    assert (got - (weight + 0.5 * (up @ down))).abs().max() < 2e-6
