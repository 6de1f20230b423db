"""Small random mixtures of experts of the families that the torch runner has, by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.laid_out_folders import in_mxfp4
from support.sparse_models import CONFIGS, mxfp4_blocks, random_model, tensors_of, write_as_gguf

_WIDE = {key: value for key, value in CONFIGS["qwen2_moe"].items() if not key.startswith("shared")}
_PLAIN = {key: value for key, value in CONFIGS["seed_oss"].items() if key != "head_dim"}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_WIDE, "norm_topk_prob": True},
    "mixtral": {**CONFIGS["seed_oss"], "num_local_experts": 5, "num_experts_per_tok": 2},
    "olmoe": {**_PLAIN, "num_key_value_heads": 4, "num_experts": 12, "num_experts_per_tok": 3},
    "qwen2_moe, dense layers": CONFIGS["qwen2_moe, dense layers"],
}
MORE = ("glm4_moe", "ernie4_5_moe", "granitemoeshared", "granitemoe", "dots1", "minimax_m2", "solar_open", "gpt_oss")
MORE += ("afmoe", "hunyuan_v1_moe", "exaone_moe", "mellum")
FAMILIES |= {name: CONFIGS[name] for name in MORE}
_FOUR = {"afmoe", "exaone_moe", "mellum"}
"""Whose fourth layer is unlike the others."""
SLOW = {"granitemoe", "dots1", "minimax_m2", "solar_open", "exaone_moe", "mellum"}
"""Compared where there is time: what they have of their own, the others have too."""


def random_mixture(family: str, folder: Path) -> Any:
    """Write a model of three layers, or four; return transformers'."""
    return random_model(family, folder, FAMILIES[family] | {"num_hidden_layers": 4 if family in _FOUR else 3})


def write_gpt_oss(folder: Path) -> tuple[Path, Path, Any]:
    """Write gpt-oss with experts in MXFP4, as a folder and a GGUF file; return transformers' with those weights too."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = random_model("gpt_oss", folder)
    gguf = write_as_gguf(folder.parent / f"{folder.name}.gguf", "gpt_oss", tensors_of(folder), mxfp4_blocks)
    in_mxfp4(folder)
    state, tensors = model.state_dict(), tensors_of(folder)
    with torch.no_grad():
        for name in [name for name in state if f"{name}_blocks" in tensors]:
            packed = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
            state[name].copy_(convert_moe_packed_tensors(*packed, dtype=torch.float32))
    return folder, gguf, model
