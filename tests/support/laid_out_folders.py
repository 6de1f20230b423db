"""Folders of families whose GGUF files have other tensors, with tokenizers that GGUF can say."""
# pyright: basic

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.converted_models import FAMILIES, write_tokenizer

LAID_OUT = (
    *("qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma4, 31B", "gemma4, E2B", "gemma4, 26B-A4B", "gpt_oss"),
    *("lfm2", "lfm2_moe", "glm4_moe", "glm4_moe_lite", "deepseek_v2", "deepseek_v3"),
    *("granitemoehybrid", "granitemoehybrid, attention", "granitemoehybrid, dense"),
    *("nemotron_h", "nemotron_h, experts"),
)
"""Of `FAMILIES`, what it calls them."""
_BYTES, _MERGED = "gpt-2", "gemma4"


def with_words(name: str, folder: Path) -> str:
    """Give a family's folder a tokenizer; return what GGUF files call its way to cut words."""
    if FAMILIES[name].words == _MERGED:
        return _MERGED
    (folder / "tokenizer.model").unlink(missing_ok=True)
    write_tokenizer(folder, _BYTES)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "GPT2Tokenizer"}))
    return _BYTES


def in_mxfp4(folder: Path) -> None:
    """Write the experts of a folder of gpt-oss in MXFP4, as it is published."""
    from safetensors.torch import load_file, save_file
    from support.sparse_models import as_openai_wrote_it, mxfp4_blocks

    path = folder / "model.safetensors"
    stored: dict[str, Any] = load_file(path)
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        matrices = stored.pop(name).transpose(1, 2).contiguous()
        _, rows, columns = matrices.shape
        blocks, scales = as_openai_wrote_it(mxfp4_blocks(matrices), rows, columns)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, path)
    about = json.loads((folder / "config.json").read_text())
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    about["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    (folder / "config.json").write_text(json.dumps(about))
