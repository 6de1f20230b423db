"""Folders of a family that a plugin describes: EXAONE's, which is a Llama's under other names."""

from __future__ import annotations

import json
import re
import runpy
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyagent.core.runners.architecture import BroughtArchitecture

EXAMPLE = Path(__file__).parents[2] / "examples/pyagent-exaone/pyagent_exaone.py"
_example = runpy.run_path(str(EXAMPLE))
Exaone: Any = _example["Exaone"]
TENSORS: dict[str, str] = _example["TENSORS"]
EXAONE = {"exaone": BroughtArchitecture(Exaone(), "exaone")}

_NAMES = {
    r"model\.embed_tokens": "transformer.wte",
    r"model\.norm": "transformer.ln_f",
    r"model\.layers\.(\d+)\.input_layernorm": r"transformer.h.\1.ln_1",
    r"model\.layers\.(\d+)\.post_attention_layernorm": r"transformer.h.\1.ln_2",
    r"model\.layers\.(\d+)\.self_attn\.o_proj": r"transformer.h.\1.attn.attention.out_proj",
    r"model\.layers\.(\d+)\.self_attn": r"transformer.h.\1.attn.attention",
    r"model\.layers\.(\d+)\.mlp\.gate_proj": r"transformer.h.\1.mlp.c_fc_0",
    r"model\.layers\.(\d+)\.mlp\.up_proj": r"transformer.h.\1.mlp.c_fc_1",
    r"model\.layers\.(\d+)\.mlp\.down_proj": r"transformer.h.\1.mlp.c_proj",
}
_FIELDS = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_OF_LLAMA = {"attention_bias", "mlp_bias"}


def write_as_exaone(llama: Path, folder: Path) -> Path:
    """Write a Llama's folder once more, as EXAONE's has it; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((llama / "config.json").read_text())
    fields = {_FIELDS.get(name, name): value for name, value in config.items() if name not in _OF_LLAMA}
    (folder / "config.json").write_text(json.dumps(fields | {"model_type": "exaone"}))
    rename_tensors(llama / "model.safetensors", folder / "model.safetensors", _exaone_name)
    for file in llama.glob("tokenizer*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def _exaone_name(name: str) -> str:
    for pattern, own in _NAMES.items():
        name, count = re.subn(f"^{pattern}", own, name)
        if count:
            break
    return name


def rename_tensors(source: Path, target: Path, name_of: Any) -> None:
    """Copy a safetensors file, each tensor under the name that it is given."""
    data = source.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    text = json.dumps({name_of(name): about for name, about in header.items()}).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def changed(config: Path, **changes: Any) -> None:
    """Change fields of a `config.json`; None takes one away."""
    fields: Mapping[str, Any] = json.loads(config.read_text()) | changes
    config.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
