"""Folders of families whose GGUF files have other tensors, with tokenizers that GGUF can say."""
# pyright: basic

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.converted_models import FAMILIES, VOCABULARY, write_tokenizer

DESCRIBED = (
    *("ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama4_text", "falcon_h1"),
    *(
        "glm",
        "glm4",
        "cohere",
        "cohere2",
        "starcoder2",
        "gemma",
        "arcee",
        "internlm3",
        "granitemoe",
        "granitemoeshared",
    ),
    *("dots1", "minimax_m2", "phi", "stablelm", "stablelm, parallel", "nemotron", "olmo", "gpt_neox", "afmoe"),
    *("exaone_moe", "solar_open", "mistral4", "minicpm3", "mellum", "youtu", "jais2", "iquestcoder", "hy_v3"),
)
LAID_OUT = (
    *("qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma4, 31B", "gemma4, E2B", "gemma4, 26B-A4B", "gpt_oss"),
    *("lfm2", "lfm2_moe", "glm4_moe", "glm4_moe_lite", "deepseek_v2", "deepseek_v3"),
    *("granitemoehybrid", "granitemoehybrid, attention", "granitemoehybrid, dense"),
    *("nemotron_h", "nemotron_h, experts"),
)
"""Of `FAMILIES`, what it calls them."""
SLOW = {
    *("ernie4_5", "cohere2", "gemma", "arcee", "internlm3", "granitemoe", "dots1", "stablelm", "exaone_moe"),
    *("solar_open", "glm", "jais2", "iquestcoder"),
}
"""Read back where there is time: what they have of their own, the others have too."""
_BYTES, _MERGED = "gpt-2", "gemma4"


def with_words(name: str, folder: Path) -> str:
    """Give a family's folder a tokenizer; return what GGUF files call its way to cut words."""
    if FAMILIES[name].words == _MERGED:
        return _MERGED
    return write_bytes(folder)


def write_bytes(folder: Path) -> str:
    """Give a folder a tokenizer of bytes and what they merge to; return what GGUF files call its way to cut words."""
    (folder / "tokenizer.model").unlink(missing_ok=True)
    write_tokenizer(folder, _BYTES)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "GPT2Tokenizer"}))
    return _BYTES


def write_seeing(name: str, folder: Path) -> str:
    """Write a random model that sees, as transformers saves it, with a tokenizer; return what `with_words` does."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    sections = {"qwen2_5_vl": [4, 2, 2], "qwen3_vl": [4, 2, 2]}.get(name)
    shape = FAMILIES[{"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}.get(name, name)].shape
    text = shape | {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    if sections:
        dims = {"head_dim": 2 * sum(sections)} if name == "qwen3_vl" else {}
        rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": sections}
        text |= {"rope_parameters": rope, **dims}
    pictures = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "intermediate_size": 32}
    pictures |= {"out_hidden_size": text["hidden_size"]}
    torch.manual_seed(7)
    config = AutoConfig.for_model(name, text_config=text, vision_config=pictures)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return write_bytes(folder)


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


def add_head(folder: Path) -> None:
    """Add a head that drafts to a folder of GLM: a layer behind the others, with numbers of its last."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    stored: dict[str, Any] = load_file(path)
    about = json.loads((folder / "config.json").read_text())
    num_layers, hidden = about["num_hidden_layers"], about["hidden_size"]
    last, begin = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    stored |= {name.replace(last, begin): one * 0.5 for name, one in stored.items() if name.startswith(last)}
    norm, embedding = stored["model.norm.weight"], stored["model.embed_tokens.weight"]
    stored |= {f"{begin}{name}.weight": norm * 0.7 for name in ("enorm", "hnorm", "shared_head.norm")}
    stored |= {f"{begin}{name}.weight": embedding * 0.6 for name in ("embed_tokens", "shared_head.head")}
    stored[f"{begin}eh_proj.weight"] = embedding[: 2 * hidden].T.contiguous()
    save_file(stored, path)
    (folder / "config.json").write_text(json.dumps(about | {"num_nextn_predict_layers": 1}))
