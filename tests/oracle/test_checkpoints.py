"""Quantised checkpoints in the CPU runner against transformers on the weights that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sparse_models import CONFIGS, tensors_of

from pyagent import _rust

pytestmark = pytest.mark.oracle

TOKENS = [(7 * place + place * place) % 60 for place in range(48)]
BLOCK = 64
"""Rows and columns of a block: as many as stay FP8, where a matrix is no narrower."""
HALVES = ("gptq-order", "gptq-8", "packed-order", "fp8-block", "nvfp4", "nvfp4-modelopt")
"""Formats that are half precision in memory."""
BYTES = ("fp8-weights", "fp8-tensor", "fp8-row")
"""FP8 that stays FP8 in memory: every bit of a weight, and inputs of 32 bits."""
INTEGERS = ("gptq", "gptq-2", "gptq-row", "awq", "packed", "packed-zeros", "packed-8", "int8-row")
"""Those that are integers, whose inputs have 8 bits (decision 8)."""
FP8_MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "vocab_size": 250,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": CONFIGS["deepseek_v3"],
}


def engine_logits(path: Path) -> Any:
    """The CPU runner's, of each of the tokens."""
    import numpy as np

    model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 22, kv_type="f32")
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(0, TOKENS)
    pool.reserve(0, len(TOKENS))
    model.execute(pool, [0], [len(TOKENS)], TOKENS, num_outputs=[len(TOKENS)])
    return np.frombuffer(model.logits(), dtype="<f4").reshape(len(TOKENS), -1).copy()


def counted_share(path: Path) -> float:
    """What a load counts matrix by matrix, as a part of what it expects."""
    progress = _rust.LoadProgress()
    progress.expect(_rust.describe_model(path)["weight_bytes"])
    _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, progress=progress)
    return progress.bytes_done / progress.bytes_total


def reference_logits(path: Path) -> Any:
    """transformers', of a folder of plain weights."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


@pytest.mark.parametrize("name", [*HALVES, *BYTES, *INTEGERS])
def test_checkpoints_agree_with_transformers_on_their_weights(name: str, tmp_path: Path) -> None:
    """48 positions: to 1e-6 of the spread where weights stay, 1e-3 where inputs do, 2.5e-2 where neither does.

    While it is loaded nearly all of its weights are counted one by one.
    """
    from support.quantised_folder import CPU_FORMATS, write_quantised

    assert {*HALVES, *BYTES, *INTEGERS} == set(CPU_FORMATS)
    model = write_quantised(tmp_path, name)
    assert 0.85 < counted_share(model.path) <= 1
    got, expected = engine_logits(model.path), reference_logits(model.plain_path)
    most = 2.5e-2 if name in INTEGERS else 1e-3 if name in HALVES else 1e-6
    assert float((got - expected).std()) < most * float(expected.std())
    assert (got.argmax(1) == expected.argmax(1)).mean() > 0.9


def blocks_of_fp8(weight: Any) -> tuple[dict[str, Any], Any]:
    """A matrix's numbers and scales of blocks, which are powers of two as DeepSeek-V3.1's are; and its weights."""
    import torch

    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    largest = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).abs().amax((1, 3))
    scales = torch.exp2((largest / 448).log2().ceil())
    whole = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    numbers = (weight / whole).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale_inv": scales}, numbers.float() * whole


def write_fp8(folder: Path, name: str) -> None:
    """Write a random model's FP8 checkpoint, each expert with tensors of its own, and its weights beside it."""
    import torch
    from support.quantised_folder import write_tensors
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(11)
    config = AutoConfig.for_model(name, **FP8_MODELS[name])
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "random")
    about = json.loads((folder / "random/config.json").read_text())
    plain, quantised = {}, {}
    for key, weight in tensors_of(folder / "random").items():
        is_matrix = weight.ndim == 2 and not any(part in key for part in ("embed", "lm_head", "mlp.gate."))
        tensors, plain[key] = blocks_of_fp8(weight * 4) if is_matrix else ({"weight": weight}, weight)
        begin, _, end = key.rpartition(".")
        quantised |= {f"{begin}.{part if is_matrix else end}": tensor for part, tensor in tensors.items()}
    write_tensors(folder / "plain", about, plain)
    scheme = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK], "scale_fmt": "ue8m0"}
    write_tensors(folder / "fp8", about | {"quantization_config": scheme}, quantised)


@pytest.mark.parametrize("name", FP8_MODELS)
def test_experts_in_fp8_agree_with_transformers_to_1e_4(name: str, tmp_path: Path) -> None:
    """Each expert's own tensors, and latent attention's: scales that are powers of two keep every bit of a weight."""
    import numpy as np

    write_fp8(tmp_path, name)
    expected = reference_logits(tmp_path / "plain")
    assert np.abs(engine_logits(tmp_path / "fp8") - expected).max() < 1e-4
    assert expected.std() > 0.1
